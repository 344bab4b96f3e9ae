//! A program served by a worker, saved, and served again by another worker.

use crate::common::{Answer, CONTEXT, FUNCTION, LEGACY, MODULE, Worker, words};
use fermata_abi::op::{Address, EventId, FunctionId, Op, StreamId, StreamRef};
use fermata_control::worker::{FailureKind, FromWorker, LoadCheck, Pace, ToWorker};

#[test]
fn saved_data_and_objects_come_back_at_their_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let (store, image) = (folder.path().join("store"), folder.path().join("image"));
    std::fs::create_dir(&image).unwrap();
    let paths = (
        store.to_string_lossy().into_owned(),
        image.to_string_lossy().into_owned(),
    );

    let mut first = Worker::start();
    let program = first.attach();
    program.set_up();
    let small = program.alloc(1000);
    let large = program.alloc(9 << 20);
    let gone = program.alloc(3 << 20);
    program.write(small, &[7; 1000]);
    program.write(large + (5 << 20), &[9; 64]);
    let stream = StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(0x200),
    };
    program.post(&Op::StreamCreate {
        stream: StreamId::from_raw(0x200),
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    program.post(&Op::EventCreate {
        event: EventId::from_raw(0x300),
        context: CONTEXT,
        flags: 0,
    });
    program.launch_add(small, 5, 250, stream);
    program.post(&Op::EventRecord {
        event: EventId::from_raw(0x300),
        stream,
        flags: 0,
    });
    assert_eq!(program.ask(&Op::StreamSync { stream }), Answer::None);
    assert_eq!(
        program.ask(&Op::MemFree {
            address: Address::from_raw(gone)
        }),
        Answer::None
    );
    let Answer::Pair(total, 4) = program.ask(&Op::VariableGet {
        module: MODULE,
        name: "total",
    }) else {
        panic!("the variable has four bytes")
    };
    assert_eq!(words(&program.read(total, 4)), [1250]);
    first.detach(program);
    let (store, image) = paths;
    let saved = first.save(&store, &image);
    let FromWorker::Saved(totals) = &saved else {
        panic!("{saved:?}")
    };
    assert_eq!(
        (totals.allocations, totals.device_bytes),
        (2, 1000 + (9 << 20))
    );

    // The saved session goes on where it was.
    let program = first.attach();
    program.launch_add(small, 1, 250, LEGACY);
    assert_eq!(words(&program.read(total, 4)), [1500]);
    drop(program);
    drop(first);

    let mut second = Worker::start();
    let loaded = second.ask(ToWorker::Load {
        store: store.into(),
        digests: crate::common::digests(&image),
        image: image.into(),
        pace: Pace::Eager,
        check: LoadCheck::Off,
        ignore_places: false,
    });
    let FromWorker::Loaded { totals: again, .. } = &loaded else {
        panic!("{loaded:?}")
    };
    assert_eq!(
        (again.allocations, again.device_bytes),
        (totals.allocations, totals.device_bytes)
    );
    let program = second.attach();
    let mut expected = vec![0x0707_070cu32; 250];
    assert_eq!(words(&program.read(small, 1000)), expected);
    assert_eq!(program.read(large + (5 << 20), 64), [9; 64]);
    assert_eq!(program.read(large, 64), [0; 64]);
    assert_eq!(words(&program.read(total, 4)), [1250]);
    assert_eq!(
        program.ask(&Op::EventQuery {
            event: EventId::from_raw(0x300)
        }),
        Answer::None
    );
    program.launch_add(small, 2, 250, stream);
    assert_eq!(program.ask(&Op::StreamSync { stream }), Answer::None);
    expected.iter_mut().for_each(|word| *word += 2);
    assert_eq!(words(&program.read(small, 1000)), expected);
    assert_eq!(words(&program.read(total, 4)), [1750]);
    assert_ne!(program.alloc(1000), small);
    assert_eq!(
        program.ask(&Op::MemFree {
            address: Address::from_raw(small)
        }),
        Answer::None
    );
}

#[test]
fn errors_are_told_as_cuda_tells_them() {
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    assert!(matches!(
        program.ask(&Op::MemFree {
            address: Address::from_raw(0x3000_0000_0000)
        }),
        Answer::Error(1, _)
    ));
    let missing = Op::FunctionGet {
        function: FunctionId::from_raw(0x500),
        module: MODULE,
        name: "nothing",
    };
    assert!(matches!(program.ask(&missing), Answer::Error(500, _)));
    // A launch that cannot be fails at the next synchronisation, once.
    program.launch_add(
        0,
        1,
        0,
        StreamRef {
            context: CONTEXT,
            stream: StreamId::from_raw(0x999),
        },
    );
    assert!(matches!(
        program.ask(&Op::ContextSync { context: CONTEXT }),
        Answer::Error(400, _)
    ));
    assert_eq!(
        program.ask(&Op::ContextSync { context: CONTEXT }),
        Answer::None
    );
    // A fault ends the context for ever, and cannot be saved.
    program.launch_add(0x3000_0000_0000, 1, 1, LEGACY);
    for _ in 0..2 {
        assert!(matches!(
            program.ask(&Op::ContextSync { context: CONTEXT }),
            Answer::Error(700, _)
        ));
    }
    assert!(matches!(program.ask(&Op::Drain), Answer::Error(700, _)));
    assert_eq!(worker.ask(ToWorker::Detach), FromWorker::Detached);
    drop(program);
    let save = ToWorker::Save {
        store: "/nonexistent/store".into(),
        image: "/nonexistent".into(),
    };
    let answer = worker.ask(save);
    assert!(
        matches!(&answer, FromWorker::Failed(it) if it.kind == FailureKind::NotCheckpointable),
        "{answer:?}"
    );
    let _ = FUNCTION;
}
