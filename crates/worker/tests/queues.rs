//! A stream whose queue in the driver is full holds up nothing but what comes after it.

use std::time::Duration;

use crate::common::{CONTEXT, FUNCTION, LEGACY, PATIENCE, Program, Worker, words};
use fermata_abi::op::{Address, EventId, Op, StreamId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FromWorker, ToWorker};

/// Streams that the default stream does not wait for.
const HELD: StreamRef = stream(0x200);
const FREE: StreamRef = stream(0x210);
/// One that it does wait for.
const BLOCKING: StreamRef = stream(0x220);
const EVENT: EventId = EventId::from_raw(0x300);
const OTHER_EVENT: EventId = EventId::from_raw(0x310);
/// More than the queue of the test's driver holds.
const MANY: u32 = 3000;

const fn stream(stream: u64) -> StreamRef {
    StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(stream),
    }
}

fn start() -> (Worker, Program) {
    let mut worker = Worker::start_with(
        std::env::var_os("FERMATA_TEST_DRIVER").is_none(),
        &[("FERMATA_SOFTGPU_QUEUE", "1000")],
    );
    let program = worker.attach();
    program.set_up();
    for (stream, flags) in [(HELD, 1), (FREE, 1), (BLOCKING, 0)] {
        program.post(&Op::StreamCreate {
            stream: stream.stream,
            context: CONTEXT,
            flags,
            priority: 0,
        });
    }
    for event in [EVENT, OTHER_EVENT] {
        program.post(&Op::EventCreate {
            event,
            context: CONTEXT,
            flags: 0,
        });
    }
    (worker, program)
}

/// Holds `stream` until the callback is counted, and launches much more than its queue takes.
fn hold(program: &Program, stream: StreamRef, address: u64) {
    program.post(&Op::HostCall { stream, id: 1 });
    for _ in 0..MANY {
        program.launch_add(address, 1, 16, stream);
    }
}

/// The answer, which must come although a stream is held.
fn soon(program: &Program, op: &Op<'_>) -> u32 {
    let pending = program.producer.request(op, None).unwrap();
    assert!(pending.wait_for(PATIENCE).unwrap(), "no answer: {op:?}");
    pending.wait(&mut Vec::new()).unwrap().status
}

fn let_go(program: &Program) {
    assert_eq!(program.callback(), 1);
    program.producer.callback_done();
}

#[test]
fn another_stream_goes_on_while_one_is_full() {
    let (_worker, program) = start();
    let (held, free) = (program.alloc(64), program.alloc(64));
    hold(&program, HELD, held);
    program.post(&Op::EventRecord {
        event: EVENT,
        stream: HELD,
        flags: 0,
    });
    for _ in 0..10 {
        program.launch_add(free, 2, 16, FREE);
    }
    // This is what releases the held stream in a program with two threads.
    assert_eq!(soon(&program, &Op::StreamSync { stream: FREE }), 0);
    let query = Op::EventQuery { event: EVENT };
    assert_eq!(soon(&program, &query), cu::CUDA_ERROR_NOT_READY);
    let query = Op::StreamQuery { stream: HELD };
    assert_eq!(soon(&program, &query), cu::CUDA_ERROR_NOT_READY);
    let_go(&program);
    assert_eq!(soon(&program, &Op::EventSync { event: EVENT }), 0);
    assert_eq!(soon(&program, &Op::EventQuery { event: EVENT }), 0);
    assert_eq!(words(&program.read(held, 64)), [MANY; 16]);
    assert_eq!(words(&program.read(free, 64)), [20; 16]);
}

