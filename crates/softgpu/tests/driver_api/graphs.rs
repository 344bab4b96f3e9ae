//! Graphs: explicit nodes, capture, update, execution.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{
    capture, event, graph, graph_exec, graph_nodes, memory, memset, pool, stream,
};

use crate::common::{Context, check, cuda};
use crate::streams::{Gate, wait_at_gate};

fn new_graph() -> cu::CUgraph {
    let mut handle = null_mut();
    check(cuda!(graph::cuGraphCreate(Out::from(&mut handle), 0)));
    handle
}

fn new_stream() -> cu::CUstream {
    let mut handle = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut handle), 1)));
    handle
}

fn memset_params(dst: u64, value: u32, width: usize) -> cu::CUDA_MEMSET_NODE_PARAMS {
    cu::CUDA_MEMSET_NODE_PARAMS {
        dst,
        pitch: 0,
        value,
        elementSize: 4,
        width,
        height: 1,
    }
}

fn add_memset(
    graph: cu::CUgraph,
    after: &[cu::CUgraphNode],
    dst: u64,
    value: u32,
    width: usize,
) -> cu::CUgraphNode {
    let mut node = null_mut();
    let params = memset_params(dst, value, width);
    check(cuda!(graph_nodes::cuGraphAddMemsetNode(
        Out::from(&mut node),
        graph,
        In::from(after),
        after.len(),
        In::from(&params),
        null_mut(),
    )));
    node
}

fn allocation_params(bytes: usize) -> cu::CUDA_MEM_ALLOC_NODE_PARAMS {
    let location = cu::CUmemLocation {
        type_: cu::CU_MEM_LOCATION_TYPE_DEVICE,
        id: 0,
    };
    cu::CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: cu::CUmemPoolProps {
            allocType: cu::CU_MEM_ALLOCATION_TYPE_PINNED,
            location,
            ..Default::default()
        },
        bytesize: bytes,
        ..Default::default()
    }
}

/// Adds an allocation of device memory, and returns its node and its address.
fn add_allocation(graph: cu::CUgraph, bytes: usize) -> (cu::CUgraphNode, u64) {
    let mut params = allocation_params(bytes);
    let mut node = null_mut();
    let none: In<cu::CUgraphNode> = In::null();
    check(cuda!(graph_nodes::cuGraphAddMemAllocNode(
        Out::from(&mut node),
        graph,
        none,
        0,
        Out::from(&mut params),
    )));
    (node, params.dptr)
}

fn add_host<T>(
    graph: cu::CUgraph,
    after: &[cu::CUgraphNode],
    call: unsafe extern "C" fn(*mut c_void),
    data: *const T,
) -> cu::CUgraphNode {
    let mut node = null_mut();
    let params = cu::CUDA_HOST_NODE_PARAMS {
        fn_: Some(call),
        userData: data.cast_mut().cast(),
    };
    check(cuda!(graph_nodes::cuGraphAddHostNode(
        Out::from(&mut node),
        graph,
        In::from(after),
        after.len(),
        In::from(&params),
    )));
    node
}

fn instantiate(graph: cu::CUgraph) -> cu::CUgraphExec {
    let mut exec = null_mut();
    check(cuda!(graph_exec::cuGraphInstantiateWithFlags(
        Out::from(&mut exec),
        graph,
        0
    )));
    exec
}

fn launch(exec: cu::CUgraphExec, stream: cu::CUstream) {
    check(cuda!(graph_exec::cuGraphLaunch(exec, stream)));
    check(cuda!(stream::cuStreamSynchronize(stream)));
}

#[test]
fn nodes_run_in_the_order_of_their_edges_and_can_be_changed() {
    let context = Context::new();
    let (graph, stream) = (new_graph(), new_stream());
    let words = context.upload(&[0u32; 4]);
    let second = add_memset(graph, &[], words, 2, 2);
    let first = add_memset(graph, &[], words, 1, 4);
    check(cuda!(graph::cuGraphAddDependencies(
        graph,
        In::from(&first),
        In::from(&second),
        1
    )));
    let exec = instantiate(graph);
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 4), [2, 2, 1, 1]);
    let changed = memset_params(words, 9, 1);
    check(cuda!(graph_exec::cuGraphExecMemsetNodeSetParams(
        exec,
        second,
        In::from(&changed),
        null_mut()
    )));
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 4), [9, 1, 1, 1]);
    check(cuda!(graph_exec::cuGraphNodeSetEnabled(exec, first, 0)));
    check(cuda!(memset::cuMemsetD32Async(words, 0, 4, stream)));
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 4), [9, 0, 0, 0]);
    check(cuda!(graph::cuGraphDestroy(graph)));
    launch(exec, stream);
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
    assert_eq!(
        cuda!(graph::cuGraphDestroy(graph)),
        cu::CUDA_ERROR_INVALID_HANDLE
    );
}

