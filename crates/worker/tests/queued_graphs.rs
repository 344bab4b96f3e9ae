//! Launches of graphs keep their order with what is parked, whatever their nodes touch.

use std::time::Duration;

use crate::common::scene::{EXEC, instantiate, kernel_graph, replay};
use crate::common::{
    Answer, CONTEXT, FUNCTION, PATIENCE, Program, STREAM, Worker, load_anew, started, words,
};
use fermata_abi::op::{Blob, EventId, Op, StreamId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FromWorker, Hold};
use fermata_graph::{EdgeData, Graph, NodeKind};
use fermata_wire::Pending;

const OTHER: StreamRef = StreamRef {
    context: CONTEXT,
    stream: StreamId::from_raw(0x210),
};
const EVENT: EventId = EventId::from_raw(0x300);
/// Long enough for an answer that must not come.
const MOMENT: Duration = Duration::from_millis(100);

/// A program with two streams and an event.
fn begun() -> (Worker, Program) {
    let (worker, program) = started();
    program.post(&Op::StreamCreate {
        stream: OTHER.stream,
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    create(&program, EVENT);
    (worker, program)
}

fn create(program: &Program, event: EventId) {
    program.post(&Op::EventCreate {
        event,
        context: CONTEXT,
        flags: 0,
    });
}

/// Adds 1 to the words at `address`, between a wait for one event and the record of another.
fn adding(address: u64, waits: Option<EventId>, records: Option<EventId>) -> Graph {
    let mut params = address.to_le_bytes().to_vec();
    params.extend([1, 0, 0, 0, 16, 0, 0, 0]);
    let kernel = kernel_graph(FUNCTION, [1, 32], params);
    let mut graph = Graph::new();
    let nodes = [
        waits.map(NodeKind::EventWait),
        kernel.nodes().next().map(|(_, node)| node.kind.clone()),
        records.map(NodeKind::EventRecord),
    ];
    let mut last = Vec::new();
    for node in nodes.into_iter().flatten() {
        last = vec![(graph.add(node, &last).unwrap(), EdgeData::default())];
    }
    graph
}

/// From now on everything for [`STREAM`] is parked, until [`let_go`].
fn hold(worker: &mut Worker, program: &Program) {
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 1,
    });
    assert_eq!(program.callback(), 1);
    worker.hold(Hold::Busy);
}

fn let_go(worker: &mut Worker, program: &Program) {
    program.producer.callback_done();
    worker.hold(Hold::Off);
}

fn launch(program: &Program, stream: StreamRef) {
    program.post(&Op::GraphLaunch { exec: EXEC, stream });
}

fn asked<'p>(program: &'p Program, op: &Op<'_>) -> Pending<'p> {
    program.producer.request(op, None).unwrap()
}

fn answered(pending: Pending<'_>) {
    assert!(pending.wait_for(PATIENCE).unwrap(), "it is not answered");
    assert_eq!(pending.wait(&mut Vec::new()).unwrap().status, 0);
}

