//! Kernel nodes as CUDA 11 passed them: without a kernel of a library and without a context.

use fermata_abi::sys::driver as sys;
use fermata_graph::{KernelNode, NodeKind};

use super::graph_node::{add, kernel};
use super::graph_params::{kernel_node, kernel_params};
use crate::entry::{Result, array, driver_api, get, put};
use crate::handles::of;
use crate::session::session;

driver_api! {
    fn cuGraphAddKernelNode(
        node: *mut sys::CUgraphNode,
        graph: sys::CUgraph,
        after: *const sys::CUgraphNode,
        count: usize,
        params: *const sys::CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        put(node, add(graph, array(after, count)?, NodeKind::Kernel(node_of(get(params)?)?))?)
    }

    fn cuGraphKernelNodeGetParams(node: sys::CUgraphNode, params: *mut sys::CUDA_KERNEL_NODE_PARAMS_v1) {
        let view = kernel_params(of(node), &kernel(of(node))?)?;
        put(params, sys::CUDA_KERNEL_NODE_PARAMS_v1 {
            func: view.func,
            gridDimX: view.gridDimX,
            gridDimY: view.gridDimY,
            gridDimZ: view.gridDimZ,
            blockDimX: view.blockDimX,
            blockDimY: view.blockDimY,
            blockDimZ: view.blockDimZ,
            sharedMemBytes: view.sharedMemBytes,
            kernelParams: view.kernelParams,
            extra: view.extra,
        })
    }

    fn cuGraphKernelNodeSetParams(
        node: sys::CUgraphNode,
        params: *const sys::CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        let attributes = kernel(of(node))?.attributes;
        let new = KernelNode { attributes, ..node_of(get(params)?)? };
        session()?.graphs.lock().set_kind(of(node), NodeKind::Kernel(new))
    }

    fn cuGraphExecKernelNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: *const sys::CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        let attributes = kernel(of(node))?.attributes;
        let new = KernelNode { attributes, ..node_of(get(params)?)? };
        session()?.graphs.lock().set_exec(exec, of(node), NodeKind::Kernel(new))
    }
}

/// # Safety
/// The parameter lists are as the API demands.
unsafe fn node_of(params: &sys::CUDA_KERNEL_NODE_PARAMS_v1) -> Result<KernelNode> {
    let params = sys::CUDA_KERNEL_NODE_PARAMS {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
        ..Default::default()
    };
    // SAFETY: by the caller's promise.
    unsafe { kernel_node(&params) }
}