#[test]
fn a_cycle_is_refused_at_instantiation() {
    let context = Context::new();
    let graph = new_graph();
    let words = context.upload(&[0u32; 4]);
    let a = add_memset(graph, &[], words, 1, 4);
    let b = add_memset(graph, &[a], words, 2, 4);
    check(cuda!(graph::cuGraphAddDependencies(
        graph,
        In::from(&b),
        In::from(&a),
        1
    )));
    let mut exec = null_mut();
    let refused = cuda!(graph_exec::cuGraphInstantiateWithFlags(
        Out::from(&mut exec),
        graph,
        0
    ));
    assert_eq!(refused, cu::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn captured_work_runs_at_launch_and_forks_must_join() {
    let context = Context::new();
    let (origin, fork) = (new_stream(), new_stream());
    let words = context.upload(&[0u32; 4]);
    let mut events = [null_mut(), null_mut()];
    for slot in &mut events {
        check(cuda!(event::cuEventCreate(Out::from(slot), 0)));
    }
    let relaxed = cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let capture = |joined: bool| {
        check(cuda!(capture::cuStreamBeginCapture_v2(origin, relaxed)));
        check(cuda!(memset::cuMemsetD32Async(words, 1, 4, origin)));
        check(cuda!(event::cuEventRecord(events[0], origin)));
        check(cuda!(stream::cuStreamWaitEvent(fork, events[0], 0)));
        check(cuda!(memset::cuMemsetD32Async(words, 2, 1, fork)));
        check(cuda!(event::cuEventRecord(events[1], fork)));
        if joined {
            check(cuda!(stream::cuStreamWaitEvent(origin, events[1], 0)));
        }
        let mut graph = null_mut();
        (
            cuda!(capture::cuStreamEndCapture(origin, Out::from(&mut graph))),
            graph,
        )
    };
    assert_eq!(
        capture(false),
        (cu::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, null_mut())
    );
    let (code, graph) = capture(true);
    check(code);
    assert_eq!(
        context.download::<u32>(words, 4),
        [0; 4],
        "nothing runs while it is captured"
    );
    let mut count = 0;
    check(cuda!(graph::cuGraphGetNodes(
        graph,
        Out::null(),
        Out::from(&mut count)
    )));
    assert_eq!(count, 2);
    launch(instantiate(graph), origin);
    assert_eq!(context.download::<u32>(words, 4), [2, 1, 1, 1]);
}

#[test]
fn a_capture_forbids_unsafe_calls_and_is_invalid_after_one() {
    let _context = Context::new();
    let stream = new_stream();
    let mode = cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    check(cuda!(capture::cuStreamBeginCapture_v2(stream, mode)));
    let mut address = 0;
    let refused = cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), 4));
    assert_eq!(refused, cu::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let mut status = 0;
    check(cuda!(capture::cuStreamIsCapturing(
        stream,
        Out::from(&mut status)
    )));
    assert_eq!(status, cu::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    let mut graph = null_mut();
    let ended = cuda!(capture::cuStreamEndCapture(stream, Out::from(&mut graph)));
    assert_eq!(ended, cu::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check(cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), 4)));
}

