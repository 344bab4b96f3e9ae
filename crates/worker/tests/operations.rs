//! Every family of operations, and what of it must survive a checkpoint.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::common::{Answer, CONTEXT, FUNCTION, HostView, LEGACY, MODULE, Program, STREAM, Worker};
use crate::common::{PATIENCE, load_anew, started, words};
use fermata_abi::op::{
    Address, ArrayId, Blob, ContextId, EventId, ExecId, Extent, FunctionId, ImageRef, MemoryId,
    ModuleId, Occupancy, Op, Pitch, Place, StreamId, StreamRef,
};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FailureKind, FromWorker, LoadCheck, Pace, ToWorker};
use fermata_graph::update::KernelChange;
use fermata_graph::{EdgeData, Graph, HostCall, KernelNode, MemsetNode, NodeId, NodeKind};

const PINNED: u64 = 0x2000_0000_0000;
const MIB: u64 = 1 << 20;

/// Saves what `worker` holds and goes on with it in another one.
fn move_over(worker: Worker, program: Program) -> (Worker, Program) {
    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    (worker, program)
}

fn done(program: &Program, op: &Op<'_>) {
    assert_eq!(program.ask(op), Answer::None, "{op:?}");
}

fn fill(address: u64, value: u32, words: u64, answered: bool) -> Op<'static> {
    Op::Fill {
        address: Address::from_raw(address),
        pitch: 0,
        element: 4,
        value,
        width: words,
        height: 1,
        stream: LEGACY,
        answered,
    }
}

#[test]
fn pinned_memory_is_shared_with_the_device_and_comes_back() {
    let (worker, program) = started();
    let host = program.host_alloc(PINNED, MIB);
    host.write(4096, &[3; 64]);
    let device = program.alloc(64);
    let copy = |to, from| Op::Copy {
        to: Place::Address(Address::from_raw(to)),
        from: Place::Address(Address::from_raw(from)),
        len: 64,
        stream: STREAM,
        answered: true,
    };
    done(&program, &copy(device, PINNED + 4096));
    done(&program, &copy(PINNED, device));
    assert_eq!(host.read(0, 64), [3; 64]);
    // A kernel writes it directly.
    program.launch_add(PINNED, 1, 16, STREAM);
    done(&program, &Op::StreamSync { stream: STREAM });
    assert_eq!(words(&host.read(0, 64)), [0x0303_0304; 16]);
    let (_worker, mut program) = move_over(worker, program);
    let (address, size, fd) = program.regions.pop().unwrap();
    assert_eq!((address.raw(), size), (PINNED, MIB));
    let host = HostView(fd.into());
    assert_eq!(words(&host.read(0, 64)), [0x0303_0304; 16]);
    assert_eq!(host.read(4096, 64), [3; 64]);
    program.launch_add(PINNED, 1, 16, STREAM);
    done(&program, &Op::StreamSync { stream: STREAM });
    assert_eq!(words(&host.read(0, 64)), [0x0303_0305; 16]);
    done(
        &program,
        &Op::HostUnmap {
            address: Address::from_raw(PINNED),
        },
    );
}

