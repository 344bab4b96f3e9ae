//! Graphs as a whole: creating, inspecting, instantiating, updating, launching.
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaGraph_t, cudaGraphEdgeData, cudaGraphExec_t, cudaGraphExecUpdateResultInfo,
    cudaGraphInstantiateParams, cudaGraphMemAttributeType, cudaGraphNode_t, cudaGraphNodeType,
    cudaStream_t,
};

use crate::error::{Error, Result, export};
use crate::{context, driver};

/// Runs the call with edge data, or the older one without where the driver has no other.
fn either(with_data: Result, without: impl FnOnce() -> Result) -> Result {
    match with_data {
        Err(Error::MISSING_DRIVER_FUNCTION | Error::NOT_SUPPORTED) => without(),
        result => result,
    }
}

/// # Safety
/// `exec` is null or writable, `graph` is live.
unsafe fn instantiate(
    exec: *mut cudaGraphExec_t,
    graph: cudaGraph_t,
    flags: c_ulonglong,
) -> Result {
    if exec.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let calls = context::ready()?;
    // SAFETY: the caller's promise.
    unsafe { calls.cuGraphInstantiateWithFlags(exec.cast(), graph.cast(), flags) }
}

export! {
    /// Creates an empty graph.
    fn cudaGraphCreate(graph: *mut cudaGraph_t, flags: c_uint) {
        if graph.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphCreate(graph.cast(), flags)
    }

    /// Destroys a graph.
    fn cudaGraphDestroy(graph: cudaGraph_t) {
        context::ready()?.cuGraphDestroy(graph.cast())
    }

    /// Copies a graph.
    fn cudaGraphClone(clone: *mut cudaGraph_t, graph: cudaGraph_t) {
        if clone.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphClone(clone.cast(), graph.cast())
    }

    /// The node of a copy that stands for a node of the original.
    fn cudaGraphNodeFindInClone(
        node: *mut cudaGraphNode_t,
        original: cudaGraphNode_t,
        clone: cudaGraph_t,
    ) {
        if node.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphNodeFindInClone(node.cast(), original.cast(), clone.cast())
    }

    /// The kind of a node. Both APIs number the kinds alike.
    fn cudaGraphNodeGetType(node: cudaGraphNode_t, kind: *mut cudaGraphNodeType) {
        if kind.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphNodeGetType(node.cast(), kind)
    }

    /// The nodes of a graph.
    fn cudaGraphGetNodes(graph: cudaGraph_t, nodes: *mut cudaGraphNode_t, count: *mut usize) {
        context::ready()?.cuGraphGetNodes(graph.cast(), nodes.cast(), count)
    }

    /// The nodes that wait for none.
    fn cudaGraphGetRootNodes(graph: cudaGraph_t, nodes: *mut cudaGraphNode_t, count: *mut usize) {
        context::ready()?.cuGraphGetRootNodes(graph.cast(), nodes.cast(), count)
    }

    /// The edges of a graph.
    fn cudaGraphGetEdges(
        graph: cudaGraph_t,
        from: *mut cudaGraphNode_t,
        to: *mut cudaGraphNode_t,
        data: *mut cudaGraphEdgeData,
        count: *mut usize,
    ) {
        let calls = context::ready()?;
        let (graph, from, to) = (graph.cast(), from.cast(), to.cast());
        let newer = calls.cuGraphGetEdges_v2(graph, from, to, data.cast(), count);
        either(newer, || calls.cuGraphGetEdges(graph, from, to, count))
    }

    /// The nodes that a node waits for.
    fn cudaGraphNodeGetDependencies(
        node: cudaGraphNode_t,
        nodes: *mut cudaGraphNode_t,
        data: *mut cudaGraphEdgeData,
        count: *mut usize,
    ) {
        let calls = context::ready()?;
        let (node, nodes) = (node.cast(), nodes.cast());
        let newer = calls.cuGraphNodeGetDependencies_v2(node, nodes, data.cast(), count);
        either(newer, || calls.cuGraphNodeGetDependencies(node, nodes, count))
    }

    /// The nodes that wait for a node.
    fn cudaGraphNodeGetDependentNodes(
        node: cudaGraphNode_t,
        nodes: *mut cudaGraphNode_t,
        data: *mut cudaGraphEdgeData,
        count: *mut usize,
    ) {
        let calls = context::ready()?;
        let (node, nodes) = (node.cast(), nodes.cast());
        let newer = calls.cuGraphNodeGetDependentNodes_v2(node, nodes, data.cast(), count);
        either(newer, || calls.cuGraphNodeGetDependentNodes(node, nodes, count))
    }

    /// Adds edges.
    fn cudaGraphAddDependencies(
        graph: cudaGraph_t,
        from: *const cudaGraphNode_t,
        to: *const cudaGraphNode_t,
        data: *const cudaGraphEdgeData,
        count: usize,
    ) {
        let calls = context::ready()?;
        let (graph, from, to) = (graph.cast(), from.cast(), to.cast());
        let newer = calls.cuGraphAddDependencies_v2(graph, from, to, data.cast(), count);
        either(newer, || calls.cuGraphAddDependencies(graph, from, to, count))
    }

    /// Removes edges.
    fn cudaGraphRemoveDependencies(
        graph: cudaGraph_t,
        from: *const cudaGraphNode_t,
        to: *const cudaGraphNode_t,
        data: *const cudaGraphEdgeData,
        count: usize,
    ) {
        let calls = context::ready()?;
        let (graph, from, to) = (graph.cast(), from.cast(), to.cast());
        let newer = calls.cuGraphRemoveDependencies_v2(graph, from, to, data.cast(), count);
        either(newer, || calls.cuGraphRemoveDependencies(graph, from, to, count))
    }

    /// Removes a node and its edges.
    fn cudaGraphDestroyNode(node: cudaGraphNode_t) {
        context::ready()?.cuGraphDestroyNode(node.cast())
    }

    /// Writes a graph as a drawing.
    fn cudaGraphDebugDotPrint(graph: cudaGraph_t, path: *const c_char, flags: c_uint) {
        if path.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphDebugDotPrint(graph.cast(), path, flags)
    }

    /// Makes a graph launchable.
    fn cudaGraphInstantiate(exec: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: c_ulonglong) {
        instantiate(exec, graph, flags)
    }

    /// Makes a graph launchable.
    fn cudaGraphInstantiateWithFlags(
        exec: *mut cudaGraphExec_t,
        graph: cudaGraph_t,
        flags: c_ulonglong,
    ) {
        instantiate(exec, graph, flags)
    }

    /// Makes a graph launchable and says where that failed.
    fn cudaGraphInstantiateWithParams(
        exec: *mut cudaGraphExec_t,
        graph: cudaGraph_t,
        parameters: *mut cudaGraphInstantiateParams,
    ) {
        if exec.is_null() || parameters.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        calls.cuGraphInstantiateWithParams(exec.cast(), graph.cast(), parameters.cast())
    }

    /// The flags a launchable graph was made with.
    fn cudaGraphExecGetFlags(exec: cudaGraphExec_t, flags: *mut c_ulonglong) {
        if flags.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphExecGetFlags(exec.cast(), flags)
    }

    /// Takes the parameters of a graph of the same shape.
    fn cudaGraphExecUpdate(
        exec: cudaGraphExec_t,
        graph: cudaGraph_t,
        result: *mut cudaGraphExecUpdateResultInfo,
    ) {
        if result.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphExecUpdate_v2(exec.cast(), graph.cast(), result.cast())
    }

    /// Prepares the next launch.
    fn cudaGraphUpload(exec: cudaGraphExec_t, stream: cudaStream_t) {
        context::ready()?.cuGraphUpload(exec.cast(), stream.cast())
    }

    /// Launches.
    fn cudaGraphLaunch(exec: cudaGraphExec_t, stream: cudaStream_t) {
        context::ready()?.cuGraphLaunch(exec.cast(), stream.cast())
    }

    /// Destroys a launchable graph.
    fn cudaGraphExecDestroy(exec: cudaGraphExec_t) {
        context::ready()?.cuGraphExecDestroy(exec.cast())
    }

    /// Whether a node is switched on.
    fn cudaGraphNodeGetEnabled(exec: cudaGraphExec_t, node: cudaGraphNode_t, on: *mut c_uint) {
        if on.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuGraphNodeGetEnabled(exec.cast(), node.cast(), on)
    }

    /// Switches a node on or off.
    fn cudaGraphNodeSetEnabled(exec: cudaGraphExec_t, node: cudaGraphNode_t, on: c_uint) {
        context::ready()?.cuGraphNodeSetEnabled(exec.cast(), node.cast(), on)
    }

    /// Gives unused memory of a device's graphs back.
    fn cudaDeviceGraphMemTrim(ordinal: c_int) {
        let calls = driver::get()?;
        calls.cuDeviceGraphMemTrim(context::device(calls, ordinal)?)
    }

    /// How much memory a device's graphs use.
    fn cudaDeviceGetGraphMemAttribute(
        ordinal: c_int,
        attribute: cudaGraphMemAttributeType,
        value: *mut c_void,
    ) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        calls.cuDeviceGetGraphMemAttribute(context::device(calls, ordinal)?, attribute, value)
    }

    /// Resets how much memory a device's graphs used at most.
    fn cudaDeviceSetGraphMemAttribute(
        ordinal: c_int,
        attribute: cudaGraphMemAttributeType,
        value: *mut c_void,
    ) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        calls.cuDeviceSetGraphMemAttribute(context::device(calls, ordinal)?, attribute, value)
    }
}

const _: () = assert!(
    size_of::<drv::CUDA_GRAPH_INSTANTIATE_PARAMS>() == size_of::<cudaGraphInstantiateParams>()
);
