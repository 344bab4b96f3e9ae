//! Graphs of programs against the library, with a worker that the test plays.

#![allow(clippy::unwrap_used)]

#[macro_use]
#[allow(dead_code)]
mod support;

use core::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{
    cuCtxCreate_v2, cuCtxSynchronize, cuEventCreate, cuInit, cuMemAlloc_v2, cuStreamCreate,
    cuStreamSynchronize,
};

unsafe extern "C" {
    fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
    fn cuGraphAddChildGraphNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        child: CUgraph,
    ) -> CUresult;
    fn cuGraphAddEmptyNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
    ) -> CUresult;
    fn cuGraphAddNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) -> CUresult;
    fn cuGraphConditionalHandleCreate(
        handle: *mut CUgraphConditionalHandle,
        graph: CUgraph,
        context: CUcontext,
        default: c_uint,
        flags: c_uint,
    ) -> CUresult;
    fn cuGraphClone(clone: *mut CUgraph, graph: CUgraph) -> CUresult;
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) -> CUresult;
    fn cuGraphDestroy(graph: CUgraph) -> CUresult;
    fn cuGraphDestroyNode(node: CUgraphNode) -> CUresult;
    fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult;
    fn cuGraphExecUpdate_v2(
        exec: CUgraphExec,
        graph: CUgraph,
        info: *mut CUgraphExecUpdateResultInfo,
    ) -> CUresult;
    fn cuGraphExecMemcpyNodeSetParams(
        exec: CUgraphExec,
        node: CUgraphNode,
        copy: *const CUDA_MEMCPY3D,
        context: CUcontext,
    ) -> CUresult;
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> CUresult;
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64) -> CUresult;
    fn cuGraphInstantiateWithParams(
        exec: *mut CUgraphExec,
        graph: CUgraph,
        params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) -> CUresult;
    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType) -> CUresult;
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult;
    fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, copy: *mut CUDA_MEMCPY3D) -> CUresult;
    fn cuGraphRetainUserObject(
        graph: CUgraph,
        object: CUuserObject,
        count: c_uint,
        flags: c_uint,
    ) -> CUresult;
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) -> CUresult;
    fn cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream) -> CUresult;
    fn cuMemFree_v2(address: CUdeviceptr) -> CUresult;
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult;
    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream)
    -> CUresult;
    fn cuMemcpyHtoDAsync_v2(
        to: CUdeviceptr,
        from: *const c_void,
        size: usize,
        stream: CUstream,
    ) -> CUresult;
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize) -> CUresult;
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult;
    fn cuStreamBeginCaptureToGraph(
        stream: CUstream,
        graph: CUgraph,
        after: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        mode: CUstreamCaptureMode,
    ) -> CUresult;
    fn cuStreamDestroy_v2(stream: CUstream) -> CUresult;
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult;
    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut u64,
        graph: *mut CUgraph,
        after: *mut *const CUgraphNode,
        count: *mut usize,
    ) -> CUresult;
    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut u64,
        graph: *mut CUgraph,
        after: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) -> CUresult;
    fn cuStreamUpdateCaptureDependencies(
        stream: CUstream,
        nodes: *mut CUgraphNode,
        count: usize,
        flags: c_uint,
    ) -> CUresult;
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult;
    fn cuUserObjectCreate(
        object: *mut CUuserObject,
        data: *mut c_void,
        destroy: CUhostFn,
        references: c_uint,
        flags: c_uint,
    ) -> CUresult;
}

fn context() -> CUcontext {
    let mut context = null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    context
}

fn new_stream() -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
    stream
}

