//! What a capture must never do to the program it watches: make one stream wait for another, or take memory away
//! that is being read.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::scene::{BUFFERS, CHUNK, LINK, Scene};
use common::{Answer, CONTEXT, Program, Worker, words};
use fermata_abi::op::{Op, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FromWorker, Validate};

const PINNED: u64 = 0x2000_0000_0000;

fn stream(program: &Program, handle: u64) -> StreamRef {
    program.post(&Op::StreamCreate {
        stream: handle,
        context: CONTEXT,
        flags: cu::CU_STREAM_NON_BLOCKING,
        priority: 0,
    });
    StreamRef {
        context: CONTEXT,
        stream: handle,
    }
}

/// Whether the program is told within this time that all work of a stream has ended.
fn ends_within(program: &Program, stream: StreamRef, time: Duration) -> bool {
    let room = program.producer.stage(4096).unwrap();
    let sync = Op::StreamSync { stream };
    let pending = program.producer.request(&sync, Some(&room)).unwrap();
    pending.wait_for(time).unwrap()
}

/// Two streams write parts of one chunk, the first when the host says so, and the host says so when the second has
/// ended. What is copied aside for the first must not come after what that stream waits for.
#[test]
fn a_stream_that_waits_for_the_host_holds_up_no_other() {
    let (mut scene, program) = Scene::of(BUFFERS, LINK);
    scene.fill(&program, 1);
    let flag = program.host_alloc(PINNED, 4096);
    let [waits, goes] = [0x401, 0x402].map(|handle| stream(&program, handle));
    let program = scene.begin(program, "image", Validate::Content);
    program.post(&Op::WaitValue {
        stream: waits,
        address: PINNED,
        value: 1,
        flags: 0,
        wide: false,
    });
    program.launch_add(scene.last(), 1000, 1, waits);
    let other = scene.last() + CHUNK / 2;
    program.launch_add(other, 1000, 1, goes);
    assert!(
        ends_within(&program, goes, Duration::from_secs(5)),
        "the program hangs: its host waits for the second stream"
    );
    // The image does not wait for the program either.
    let FromWorker::Saved(totals) = scene.look(u64::MAX) else {
        panic!("there is an image")
    };
    assert!(totals.stall.isolated_bytes >= CHUNK, "{:?}", totals.stall);
    flag.write(0, &1u32.to_le_bytes());
    assert!(ends_within(&program, waits, Duration::from_secs(5)));
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
    const MEMORY: u64 = 0x700;
    // A chunk takes 6.4 seconds.
    let link = ("FERMATA_SOFTGPU_HOST_LINK", "640K");
    let (mut scene, program) = Scene::over(Worker::start_with(false, &[link]), 0);
    let address = program.ask_u64(&Op::AddressReserve {
        size: CHUNK,
        align: 0,
        address: 0,
    });
    let ops = [
        Op::MemCreate {
            memory: MEMORY,
            device: 0,
            size: CHUNK,
            flags: 0,
        },
        Op::MemMap {
            address,
            size: CHUNK,
            offset: 0,
            memory: MEMORY,
        },
        Op::MemSetAccess {
            address,
            size: CHUNK,
            access: cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            devices: vec![0],
        },
    ];
    for op in &ops {
        assert_eq!(program.ask(op), Answer::None, "{op:?}");
    }
    program.launch_add(address, 7, (CHUNK / 4) as u32, common::LEGACY);
    let program = scene.begin(program, "image", Validate::Content);
    let unmap = Op::MemUnmap {
        address,
        size: CHUNK,
    };
    assert_eq!(program.ask(&unmap), Answer::None);
    let unmapped = Instant::now();
    let ended = scene.look(u64::MAX);
    assert_eq!(ended, FromWorker::Overtaken { buffers: 0 });
    let later = unmapped.elapsed();
    assert!(
        later < Duration::from_millis(700),
        "read for {later:?} more"
    );
    // The context lives, and the memory holds what it held.
    for op in &ops[1..] {
        assert_eq!(program.ask(op), Answer::None, "{op:?}");
    }
    assert_eq!(words(&program.read(address, 8)), [7, 7]);
    let (program, _) = scene.stop(program, "image");
    scene.worker.detach(program);
}