#[test]
fn mapped_physical_memory_comes_back_at_its_addresses() {
    let (worker, program) = started();
    let reserved = program.ask_u64(&Op::AddressReserve {
        size: 8 * MIB,
        align: 0,
        address: Address::NULL,
    });
    done(
        &program,
        &Op::MemCreate {
            memory: MemoryId::from_raw(0x400),
            device: 0,
            size: 4 * MIB,
            flags: 0,
        },
    );
    done(
        &program,
        &Op::MemCreate {
            memory: MemoryId::from_raw(0x401),
            device: 0,
            size: 2 * MIB,
            flags: 0,
        },
    );
    let map = |address, memory, size| Op::MemMap {
        address: Address::from_raw(address),
        size,
        offset: 0,
        memory,
    };
    done(
        &program,
        &map(reserved + 2 * MIB, MemoryId::from_raw(0x400), 4 * MIB),
    );
    let access = |address, size, access| Op::MemSetAccess {
        address: Address::from_raw(address),
        size,
        access,
        devices: vec![0],
    };
    done(
        &program,
        &access(
            reserved + 2 * MIB,
            4 * MIB,
            cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        ),
    );
    // Released, but alive while it is mapped; the other is not mapped at all.
    done(
        &program,
        &Op::MemRelease {
            memory: MemoryId::from_raw(0x400),
        },
    );
    done(&program, &fill(reserved + 2 * MIB, 77, MIB, true));
    assert!(matches!(
        program.ask(&Op::AddressFree {
            address: Address::from_raw(reserved),
            size: 8 * MIB
        }),
        Answer::Error(1, _)
    ));
    assert!(matches!(
        program.ask(&map(reserved + 4 * MIB, MemoryId::from_raw(0x401), 2 * MIB)),
        Answer::Error(1, _)
    ));
    done(&program, &map(reserved, MemoryId::from_raw(0x401), 2 * MIB));
    done(
        &program,
        &access(reserved, 2 * MIB, cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
    );
    done(&program, &fill(reserved, 55, 8, true));
    done(
        &program,
        &Op::MemUnmap {
            address: Address::from_raw(reserved),
            size: 2 * MIB,
        },
    );
    let (_worker, program) = move_over(worker, program);
    assert_eq!(words(&program.read(reserved + 6 * MIB - 64, 64)), [77; 16]);
    done(&program, &map(reserved, MemoryId::from_raw(0x401), 2 * MIB));
    done(
        &program,
        &access(reserved, 2 * MIB, cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
    );
    assert_eq!(
        words(&program.read(reserved, 40)),
        [55, 55, 55, 55, 55, 55, 55, 55, 0, 0]
    );
    done(
        &program,
        &Op::MemUnmap {
            address: Address::from_raw(reserved),
            size: 2 * MIB,
        },
    );
    done(
        &program,
        &Op::MemUnmap {
            address: Address::from_raw(reserved + 2 * MIB),
            size: 4 * MIB,
        },
    );
    done(
        &program,
        &Op::AddressFree {
            address: Address::from_raw(reserved),
            size: 8 * MIB,
        },
    );
}

#[test]
fn graphs_run_update_and_come_back() {
    let (worker, program) = started();
    let device = program.alloc(256);
    let adds = |value: u32| {
        let mut params = device.to_le_bytes().to_vec();
        params.extend_from_slice(&value.to_le_bytes());
        params.extend_from_slice(&64u32.to_le_bytes());
        KernelNode {
            function: FUNCTION,
            context: ContextId::from_raw(0),
            grid: [1, 1, 1],
            block: [64, 1, 1],
            shared_bytes: 0,
            params,
            attributes: Vec::new(),
        }
    };
    let graph = |value: u32| {
        let mut graph = Graph::new();
        let set = MemsetNode {
            dst: device,
            pitch: 0,
            value,
            element_size: 4,
            width: 64,
            height: 1,
        };
        let set = graph.add(NodeKind::Memset(set), &[]).unwrap();
        let kernel = graph
            .add(NodeKind::Kernel(adds(5)), &[(set, EdgeData::default())])
            .unwrap();
        let call = NodeKind::Host(HostCall {
            function: 0,
            user_data: 9,
        });
        graph.add(call, &[(kernel, EdgeData::default())]).unwrap();
        postcard::to_stdvec(&graph).unwrap()
    };
    let run = |program: &Program, expected: u32| {
        program.post(&Op::GraphLaunch {
            exec: ExecId::from_raw(0x600),
            stream: STREAM,
        });
        assert_eq!(program.callback(), 9);
        program.producer.callback_done();
        done(program, &Op::StreamSync { stream: STREAM });
        assert_eq!(words(&program.read(device, 256)), [expected; 64]);
    };
    let first = graph(10);
    done(
        &program,
        &Op::GraphInstantiate {
            exec: ExecId::from_raw(0x600),
            context: CONTEXT,
            graph: Blob::Inline(&first),
            flags: 0,
        },
    );
    run(&program, 15);
    done(
        &program,
        &Op::GraphUpdate {
            exec: ExecId::from_raw(0x600),
            graph: Blob::Inline(&graph(20)),
        },
    );
    run(&program, 25);
    // The second node is the kernel, the first one is none.
    let change = |program: &Program, node: u64, value: u32| {
        let change = KernelChange {
            path: Cow::Borrowed(&[]),
            node: NodeId(node),
            kernel: Cow::Owned(adds(value)),
        };
        let changes = postcard::to_stdvec(&vec![change]).unwrap();
        program.post(&Op::GraphSetKernels {
            exec: ExecId::from_raw(0x600),
            kernels: Blob::Inline(&changes),
        });
    };
    change(&program, 2, 7);
    run(&program, 27);
    let (_worker, program) = move_over(worker, program);
    done(&program, &fill(device, 0, 64, true));
    run(&program, 27);
    change(&program, 2, 9);
    run(&program, 29);
    change(&program, 1, 11);
    let refused = program.ask(&Op::ContextSync { context: CONTEXT });
    assert!(matches!(refused, Answer::Error(_, _)), "{refused:?}");
    run(&program, 29);
    program.post(&Op::GraphDestroy {
        exec: ExecId::from_raw(0x600),
    });
    done(&program, &Op::ContextSync { context: CONTEXT });
}

#[test]
fn a_graph_whose_update_fails_is_launched_neither_as_it_was_nor_as_it_should_be() {
    let (_worker, program) = started();
    let device = program.alloc(256);
    let fills = |value: u32| {
        let mut graph = Graph::new();
        let set = MemsetNode {
            dst: device,
            pitch: 0,
            value,
            element_size: 4,
            width: 64,
            height: 1,
        };
        graph.add(NodeKind::Memset(set), &[]).unwrap();
        postcard::to_stdvec(&graph).unwrap()
    };
    let mut unknown = Graph::new();
    let kernel = KernelNode {
        function: FunctionId::from_raw(0x9990),
        context: ContextId::from_raw(0),
        grid: [1, 1, 1],
        block: [1, 1, 1],
        shared_bytes: 0,
        params: Vec::new(),
        attributes: Vec::new(),
    };
    unknown.add(NodeKind::Kernel(kernel), &[]).unwrap();
    let unknown = postcard::to_stdvec(&unknown).unwrap();
    let first = fills(1);
    let instantiate = Op::GraphInstantiate {
        exec: ExecId::from_raw(0x600),
        context: CONTEXT,
        graph: Blob::Inline(&first),
        flags: 0,
    };
    done(&program, &instantiate);
    let update = |graph: &[u8]| {
        program.post(&Op::GraphUpdate {
            exec: ExecId::from_raw(0x600),
            graph: Blob::Inline(graph),
        });
        program.post(&Op::GraphLaunch {
            exec: ExecId::from_raw(0x600),
            stream: STREAM,
        });
        program.ask(&Op::StreamSync { stream: STREAM })
    };
    assert_eq!(update(&fills(2)), Answer::None);
    assert_eq!(words(&program.read(device, 256)), [2; 64]);
    // The program hears of it as of any launch that fails.
    let failed = update(&unknown);
    assert!(matches!(failed, Answer::Error(_, _)), "{failed:?}");
    assert_eq!(words(&program.read(device, 256)), [2; 64]);
    assert_eq!(update(&fills(3)), Answer::None);
    assert_eq!(words(&program.read(device, 256)), [3; 64]);
}

#[test]
fn a_callback_holds_its_stream_and_no_other() {
    let (_worker, program) = started();
    let device = program.alloc(64);
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 4,
    });
    program.launch_add(device, 1, 16, STREAM);
    assert_eq!(program.callback(), 4);
    let busy = program.ask(&Op::StreamQuery { stream: STREAM });
    assert!(
        matches!(busy, Answer::Error(cu::CUDA_ERROR_NOT_READY, _)),
        "{busy:?}"
    );
    // Another stream goes on while a synchronisation with the held one waits.
    let other = StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(0x201),
    };
    program.post(&Op::StreamCreate {
        stream: StreamId::from_raw(0x201),
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    let waiting = program
        .producer
        .request(&Op::StreamSync { stream: STREAM }, None)
        .unwrap();
    program.launch_add(device, 0, 16, other);
    done(&program, &Op::StreamSync { stream: other });
    assert!(!waiting.wait_for(Duration::from_millis(30)).unwrap());
    program.producer.callback_done();
    assert!(waiting.wait_for(PATIENCE).unwrap());
    assert_eq!(waiting.wait(&mut Vec::new()).unwrap().status, 0);
    assert_eq!(words(&program.read(device, 64)), [1; 16]);
}

#[test]
fn events_order_streams_and_tell_time() {
    let (_worker, program) = started();
    let device = program.alloc(64);
    for event in [0x300, 0x301] {
        program.post(&Op::EventCreate {
            event: EventId::from_raw(event),
            context: CONTEXT,
            flags: 0,
        });
    }
    program.post(&Op::StreamCreate {
        stream: StreamId::from_raw(0x201),
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    let other = StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(0x201),
    };
    let begun = Instant::now();
    program.post(&Op::EventRecord {
        event: EventId::from_raw(0x300),
        stream: STREAM,
        flags: 0,
    });
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 1,
    });
    program.launch_add(device, 2, 16, STREAM);
    program.post(&Op::EventRecord {
        event: EventId::from_raw(0x301),
        stream: STREAM,
        flags: 0,
    });
    program.post(&Op::StreamWait {
        stream: other,
        event: EventId::from_raw(0x301),
        flags: 0,
    });
    program.launch_add(device, 3, 16, other);
    assert_eq!(program.callback(), 1);
    assert!(matches!(
        program.ask(&Op::EventQuery {
            event: EventId::from_raw(0x301)
        }),
        Answer::Error(600, _)
    ));
    std::thread::sleep(Duration::from_millis(5));
    program.producer.callback_done();
    done(
        &program,
        &Op::EventSync {
            event: EventId::from_raw(0x301),
        },
    );
    // A destroyed stream's work is waited for.
    program.post(&Op::StreamDestroy {
        stream: StreamId::from_raw(0x201),
    });
    done(&program, &Op::ContextSync { context: CONTEXT });
    assert_eq!(words(&program.read(device, 64)), [5; 16]);
    let elapsed = program.ask(&Op::EventElapsed {
        start: EventId::from_raw(0x300),
        end: EventId::from_raw(0x301),
    });
    let at_most = begun.elapsed().as_secs_f32() * 1e3 + 1.0;
    assert!(
        matches!(elapsed, Answer::F32(ms) if (4.0..at_most).contains(&ms)),
        "{elapsed:?}, at most {at_most}"
    );
}

