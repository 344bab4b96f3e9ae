//! Nodes of graphs that are not copies: kernels, fills, host functions, events, child graphs, memory.
use core::ffi::{c_uint, c_void};

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaEvent_t, cudaGraph_t, cudaGraphExec_t, cudaGraphNode_t, cudaHostNodeParams,
    cudaKernelNodeParams, cudaLaunchAttributeID, cudaLaunchAttributeValue, cudaMemAllocNodeParams,
    cudaMemsetParams, dim3,
};

use crate::api::memory::{address, pointer};
use crate::context;
use crate::driver::Calls;
use crate::error::{Error, Result, export, get, put};
use crate::registry::{self, Handle};

/// The driver's form of a kernel node.
fn kernel(calls: &Calls, from: &cudaKernelNodeParams) -> Result<drv::CUDA_KERNEL_NODE_PARAMS> {
    Ok(drv::CUDA_KERNEL_NODE_PARAMS {
        func: registry::in_context(calls, from.func)?,
        gridDimX: from.gridDim.x,
        gridDimY: from.gridDim.y,
        gridDimZ: from.gridDim.z,
        blockDimX: from.blockDim.x,
        blockDimY: from.blockDim.y,
        blockDimZ: from.blockDim.z,
        sharedMemBytes: from.sharedMemBytes,
        kernelParams: from.kernelParams,
        extra: from.extra,
        ..Default::default()
    })
}

/// The runtime's form of a kernel node, with the host stub where there is one.
fn kernel_back(from: &drv::CUDA_KERNEL_NODE_PARAMS) -> cudaKernelNodeParams {
    let func = match (from.func.is_null(), from.kern.is_null()) {
        (true, false) => registry::stub_of(from.kern.cast(), Handle::Kernel),
        _ => registry::stub_of(from.func.cast(), Handle::Function),
    };
    cudaKernelNodeParams {
        func,
        gridDim: dim3 {
            x: from.gridDimX,
            y: from.gridDimY,
            z: from.gridDimZ,
        },
        blockDim: dim3 {
            x: from.blockDimX,
            y: from.blockDimY,
            z: from.blockDimZ,
        },
        sharedMemBytes: from.sharedMemBytes,
        kernelParams: from.kernelParams,
        extra: from.extra,
    }
}

/// The driver's form of a fill.
fn fill(from: &cudaMemsetParams) -> drv::CUDA_MEMSET_NODE_PARAMS {
    drv::CUDA_MEMSET_NODE_PARAMS {
        dst: address(from.dst),
        pitch: from.pitch,
        value: from.value,
        elementSize: from.elementSize,
        width: from.width,
        height: from.height,
    }
}

/// The context that copies and fills of new nodes belong to.
///
/// # Errors
/// What the driver says.
pub fn current(calls: &Calls) -> Result<drv::CUcontext> {
    let mut current = core::ptr::null_mut();
    // SAFETY: a place for the result.
    unsafe { calls.cuCtxGetCurrent(&mut current) }?;
    Ok(current)
}

/// Refuses a missing place for a new node.
///
/// # Errors
/// `cudaErrorInvalidValue`
pub fn wanted<T>(place: *mut T) -> Result<&'static Calls> {
    if place.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    context::ready()
}

