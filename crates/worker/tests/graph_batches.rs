//! Executable graphs with batches of waits and writes of words do the same in another worker, and after a change there.

use crate::common::scene::{EXEC, instantiate, replay};
use crate::common::{Program, STREAM, load_anew, started};
use fermata_abi::op::{Blob, Op};
use fermata_abi::sys::driver::{CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_GEQ};
use fermata_control::worker::FromWorker;
use fermata_graph::{EdgeData, Graph, MemOp, MemOpKind, NodeKind};

fn op(kind: MemOpKind, address: u64, value: u64, flags: u32, wide: bool) -> MemOp {
    MemOp {
        kind,
        address,
        value,
        flags,
        wide,
    }
}

/// One node writes two words; the next, which waits for both, writes a third.
fn graph(device: u64, value: u32) -> Graph {
    let wide = u64::MAX - u64::from(value);
    let first = vec![
        op(MemOpKind::Write, device, value.into(), 0, false),
        op(MemOpKind::Barrier, 0, 0, 0, false),
        op(MemOpKind::Write, device + 8, wide, 0, true),
    ];
    let second = vec![
        op(
            MemOpKind::Wait,
            device,
            value.into(),
            CU_STREAM_WAIT_VALUE_GEQ,
            false,
        ),
        op(
            MemOpKind::Wait,
            device + 8,
            wide,
            CU_STREAM_WAIT_VALUE_EQ,
            true,
        ),
        op(
            MemOpKind::Write,
            device + 16,
            u64::from(value) + 1,
            0,
            false,
        ),
    ];
    let mut graph = Graph::new();
    let first = graph.add(NodeKind::BatchMemOp(first), &[]).unwrap();
    let after = [(first, EdgeData::default())];
    graph.add(NodeKind::BatchMemOp(second), &after).unwrap();
    graph
}

/// What the graph leaves in zeros.
fn run(program: &Program, device: u64) -> Vec<u8> {
    program.write(device, &[0; 24]);
    replay(program, STREAM);
    program.read(device, 24)
}

fn expected(value: u32) -> Vec<u8> {
    let wide = u64::MAX - u64::from(value);
    let words = [u64::from(value), wide, u64::from(value) + 1];
    words.map(u64::to_le_bytes).concat()
}

#[test]
fn batches_in_a_graph_go_over_into_another_worker_and_are_changed_there() {
    let (worker, program) = started();
    let device = program.alloc(256);
    instantiate(&program, &graph(device, 7));
    assert_eq!(run(&program, device), expected(7));

    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    assert_eq!(run(&program, device), expected(7));
    let changed = postcard::to_stdvec(&graph(device, 900)).unwrap();
    program.post(&Op::GraphUpdate {
        exec: EXEC,
        graph: Blob::Inline(&changed),
    });
    assert_eq!(run(&program, device), expected(900));
}