#[test]
fn the_legacy_stream_cannot_be_asked_during_a_capture_that_goes_on() {
    let _context = Context::new();
    let mut stream = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut stream), 0)));
    let mode = cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    check(cuda!(capture::cuStreamBeginCapture_v2(stream, mode)));
    let (mut status, mut id) = (0, 0);
    let asked = cuda!(capture::cuStreamIsCapturing(
        null_mut(),
        Out::from(&mut status)
    ));
    assert_eq!(asked, cu::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    let asked = cuda!(capture::cuStreamGetCaptureInfo(
        null_mut(),
        Out::from(&mut status),
        Out::from(&mut id)
    ));
    assert_eq!(asked, cu::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    let mut graph = null_mut();
    check(cuda!(capture::cuStreamEndCapture(
        stream,
        Out::from(&mut graph)
    )));
    check(cuda!(capture::cuStreamIsCapturing(
        null_mut(),
        Out::from(&mut status)
    )));
    assert_eq!(status, cu::CU_STREAM_CAPTURE_STATUS_NONE);
}

#[test]
fn a_capture_ends_with_its_context() {
    let mode = cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    for own in [false, true] {
        let context = Context::new();
        let stream = match own {
            true => std::ptr::without_provenance_mut(2),
            false => new_stream(),
        };
        check(cuda!(capture::cuStreamBeginCapture_v2(stream, mode)));
        let (mut status, mut graph, mut count) = (0, null_mut(), 0);
        check(cuda!(capture::cuStreamGetCaptureInfo_v2(
            stream,
            Out::from(&mut status),
            Out::null(),
            Out::from(&mut graph),
            Out::null(),
            Out::null(),
        )));
        assert_eq!(status, cu::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        drop(context);
        let gone = cuda!(graph::cuGraphGetNodes(
            graph,
            Out::null(),
            Out::from(&mut count)
        ));
        assert_eq!(gone, cu::CUDA_ERROR_INVALID_HANDLE);
        // The capture would forbid this.
        Context::new().allocate(4);
    }
}

#[test]
fn a_capture_frees_only_memory_of_graphs() {
    let context = Context::new();
    let stream = new_stream();
    let words = context.upload(&[7u32; 2]);
    let mode = cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    check(cuda!(capture::cuStreamBeginCapture_v2(stream, mode)));
    let mut address = 0;
    check(cuda!(pool::cuMemAllocAsync(
        Out::from(&mut address),
        4096,
        stream
    )));
    let other = cuda!(pool::cuMemFreeAsync(words, stream));
    assert_eq!(other, cu::CUDA_ERROR_INVALID_VALUE);
    check(cuda!(pool::cuMemFreeAsync(address, stream)));
    let mut graph = null_mut();
    check(cuda!(capture::cuStreamEndCapture(
        stream,
        Out::from(&mut graph)
    )));
    launch(instantiate(graph), stream);
    assert_eq!(context.download::<u32>(words, 2), [7; 2]);
}

#[test]
fn an_executable_graph_takes_over_parameters_of_the_same_shape_only() {
    let context = Context::new();
    let stream = new_stream();
    let words = context.upload(&[0u32; 2]);
    let (old, new, other) = (new_graph(), new_graph(), new_graph());
    add_memset(old, &[], words, 1, 2);
    add_memset(new, &[], words, 2, 1);
    let first = add_memset(other, &[], words, 3, 2);
    add_memset(other, &[first], words, 4, 2);
    let exec = instantiate(old);
    let mut info = cu::CUgraphExecUpdateResultInfo::default();
    let mut update = |graph| {
        cuda!(graph_exec::cuGraphExecUpdate_v2(
            exec,
            graph,
            Out::from(&mut info)
        ))
    };
    assert_eq!(update(other), cu::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    check(update(new));
    assert_eq!(info.result, cu::CU_GRAPH_EXEC_UPDATE_SUCCESS);
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 2), [2, 0]);
}

#[test]
fn kernel_nodes_show_and_take_parameters() {
    let context = Context::new();
    let (graph, stream) = (new_graph(), new_stream());
    let words = context.upload(&[0u32; 32]);
    let kernel = context.load(crate::common::COUNT).function(c"count");
    let (mut n, mut loops, mut step, mut p) = (32u32, 1u32, 5u32, words);
    let mut pointers = [
        (&raw mut p).cast(),
        (&raw mut n).cast(),
        (&raw mut loops).cast(),
        (&raw mut step).cast(),
    ];
    let params = cu::CUDA_KERNEL_NODE_PARAMS_v2 {
        func: kernel.0,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: pointers.as_mut_ptr(),
        ..Default::default()
    };
    let mut node = null_mut();
    let none: In<cu::CUgraphNode> = In::null();
    let code = cuda!(graph_nodes::cuGraphAddKernelNode_v2(
        Out::from(&mut node),
        graph,
        none,
        0,
        In::from(&params)
    ));
    check(code);
    let mut shown = cu::CUDA_KERNEL_NODE_PARAMS_v2::default();
    check(cuda!(graph_nodes::cuGraphKernelNodeGetParams_v2(
        node,
        Out::from(&mut shown)
    )));
    // SAFETY: the kernel has four parameters, the last of 4 bytes.
    let last = unsafe { (*shown.kernelParams.add(3)).cast::<u32>().read_unaligned() };
    assert_eq!(last, 5);
    let exec = instantiate(graph);
    launch(exec, stream);
    let mut other = 7u32;
    pointers[3] = (&raw mut other).cast();
    let params = cu::CUDA_KERNEL_NODE_PARAMS_v2 {
        kernelParams: pointers.as_mut_ptr(),
        ..params
    };
    check(cuda!(graph_exec::cuGraphExecKernelNodeSetParams_v2(
        exec,
        node,
        In::from(&params)
    )));
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 32), [12; 32]);
}

