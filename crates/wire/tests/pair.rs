//! Program and worker in one process, over real shared memory.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fermata_abi::op::{
    Address, Blob, ContextId, DEVICE_BASE, EventId, FunctionId, HOST_BASE, Launch, ModuleId,
    ModuleInfo, Op, Place, Reply, ReplyBody, StreamId, StreamRef, ToProgram,
};
use fermata_wire::{
    Config, Consumer, Event, FromProgram, Producer, Side, StagedArea, Ticket, WireError, create,
    renew, touch,
};
use proptest::prelude::*;

/// Until a test gives up: what it waits for comes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);
const STREAM: StreamRef = StreamRef {
    context: ContextId::from_raw(0x100),
    stream: StreamId::from_raw(1),
};

fn pair(config: Config) -> (Producer, Consumer) {
    let memory = create(&config).unwrap();
    let (program, worker) = Side::pair().unwrap();
    let consumer = Consumer::open(memory.as_fd(), Arc::new(Side::new(worker))).unwrap();
    let producer = Producer::open(memory.as_fd(), Arc::new(Side::new(program))).unwrap();
    (producer, consumer)
}

fn small() -> Config {
    Config {
        ring: 4096,
        slots: 4,
        staging: 1 << 16,
    }
}

/// Answers requests until the program closes; returns the numbers of `EventDestroy` in order.
fn serve(mut consumer: Consumer) -> thread::JoinHandle<Vec<EventId>> {
    thread::spawn(move || {
        let replier = consumer.replier();
        let staging = consumer.staging();
        let mut seen = Vec::new();
        loop {
            let message = match consumer.next(PATIENCE).unwrap() {
                Event::Message(message) => message,
                Event::Idle => continue,
                Event::Closed => return seen,
            };
            let mut names = ModuleInfo::default();
            let body = match message.op {
                Op::EventDestroy { event: id } => {
                    seen.push(id);
                    continue;
                }
                Op::ModuleFunctions { module } => {
                    names.functions = (0..module.raw())
                        .map(|n| format!("kernel_{n:08}"))
                        .collect();
                    ReplyBody::Module(names)
                }
                Op::Copy {
                    to: Place::Blob(Blob::Staged { offset, len }),
                    ..
                } => {
                    let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
                    staging.write(offset, &bytes).unwrap();
                    ReplyBody::None
                }
                Op::MemAlloc { size, .. } => ReplyBody::U64(size),
                _ => ReplyBody::None,
            };
            let reply = Reply {
                status: 0,
                body,
                text: "",
            };
            let ticket = message.ticket.unwrap();
            if let Err(error) = replier.answer(ticket, &reply) {
                assert!(matches!(error, WireError::TooLarge { .. }));
                let reply = Reply {
                    status: 1,
                    body: ReplyBody::None,
                    text: "too large",
                };
                replier.answer(ticket, &reply).unwrap();
            }
        }
    })
}

#[test]
fn threads_keep_their_order_through_a_ring_that_is_always_full() {
    let (producer, consumer) = pair(small());
    let server = serve(consumer);
    thread::scope(|scope| {
        for base in [0u64, 1 << 32, 1 << 33] {
            let producer = &producer;
            scope.spawn(move || {
                for id in base..base + 2000 {
                    producer
                        .post(&Op::EventDestroy {
                            event: EventId::from_raw(id),
                        })
                        .unwrap();
                }
            });
        }
    });
    producer.close();
    let seen = server.join().unwrap();
    assert_eq!(seen.len(), 6000);
    for base in [0u64, 1 << 32, 1 << 33] {
        let own = seen
            .iter()
            .filter(|id| (base..base + 2000).contains(&id.raw()));
        assert!(own.map(|id| id.raw()).eq(base..base + 2000));
    }
}

/// Runs `work` on a thread of its own; it must end.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (told, ended) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || told.send(work()).unwrap());
    let outcome = ended.recv_timeout(PATIENCE);
    let outcome = outcome.expect("it waits for ever");
    thread.join().unwrap();
    outcome
}