fn new_graph() -> CUgraph {
    let mut graph = null_mut();
    ok!(cuGraphCreate(&mut graph, 0));
    graph
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut exec = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

fn begin_capture(stream: CUstream) {
    let mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(cuStreamBeginCapture_v2(stream, mode));
}

/// How many user objects have been destroyed.
static ENDS: AtomicU64 = AtomicU64::new(0);

fn ends() -> u64 {
    ENDS.load(Ordering::SeqCst)
}

unsafe extern "C" fn end(_: *mut c_void) {
    ENDS.fetch_add(1, Ordering::SeqCst);
}

/// Has a graph hold a new object.
fn hold(graph: CUgraph) {
    let (mut object, none) = (null_mut(), CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    ok!(cuUserObjectCreate(
        &mut object,
        null_mut(),
        Some(end),
        1,
        none
    ));
    let moved = CU_GRAPH_USER_OBJECT_MOVE;
    ok!(cuGraphRetainUserObject(graph, object, 1, moved));
}

/// What a stream waits for before its launch.
static GATE: Mutex<()> = Mutex::new(());

unsafe extern "C" fn pass(_: *mut c_void) {
    drop(GATE.lock().unwrap());
}

/// Launches a graph that cannot begin while `GATE` is locked.
fn launch_behind_gate(exec: CUgraphExec, stream: CUstream) {
    ok!(cuLaunchHostFunc(stream, Some(pass), null_mut()));
    ok!(cuGraphLaunch(exec, stream));
}

#[test]
#[ignore = "a program for its stage"]
fn holds() {
    context();
    let stream = new_stream();
    let (graph, outer) = (new_graph(), new_graph());
    hold(graph);
    let (mut clone, mut node) = (null_mut(), null_mut());
    ok!(cuGraphClone(&mut clone, graph));
    ok!(cuGraphDestroy(graph));
    let after = std::ptr::null();
    ok!(cuGraphAddChildGraphNode(&mut node, outer, after, 0, clone));
    ok!(cuGraphDestroy(clone));
    let exec = instantiate(outer);
    ok!(cuGraphDestroyNode(node));
    ok!(cuGraphDestroy(outer));
    assert_eq!(ends(), 0);

    let closed = GATE.lock().unwrap();
    launch_behind_gate(exec, stream);
    ok!(cuGraphExecDestroy(exec));
    assert_eq!(ends(), 0);
    drop(closed);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(ends(), 1);
}

#[test]
fn what_a_graph_holds_lives_as_long_as_its_copies_and_their_last_launch() {
    assert!(Stage::start("holds").finish());
}

#[test]
#[ignore = "a program for its stage"]
fn holds_behind_a_stream() {
    context();
    let (stream, graph) = (new_stream(), new_graph());
    hold(graph);
    let exec = instantiate(graph);
    ok!(cuGraphDestroy(graph));
    let closed = GATE.lock().unwrap();
    launch_behind_gate(exec, stream);
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuGraphExecDestroy(exec));
    assert_eq!(ends(), 0);
    drop(closed);
    ok!(cuCtxSynchronize());
    assert_eq!(ends(), 1);
}

#[test]
fn a_launch_in_a_destroyed_stream_keeps_what_its_graph_held() {
    assert!(Stage::start("holds_behind_a_stream").finish());
}

#[test]
#[ignore = "a program for its stage"]
fn gives_back() {
    context();
    // An update replaces what the executable graph holds.
    let (first, second) = (new_graph(), new_graph());
    hold(first);
    hold(second);
    let exec = instantiate(first);
    ok!(cuGraphDestroy(first));
    let mut info = CUgraphExecUpdateResultInfo::default();
    ok!(cuGraphExecUpdate_v2(exec, second, &mut info));
    assert_eq!(ends(), 1);
    ok!(cuGraphDestroy(second));
    ok!(cuGraphExecDestroy(exec));
    assert_eq!(ends(), 2);

    // A graph whose capture has failed is gone: work of the second stream is not joined.
    let (stream, other) = (new_stream(), new_stream());
    let (mut event, mut graph) = (null_mut(), null_mut());
    ok!(cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING));
    begin_capture(stream);
    let (mut status, mut id) = (0, 0);
    let (mut after, mut count) = (std::ptr::null(), 0);
    ok!(cuStreamGetCaptureInfo_v2(
        stream,
        &mut status,
        &mut id,
        &mut graph,
        &mut after,
        &mut count
    ));
    hold(graph);
    ok!(cuEventRecord(event, stream));
    ok!(cuStreamWaitEvent(other, event, 0));
    ok!(cuLaunchHostFunc(other, Some(pass), null_mut()));
    // SAFETY: the pointer is to a live variable.
    let ended = unsafe { cuStreamEndCapture(stream, &mut graph) };
    assert_eq!(ended, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_eq!(ends(), 3);
}

#[test]
fn updates_and_failed_captures_give_back_what_was_held() {
    assert!(Stage::start("gives_back").finish());
}

/// A graph whose only node allocates, and the address of the memory.
fn allocating(stream: CUstream) -> (CUgraph, CUdeviceptr) {
    let (mut graph, mut address) = (null_mut(), 0);
    begin_capture(stream);
    ok!(cuMemAllocAsync(&mut address, 64, stream));
    ok!(cuStreamEndCapture(stream, &mut graph));
    (graph, address)
}

/// Whether memory can be written to.
fn is_there(address: CUdeviceptr) -> bool {
    let bytes = [7u8; 64];
    // SAFETY: the buffer is live; the address is a number.
    let status = unsafe { cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), 64) };
    assert!(matches!(status, CUDA_SUCCESS | CUDA_ERROR_INVALID_VALUE));
    status == CUDA_SUCCESS
}

