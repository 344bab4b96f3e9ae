//! Exported functions for kernel nodes with the parameters of CUDA 11, which have no library kernel and no context.

use fermata_abi::sys::driver as sys;
use fermata_graph::{KernelNode, NodeKind};

use super::graph_exec::set_kernel;
use super::graph_node::{add, kernel};
use super::graph_params::{kernel_node, kernel_params};
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::of;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuGraphAddKernelNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        params: In<sys::CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        node.set(add(graph, &after.list(count)?, NodeKind::Kernel(node_of(&params.get()?)?))?)
    }

    fn cuGraphKernelNodeGetParams(node: sys::CUgraphNode, params: Out<sys::CUDA_KERNEL_NODE_PARAMS_v1>) {
        let view = kernel_params(of(node), &kernel(of(node))?)?;
        params.set(sys::CUDA_KERNEL_NODE_PARAMS_v1 {
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
        params: In<sys::CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        let attributes = kernel(of(node))?.attributes;
        let new = KernelNode { attributes, ..node_of(&params.get()?)? };
        session()?.graphs.lock().set_kind(of(node), NodeKind::Kernel(new))
    }

    fn cuGraphExecKernelNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: In<sys::CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        set_kernel(exec, node, node_of(&params.get()?)?)
    }
}

fn node_of(params: &sys::CUDA_KERNEL_NODE_PARAMS_v1) -> Result<KernelNode> {
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
    kernel_node(&params)
}