#[test]
fn what_waits_for_a_full_stream_stays_behind_it() {
    let (_worker, program) = start();
    let memory = program.alloc(64);
    hold(&program, HELD, memory);
    program.post(&Op::EventRecord {
        event: EVENT,
        stream: HELD,
        flags: 0,
    });
    // A stream that waits for the event, recorded again later on a stream that is free.
    program.post(&Op::StreamWait {
        stream: FREE,
        event: EVENT,
        flags: 0,
    });
    let copied = program.alloc(64);
    let copy = |to, from, stream| Op::Copy {
        to: fermata_abi::op::Place::Address(Address::from_raw(to)),
        from: fermata_abi::op::Place::Address(Address::from_raw(from)),
        len: 64,
        stream,
        answered: false,
    };
    program.post(&copy(copied, memory, FREE));
    program.post(&Op::EventRecord {
        event: EVENT,
        stream: BLOCKING,
        flags: 0,
    });
    let context = Op::ContextSync { context: CONTEXT };
    let pending = program.producer.request(&context, None).unwrap();
    assert!(!pending.wait_for(Duration::from_millis(300)).unwrap());
    let_go(&program);
    assert!(pending.wait_for(PATIENCE).unwrap());
    drop(pending);
    assert_eq!(words(&program.read(copied, 64)), [MANY; 16]);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_that_are_full() {
    let (_worker, program) = start();
    let (memory, copied) = (program.alloc(64), program.alloc(64));
    hold(&program, BLOCKING, memory);
    // Behind the full stream, and the next of that stream behind it.
    program.post(&Op::Copy {
        to: fermata_abi::op::Place::Address(Address::from_raw(copied)),
        from: fermata_abi::op::Place::Address(Address::from_raw(memory)),
        len: 64,
        stream: LEGACY,
        answered: false,
    });
    program.launch_add(memory, 1, 16, BLOCKING);
    // A stream of its own does not care.
    program.launch_add(copied, 0, 16, FREE);
    assert_eq!(soon(&program, &Op::StreamSync { stream: FREE }), 0);
    let_go(&program);
    let context = Op::ContextSync { context: CONTEXT };
    assert_eq!(soon(&program, &context), 0);
    assert_eq!(words(&program.read(copied, 64)), [MANY; 16]);
    assert_eq!(words(&program.read(memory, 64)), [MANY + 1; 16]);
}

#[test]
fn what_parked_work_uses_is_given_up_after_it() {
    let (mut worker, program) = start();
    let memory = program.alloc(64);
    hold(&program, HELD, memory);
    let free = Op::MemFree {
        address: Address::from_raw(memory),
    };
    let freed = program.producer.request(&free, None).unwrap();
    let attribute = Op::FunctionSetAttribute {
        function: FUNCTION,
        attribute: cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as i32,
        value: 1024,
    };
    let set = program.producer.request(&attribute, None).unwrap();
    program.post(&Op::StreamDestroy {
        stream: HELD.stream,
    });
    assert!(!freed.wait_for(Duration::from_millis(200)).unwrap());
    assert!(!set.is_done());
    // They wait beside everything else, not before it.
    program.post(&Op::EventRecord {
        event: OTHER_EVENT,
        stream: FREE,
        flags: 0,
    });
    assert_eq!(soon(&program, &Op::EventSync { event: OTHER_EVENT }), 0);
    let_go(&program);
    for pending in [freed, set] {
        assert!(pending.wait_for(PATIENCE).unwrap());
        assert_eq!(pending.wait(&mut Vec::new()).unwrap().status, 0);
    }
    // Nothing is left behind: the consistent point is reached.
    worker.detach(program);
}

#[test]
fn launches_that_outrun_the_device_arrive_in_order() {
    let (_worker, program) = start();
    let (first, second) = (program.alloc(64), program.alloc(64));
    for round in 0..4000 {
        let (address, stream) = if round % 2 == 0 {
            (first, FREE)
        } else {
            (second, HELD)
        };
        program.launch_add(address, 1, 16, stream);
        if round % 500 == 499 {
            for (event, on, other) in [(EVENT, FREE, HELD), (OTHER_EVENT, HELD, FREE)] {
                program.post(&Op::EventRecord {
                    event,
                    stream: on,
                    flags: 0,
                });
                program.post(&Op::StreamWait {
                    stream: other,
                    event,
                    flags: 0,
                });
            }
        }
    }
    // Behind the events it sees what the other stream has done.
    program.launch_add(second, 1, 16, FREE);
    assert_eq!(soon(&program, &Op::StreamSync { stream: FREE }), 0);
    assert_eq!(words(&program.read(first, 64)), [2000; 16]);
    assert_eq!(words(&program.read(second, 64)), [2001; 16]);
}

#[test]
fn what_is_parked_is_carried_out_before_the_worker_lets_go() {
    let (mut worker, program) = start();
    let memory = program.alloc(64);
    hold(&program, HELD, memory);
    // Behind all that has been posted.
    assert_eq!(soon(&program, &Op::StreamSync { stream: FREE }), 0);
    worker.daemon.send(&ToWorker::Detach, &[]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let_go(&program);
    assert_eq!(worker.answer(), FromWorker::Detached);
    drop(program);
    let program = worker.attach();
    let context = Op::ContextSync { context: CONTEXT };
    assert_eq!(soon(&program, &context), 0);
    assert_eq!(words(&program.read(memory, 64)), [MANY; 16]);
}

#[test]
fn who_waits_for_the_default_stream_waits_for_the_streams_that_it_waits_for() {
    let (_worker, program) = start();
    let synchronised = Op::StreamSync { stream: LEGACY };
    let asked = Op::StreamQuery { stream: LEGACY };
    // Another stream's work is nobody else's concern.
    program.post(&Op::HostCall {
        stream: HELD,
        id: 1,
    });
    assert_eq!(program.callback(), 1);
    assert_eq!(soon(&program, &asked), cu::CUDA_SUCCESS);
    assert_eq!(soon(&program, &synchronised), cu::CUDA_SUCCESS);
    // While it runs, and when the stream is gone that it was issued to.
    for gone in [false, true] {
        program.post(&Op::HostCall {
            stream: BLOCKING,
            id: 2,
        });
        assert_eq!(program.callback(), 2);
        if gone {
            program.post(&Op::StreamDestroy {
                stream: BLOCKING.stream,
            });
        }
        assert_eq!(soon(&program, &asked), cu::CUDA_ERROR_NOT_READY);
        let pending = program.producer.request(&synchronised, None).unwrap();
        assert!(!pending.wait_for(Duration::from_millis(50)).unwrap());
        if !gone {
            // The callbacks before it are counted first.
            program.producer.callback_done();
        }
        program.producer.callback_done();
        assert!(pending.wait_for(PATIENCE).unwrap());
        assert_eq!(
            pending.wait(&mut Vec::new()).unwrap().status,
            cu::CUDA_SUCCESS
        );
    }
    assert_eq!(soon(&program, &asked), cu::CUDA_SUCCESS);
}
