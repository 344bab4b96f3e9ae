//! Conditional nodes of graphs, and the conditions that kernels set.

use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{capture, graph, graph_exec, graph_nodes, memset, stream};

use crate::common::{Context, Kernel, check, cuda};

/// `decide` sets a condition to a word; `turn` adds one to a word, and sets a condition to whether it is below a limit.
const WORK: &std::ffi::CStr = c".version 8.0\n.target sm_75\n.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 h, .param .b32 v);
.visible .entry decide(.param .u64 h, .param .u64 p)
{ .reg .b64 %rd<3>; .reg .b32 %r<2>; ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [h]; ld.global.u32 %r1, [%rd1];
  { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); } ret; }
.visible .entry turn(.param .u64 h, .param .u64 p, .param .u32 limit)
{ .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p1; ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [h];
  ld.param.u32 %r2, [limit]; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;
  setp.lt.u32 %p1, %r1, %r2; selp.u32 %r1, 1, 0, %p1;
  { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); } ret; }";

const DEFAULT: u32 = cu::CU_GRAPH_COND_ASSIGN_DEFAULT;

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

fn condition(graph: cu::CUgraph, default: u32, flags: u32) -> u64 {
    let mut handle = 0;
    check(cuda!(graph::cuGraphConditionalHandleCreate(
        Out::from(&mut handle),
        graph,
        null_mut(),
        default,
        flags
    )));
    handle
}

/// Adds a conditional node; its bodies.
fn try_add(
    graph: cu::CUgraph,
    after: &[cu::CUgraphNode],
    handle: u64,
    (kind, size): (u32, u32),
) -> Result<(cu::CUgraphNode, Vec<cu::CUgraph>), u32> {
    let mut params = cu::CUgraphNodeParams {
        type_: cu::CU_GRAPH_NODE_TYPE_CONDITIONAL,
        ..Default::default()
    };
    params.__bindgen_anon_1.conditional = cu::CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: kind,
        size,
        ..Default::default()
    };
    let mut node = null_mut();
    let code = cuda!(graph::cuGraphAddNode_v2(
        Out::from(&mut node),
        graph,
        In::from(after),
        In::null(),
        after.len(),
        Out::from(&mut params)
    ));
    if code != cu::CUDA_SUCCESS {
        return Err(code);
    }
    // SAFETY: the node was added, so the array has `size` graphs.
    let bodies = unsafe {
        let first = params.__bindgen_anon_1.conditional.phGraph_out;
        std::slice::from_raw_parts(first, size as usize)
    };
    Ok((node, bodies.to_vec()))
}

fn add(
    graph: cu::CUgraph,
    after: &[cu::CUgraphNode],
    handle: u64,
    kind: (u32, u32),
) -> (cu::CUgraphNode, Vec<cu::CUgraph>) {
    try_add(graph, after, handle, kind).expect("added")
}

fn add_memset(graph: cu::CUgraph, dst: u64, value: u32) -> cu::CUgraphNode {
    let params = cu::CUDA_MEMSET_NODE_PARAMS {
        dst,
        pitch: 0,
        value,
        elementSize: 4,
        width: 1,
        height: 1,
    };
    let mut node = null_mut();
    let none: In<cu::CUgraphNode> = In::null();
    check(cuda!(graph_nodes::cuGraphAddMemsetNode(
        Out::from(&mut node),
        graph,
        none,
        0,
        In::from(&params),
        null_mut(),
    )));
    node
}

fn add_kernel(graph: cu::CUgraph, kernel: &Kernel, mut words: [u64; 3]) -> cu::CUgraphNode {
    let mut pointers = words.each_mut().map(|word| std::ptr::from_mut(word).cast());
    let params = cu::CUDA_KERNEL_NODE_PARAMS_v2 {
        func: kernel.0,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: pointers.as_mut_ptr(),
        ..Default::default()
    };
    let mut node = null_mut();
    let none: In<cu::CUgraphNode> = In::null();
    check(cuda!(graph_nodes::cuGraphAddKernelNode_v2(
        Out::from(&mut node),
        graph,
        none,
        0,
        In::from(&params)
    )));
    node
}