#[test]
fn slots_of_requests_that_were_given_up_come_back_once_they_are_answered() {
    let (producer, mut consumer) = pair(small());
    let producer = Arc::new(producer);
    let replier = consumer.replier();
    for _ in 0..10 * small().slots {
        let own = Arc::clone(&producer);
        ends(move || drop(own.request(&Op::Drain, None).unwrap()));
        let Event::Message(message) = consumer.next(PATIENCE).unwrap() else {
            panic!("the request was sent")
        };
        let reply = Reply {
            status: 0,
            body: ReplyBody::None,
            text: "",
        };
        replier.answer(message.ticket.unwrap(), &reply).unwrap();
    }
    // One that is not answered yet stays apart: the next request's answer is its own.
    drop(producer.request(&Op::Drain, None).unwrap());
    let server = serve(consumer);
    let own = Arc::clone(&producer);
    let status = ends(move || own.ask(&Op::Drain, &mut Vec::new()).unwrap().status);
    assert_eq!(status, 0);
    producer.close();
    server.join().unwrap();
}

#[test]
fn two_ranges_come_together_or_not_at_all() {
    let (producer, _consumer) = pair(small());
    let bytes = producer.staging_bytes();
    assert!(matches!(
        producer.stage_both((bytes, 1)),
        Err(WireError::TooLarge { .. })
    ));
    assert!(matches!(
        producer.stage_both((u64::MAX, u64::MAX)),
        Err(WireError::TooLarge { .. })
    ));
    let half = bytes / 2;
    let held = producer.stage(half + 1).unwrap();
    assert!(producer.try_stage(half).unwrap().is_none());
    drop(held);
    assert_eq!(producer.try_stage(half).unwrap().unwrap().len(), half);
    ends(move || {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let (first, second) = producer.stage_both((half, half - 64)).unwrap();
                        let end = first.offset() + half;
                        assert!(end <= second.offset() && second.len() == half - 64);
                    }
                });
            }
        });
        assert_eq!(producer.stage(bytes).unwrap().len(), bytes);
    });
}

#[test]
fn a_request_that_does_not_fit_costs_no_slot() {
    let (producer, consumer) = pair(small());
    let server = serve(consumer);
    let long = "x".repeat(4096);
    ends(move || {
        for _ in 0..2 * small().slots {
            let function = Op::FunctionGet {
                function: FunctionId::from_raw(1),
                module: ModuleId::from_raw(2),
                name: &long,
            };
            let refused = producer.request(&function, None).map(drop);
            assert!(matches!(refused, Err(WireError::TooLarge { .. })));
        }
        let reply = producer.ask(&Op::Drain, &mut Vec::new()).unwrap().status;
        assert_eq!(reply, 0);
        producer.close();
    });
    server.join().unwrap();
}

#[test]
fn a_worker_that_keeps_up_is_sent_around_near_the_start() {
    let config = Config {
        ring: 1 << 20,
        ..small()
    };
    let (producer, consumer) = pair(config);
    let server = serve(consumer);
    let mut buffer = Vec::new();
    // Answered ones now and then, so that the worker is level; long ones need room while it is told to
    // skip the rest of the ring.
    let long = "x".repeat(200 << 10);
    for id in 0..20_000 {
        producer
            .post(&Op::EventDestroy {
                event: EventId::from_raw(id),
            })
            .unwrap();
        if id % 100 == 0 {
            let name = if id % 1000 == 0 { &*long } else { "short" };
            let function = Op::FunctionGet {
                function: FunctionId::from_raw(1),
                module: ModuleId::from_raw(2),
                name,
            };
            assert_eq!(producer.ask(&function, &mut buffer).unwrap().status, 0);
        }
    }
    producer.close();
    assert!(
        server
            .join()
            .unwrap()
            .into_iter()
            .map(EventId::raw)
            .eq(0..20_000)
    );
}

#[test]
fn room_for_an_operation_is_waited_for_until_the_worker_takes_some() {
    let (producer, mut consumer) = pair(small());
    while producer.await_room(Duration::ZERO).unwrap() {
        producer
            .post(&Op::EventDestroy {
                event: EventId::from_raw(1),
            })
            .unwrap();
    }
    assert!(!producer.await_room(Duration::from_millis(1)).unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.await_room(PATIENCE).unwrap());
        while matches!(consumer.next(Duration::ZERO).unwrap(), Event::Message(_)) {}
        assert!(waiting.join().unwrap());
    });
    drop(consumer);
    while producer
        .post(&Op::EventDestroy {
            event: EventId::from_raw(1),
        })
        .is_ok()
    {}
    assert!(matches!(
        producer.await_room(PATIENCE),
        Err(WireError::PeerGone(_))
    ));
}