#[test]
#[ignore = "a program for its stage"]
fn allocates() {
    context();
    let stream = new_stream();
    let (graph, address) = allocating(stream);
    let exec = instantiate(graph);
    // SAFETY: the address is a number.
    let free = || unsafe { cuMemFreeAsync(address, stream) };
    assert_eq!(free(), CUDA_ERROR_INVALID_VALUE, "before a launch");
    for _ in 0..3 {
        ok!(cuGraphLaunch(exec, stream));
        assert!(is_there(address));
        assert_eq!(free(), CUDA_SUCCESS);
        assert_eq!(free(), CUDA_ERROR_INVALID_VALUE, "twice");
    }
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuMemFree_v2(address));
    ok!(cuGraphDestroy(graph));
    assert!(is_there(address), "the executable graph has it");
    ok!(cuGraphExecDestroy(exec));
    assert!(!is_there(address));

    // Memory in use is the program's when the graphs are gone.
    let (graph, address) = allocating(stream);
    let exec = instantiate(graph);
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    assert!(is_there(address));
    ok!(cuMemFree_v2(address));
    assert!(!is_there(address));

    // A graph that was never launched.
    let (graph, address) = allocating(stream);
    ok!(cuGraphDestroy(graph));
    assert!(!is_there(address));
    ok!(cuCtxSynchronize());
}

#[test]
fn memory_of_a_graph_stays_for_its_next_launch_and_goes_with_it() {
    let stage = Stage::start("allocates");
    let device = stage.device.clone();
    assert!(stage.finish());
    assert!(device.lock().unwrap().memory.is_empty());
}

#[test]
#[ignore = "a program for its stage"]
fn sets_copies() {
    let (context, stream) = (context(), new_stream());
    let (mut first, mut second) = (0, 0);
    ok!(cuMemAlloc_v2(&mut first, 64));
    ok!(cuMemAlloc_v2(&mut second, 64));
    let bytes = [7u8; 64];
    let (from, mut graph) = (bytes.as_ptr(), null_mut());
    begin_capture(stream);
    ok!(cuMemcpyHtoDAsync_v2(first, from.cast(), 64, stream));
    ok!(cuMemcpyAsync(second, first, 32, stream));
    ok!(cuStreamEndCapture(stream, &mut graph));
    let exec = instantiate(graph);
    let (mut nodes, mut count) = ([null_mut(); 2], 2);
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    for (node, source) in nodes
        .into_iter()
        .zip([CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE])
    {
        let mut copy = CUDA_MEMCPY3D::default();
        ok!(cuGraphMemcpyNodeGetParams(node, &mut copy));
        let kinds = (copy.srcMemoryType, copy.dstMemoryType);
        assert_eq!(kinds, (source, CU_MEMORYTYPE_DEVICE));
        copy.dstDevice = second + 32;
        copy.WidthInBytes = 16;
        let set = |copy: &CUDA_MEMCPY3D| {
            // SAFETY: the structure is live.
            unsafe { cuGraphExecMemcpyNodeSetParams(exec, node, copy, context) }
        };
        assert_eq!(set(&copy), CUDA_SUCCESS);
        // The address tells the same kind.
        copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        assert_eq!(set(&copy), CUDA_SUCCESS);
        copy.dstMemoryType = CU_MEMORYTYPE_HOST;
        copy.dstHost = from.cast_mut().cast();
        assert_eq!(set(&copy), CUDA_ERROR_INVALID_VALUE, "another direction");
    }
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuGraphExecDestroy(exec));
    ok!(cuCtxSynchronize());
}

#[test]
fn captured_copies_take_other_addresses_and_keep_their_direction() {
    assert!(Stage::start("sets_copies").finish());
}