fn try_instantiate(graph: cu::CUgraph) -> (u32, u32, cu::CUgraphExec) {
    let (mut exec, mut params) = (null_mut(), cu::CUDA_GRAPH_INSTANTIATE_PARAMS::default());
    let code = cuda!(graph_exec::cuGraphInstantiateWithParams(
        Out::from(&mut exec),
        graph,
        Out::from(&mut params)
    ));
    (code, params.result_out, exec)
}

fn instantiate(graph: cu::CUgraph) -> cu::CUgraphExec {
    let (code, _, exec) = try_instantiate(graph);
    check(code);
    exec
}

fn launch(exec: cu::CUgraphExec, stream: cu::CUstream) {
    check(cuda!(graph_exec::cuGraphLaunch(exec, stream)));
    check(cuda!(stream::cuStreamSynchronize(stream)));
}

#[test]
fn a_word_decides_which_body_runs() {
    let context = Context::new();
    let module = context.load(WORK);
    let (graph, stream) = (new_graph(), new_stream());
    let words = context.upload(&[0u32; 3]);
    let (either, which) = (condition(graph, 0, 0), condition(graph, 2, DEFAULT));
    let decided = add_kernel(graph, &module.function(c"decide"), [either, words, 0]);
    let (node, bodies) = add(graph, &[decided], either, (cu::CU_GRAPH_COND_TYPE_IF, 2));
    add_memset(bodies[0], words + 4, 5);
    // The other body is captured.
    let mode = cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let none: In<cu::CUgraphNode> = In::null();
    check(cuda!(capture::cuStreamBeginCaptureToGraph(
        stream,
        bodies[1],
        none,
        In::null(),
        0,
        mode
    )));
    check(cuda!(memset::cuMemsetD32Async(words + 4, 6, 1, stream)));
    let mut ended = null_mut();
    check(cuda!(capture::cuStreamEndCapture(
        stream,
        Out::from(&mut ended)
    )));
    assert_eq!(ended, bodies[1]);
    let (_, cases) = add(graph, &[node], which, (cu::CU_GRAPH_COND_TYPE_SWITCH, 3));
    for (case, value) in cases.iter().zip([7, 8, 9]) {
        add_memset(*case, words + 8, value);
    }
    let mut kind = 0;
    check(cuda!(graph::cuGraphNodeGetType(node, Out::from(&mut kind))));
    assert_eq!(kind, cu::CU_GRAPH_NODE_TYPE_CONDITIONAL);
    let exec = instantiate(graph);
    for (decision, expected) in [(1, 5), (0, 6), (9, 5)] {
        check(cuda!(memset::cuMemsetD32Async(words, decision, 1, stream)));
        launch(exec, stream);
        let found = context.download::<u32>(words, 3);
        assert_eq!(found, [decision, expected, 9]);
    }
}

#[test]
fn a_loop_runs_until_a_kernel_ends_it_and_begins_anew_at_each_launch() {
    let context = Context::new();
    let module = context.load(WORK);
    let (graph, stream) = (new_graph(), new_stream());
    let words = context.upload(&[0u32; 2]);
    let repeats = condition(graph, 1, DEFAULT);
    let (_, bodies) = add(graph, &[], repeats, (cu::CU_GRAPH_COND_TYPE_WHILE, 1));
    // In each turn, a loop in the body counts to three.
    let inner = condition(bodies[0], 1, DEFAULT);
    let turn = module.function(c"turn");
    let counted = add_kernel(bodies[0], &turn, [repeats, words, 4]);
    let decided = add_kernel(bodies[0], &module.function(c"decide"), [inner, words, 0]);
    check(cuda!(graph::cuGraphAddDependencies(
        bodies[0],
        In::from(&counted),
        In::from(&decided),
        1
    )));
    let (_, turns) = add(
        bodies[0],
        &[decided],
        inner,
        (cu::CU_GRAPH_COND_TYPE_WHILE, 1),
    );
    let last = add_kernel(turns[0], &turn, [inner, words + 4, 3]);
    let exec = instantiate(graph);
    launch(exec, stream);
    // The inner loop runs three times in the first turn, then once in each.
    assert_eq!(context.download::<u32>(words, 2), [4, 6]);
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 2), [5, 7]);
    // A kernel in a body gets other parameters.
    let (mut handle, mut address, mut limit) = (inner, words + 4, 20);
    let mut pointers =
        [&mut handle, &mut address, &mut limit].map(|it| std::ptr::from_mut::<u64>(it).cast());
    let params = cu::CUDA_KERNEL_NODE_PARAMS_v2 {
        func: turn.0,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: pointers.as_mut_ptr(),
        ..Default::default()
    };
    check(cuda!(graph_exec::cuGraphExecKernelNodeSetParams_v2(
        exec,
        last,
        In::from(&params)
    )));
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 2), [6, 20]);
}