export! {
    /// Adds a kernel node.
    fn cudaGraphAddKernelNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        parameters: *const cudaKernelNodeParams,
    ) {
        let calls = wanted(node)?;
        let parameters = kernel(calls, get(parameters)?)?;
        calls.cuGraphAddKernelNode_v2(node.cast(), graph.cast(), after.cast(), count, &parameters)
    }

    /// Reads a kernel node. The parameter pointers belong to the node.
    fn cudaGraphKernelNodeGetParams(node: cudaGraphNode_t, to: *mut cudaKernelNodeParams) {
        let calls = wanted(to)?;
        let mut found = drv::CUDA_KERNEL_NODE_PARAMS::default();
        calls.cuGraphKernelNodeGetParams_v2(node.cast(), &mut found)?;
        put(to, kernel_back(&found))
    }

    /// Changes a kernel node.
    fn cudaGraphKernelNodeSetParams(node: cudaGraphNode_t, parameters: *const cudaKernelNodeParams) {
        let calls = context::ready()?;
        calls.cuGraphKernelNodeSetParams_v2(node.cast(), &kernel(calls, get(parameters)?)?)
    }

    /// Changes a kernel node of a launchable graph.
    fn cudaGraphExecKernelNodeSetParams(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        parameters: *const cudaKernelNodeParams,
    ) {
        let calls = context::ready()?;
        let parameters = kernel(calls, get(parameters)?)?;
        calls.cuGraphExecKernelNodeSetParams_v2(exec.cast(), node.cast(), &parameters)
    }

    /// Copies the attributes of a kernel node.
    fn cudaGraphKernelNodeCopyAttributes(to: cudaGraphNode_t, from: cudaGraphNode_t) {
        context::ready()?.cuGraphKernelNodeCopyAttributes(to.cast(), from.cast())
    }

    /// Reads an attribute of a kernel node.
    fn cudaGraphKernelNodeGetAttribute(
        node: cudaGraphNode_t,
        attribute: cudaLaunchAttributeID,
        value: *mut cudaLaunchAttributeValue,
    ) {
        wanted(value)?.cuGraphKernelNodeGetAttribute(node.cast(), attribute, value.cast())
    }

    /// Sets an attribute of a kernel node.
    fn cudaGraphKernelNodeSetAttribute(
        node: cudaGraphNode_t,
        attribute: cudaLaunchAttributeID,
        value: *const cudaLaunchAttributeValue,
    ) {
        let calls = wanted(value.cast_mut())?;
        calls.cuGraphKernelNodeSetAttribute(node.cast(), attribute, value.cast())
    }

    /// Adds a fill.
    fn cudaGraphAddMemsetNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        parameters: *const cudaMemsetParams,
    ) {
        let calls = wanted(node)?;
        let fill = fill(get(parameters)?);
        let (graph, after) = (graph.cast(), after.cast());
        calls.cuGraphAddMemsetNode(node.cast(), graph, after, count, &fill, current(calls)?)
    }

    /// Reads a fill.
    fn cudaGraphMemsetNodeGetParams(node: cudaGraphNode_t, to: *mut cudaMemsetParams) {
        let calls = wanted(to)?;
        let mut found = drv::CUDA_MEMSET_NODE_PARAMS::default();
        calls.cuGraphMemsetNodeGetParams(node.cast(), &mut found)?;
        put(to, cudaMemsetParams {
            dst: pointer(found.dst),
            pitch: found.pitch,
            value: found.value,
            elementSize: found.elementSize,
            width: found.width,
            height: found.height,
        })
    }

    /// Changes a fill.
    fn cudaGraphMemsetNodeSetParams(node: cudaGraphNode_t, parameters: *const cudaMemsetParams) {
        context::ready()?.cuGraphMemsetNodeSetParams(node.cast(), &fill(get(parameters)?))
    }

    /// Changes a fill of a launchable graph.
    fn cudaGraphExecMemsetNodeSetParams(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        parameters: *const cudaMemsetParams,
    ) {
        let calls = context::ready()?;
        let fill = fill(get(parameters)?);
        calls.cuGraphExecMemsetNodeSetParams(exec.cast(), node.cast(), &fill, current(calls)?)
    }

    /// Adds a host function.
    fn cudaGraphAddHostNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        parameters: *const cudaHostNodeParams,
    ) {
        let calls = wanted(node)?;
        let from = get(parameters)?;
        let host = drv::CUDA_HOST_NODE_PARAMS { fn_: from.fn_, userData: from.userData };
        calls.cuGraphAddHostNode(node.cast(), graph.cast(), after.cast(), count, &host)
    }

    /// Reads a host function.
    fn cudaGraphHostNodeGetParams(node: cudaGraphNode_t, to: *mut cudaHostNodeParams) {
        let calls = wanted(to)?;
        let mut found = drv::CUDA_HOST_NODE_PARAMS::default();
        calls.cuGraphHostNodeGetParams(node.cast(), &mut found)?;
        put(to, cudaHostNodeParams { fn_: found.fn_, userData: found.userData })
    }

    /// Changes a host function.
    fn cudaGraphHostNodeSetParams(node: cudaGraphNode_t, parameters: *const cudaHostNodeParams) {
        let from = get(parameters)?;
        let host = drv::CUDA_HOST_NODE_PARAMS { fn_: from.fn_, userData: from.userData };
        context::ready()?.cuGraphHostNodeSetParams(node.cast(), &host)
    }

    /// Changes a host function of a launchable graph.
    fn cudaGraphExecHostNodeSetParams(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        parameters: *const cudaHostNodeParams,
    ) {
        let from = get(parameters)?;
        let host = drv::CUDA_HOST_NODE_PARAMS { fn_: from.fn_, userData: from.userData };
        context::ready()?.cuGraphExecHostNodeSetParams(exec.cast(), node.cast(), &host)
    }

    /// Adds a node that does nothing.
    fn cudaGraphAddEmptyNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
    ) {
        wanted(node)?.cuGraphAddEmptyNode(node.cast(), graph.cast(), after.cast(), count)
    }

    /// Adds a graph as a node.
    fn cudaGraphAddChildGraphNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        child: cudaGraph_t,
    ) {
        let calls = wanted(node)?;
        calls.cuGraphAddChildGraphNode(node.cast(), graph.cast(), after.cast(), count, child.cast())
    }

    /// The graph that is a node.
    fn cudaGraphChildGraphNodeGetGraph(node: cudaGraphNode_t, graph: *mut cudaGraph_t) {
        wanted(graph)?.cuGraphChildGraphNodeGetGraph(node.cast(), graph.cast())
    }

    /// Changes the graph that is a node of a launchable graph.
    fn cudaGraphExecChildGraphNodeSetParams(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        child: cudaGraph_t,
    ) {
        context::ready()?.cuGraphExecChildGraphNodeSetParams(exec.cast(), node.cast(), child.cast())
    }

    /// Adds the recording of an event.
    fn cudaGraphAddEventRecordNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        event: cudaEvent_t,
    ) {
        let calls = wanted(node)?;
        calls.cuGraphAddEventRecordNode(node.cast(), graph.cast(), after.cast(), count, event.cast())
    }

    /// The event a node records.
    fn cudaGraphEventRecordNodeGetEvent(node: cudaGraphNode_t, event: *mut cudaEvent_t) {
        wanted(event)?.cuGraphEventRecordNodeGetEvent(node.cast(), event.cast())
    }

    /// Changes the event a node records.
    fn cudaGraphEventRecordNodeSetEvent(node: cudaGraphNode_t, event: cudaEvent_t) {
        context::ready()?.cuGraphEventRecordNodeSetEvent(node.cast(), event.cast())
    }

    /// Changes the event a node of a launchable graph records.
    fn cudaGraphExecEventRecordNodeSetEvent(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        event: cudaEvent_t,
    ) {
        context::ready()?.cuGraphExecEventRecordNodeSetEvent(exec.cast(), node.cast(), event.cast())
    }

    /// Adds a wait for an event.
    fn cudaGraphAddEventWaitNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        event: cudaEvent_t,
    ) {
        let calls = wanted(node)?;
        calls.cuGraphAddEventWaitNode(node.cast(), graph.cast(), after.cast(), count, event.cast())
    }

    /// The event a node waits for.
    fn cudaGraphEventWaitNodeGetEvent(node: cudaGraphNode_t, event: *mut cudaEvent_t) {
        wanted(event)?.cuGraphEventWaitNodeGetEvent(node.cast(), event.cast())
    }

    /// Changes the event a node waits for.
    fn cudaGraphEventWaitNodeSetEvent(node: cudaGraphNode_t, event: cudaEvent_t) {
        context::ready()?.cuGraphEventWaitNodeSetEvent(node.cast(), event.cast())
    }

    /// Changes the event a node of a launchable graph waits for.
    fn cudaGraphExecEventWaitNodeSetEvent(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        event: cudaEvent_t,
    ) {
        context::ready()?.cuGraphExecEventWaitNodeSetEvent(exec.cast(), node.cast(), event.cast())
    }

    /// Adds an allocation; both APIs lay its parameters out alike.
    fn cudaGraphAddMemAllocNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        parameters: *mut cudaMemAllocNodeParams,
    ) {
        let calls = wanted(node)?;
        if parameters.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let (graph, after) = (graph.cast(), after.cast());
        calls.cuGraphAddMemAllocNode(node.cast(), graph, after, count, parameters.cast())
    }

    /// Reads an allocation.
    fn cudaGraphMemAllocNodeGetParams(node: cudaGraphNode_t, to: *mut cudaMemAllocNodeParams) {
        wanted(to)?.cuGraphMemAllocNodeGetParams(node.cast(), to.cast())
    }

    /// Adds the freeing of an allocation.
    fn cudaGraphAddMemFreeNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        start: *mut c_void,
    ) {
        let calls = wanted(node)?;
        calls.cuGraphAddMemFreeNode(node.cast(), graph.cast(), after.cast(), count, address(start))
    }

    /// What a node frees.
    fn cudaGraphMemFreeNodeGetParams(node: cudaGraphNode_t, to: *mut c_void) {
        wanted(to)?.cuGraphMemFreeNodeGetParams(node.cast(), to.cast())
    }

    /// Makes a value that conditional nodes read.
    fn cudaGraphConditionalHandleCreate(
        handle: *mut fermata_abi::sys::runtime::cudaGraphConditionalHandle,
        graph: cudaGraph_t,
        start: c_uint,
        flags: c_uint,
    ) {
        let calls = wanted(handle)?;
        let context = current(calls)?;
        calls.cuGraphConditionalHandleCreate(handle, graph.cast(), context, start, flags)
    }
}

const _: () =
    assert!(size_of::<drv::CUDA_MEM_ALLOC_NODE_PARAMS>() == size_of::<cudaMemAllocNodeParams>());