#[test]
fn answers_reach_the_thread_that_asked_with_more_threads_than_slots() {
    let (producer, consumer) = pair(small());
    let server = serve(consumer);
    thread::scope(|scope| {
        for n in 0..8u64 {
            let producer = &producer;
            scope.spawn(move || {
                let mut buffer = Vec::new();
                for k in 0..200 {
                    let size = n * 1000 + k;
                    let reply = producer
                        .ask(
                            &Op::MemAlloc {
                                context: ContextId::from_raw(1),
                                size,
                            },
                            &mut buffer,
                        )
                        .unwrap();
                    assert_eq!(reply.body, ReplyBody::U64(size));
                }
            });
        }
    });
    producer.close();
    server.join().unwrap();
}

/// Threads that rest during a stop keep their slots, and the drain's answer ends the stop.
#[test]
fn a_drain_has_a_slot_however_many_threads_wait_for_answers() {
    let config = Config {
        slots: 2,
        ..small()
    };
    let (producer, consumer) = pair(config);
    let sync = Op::StreamSync { stream: STREAM };
    let reply = Reply {
        status: 0,
        body: ReplyBody::None,
        text: "",
    };
    thread::scope(|scope| {
        // Dropped if this fails, so that the other thread ends.
        let mut consumer = consumer;
        let replier = consumer.replier();
        let mut taken = |limit| match consumer.next(limit).unwrap() {
            Event::Message(message) => message.ticket,
            _ => None,
        };
        let first = producer.request(&sync, None).unwrap();
        let ticket = taken(PATIENCE).unwrap();
        let other = scope.spawn(|| producer.ask(&sync, &mut Vec::new()).unwrap().status);
        assert_eq!(taken(Duration::from_millis(100)), None, "it has a slot");
        let drain = producer.request(&Op::Drain, None).unwrap();
        let again = producer.request(&Op::Drain, None).map(drop);
        assert!(matches!(again, Err(WireError::NoSlot)), "{again:?}");
        replier.answer(taken(PATIENCE).unwrap(), &reply).unwrap();
        assert_eq!(drain.wait(&mut Vec::new()).unwrap().status, 0);
        replier.answer(ticket, &reply).unwrap();
        assert_eq!(first.wait(&mut Vec::new()).unwrap().status, 0);
        replier.answer(taken(PATIENCE).unwrap(), &reply).unwrap();
        assert_eq!(other.join().unwrap(), 0);
    });
}

#[test]
fn large_answers_use_the_overflow_range_or_are_refused() {
    let (producer, consumer) = pair(small());
    let server = serve(consumer);
    let load = Op::ModuleFunctions {
        module: ModuleId::from_raw(1000),
    };
    let room = producer.stage(32 << 10).unwrap();
    let mut buffer = Vec::new();
    let reply = producer
        .request(&load, Some(&room))
        .unwrap()
        .wait(&mut buffer)
        .unwrap();
    let ReplyBody::Module(info) = reply.body else {
        panic!("{reply:?}")
    };
    assert_eq!(info.functions.len(), 1000);
    assert_eq!(info.functions[999], "kernel_00000999");
    let reply = producer.ask(&load, &mut buffer).unwrap();
    assert_eq!((reply.status, reply.text), (1, "too large"));
    drop(room);
    producer.close();
    server.join().unwrap();
}

#[test]
fn staged_bytes_come_back() {
    let (producer, consumer) = pair(small());
    let server = serve(consumer);
    let range = producer.stage(1000).unwrap();
    let to = Place::Blob(Blob::Staged {
        offset: range.offset(),
        len: 1000,
    });
    let from = Place::Address(DEVICE_BASE);
    let copy = Op::Copy {
        to,
        from,
        len: 1000,
        stream: STREAM,
        answered: true,
    };
    producer.ask(&copy, &mut Vec::new()).unwrap();
    // SAFETY: the range is ours until dropped, and the worker has answered.
    let bytes = unsafe { std::slice::from_raw_parts(range.address(), 1000) };
    assert!(bytes.iter().copied().eq((0..1000).map(|n: u32| n as u8)));
    drop(range);
    producer.close();
    server.join().unwrap();
}