#[test]
fn memory_of_a_graph_keeps_its_address_and_lives_as_long_as_it() {
    let context = Context::new();
    let (graph, stream) = (new_graph(), new_stream());
    let (allocation, address) = add_allocation(graph, 4096);
    let fill = add_memset(graph, &[allocation], address, 6, 1024);
    let mut free = null_mut();
    let after = In::from(&fill);
    check(cuda!(graph_nodes::cuGraphAddMemFreeNode(
        Out::from(&mut free),
        graph,
        after,
        1,
        address
    )));
    let mut clone = null_mut();
    let cloned = cuda!(graph::cuGraphClone(Out::from(&mut clone), graph));
    assert_eq!(cloned, cu::CUDA_ERROR_NOT_SUPPORTED);
    let exec = instantiate(graph);
    check(cuda!(graph::cuGraphDestroy(graph)));
    launch(exec, stream);
    launch(exec, stream);
    assert_eq!(context.download::<u32>(address, 1024), [6; 1024]);
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
}

#[test]
fn an_allocation_node_without_a_place_for_its_handle_allocates_nothing() {
    let _context = Context::new();
    let graph = new_graph();
    let mut params = allocation_params(4096);
    let none: In<cu::CUgraphNode> = In::null();
    let refused = cuda!(graph_nodes::cuGraphAddMemAllocNode(
        Out::null(),
        graph,
        none,
        0,
        Out::from(&mut params),
    ));
    assert_eq!((refused, params.dptr), (cu::CUDA_ERROR_INVALID_VALUE, 0));
}

#[test]
fn memory_of_a_graph_stays_until_its_launch_has_ended() {
    let _context = Context::new();
    let (graph, stream) = (new_graph(), new_stream());
    let gate = Gate::default();
    let (allocation, address) = add_allocation(graph, 4096);
    let held = add_host(graph, &[allocation], wait_at_gate, &raw const gate);
    add_memset(graph, &[held], address, 6, 1024);
    let exec = instantiate(graph);
    check(cuda!(graph_exec::cuGraphLaunch(exec, stream)));
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
    check(cuda!(graph::cuGraphDestroy(graph)));
    gate.open.store(true, Ordering::SeqCst);
    check(cuda!(stream::cuStreamSynchronize(stream)));
}

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the test keeps the counter.
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

/// Makes a user object that counts its end, and moves the only reference to `graph`.
fn give_object(graph: cu::CUgraph, counter: &AtomicU32) -> cu::CUuserObject {
    let mut object = null_mut();
    let data = crate::common::out((&raw const *counter).cast_mut().cast());
    check(cuda!(graph::cuUserObjectCreate(
        Out::from(&mut object),
        data,
        Some(count),
        1,
        1
    )));
    let moved = cu::CU_GRAPH_USER_OBJECT_MOVE;
    check(cuda!(graph::cuGraphRetainUserObject(
        graph, object, 1, moved
    )));
    object
}

#[test]
fn user_objects_die_with_the_last_graph_that_holds_them() {
    let _context = Context::new();
    let graph = new_graph();
    let counter = AtomicU32::new(0);
    give_object(graph, &counter);
    let exec = instantiate(graph);
    check(cuda!(graph::cuGraphDestroy(graph)));
    assert_eq!(counter.load(Ordering::SeqCst), 0);
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
    assert_eq!(counter.load(Ordering::SeqCst), 1);
}