#[test]
fn a_synchronisation_waits_for_the_record_it_saw() {
    let (_worker, program) = started();
    program.post(&Op::EventCreate {
        event: EventId::from_raw(0x300),
        context: CONTEXT,
        flags: 2,
    });
    program.post(&Op::StreamCreate {
        stream: StreamId::from_raw(0x201),
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    let other = StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(0x201),
    };
    let word = program.alloc(8);
    done(&program, &fill(word, 0, 2, true));
    let wait = |stream, address| Op::WaitValue {
        stream,
        address: Address::from_raw(address),
        value: 1,
        flags: cu::CU_STREAM_WAIT_VALUE_EQ,
        wide: false,
    };
    program.post(&wait(STREAM, word));
    program.post(&Op::EventRecord {
        event: EventId::from_raw(0x300),
        stream: STREAM,
        flags: 0,
    });
    let waiting = program
        .producer
        .request(
            &Op::EventSync {
                event: EventId::from_raw(0x300),
            },
            None,
        )
        .unwrap();
    program.post(&wait(other, word + 4));
    program.post(&Op::EventRecord {
        event: EventId::from_raw(0x300),
        stream: other,
        flags: 0,
    });
    assert!(!waiting.wait_for(Duration::from_millis(20)).unwrap());
    program.post(&Op::StreamCreate {
        stream: StreamId::from_raw(0x202),
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    let third = StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(0x202),
    };
    let write = |address| Op::WriteValue {
        stream: third,
        address: Address::from_raw(address),
        value: 1,
        flags: 0,
        wide: false,
    };
    program.post(&write(word));
    assert!(waiting.wait_for(PATIENCE).unwrap());
    assert!(matches!(
        program.ask(&Op::EventQuery {
            event: EventId::from_raw(0x300)
        }),
        Answer::Error(600, _)
    ));
    program.post(&Op::EventDestroy {
        event: EventId::from_raw(0x300),
    });
    program.post(&write(word + 4));
    done(&program, &Op::ContextSync { context: CONTEXT });
    drop(waiting);
}

#[test]
fn boxes_are_copied_and_arrays_come_back() {
    let (worker, program) = started();
    let device = program.alloc(64 * 16);
    let array = Op::ArrayCreate {
        array: ArrayId::from_raw(0x700),
        context: CONTEXT,
        width: 32,
        height: 8,
        depth: 0,
        format: cu::CU_AD_FORMAT_UNSIGNED_INT8,
        channels: 1,
        flags: 0,
    };
    done(&program, &array);
    let bytes: Vec<u8> = (0..=255).collect();
    let copy = |to, from, to_row, from_row| Op::Copy3d {
        to,
        from,
        to_pitch: Pitch {
            row: to_row,
            rows: 8,
        },
        from_pitch: Pitch {
            row: from_row,
            rows: 8,
        },
        extent: Extent {
            width: 32,
            height: 8,
            depth: 1,
        },
        stream: STREAM,
        answered: true,
    };
    let whole = Place::Array {
        array: ArrayId::from_raw(0x700),
        x: 0,
        y: 0,
        z: 0,
    };
    done(
        &program,
        &copy(whole, Place::Blob(Blob::Inline(&bytes)), 32, 32),
    );
    done(
        &program,
        &copy(Place::Address(Address::from_raw(device)), whole, 64, 32),
    );
    assert_eq!(program.read(device + 64 * 7, 32), bytes[32 * 7..]);
    let (_worker, program) = move_over(worker, program);
    let room = [0; 256];
    let back = program.ask(&copy(Place::Blob(Blob::Inline(&room)), whole, 32, 32));
    assert_eq!(back, Answer::Bytes(bytes));
    done(
        &program,
        &Op::ArrayDestroy {
            array: ArrayId::from_raw(0x700),
        },
    );
}

#[test]
fn a_stored_address_of_a_variable_is_right_or_refused() {
    let (mut worker, program) = started();
    let device = program.alloc(64);
    assert_eq!(program.read(device, 8).len(), 8);
    let second = Op::ModuleLoad {
        module: ModuleId::from_raw(0x110),
        context: CONTEXT,
        image: ImageRef::Blob(Blob::Inline(crate::common::PTX)),
        beside: false,
    };
    assert!(matches!(program.ask(&second), Answer::None));
    let get = Op::VariableGet {
        module: ModuleId::from_raw(0x110),
        name: "total",
    };
    let Answer::Pair(total, 4) = program.ask(&get) else {
        panic!("four bytes")
    };
    program.write(device, &total.to_le_bytes());
    worker.detach(program);
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().to_string_lossy().into_owned();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    let saved = worker.save(&store, &image);
    assert!(matches!(saved, FromWorker::Saved(_)), "{saved:?}");
    let mut worker = Worker::start();
    match worker.ask(ToWorker::Load {
        store: store.into(),
        digests: crate::common::digests(&image),
        image: image.into(),
        pace: Pace::Eager,
        check: LoadCheck::Off,
        ignore_places: false,
    }) {
        FromWorker::Loaded { .. } => {
            assert_eq!(worker.attach().read(device, 8), total.to_le_bytes())
        }
        FromWorker::Failed(refused) => {
            println!("refused: {}", refused.message);
            assert_eq!(refused.kind, FailureKind::Host);
            assert!(refused.message.contains("device variable"), "{refused:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn streams_wait_for_and_write_words() {
    let (_worker, program) = started();
    let word = program.alloc(8);
    let device = program.alloc(64);
    done(&program, &fill(word, 0, 2, true));
    done(&program, &fill(device, 0, 16, true));
    let value = |stream, value| (stream, value);
    let (stream, wanted) = value(STREAM, 7);
    program.post(&Op::WaitValue {
        stream,
        address: Address::from_raw(word),
        value: wanted,
        flags: cu::CU_STREAM_WAIT_VALUE_EQ,
        wide: false,
    });
    program.launch_add(device, 1, 16, STREAM);
    program.post(&Op::StreamCreate {
        stream: StreamId::from_raw(0x201),
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    let other = StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(0x201),
    };
    program.post(&Op::WriteValue {
        stream: other,
        address: Address::from_raw(word),
        value: 7,
        flags: 0,
        wide: false,
    });
    done(&program, &Op::StreamSync { stream: STREAM });
    assert_eq!(words(&program.read(device, 64)), [1; 16]);
}

#[test]
fn stream_ordered_memory_is_freed_behind_its_work() {
    let (_worker, program) = started();
    let Answer::Pair(before, total) = program.ask(&Op::MemInfo { context: CONTEXT }) else {
        panic!("figures")
    };
    assert!(before <= total);
    for _ in 0..100 {
        let address = program.ask_u64(&Op::MemAllocAsync {
            stream: STREAM,
            size: 64 * MIB,
        });
        program.launch_add(address, 1, 16, STREAM);
        program.post(&Op::MemFreeAsync {
            address: Address::from_raw(address),
            stream: STREAM,
        });
    }
    done(&program, &Op::ContextSync { context: CONTEXT });
    let Answer::Pair(after, _) = program.ask(&Op::MemInfo { context: CONTEXT }) else {
        panic!("figures")
    };
    // Other programs may use the device too; what leaks here would be 6.4 GB.
    assert!(
        after + 2048 * MIB >= before,
        "{before} before, {after} after"
    );
    assert!(matches!(
        program.ask(&Op::MemAlloc {
            context: CONTEXT,
            size: 1 << 45
        }),
        Answer::Error(2, _)
    ));
}

#[test]
fn functions_modules_and_limits() {
    let (worker, program) = started();
    let attribute = cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.cast_signed();
    done(
        &program,
        &Op::FunctionSetAttribute {
            function: FUNCTION,
            attribute,
            value: 1024,
        },
    );
    let occupancy = || Op::Occupancy {
        function: FUNCTION,
        question: Occupancy::Blocks {
            block: 64,
            shared: 0,
            flags: 0,
        },
    };
    let blocks = program.ask_u64(&occupancy());
    assert!(blocks > 0);
    let limit = cu::CU_LIMIT_PRINTF_FIFO_SIZE;
    done(
        &program,
        &Op::ContextSetLimit {
            context: CONTEXT,
            limit,
            value: 2 * MIB,
        },
    );
    let refused = program.ask(&Op::ModuleLoad {
        module: ModuleId::from_raw(0x150),
        context: CONTEXT,
        image: ImageRef::Blob(Blob::Inline(b"not ptx")),
        beside: false,
    });
    assert!(matches!(refused, Answer::Error(1.., _)), "{refused:?}");
    let (_worker, program) = move_over(worker, program);
    assert!(
        program.ask_u64(&Op::ContextGetLimit {
            context: CONTEXT,
            limit
        }) >= 2 * MIB
    );
    assert_eq!(program.ask_u64(&occupancy()), blocks);
    done(&program, &Op::ModuleUnload { module: MODULE });
    assert!(matches!(
        program.ask(&Op::VariableGet {
            module: MODULE,
            name: "total"
        }),
        Answer::Error(400, _)
    ));
    done(&program, &Op::ContextDestroy { context: CONTEXT });
    assert!(matches!(
        program.ask(&Op::MemAlloc {
            context: CONTEXT,
            size: 1
        }),
        Answer::Error(201, _)
    ));
}