#[test]
fn conditional_nodes_are_refused_where_cuda_refuses_them() {
    let context = Context::new();
    let (graph, other) = (new_graph(), new_graph());
    let words = context.upload(&[0u32; 1]);
    let (once, foreign) = (condition(graph, 1, DEFAULT), condition(other, 0, 0));
    let (if_, while_) = (cu::CU_GRAPH_COND_TYPE_IF, cu::CU_GRAPH_COND_TYPE_WHILE);
    let unused = cu::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    let (code, result, _) = try_instantiate(graph);
    assert_eq!((code, result), (cu::CUDA_ERROR_INVALID_VALUE, unused));
    for (handle, kind) in [
        (once, (while_, 2)),
        (once, (if_, 3)),
        (once, (cu::CU_GRAPH_COND_TYPE_SWITCH, 0)),
        (once, (3, 1)),
        (foreign, (if_, 1)),
        (once + 16, (if_, 1)),
    ] {
        let refused = try_add(graph, &[], handle, kind).unwrap_err();
        assert_eq!(refused, cu::CUDA_ERROR_INVALID_VALUE, "{kind:?}");
    }
    let (_, bodies) = add(graph, &[], once, (if_, 1));
    assert!(try_add(graph, &[], once, (if_, 1)).is_err());
    add_memset(bodies[0], words, 1);
    assert_ne!(cuda!(graph::cuGraphDestroy(bodies[0])), cu::CUDA_SUCCESS);
    let mut copy = null_mut();
    let cloned = cuda!(graph::cuGraphClone(Out::from(&mut copy), graph));
    assert_eq!(cloned, cu::CUDA_ERROR_NOT_SUPPORTED);
    let (mut node, none) = (null_mut(), In::<cu::CUgraphNode>::null());
    let out = Out::from(&mut node);
    let embedded = cuda!(graph_nodes::cuGraphAddChildGraphNode(
        out, other, none, 0, graph
    ));
    assert_eq!(embedded, cu::CUDA_ERROR_NOT_SUPPORTED);
    let exec = instantiate(graph);
    assert_eq!(try_instantiate(graph).0, cu::CUDA_ERROR_NOT_SUPPORTED);
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
    // An event record is none of the nodes that a body may have.
    instantiate(graph);
    let mut event = null_mut();
    check(cuda!(fermata_softgpu::api::event::cuEventCreate(
        Out::from(&mut event),
        0
    )));
    let (third, late) = (new_graph(), &mut null_mut());
    let (_, bodies) = add(third, &[], condition(third, 1, DEFAULT), (if_, 1));
    check(cuda!(graph_nodes::cuGraphAddEventRecordNode(
        Out::from(late),
        bodies[0],
        none,
        0,
        event
    )));
    assert_eq!(try_instantiate(third).0, cu::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn an_update_brings_the_other_graphs_conditions() {
    let context = Context::new();
    let module = context.load(WORK);
    let stream = new_stream();
    let words = context.upload(&[0u32; 2]);
    let made = |value, default| {
        let graph = new_graph();
        let handle = condition(graph, default, DEFAULT);
        let (node, bodies) = add(graph, &[], handle, (cu::CU_GRAPH_COND_TYPE_IF, 1));
        add_kernel(bodies[0], &module.function(c"turn"), [handle, words, 0]);
        (graph, add_memset(graph, words + 4, value), node)
    };
    let ((first, ..), (second, ..)) = (made(1, 0), made(2, 1));
    let exec = instantiate(first);
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 2), [0, 1]);
    let mut info = cu::CUgraphExecUpdateResultInfo::default();
    check(cuda!(graph_exec::cuGraphExecUpdate_v2(
        exec,
        second,
        Out::from(&mut info)
    )));
    check(cuda!(graph::cuGraphDestroy(second)));
    launch(exec, stream);
    assert_eq!(context.download::<u32>(words, 2), [1, 2]);
}