fn is_pending(program: &Program, event: EventId) -> bool {
    match program.ask(&Op::EventQuery { event }) {
        Answer::None => false,
        Answer::Error(cu::CUDA_ERROR_NOT_READY, _) => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_event_that_a_parked_graph_records_is_not_passed() {
    let (mut worker, program) = begun();
    let memory = program.alloc(64);
    program.write(memory, &[0; 64]);
    instantiate(&program, &adding(memory, None, Some(EVENT)));
    hold(&mut worker, &program);
    launch(&program, STREAM);
    assert!(is_pending(&program, EVENT));
    program.post(&Op::StreamWait {
        stream: OTHER,
        event: EVENT,
        flags: 0,
    });
    let behind = asked(&program, &Op::StreamSync { stream: OTHER });
    let recorded = asked(&program, &Op::EventSync { event: EVENT });
    assert!(!behind.wait_for(MOMENT).unwrap());
    assert!(!recorded.wait_for(Duration::ZERO).unwrap());
    let_go(&mut worker, &program);
    answered(behind);
    answered(recorded);
    assert!(!is_pending(&program, EVENT));
    assert_eq!(words(&program.read(memory, 64)), [1; 16]);
}

#[test]
fn a_graph_that_waits_for_an_event_stays_behind_its_parked_record() {
    let (mut worker, program) = begun();
    let (memory, count) = (program.alloc(64), program.alloc(64));
    program.write(memory, &[0; 64]);
    program.write(count, &[0; 64]);
    instantiate(&program, &adding(count, Some(EVENT), None));
    hold(&mut worker, &program);
    program.launch_add(memory, 1, 16, STREAM);
    program.post(&Op::EventRecord {
        event: EVENT,
        stream: STREAM,
        flags: 0,
    });
    launch(&program, OTHER);
    let behind = asked(&program, &Op::StreamSync { stream: OTHER });
    assert!(!behind.wait_for(MOMENT).unwrap());
    let_go(&mut worker, &program);
    answered(behind);
    assert_eq!(words(&program.read(memory, 64)), [1; 16]);
    assert_eq!(words(&program.read(count, 64)), [1; 16]);
}

#[test]
fn the_events_of_a_parked_update_are_those_of_the_launches_behind_it() {
    let (mut worker, program) = begun();
    let memory = program.alloc(64);
    program.write(memory, &[0; 64]);
    let other = EventId::from_raw(0x310);
    create(&program, other);
    instantiate(&program, &adding(memory, None, Some(EVENT)));
    hold(&mut worker, &program);
    launch(&program, STREAM);
    let update = postcard::to_stdvec(&adding(memory, None, Some(other))).unwrap();
    program.post(&Op::GraphUpdate {
        exec: EXEC,
        graph: Blob::Inline(&update),
    });
    launch(&program, STREAM);
    assert!(is_pending(&program, EVENT));
    assert!(is_pending(&program, other));
    let recorded = asked(&program, &Op::EventSync { event: other });
    let_go(&mut worker, &program);
    answered(recorded);
    assert_eq!(words(&program.read(memory, 64)), [2; 16]);
}

#[test]
fn launches_of_one_graph_keep_their_order_across_streams() {
    let (mut worker, program) = begun();
    let memory = program.alloc(64);
    program.write(memory, &[0; 64]);
    instantiate(&program, &adding(memory, None, None));
    hold(&mut worker, &program);
    launch(&program, STREAM);
    launch(&program, OTHER);
    let second = asked(&program, &Op::StreamSync { stream: OTHER });
    assert!(!second.wait_for(MOMENT).unwrap());
    let_go(&mut worker, &program);
    answered(second);
    assert_eq!(words(&program.read(memory, 64)), [2; 16]);
}

#[test]
fn a_graph_is_made_anew_behind_its_parked_launches() {
    let (mut worker, program) = begun();
    let (memory, count) = (program.alloc(64), program.alloc(64));
    program.write(memory, &[0; 64]);
    program.write(count, &[0; 64]);
    instantiate(&program, &adding(memory, None, None));
    hold(&mut worker, &program);
    launch(&program, STREAM);
    // As the client does it when a node was switched off.
    program.post(&Op::GraphDestroy { exec: EXEC });
    let graph = postcard::to_stdvec(&adding(count, None, Some(EVENT))).unwrap();
    let again = Op::GraphInstantiate {
        exec: EXEC,
        context: CONTEXT,
        graph: Blob::Inline(&graph),
        flags: 0,
    };
    let again = asked(&program, &again);
    launch(&program, STREAM);
    assert!(is_pending(&program, EVENT));
    let_go(&mut worker, &program);
    answered(again);
    answered(asked(&program, &Op::EventSync { event: EVENT }));
    assert_eq!(words(&program.read(memory, 64)), [1; 16]);
    assert_eq!(words(&program.read(count, 64)), [1; 16]);
}

#[test]
fn an_event_that_a_graph_has_recorded_is_one_that_was_recorded_after_a_restore() {
    let (worker, program) = begun();
    let end = EventId::from_raw(0x310);
    create(&program, end);
    let memory = program.alloc(64);
    let mut graph = adding(memory, None, Some(EVENT));
    let inner = adding(memory, None, Some(end));
    graph
        .add(NodeKind::ChildGraph(Box::new(inner)), &[])
        .unwrap();
    instantiate(&program, &graph);
    replay(&program, STREAM);
    let elapsed = Op::EventElapsed { start: EVENT, end };
    assert!(matches!(program.ask(&elapsed), Answer::F32(_)));
    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    let idle = Op::ContextSync { context: CONTEXT };
    assert_eq!(program.ask(&idle), Answer::None);
    let told = program.ask(&elapsed);
    assert!(matches!(told, Answer::F32(_)), "{told:?}");
}

#[test]
fn an_event_that_is_recorded_while_it_is_waited_for_stays_that_of_its_graphs() {
    let (_worker, program) = begun();
    let memory = program.alloc(64);
    program.write(memory, &[0; 64]);
    instantiate(&program, &adding(memory, None, Some(EVENT)));
    let record = |stream| {
        program.post(&Op::EventRecord {
            event: EVENT,
            stream,
            flags: 0,
        });
    };
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 1,
    });
    assert_eq!(program.callback(), 1);
    record(STREAM);
    let first = asked(&program, &Op::EventSync { event: EVENT });
    record(OTHER);
    // Each wait is for its own recording.
    answered(asked(&program, &Op::EventSync { event: EVENT }));
    assert!(!first.wait_for(Duration::ZERO).unwrap());
    program.producer.callback_done();
    answered(first);
    replay(&program, STREAM);
    assert!(!is_pending(&program, EVENT));
    assert_eq!(words(&program.read(memory, 64)), [1; 16]);
}