#[test]
fn a_dead_worker_is_noticed_while_waiting() {
    let (producer, mut consumer) = pair(small());
    let killer = thread::spawn(move || {
        let first = consumer.next(PATIENCE).unwrap();
        assert!(matches!(first, Event::Message(_)));
        // By now the program mostly sleeps; if not, it has to notice too.
        thread::sleep(Duration::from_millis(20));
    });
    let request = producer.request(&Op::Drain, None).unwrap();
    let error = request.wait_for(PATIENCE).unwrap_err();
    assert!(matches!(error, WireError::PeerGone("worker")), "{error}");
    drop(request);
    let error = producer.ask(&Op::Drain, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, WireError::PeerGone("worker")), "{error}");
    killer.join().unwrap();
    let full = (0..1000).find_map(|id| {
        producer
            .post(&Op::EventDestroy {
                event: EventId::from_raw(id),
            })
            .err()
    });
    assert!(matches!(full, Some(WireError::PeerGone("worker"))));
}

#[test]
fn a_dead_program_is_noticed_after_its_messages() {
    let memory = create(&small()).unwrap();
    let (program, worker) = Side::pair().unwrap();
    let mut consumer = Consumer::open(memory.as_fd(), Arc::new(Side::new(worker))).unwrap();
    let producer = Producer::open(memory.as_fd(), Arc::new(Side::new(program))).unwrap();
    producer.post(&Op::Devices).unwrap();
    drop(producer);
    let first = consumer.next(PATIENCE).unwrap();
    assert!(matches!(first, Event::Message(_)));
    // Not noticed, it would be idle at the end of this time.
    let error = consumer.next(PATIENCE).unwrap_err();
    assert!(matches!(error, WireError::PeerGone("program")), "{error}");
}

#[test]
fn a_kick_interrupts_the_wait() {
    let (_producer, mut consumer) = pair(small());
    let kicker = consumer.kicker();
    let (tell, woken) = std::sync::mpsc::channel();
    thread::spawn(move || {
        // Twice as long as anybody waits for it.
        let event = consumer.next(2 * PATIENCE).unwrap();
        let _ = tell.send(matches!(event, Event::Idle));
    });
    // By now it mostly sleeps; a kick that comes first is kept for it.
    thread::sleep(Duration::from_millis(10));
    kicker.kick();
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn a_used_ring_is_not_taken_again() {
    let (producer, consumer) = pair(small());
    let memory = create(&small()).unwrap();
    let (program, worker) = Side::pair().unwrap();
    let (program, worker) = (Arc::new(Side::new(program)), Arc::new(Side::new(worker)));
    let first = Producer::open(memory.as_fd(), program.clone()).unwrap();
    first.post(&Op::Devices).unwrap();
    assert!(matches!(
        Producer::open(memory.as_fd(), program),
        Err(WireError::Layout(_))
    ));
    let mut reader = Consumer::open(memory.as_fd(), worker.clone()).unwrap();
    assert!(matches!(reader.next(PATIENCE).unwrap(), Event::Message(_)));
    assert!(matches!(
        Consumer::open(memory.as_fd(), worker),
        Err(WireError::Layout(_))
    ));
    drop((producer, consumer));
}

#[test]
fn a_renewed_ring_serves_again_and_keeps_its_staging_area() {
    let memory = create(&small()).unwrap();
    let attach = |kept: Option<&StagedArea>| {
        let (program, worker) = Side::pair().unwrap();
        let (program, worker) = (Arc::new(Side::new(program)), Arc::new(Side::new(worker)));
        let consumer = match kept {
            Some(area) => Consumer::again(area, worker).unwrap(),
            None => Consumer::open(memory.as_fd(), worker).unwrap(),
        };
        (Producer::open(memory.as_fd(), program).unwrap(), consumer)
    };
    let (producer, mut consumer) = attach(None);
    let area = consumer.staging();
    let request = producer.request(&Op::Devices, None).unwrap();
    let Event::Message(message) = consumer.next(PATIENCE).unwrap() else {
        panic!("no message");
    };
    assert!(message.ticket.is_some());
    drop(request);
    let staged = producer.stage(64).unwrap();
    // SAFETY: 64 bytes of the program's own.
    unsafe { staged.address().write_bytes(7, 64) };
    drop(staged);
    producer.close();
    drop((producer, consumer));

    renew(memory.as_fd(), &small()).unwrap();
    assert!(area.is_of(memory.as_fd()));
    assert!(!area.is_of(create(&small()).unwrap().as_fd()));
    let mut bytes = [0; 64];
    area.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64], "the staging area is as it was");
    let (producer, consumer) = attach(Some(&area));
    producer.relieve();
    let seen = serve(consumer);
    for id in 0..1000 {
        producer
            .post(&Op::EventDestroy {
                event: EventId::from_raw(id),
            })
            .unwrap();
    }
    producer.close();
    assert_eq!(
        seen.join().unwrap(),
        (0..1000).map(EventId::from_raw).collect::<Vec<_>>()
    );
    let other = Config {
        slots: 5,
        ..small()
    };
    assert!(matches!(
        renew(memory.as_fd(), &other),
        Err(WireError::Layout(_))
    ));
}