#[test]
#[ignore = "a program for its stage"]
fn lists() {
    context();
    let stream = new_stream();
    begin_capture(stream);
    ok!(cuLaunchHostFunc(stream, Some(pass), null_mut()));
    let (mut status, mut id, mut graph, mut count) = (0, 0, null_mut(), 0);
    let (mut after, mut edges) = (std::ptr::null(), std::ptr::null());
    ok!(cuStreamGetCaptureInfo_v3(
        stream,
        &mut status,
        &mut id,
        &mut graph,
        &mut after,
        &mut edges,
        &mut count
    ));
    let (mut node, mut nodes) = (null_mut(), 1);
    ok!(cuGraphGetNodes(graph, &mut node, &mut nodes));
    assert!(!after.is_null() && !edges.is_null());
    // SAFETY: the library has returned lists of `count` entries, which stay until the next such call.
    let (after, edges) = unsafe {
        (
            std::slice::from_raw_parts(after, count),
            std::slice::from_raw_parts(edges, count),
        )
    };
    assert_eq!(after, [node]);
    let edge = (edges[0].from_port, edges[0].to_port, edges[0].type_);
    assert_eq!(edge, (0, 0, 0));
    ok!(cuStreamEndCapture(stream, &mut graph));
}

#[test]
fn dependencies_of_a_capture_come_with_their_edges() {
    assert!(Stage::start("lists").finish());
}

/// Adds a conditional node that a handle decides; its bodies.
fn add_conditional(
    graph: CUgraph,
    handle: u64,
    (type_, size): (c_uint, c_uint),
) -> Result<(CUgraphNode, Vec<CUgraph>), CUresult> {
    let mut params = CUgraphNodeParams {
        type_: CU_GRAPH_NODE_TYPE_CONDITIONAL,
        ..Default::default()
    };
    params.__bindgen_anon_1.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_,
        size,
        ..Default::default()
    };
    let (mut node, none) = (null_mut(), std::ptr::null());
    // SAFETY: the pointers are to live variables.
    let code =
        unsafe { cuGraphAddNode_v2(&mut node, graph, none, std::ptr::null(), 0, &mut params) };
    if code != CUDA_SUCCESS {
        return Err(code);
    }
    // SAFETY: the node was added, so the array has `size` graphs.
    let bodies = unsafe {
        let first = params.__bindgen_anon_1.conditional.phGraph_out;
        std::slice::from_raw_parts(first, size as usize)
    };
    Ok((node, bodies.to_vec()))
}

fn nodes_of(graph: CUgraph) -> Result<usize, CUresult> {
    let mut count = 0;
    // SAFETY: the pointer is to a live variable.
    match unsafe { cuGraphGetNodes(graph, null_mut(), &mut count) } {
        CUDA_SUCCESS => Ok(count),
        code => Err(code),
    }
}