#[test]
fn an_executable_graph_has_references_of_its_own() {
    let _context = Context::new();
    let graph = new_graph();
    let counter = AtomicU32::new(0);
    let object = give_object(graph, &counter);
    let exec = instantiate(graph);
    check(cuda!(graph::cuGraphReleaseUserObject(graph, object, 1)));
    assert_eq!(counter.load(Ordering::SeqCst), 0);
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
    assert_eq!(counter.load(Ordering::SeqCst), 1);
    check(cuda!(graph::cuGraphDestroy(graph)));
}

#[test]
fn clones_and_graphs_inside_have_references_of_their_own() {
    let _context = Context::new();
    let (outer, inner) = (new_graph(), new_graph());
    let counter = AtomicU32::new(0);
    give_object(inner, &counter);
    let mut child = null_mut();
    let none: In<cu::CUgraphNode> = In::null();
    check(cuda!(graph_nodes::cuGraphAddChildGraphNode(
        Out::from(&mut child),
        outer,
        none,
        0,
        inner
    )));
    check(cuda!(graph::cuGraphDestroy(inner)));
    let mut clone = null_mut();
    check(cuda!(graph::cuGraphClone(Out::from(&mut clone), outer)));
    check(cuda!(graph::cuGraphDestroyNode(child)));
    check(cuda!(graph::cuGraphDestroy(outer)));
    assert_eq!(counter.load(Ordering::SeqCst), 0);
    check(cuda!(graph::cuGraphDestroy(clone)));
    assert_eq!(counter.load(Ordering::SeqCst), 1);
}

#[test]
fn an_update_replaces_references_and_launches_keep_theirs() {
    let context = Context::new();
    let (old, new, stream) = (new_graph(), new_graph(), new_stream());
    let words = context.upload(&[0u32; 1]);
    let (gate, calls) = (Gate::default(), AtomicU32::new(0));
    let (before, after) = (AtomicU32::new(0), AtomicU32::new(0));
    add_host(old, &[], wait_at_gate, &raw const gate);
    add_host(new, &[], count, &raw const calls);
    give_object(old, &before);
    give_object(new, &after);
    let exec = instantiate(old);
    check(cuda!(graph::cuGraphDestroy(old)));
    check(cuda!(graph_exec::cuGraphLaunch(exec, stream)));
    let mut info = cu::CUgraphExecUpdateResultInfo::default();
    check(cuda!(graph_exec::cuGraphExecUpdate_v2(
        exec,
        new,
        Out::from(&mut info)
    )));
    check(cuda!(graph::cuGraphDestroy(new)));
    assert_eq!(before.load(Ordering::SeqCst), 0, "the launch needs it");
    gate.open.store(true, Ordering::SeqCst);
    // What follows in the stream begins after the launch has released what it held.
    check(cuda!(memset::cuMemsetD32Async(words, 1, 1, stream)));
    check(cuda!(stream::cuStreamSynchronize(stream)));
    assert_eq!(before.load(Ordering::SeqCst), 1);
    launch(exec, stream);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(after.load(Ordering::SeqCst), 0);
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
    check(cuda!(memset::cuMemsetD32Async(words, 2, 1, stream)));
    check(cuda!(stream::cuStreamSynchronize(stream)));
    assert_eq!(after.load(Ordering::SeqCst), 1);
}

#[test]
fn a_graph_inside_a_graph_runs_in_its_place() {
    let context = Context::new();
    let (outer, inner, stream) = (new_graph(), new_graph(), new_stream());
    let words = context.upload(&[0u32; 4]);
    add_memset(inner, &[], words, 1, 4);
    let mut child = null_mut();
    let none: In<cu::CUgraphNode> = In::null();
    check(cuda!(graph_nodes::cuGraphAddChildGraphNode(
        Out::from(&mut child),
        outer,
        none,
        0,
        inner
    )));
    add_memset(outer, &[child], words, 2, 1);
    launch(instantiate(outer), stream);
    assert_eq!(context.download::<u32>(words, 4), [2, 1, 1, 1]);
    let mut embedded = null_mut();
    check(cuda!(graph_nodes::cuGraphChildGraphNodeGetGraph(
        child,
        Out::from(&mut embedded)
    )));
    let mut count = 0;
    check(cuda!(graph::cuGraphGetNodes(
        embedded,
        Out::null(),
        Out::from(&mut count)
    )));
    assert_eq!(count, 1);
}
