//! What the device has not been given when a program is stopped stays with the session, and runs once.

use std::time::{Duration, Instant};

use crate::common::scene::{BUFFERS, CHUNK, EXEC, Scene, instantiate, kernel_graph};
use crate::common::{
    Answer, CONTEXT, FUNCTION, ImageFolder, LEGACY, PATIENCE, PTX, Program, STREAM, Worker,
    started, words,
};
use fermata_abi::op::{
    Address, Blob, EventId, FunctionId, ModuleId, Op, Place, StreamId, StreamRef,
};
use fermata_control::worker::{FromWorker, Hold, Meeting, ToWorker, Validate, Way};
use fermata_graph::{Graph, NodeKind};
use fermata_wire::Pending;

const OTHER: StreamRef = StreamRef {
    context: CONTEXT,
    stream: StreamId::from_raw(0x210),
};
const EVENT: EventId = EventId::from_raw(0x300);
const MANY: u32 = 600;
/// How many of them the device may have been given: what is not known yet is given out sparingly.
const FEW: u64 = 16;

/// A program with two streams.
fn begun() -> (Worker, Program) {
    let (worker, program) = started();
    program.post(&Op::StreamCreate {
        stream: OTHER.stream,
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    program.post(&Op::EventCreate {
        event: EVENT,
        context: CONTEXT,
        flags: 2,
    });
    (worker, program)
}

fn copy(to: u64, from: u64, stream: StreamRef) -> Op<'static> {
    Op::Copy {
        to: Place::Address(Address::from_raw(to)),
        from: Place::Address(Address::from_raw(from)),
        len: 64,
        stream,
        answered: false,
    }
}

/// Adds 1 [`MANY`] times behind a host function, then copies on another stream; calls two host functions.
fn enqueue(program: &Program, (from, to): (u64, u64)) {
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 1,
    });
    for _ in 0..MANY {
        program.launch_add(from, 1, 16, STREAM);
    }
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 2,
    });
    program.post(&Op::EventRecord {
        event: EVENT,
        stream: STREAM,
        flags: 0,
    });
    program.post(&Op::StreamWait {
        stream: OTHER,
        event: EVENT,
        flags: 0,
    });
    program.post(&copy(to, from, OTHER));
    program.post(&Op::EventDestroy { event: EVENT });
    program.post(&Op::MemFreeAsync {
        address: Address::from_raw(from),
        stream: OTHER,
    });
}

