//! Executable graphs with conditional nodes: kernels that set conditions do so in every worker and after every change.

use std::borrow::Cow;

use crate::common::scene::{EXEC, instantiate, replay};
use crate::common::{CONTEXT, Program, STREAM, load_anew, started, words};
use fermata_abi::op::{Blob, ContextId, FunctionId, ModuleId, Op};
use fermata_control::worker::FromWorker;
use fermata_graph::update::KernelChange;
use fermata_graph::{
    Condition, Conditional, ConditionalKind, EdgeData, Graph, KernelNode, NodeId, NodeKind,
};

const MODULE: ModuleId = ModuleId::from_raw(0x7100);
const COUNT: FunctionId = FunctionId::from_raw(0x7110);

/// Adds `n` to a word and takes one from the next; sets a condition to what is left of that.
const PTX: &[u8] = b".version 8.0\n.target sm_75\n.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 h, .param .b32 v);
.visible .entry count(.param .u64 p, .param .u64 h, .param .u32 n)
{ .reg .b64 %rd<3>; .reg .b32 %r<4>; ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [h]; ld.param.u32 %r3, [n];
  ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, %r3; st.global.u32 [%rd1], %r1;
  ld.global.u32 %r1, [%rd1+4]; sub.u32 %r1, %r1, 1; st.global.u32 [%rd1+4], %r1;
  { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); } ret; }";

fn count(device: u64, condition: u64, n: u32) -> KernelNode {
    let handle = Condition::numbered(condition).0;
    let params = [device.to_le_bytes(), handle.to_le_bytes()].concat();
    KernelNode {
        function: COUNT,
        context: ContextId::from_raw(0),
        grid: [1, 1, 1],
        block: [1, 1, 1],
        shared_bytes: 0,
        params: [&params[..], &n.to_le_bytes()].concat(),
        attributes: Vec::new(),
    }
}

/// A loop, as a program has it whose handle is that of `condition`.
fn looping(device: u64, condition: u64, default: u32, n: u32) -> Graph {
    let mut body = Graph::new();
    let count = NodeKind::Kernel(count(device, condition, n));
    body.add(count, &[]).unwrap();
    let mut graph = Graph::new();
    let first = graph.add(NodeKind::Empty, &[]).unwrap();
    let node = Conditional {
        condition: Condition::numbered(condition),
        default: Some(default),
        context: CONTEXT,
        kind: ConditionalKind::While,
        bodies: vec![body],
    };
    let node = NodeKind::Conditional(Box::new(node));
    graph.add(node, &[(first, EdgeData::default())]).unwrap();
    graph
}

/// Launches it for three turns, if it begins any; the first word then.
fn run(program: &Program, device: u64) -> u32 {
    program.write(device + 4, &3u32.to_le_bytes());
    replay(program, STREAM);
    words(&program.read(device, 4))[0]
}

#[test]
fn a_loop_in_a_graph_goes_over_into_another_worker_and_is_changed_there() {
    let (worker, program) = started();
    program.load(MODULE, PTX);
    program.kernel(COUNT, MODULE, "count");
    let device = program.alloc(256);
    program.write(device, &[0; 256]);
    instantiate(&program, &looping(device, 16, 1, 2));
    assert_eq!(run(&program, device), 6);

    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    program.write(device, &[0; 256]);
    assert_eq!(run(&program, device), 6);
    let changes = [KernelChange {
        path: Cow::Borrowed(&[NodeId(2), NodeId(0)]),
        node: NodeId(1),
        kernel: Cow::Owned(count(device, 16, 5)),
    }];
    let changes = postcard::to_stdvec(&changes.to_vec()).unwrap();
    program.post(&Op::GraphSetKernels {
        exec: EXEC,
        kernels: Blob::Inline(&changes),
    });
    assert_eq!(run(&program, device), 21);
    // An update from a graph with a handle of its own, in which nothing runs, and from another one.
    for (default, n, expected) in [(0, 7, 21), (1, 7, 42)] {
        let graph = looping(device, 32 + u64::from(default), default, n);
        let graph = postcard::to_stdvec(&graph).unwrap();
        program.post(&Op::GraphUpdate {
            exec: EXEC,
            graph: Blob::Inline(&graph),
        });
        assert_eq!(run(&program, device), expected);
    }
}
