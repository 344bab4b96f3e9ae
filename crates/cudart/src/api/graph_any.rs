//! Nodes of any kind through one structure, as newer programs add and change them.
use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaGraph_t, cudaGraphEdgeData, cudaGraphExec_t, cudaGraphNode_t, cudaGraphNodeParams,
    cudaGraphNodeTypeConditional, cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemAlloc,
    cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset,
};

use crate::api::graph_node::{current, wanted};
use crate::api::memcpy3d::to_driver;
use crate::api::memory::{address, pointer};
use crate::context;
use crate::driver::Calls;
use crate::error::{Error, Result, export};
use crate::registry;

/// The driver's form of a node.
///
/// # Safety
/// The member of the union that the type names is the one that is set.
unsafe fn build(calls: &Calls, from: &cudaGraphNodeParams) -> Result<drv::CUgraphNodeParams> {
    let mut to = drv::CUgraphNodeParams {
        type_: from.type_,
        ..Default::default()
    };
    // SAFETY: the caller's promise; all other kinds are laid out alike in both APIs.
    unsafe {
        let node = &from.__bindgen_anon_1;
        match from.type_ {
            cudaGraphNodeTypeKernel => {
                to.__bindgen_anon_1.kernel = drv::CUDA_KERNEL_NODE_PARAMS_v3 {
                    func: registry::in_context(calls, node.kernel.func)?,
                    gridDimX: node.kernel.gridDim.x,
                    gridDimY: node.kernel.gridDim.y,
                    gridDimZ: node.kernel.gridDim.z,
                    blockDimX: node.kernel.blockDim.x,
                    blockDimY: node.kernel.blockDim.y,
                    blockDimZ: node.kernel.blockDim.z,
                    sharedMemBytes: node.kernel.sharedMemBytes,
                    kernelParams: node.kernel.kernelParams,
                    extra: node.kernel.extra,
                    ..Default::default()
                };
            }
            cudaGraphNodeTypeMemcpy => {
                to.__bindgen_anon_1.memcpy = drv::CUDA_MEMCPY_NODE_PARAMS {
                    flags: node.memcpy.flags,
                    copyCtx: current(calls)?,
                    copyParams: to_driver(calls, &node.memcpy.copyParams)?,
                    ..Default::default()
                };
            }
            cudaGraphNodeTypeMemset => {
                to.__bindgen_anon_1.memset = drv::CUDA_MEMSET_NODE_PARAMS_v2 {
                    dst: address(node.memset.dst),
                    pitch: node.memset.pitch,
                    value: node.memset.value,
                    elementSize: node.memset.elementSize,
                    width: node.memset.width,
                    height: node.memset.height,
                    ctx: current(calls)?,
                };
            }
            cudaGraphNodeTypeConditional => {
                to.__bindgen_anon_1.conditional = drv::CUDA_CONDITIONAL_NODE_PARAMS {
                    handle: node.conditional.handle,
                    type_: node.conditional.type_,
                    size: node.conditional.size,
                    phGraph_out: core::ptr::null_mut(),
                    ctx: current(calls)?,
                };
            }
            _ => to.__bindgen_anon_1.reserved1 = node.reserved1,
        }
    }
    Ok(to)
}

/// What the driver answers inside the structure: the address of an allocation, the bodies of a condition.
///
/// # Safety
/// `from` was built from `to`.
unsafe fn answer(from: &drv::CUgraphNodeParams, to: &mut cudaGraphNodeParams) {
    // SAFETY: the type says which member is set, in both.
    unsafe {
        match to.type_ {
            cudaGraphNodeTypeMemAlloc => {
                to.__bindgen_anon_1.alloc.dptr = pointer(from.__bindgen_anon_1.alloc.dptr);
            }
            cudaGraphNodeTypeConditional => {
                let bodies = from.__bindgen_anon_1.conditional.phGraph_out;
                to.__bindgen_anon_1.conditional.phGraph_out = bodies.cast();
            }
            _ => {}
        }
    }
}

/// Adds a node; without edge data, all edges are ordinary ones.
///
/// # Safety
/// `after` names `count` nodes, `edges` is null or has data for each, and `parameters` is null or valid.
///
/// # Errors
/// What the driver says of the node.
pub unsafe fn add(
    node: *mut cudaGraphNode_t,
    graph: cudaGraph_t,
    after: *const cudaGraphNode_t,
    edges: *const cudaGraphEdgeData,
    count: usize,
    parameters: *mut cudaGraphNodeParams,
) -> Result {
    let calls = wanted(node)?;
    // SAFETY: the caller's promise.
    unsafe {
        let parameters = parameters.as_mut().ok_or(Error::INVALID_VALUE)?;
        let mut built = build(calls, parameters)?;
        let (graph, after, edges) = (graph.cast(), after.cast(), edges.cast());
        calls.cuGraphAddNode_v2(node.cast(), graph, after, edges, count, &mut built)?;
        answer(&built, parameters);
    }
    Ok(())
}

export! {
    /// Adds a node of any kind.
    fn cudaGraphAddNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        edges: *const cudaGraphEdgeData,
        count: usize,
        parameters: *mut cudaGraphNodeParams,
    ) {
        add(node, graph, after, edges, count, parameters)
    }

    /// Changes a node of any kind.
    fn cudaGraphNodeSetParams(node: cudaGraphNode_t, parameters: *mut cudaGraphNodeParams) {
        let calls = context::ready()?;
        let parameters = parameters.as_mut().ok_or(Error::INVALID_VALUE)?;
        calls.cuGraphNodeSetParams(node.cast(), &mut build(calls, parameters)?)
    }

    /// Changes a node of any kind in a launchable graph.
    fn cudaGraphExecNodeSetParams(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        parameters: *mut cudaGraphNodeParams,
    ) {
        let calls = context::ready()?;
        let parameters = parameters.as_mut().ok_or(Error::INVALID_VALUE)?;
        calls.cuGraphExecNodeSetParams(exec.cast(), node.cast(), &mut build(calls, parameters)?)
    }
}

const _: () = assert!(size_of::<drv::CUgraphNodeParams>() == size_of::<cudaGraphNodeParams>());