/// Waits until the worker asks for a host function, which another call takes: it has read what was posted before.
fn await_asked(program: &Program) {
    let until = Instant::now() + PATIENCE;
    while program.asked_callback().is_none() {
        assert!(Instant::now() < until, "it is not asked for");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn run_callback(program: &Program, id: u64) {
    assert_eq!(program.callback(), id);
    program.producer.callback_done();
}

fn queued(worker: &mut Worker) -> u64 {
    match worker.ask(ToWorker::Describe) {
        FromWorker::Description(totals) => totals.queued,
        other => panic!("{other:?}"),
    }
}

/// A new worker with what an image holds.
fn loaded_from(image: &ImageFolder) -> Worker {
    let mut worker = Worker::start();
    let loaded = image.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    worker
}

fn answered(pending: &Pending<'_>) {
    assert!(pending.wait_for(PATIENCE).unwrap(), "it is not answered");
}

fn finish(program: &Program, pending: Pending<'_>, to: u64) {
    run_callback(program, 2);
    answered(&pending);
    assert_eq!(pending.wait(&mut Vec::new()).unwrap().status, 0);
    assert_eq!(words(&program.read(to, 64)), [MANY; 16]);
    // Nothing was asked for twice.
    assert_eq!(program.ask(&Op::Drain), Answer::None);
    assert_eq!(program.asked_callback(), None);
}

#[test]
fn a_queue_goes_on_in_the_same_worker_and_in_the_next() {
    for anew in [false, true] {
        let (mut worker, program) = begun();
        let buffers = (program.alloc(64), program.alloc(64));
        enqueue(&program, buffers);
        let sync = Op::StreamSync { stream: OTHER };
        let pending = program.producer.request(&sync, None).unwrap();
        // Before the host function has run, the device is not idle, whatever is held.
        let holding = worker.hold(Hold::All);
        assert!(!holding.idle);
        run_callback(&program, 1);
        worker.stop(&program);
        assert!(!program.producer.has_answers());
        let image = ImageFolder::new();
        let saved = image.save(&mut worker);
        assert!(saved.queued > u64::from(MANY) - FEW, "{}", saved.queued);
        assert_eq!(queued(&mut worker), saved.queued);
        if anew {
            drop(worker);
            worker = loaded_from(&image);
            assert_eq!(queued(&mut worker), saved.queued);
        }
        worker.bring_back(&program);
        finish(&program, pending, buffers.1);
        // Stopped once more, there is nothing left.
        worker.stop(&program);
        assert_eq!(queued(&mut worker), 0);
        worker.bring_back(&program);
        assert_eq!(words(&program.read(buffers.1, 64)), [MANY; 16]);
    }
}

#[test]
fn host_functions_due_and_running_at_a_stop_are_waited_for_and_later_ones_asked_for_after_it() {
    let (mut worker, program) = begun();
    let call = |stream, id| program.post(&Op::HostCall { stream, id });
    call(STREAM, 1);
    call(OTHER, 2);
    let first = program.callback();
    await_asked(&program);
    // One runs, the other is due and not taken; what comes now is held.
    assert!(!worker.hold(Hold::All).idle);
    for id in [3, 5, 7] {
        call(STREAM, id);
        call(OTHER, id + 1);
    }
    let syncs = [STREAM, OTHER].map(|stream| Op::StreamSync { stream });
    let pending = syncs
        .each_ref()
        .map(|sync| program.producer.request(sync, None).unwrap());
    program.producer.callback_done();
    let second = program.callback();
    assert_eq!(first + second, 3);
    assert!(!worker.hold(Hold::All).idle);
    program.producer.callback_done();
    worker.stop(&program);
    // With the two synchronisations.
    assert_eq!(queued(&mut worker), 8);
    let image = ImageFolder::new();
    image.save(&mut worker);
    drop(worker);
    worker = loaded_from(&image);
    worker.bring_back(&program);
    let mut asked: [Vec<u64>; 2] = Default::default();
    for _ in 0..6 {
        assert!(
            pending
                .iter()
                .any(|it| !it.wait_for(Duration::ZERO).unwrap())
        );
        let id = program.callback();
        asked[usize::from(id % 2 == 0)].push(id);
        program.producer.callback_done();
    }
    assert_eq!(asked, [[3, 5, 7], [4, 6, 8]]);
    pending.iter().for_each(answered);
    drop(pending);
    assert_eq!(program.ask(&Op::Drain), Answer::None);
    assert_eq!(program.asked_callback(), None);
}

#[test]
fn a_program_that_does_not_come_leaves_the_queue_as_it_is() {
    let (mut worker, program) = begun();
    let buffers = (program.alloc(64), program.alloc(64));
    enqueue(&program, buffers);
    worker.hold(Hold::All);
    run_callback(&program, 1);
    worker.stop(&program);
    let before = queued(&mut worker);
    assert!(before > u64::from(MANY) - FEW);
    // It attaches, does not say that it is there, and lets go again.
    worker.offer_in_vain();
    assert_eq!(worker.ask(ToWorker::Detach), FromWorker::Detached);
    assert_eq!(queued(&mut worker), before);
    worker.bring_back(&program);
    let sync = Op::StreamSync { stream: OTHER };
    let pending = program.producer.request(&sync, None).unwrap();
    finish(&program, pending, buffers.1);
}

#[test]
fn a_stop_that_is_given_up_leaves_everything_to_run_once() {
    let (mut worker, program) = begun();
    let buffers = (program.alloc(64), program.alloc(64));
    enqueue(&program, buffers);
    run_callback(&program, 1);
    worker.hold(Hold::All);
    worker.hold(Hold::Closing);
    program.launch_add(buffers.1, 0, 16, OTHER);
    worker.hold(Hold::Off);
    let sync = Op::StreamSync { stream: OTHER };
    let pending = program.producer.request(&sync, None).unwrap();
    finish(&program, pending, buffers.1);
}

#[test]
fn what_takes_long_is_named_and_the_other_streams_go_on() {
    let (mut worker, program) = begun();
    let memory = program.alloc(64);
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 1,
    });
    program.launch_add(memory, 1, 16, STREAM);
    await_asked(&program);
    let holding = worker.hold(Hold::All);
    assert!(!holding.idle);
    assert_eq!(holding.busy.len(), 1);
    assert_eq!(holding.busy[0].stream, STREAM.stream.raw());
    assert!(
        holding.busy[0].what.contains("host function"),
        "{holding:?}"
    );
    // Both are held now.
    program.launch_add(memory, 5, 16, OTHER);
    program.launch_add(memory, 1, 16, STREAM);
    let sync = |stream| Op::StreamSync { stream };
    let other = program.producer.request(&sync(OTHER), None).unwrap();
    assert!(!other.wait_for(Duration::from_millis(100)).unwrap());
    worker.hold(Hold::Busy);
    answered(&other);
    let busy = program.producer.request(&sync(STREAM), None).unwrap();
    run_callback(&program, 1);
    assert!(!busy.wait_for(Duration::from_millis(100)).unwrap());
    worker.hold(Hold::Off);
    answered(&busy);
    drop((other, busy));
    assert_eq!(words(&program.read(memory, 64)), [7; 16]);
}