#[test]
fn a_staging_area_is_made_ready_before_anybody_is_attached() {
    let memory = create(&small()).unwrap();
    touch(memory.as_fd(), &small());
    let made = || rustix::fs::fstat(&memory).unwrap().st_blocks * 512;
    assert!(made() >= 1 << 16, "{} bytes are there", made());
    let area = StagedArea::open(memory.as_fd()).unwrap();
    area.populate();
    area.write(100, &[9; 10]).unwrap();
    // As for every attachment.
    renew(memory.as_fd(), &small()).unwrap();
    let (program, worker) = Side::pair().unwrap();
    let consumer = Consumer::again(&area, Arc::new(Side::new(worker))).unwrap();
    let producer = Producer::open(memory.as_fd(), Arc::new(Side::new(program))).unwrap();
    let mut bytes = [0; 10];
    consumer.staging().read(100, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 10]);
    let seen = serve(consumer);
    producer
        .post(&Op::EventDestroy {
            event: EventId::from_raw(3),
        })
        .unwrap();
    producer.close();
    assert_eq!(seen.join().unwrap(), [EventId::from_raw(3)]);
}

#[test]
fn descriptors_cross_the_side_socket_both_ways() {
    let (program, worker) = Side::pair().unwrap();
    let (program, worker) = (Side::new(program), Side::new(worker));
    let memory = create(&small()).unwrap();
    let region = FromProgram::Region {
        address: HOST_BASE,
        size: 4096,
    };
    program.send_region(&region, memory.as_fd()).unwrap();
    let (message, fd) = worker.receive_from_program(PATIENCE).unwrap().unwrap();
    assert_eq!(message, region);
    worker
        .send_to_program(
            &ToProgram::Region {
                address: Address::from_raw(1),
                size: 2,
            },
            Some(fd.unwrap().as_fd()),
        )
        .unwrap();
    worker
        .send_to_program(&ToProgram::RegionsEnd, None)
        .unwrap();
    let (message, fd) = program.receive_from_worker(PATIENCE).unwrap().unwrap();
    assert_eq!(
        message,
        ToProgram::Region {
            address: Address::from_raw(1),
            size: 2
        }
    );
    let here = rustix::fs::fstat(&memory).unwrap();
    assert_eq!(rustix::fs::fstat(fd.unwrap()).unwrap().st_ino, here.st_ino);
    let (message, fd) = program.receive_from_worker(PATIENCE).unwrap().unwrap();
    assert!(message == ToProgram::RegionsEnd && fd.is_none());
    assert!(
        program
            .receive_from_worker(Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    drop(worker);
    assert!(matches!(
        program.receive_from_worker(PATIENCE),
        Err(WireError::PeerGone("worker"))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn launches_of_every_size_arrive_unchanged(sizes in prop::collection::vec(0usize..900, 1..60)) {
        let (producer, mut consumer) = pair(small());
        for (n, size) in sizes.iter().enumerate() {
            let params: Vec<u8> = (0..*size).map(|i| (i * 7 + n) as u8).collect();
            let launch = Launch {
                function: FunctionId::from_raw(n as u64),
                grid: [1, 2, 3],
                block: [4, 5, 6],
                shared: 7,
                cooperative: false,
                params: &params,
                attributes: Vec::new(),
            };
            let op = Op::Launch { launch, stream: STREAM };
            producer.post(&op).unwrap();
            let Event::Message(message) = consumer.next(PATIENCE).unwrap() else { panic!("no message") };
            prop_assert_eq!(message.op, op);
            prop_assert!(message.ticket.is_none());
        }
    }
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// What a thread that waits does while the program is stopped.
fn rest(done: &dyn Fn() -> bool) {
    while STOPPED.load(Ordering::Acquire) && !done() {
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_request_is_answered_through_the_next_memory_file() {
    let config = small();
    let (producer, mut consumer) = pair(config);
    let producer = producer.resting(rest);
    let taken = |consumer: &mut Consumer| loop {
        match consumer.next(PATIENCE).unwrap() {
            Event::Message(message) => return message.ticket,
            Event::Idle => {}
            Event::Closed => panic!("the program has closed"),
        }
    };
    let reply = |body| Reply {
        status: 0,
        body,
        text: "",
    };
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let staged = producer.stage(100).unwrap();
            // SAFETY: the range is 100 bytes, and this thread's own.
            unsafe { staged.address().write_bytes(7, 100) };
            let mut buffer = Vec::new();
            let sync = Op::StreamSync { stream: STREAM };
            let reply = producer.ask(&sync, &mut buffer).unwrap();
            assert_eq!(reply.body, ReplyBody::U64(5));
            // SAFETY: as above.
            unsafe { staged.address().add(99).read() }
        });
        let ticket = taken(&mut consumer).unwrap();
        STOPPED.store(true, Ordering::Release);
        assert!(!producer.has_answers());
        // The thread must be seen to rest before the memory goes; here it looks every 40 ms by itself.
        producer.nudge();
        thread::sleep(Duration::from_millis(100));
        producer.let_go().unwrap();
        drop(consumer);
        assert!(producer.check_peer().is_err());

        let memory = create(&config).unwrap();
        let (program, worker) = Side::pair().unwrap();
        let worker = Arc::new(Side::new(worker));
        let mut consumer = Consumer::open(memory.as_fd(), worker).unwrap();
        let other = create(&Config::default()).unwrap();
        let program = Arc::new(Side::new(program));
        let refused = producer.enter(other.as_fd(), Arc::clone(&program));
        assert!(matches!(refused, Err(WireError::Layout(_))), "{refused:?}");
        producer.enter(memory.as_fd(), program).unwrap();
        assert!(!consumer.presence().has_come());
        producer.announce();
        assert!(consumer.presence().has_come());
        // What was staged is there, and an answer finds its request.
        let mut bytes = [0; 100];
        consumer.staging().read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 100]);
        let again = Ticket::from_parts(ticket.parts());
        let replier = consumer.replier();
        assert!(replier.accepts(again));
        let beyond = |slot| Ticket::from_parts((slot, 1, 1 << 16, 1));
        assert!(!replier.accepts(beyond(0)) && !replier.accepts(Ticket::from_parts((4, 1, 0, 0))));
        replier.answer(again, &reply(ReplyBody::U64(5))).unwrap();
        STOPPED.store(false, Ordering::Release);
        assert_eq!(asking.join().unwrap(), 7);
        // The new ring serves new requests.
        let next = scope.spawn(|| {
            let mut buffer = Vec::new();
            let sync = Op::StreamSync { stream: STREAM };
            producer.ask(&sync, &mut buffer).unwrap().status
        });
        let ticket = taken(&mut consumer).unwrap();
        replier.answer(ticket, &reply(ReplyBody::None)).unwrap();
        assert_eq!(next.join().unwrap(), 0);
    });
}