#[test]
#[ignore = "a program for its stage"]
fn decides() {
    let context = context();
    let (stream, graph, outer) = (new_stream(), new_graph(), new_graph());
    let (mut handle, mut inner, mut node) = (0, 0, null_mut());
    let default = CU_GRAPH_COND_ASSIGN_DEFAULT;
    ok!(cuGraphConditionalHandleCreate(
        &mut handle,
        graph,
        context,
        1,
        default
    ));
    let mut wrong = 0;
    // SAFETY: the pointer is to a live variable.
    let refused = unsafe { cuGraphConditionalHandleCreate(&mut wrong, graph, context, 1, 2) };
    assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
    let result = |graph| {
        let (mut exec, mut params) = (null_mut(), CUDA_GRAPH_INSTANTIATE_PARAMS::default());
        // SAFETY: the pointers are to live variables.
        let code = unsafe { cuGraphInstantiateWithParams(&mut exec, graph, &mut params) };
        (code, params.result_out)
    };
    let unused = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    assert_eq!(result(graph), (CUDA_ERROR_INVALID_VALUE, unused));

    let either = (CU_GRAPH_COND_TYPE_IF, 2);
    assert!(add_conditional(outer, handle, either).is_err());
    assert!(add_conditional(graph, handle, (CU_GRAPH_COND_TYPE_IF, 3)).is_err());
    let (decided, bodies) = add_conditional(graph, handle, either).unwrap();
    assert!(add_conditional(graph, handle, either).is_err());
    let mut kind = 0;
    ok!(cuGraphNodeGetType(decided, &mut kind));
    assert_eq!(kind, CU_GRAPH_NODE_TYPE_CONDITIONAL);

    // One body is filled by calls, with a node of its own kind in it; the other one by a capture.
    let none = std::ptr::null();
    ok!(cuGraphAddEmptyNode(&mut node, bodies[0], none, 0));
    ok!(cuGraphConditionalHandleCreate(
        &mut inner,
        bodies[0],
        null_mut(),
        0,
        0
    ));
    let (_, turns) = add_conditional(bodies[0], inner, (CU_GRAPH_COND_TYPE_WHILE, 1)).unwrap();
    ok!(cuGraphAddEmptyNode(&mut node, turns[0], none, 0));
    let (mode, mut address, mut ended) = (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 0, null_mut());
    ok!(cuMemAlloc_v2(&mut address, 64));
    ok!(cuStreamBeginCaptureToGraph(
        stream,
        bodies[1],
        none,
        std::ptr::null(),
        0,
        mode
    ));
    ok!(cuMemcpyAsync(address + 32, address, 32, stream));
    ok!(cuStreamEndCapture(stream, &mut ended));
    assert_eq!(ended, bodies[1]);
    let counts = [graph, bodies[0], bodies[1], turns[0]].map(nodes_of);
    assert_eq!(counts, [Ok(1), Ok(2), Ok(1), Ok(1)]);

    let mut copy = null_mut();
    // SAFETY: the pointers are to live variables.
    let refused = unsafe {
        [
            cuGraphClone(&mut copy, graph),
            cuGraphAddChildGraphNode(&mut node, outer, none, 0, graph),
        ]
    };
    assert_eq!(refused, [CUDA_ERROR_NOT_SUPPORTED; 2]);
    let exec = instantiate(graph);
    assert_eq!(result(graph).0, CUDA_ERROR_NOT_SUPPORTED);
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    ok!(cuGraphExecDestroy(exec));
    // No capture into a body may hold a host function, which only shows when the graph is made executable.
    ok!(cuStreamBeginCaptureToGraph(
        stream,
        turns[0],
        none,
        std::ptr::null(),
        0,
        mode
    ));
    ok!(cuLaunchHostFunc(stream, Some(pass), null_mut()));
    ok!(cuStreamEndCapture(stream, &mut ended));
    assert_eq!(result(graph).0, CUDA_ERROR_INVALID_VALUE);

    ok!(cuGraphDestroyNode(decided));
    assert!(nodes_of(bodies[0]).is_err() && nodes_of(turns[0]).is_err());
    assert_eq!(result(graph), (CUDA_ERROR_INVALID_VALUE, unused));
    ok!(cuGraphDestroy(graph));
    assert!(add_conditional(outer, handle, either).is_err());

    // A node of a graph that is being captured, and a body that is captured meanwhile, in another stream.
    begin_capture(stream);
    let (mut status, mut id, mut count, mut list) = (0, 0, 0, none);
    ok!(cuStreamGetCaptureInfo_v2(
        stream,
        &mut status,
        &mut id,
        &mut ended,
        &mut list,
        &mut count
    ));
    ok!(cuGraphConditionalHandleCreate(
        &mut handle,
        ended,
        null_mut(),
        1,
        default
    ));
    let (mut decided, bodies) = add_conditional(ended, handle, (CU_GRAPH_COND_TYPE_IF, 1)).unwrap();
    let set = CU_STREAM_SET_CAPTURE_DEPENDENCIES;
    ok!(cuStreamUpdateCaptureDependencies(
        stream,
        &mut decided,
        1,
        set
    ));
    let other = new_stream();
    ok!(cuStreamBeginCaptureToGraph(
        other,
        bodies[0],
        none,
        std::ptr::null(),
        0,
        mode
    ));
    ok!(cuMemcpyAsync(address + 32, address, 32, other));
    ok!(cuStreamEndCapture(other, &mut copy));
    ok!(cuMemcpyAsync(address + 32, address, 32, stream));
    let captured = ended;
    ok!(cuStreamEndCapture(stream, &mut ended));
    assert_eq!((ended, copy), (captured, bodies[0]));
    assert_eq!([captured, bodies[0]].map(nodes_of), [Ok(2), Ok(1)]);
    let exec = instantiate(captured);
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));

    // A capture that fails does not take a graph of the program along.
    ok!(cuGraphCreate(&mut copy, 0));
    ok!(cuStreamBeginCaptureToGraph(
        stream,
        copy,
        none,
        std::ptr::null(),
        0,
        mode
    ));
    // SAFETY: the pointer is to a live variable.
    let failed = unsafe {
        let failed = cuStreamSynchronize(stream);
        (failed, cuStreamEndCapture(stream, &mut ended))
    };
    assert_eq!(
        failed,
        (
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        )
    );
    assert_eq!(nodes_of(copy), Ok(0));
}

#[test]
fn bodies_of_conditional_nodes_belong_to_their_nodes() {
    assert!(Stage::start("decides").finish());
}