/// A kernel with a name as NCCL's have.
fn collective(program: &Program) -> FunctionId {
    let (module, function) = (ModuleId::from_raw(0x120), FunctionId::from_raw(0x121));
    let text = String::from_utf8_lossy(PTX).replace(" add(", " ncclDevKernel_Add(");
    program.load(module, text.as_bytes());
    program.kernel(function, module, "ncclDevKernel_Add");
    function
}

#[test]
fn graphs_go_on_from_one_collective_to_the_next_if_they_hold_one() {
    let (mut worker, program) = begun();
    let memory = program.alloc(64);
    let nccl = collective(&program);
    for (inner, function, expected) in [
        (false, FUNCTION, false),
        (false, nccl, true),
        (true, nccl, true),
    ] {
        program.write(memory, &[0; 64]);
        let mut params = memory.to_le_bytes().to_vec();
        params.extend([1, 0, 0, 0, 16, 0, 0, 0]);
        let mut graph = kernel_graph(function, [1, 32], params);
        if inner {
            let mut outer = Graph::new();
            outer
                .add(NodeKind::ChildGraph(Box::new(graph)), &[])
                .unwrap();
            graph = outer;
        }
        instantiate(&program, &graph);
        program.post(&Op::HostCall {
            stream: STREAM,
            id: 1,
        });
        assert!(!worker.hold(Hold::All).idle);
        worker.hold(Hold::Step(Meeting::Collectives));
        for _ in 0..2 {
            program.post(&Op::GraphLaunch {
                exec: EXEC,
                stream: OTHER,
            });
        }
        let sync = Op::StreamSync { stream: OTHER };
        let both = program.producer.request(&sync, None).unwrap();
        // The second one stays behind the first, if that may wait for other ranks.
        if expected {
            assert!(!both.wait_for(Duration::from_millis(100)).unwrap());
        } else {
            answered(&both);
        }
        run_callback(&program, 1);
        worker.hold(Hold::Off);
        answered(&both);
        drop(both);
        assert_eq!(words(&program.read(memory, 64)), [2; 16]);
        assert_eq!(program.ask(&Op::GraphDestroy { exec: EXEC }), Answer::None);
    }
}

#[test]
fn staged_bytes_of_a_copy_that_waits_come_with_the_program() {
    let (mut worker, program) = begun();
    let memory = program.alloc(4096);
    // The default stream stays behind a stream that is held.
    worker.hold(Hold::All);
    let staged = program.producer.stage(4096).unwrap();
    // SAFETY: the range is 4096 bytes, and nobody else's.
    unsafe { staged.address().write_bytes(9, 4096) };
    let (offset, len) = (staged.offset(), staged.len());
    let put = Op::Copy {
        to: Place::Address(Address::from_raw(memory)),
        from: Place::Blob(Blob::Staged { offset, len }),
        len,
        stream: LEGACY,
        answered: true,
    };
    let pending = program.producer.request(&put, None).unwrap();
    worker.stop(&program);
    assert_eq!(queued(&mut worker), 1);
    let image = ImageFolder::new();
    image.save(&mut worker);
    drop(worker);
    worker = loaded_from(&image);
    worker.bring_back(&program);
    answered(&pending);
    drop((pending, staged));
    assert_eq!(program.read(memory, 4096), [9; 4096]);
}

/// A capture that is made ready sets memory aside until after the stop.
#[test]
fn an_allocation_that_waits_for_memory_set_aside_is_no_obstacle_to_the_stop() {
    let worker = Worker::start_with(true, &[("FERMATA_SOFTGPU_MEMORY", "512M")]);
    let (mut scene, program) = Scene::over(worker, crate::common::hold(), BUFFERS);
    let way = Way::Cow;
    let prepare = ToWorker::Prepare {
        store: scene.path("store").into(),
        way: Some(way),
        pool_bytes: Some(16 * CHUNK),
        validate: Validate::Content,
    };
    assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
    let info = program.ask(&Op::MemInfo { context: CONTEXT });
    let Answer::Pair(free, _) = info else {
        panic!("{info:?}")
    };
    // Free for the program, and more than the device has left.
    let alloc = Op::MemAlloc {
        context: CONTEXT,
        size: free - 4 * CHUNK,
    };
    let pending = program.producer.request(&alloc, None).unwrap();
    assert!(!pending.wait_for(Duration::from_millis(100)).unwrap());
    scene.worker.stop(&program);
    assert_eq!(queued(&mut scene.worker), 1);
    assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
    scene.worker.bring_back(&program);
    answered(&pending);
    assert_eq!(pending.wait(&mut Vec::new()).unwrap().status, 0);
}
