//! What a capture must never do to the program it watches: make one stream wait for another, or take memory away
//! that is being read.

use std::time::Duration;

use crate::common::hold::COPIES;
use crate::common::scene::{BUFFERS, CHUNK, Scene};
use crate::common::{Answer, CONTEXT, PATIENCE, Program, Worker, words};
use fermata_abi::op::{Address, MemoryId, Op, StreamId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FromWorker, Validate};

const PINNED: u64 = 0x2000_0000_0000;
/// Longer than a program waits for anything else.
const LONGER: Duration = Duration::from_secs(7);

fn stream(program: &Program, handle: u64) -> StreamRef {
    program.post(&Op::StreamCreate {
        stream: StreamId::from_raw(handle),
        context: CONTEXT,
        flags: cu::CU_STREAM_NON_BLOCKING,
        priority: 0,
    });
    StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(handle),
    }
}

/// Whether the program is told that all work of a stream has ended.
fn ends(program: &Program, stream: StreamRef) -> bool {
    let room = program.producer.stage(4096).unwrap();
    let sync = Op::StreamSync { stream };
    let pending = program.producer.request(&sync, Some(&room)).unwrap();
    pending.wait_for(PATIENCE).unwrap()
}

/// Two streams write parts of one chunk, the first when the host says so, and the host says so when the second has
/// ended. What is copied aside for the first must not come after what that stream waits for.
#[test]
fn a_stream_that_waits_for_the_host_holds_up_no_other() {
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let flag = program.host_alloc(PINNED, 4096);
    let [waits, goes] = [0x401, 0x402].map(|handle| stream(&program, handle));
    let program = scene.begin(program, "image", Validate::Content);
    program.post(&Op::WaitValue {
        stream: waits,
        address: Address::from_raw(PINNED),
        value: 1,
        flags: 0,
        wide: false,
    });
    program.launch_add(scene.last(), 1000, 1, waits);
    let other = scene.last() + CHUNK / 2;
    program.launch_add(other, 1000, 1, goes);
    assert!(
        ends(&program, goes),
        "the program hangs: its host waits for the second stream"
    );
    // The image does not wait for the program either.
    let FromWorker::Saved(totals) = scene.end() else {
        panic!("there is an image")
    };
    assert!(totals.stall.isolated_bytes >= CHUNK, "{:?}", totals.stall);
    flag.write(0, &1u32.to_le_bytes());
    assert!(ends(&program, waits));
    let number = BUFFERS as u32;
    for address in [scene.last(), other] {
        assert_eq!(words(&program.read(address, 4)), [number + 1000]);
    }
    assert_eq!(scene.words_in("image"), (number, 1));
    scene.worker.detach(program);
}

/// Memory that is unmapped while it is copied stays until its bytes have been read, also when that takes longer than
/// the program would wait for anything else.
#[test]
fn memory_is_not_unmapped_under_a_copy() {
    const MEMORY: MemoryId = MemoryId::from_raw(0x700);
    let hold = crate::common::hold();
    let worker = Worker::start_with(false, &[hold.variable()]);
    let (mut scene, program) = Scene::over(worker, hold, 0);
    let address = program.ask_u64(&Op::AddressReserve {
        size: CHUNK,
        align: 0,
        address: Address::NULL,
    });
    let ops = [
        Op::MemCreate {
            memory: MEMORY,
            device: 0,
            size: CHUNK,
            flags: 0,
        },
        Op::MemMap {
            address: Address::from_raw(address),
            size: CHUNK,
            offset: 0,
            memory: MEMORY,
        },
        Op::MemSetAccess {
            address: Address::from_raw(address),
            size: CHUNK,
            access: cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            devices: vec![0],
        },
    ];
    for op in &ops {
        assert_eq!(program.ask(op), Answer::None, "{op:?}");
    }
    program.launch_add(address, 7, (CHUNK / 4) as u32, crate::common::LEGACY);
    // The copy begins, and does not end.
    scene.hold.only(COPIES, 0);
    let program = scene.begin_with(program, "image", Validate::Content, 64 << 20);
    let unmap = Op::MemUnmap {
        address: Address::from_raw(address),
        size: CHUNK,
    };
    let unmapped = program.producer.request(&unmap, None).unwrap();
    let early = unmapped.wait_for(LONGER).unwrap();
    assert!(!early, "it is unmapped, and its bytes have not been read");
    let ended = scene.end();
    assert_eq!(ended, FromWorker::Overtaken { buffers: 0 });
    assert!(unmapped.wait_for(PATIENCE).unwrap());
    assert_eq!(unmapped.wait(&mut Vec::new()).unwrap().status, 0);
    // The context lives, and the memory holds what it held.
    for op in &ops[1..] {
        assert_eq!(program.ask(op), Answer::None, "{op:?}");
    }
    assert_eq!(words(&program.read(address, 8)), [7, 7]);
    let (program, _) = scene.stop(program, "image");
    scene.worker.detach(program);
}
