//! Sessions with device and managed memory, on softgpu.

use std::ffi::c_void;
use std::time::Duration;

use crate::common::cuda::{Cuda, at, call};
use crate::common::link::{self, Link};
use crate::common::{alone, host, noise, session};
use fermata_app::{AppError, ElementType, Level, StageSchedule};

const BYTE: ElementType = ElementType(1);

#[test]
fn host_device_and_managed_memory_come_back() {
    let cuda = Cuda::get();
    let dir = tempfile::tempdir().unwrap();
    let sizes = [(5 << 20) + 1234, (2 << 20) + 7, 300_000];
    let data: Vec<_> = sizes.iter().map(|n| noise(*n, *n as u64)).collect();
    let (device, managed) = (cuda.device(sizes[0]), cuda.managed(sizes[1]));
    cuda.write(device, &data[0]);
    cuda.write(managed, &data[1]);
    let mut plain = data[2].clone();
    let mut s = session(dir.path(), |c| c.block_bytes = 65_536);
    let protect = |s: &mut fermata_app::Session, plain: &mut [u8]| {
        s.protect(0, at(device, sizes[0]), BYTE).unwrap();
        s.protect(1, at(managed, sizes[1]), BYTE).unwrap();
        s.protect(2, host(plain), BYTE).unwrap();
    };
    protect(&mut s, &mut plain);
    s.checkpoint(1, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    let bytes: usize = sizes.iter().sum();
    assert_eq!(s.status().last.unwrap().written_bytes, bytes as u64);

    // One byte of the device's data changes: one block is written.
    let mut changed = data[0].clone();
    changed[3 << 20] ^= 0x40;
    cuda.write(device, &changed);
    s.checkpoint(2, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    assert_eq!(s.status().last.unwrap().written_bytes, 65_536);
    drop(s);
    // It is what a full checkpoint of the same data is.
    let full = tempfile::tempdir().unwrap();
    let mut s = session(full.path(), |c| c.block_bytes = 65_536);
    protect(&mut s, &mut plain);
    s.checkpoint(2, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    assert_eq!(s.status().last.unwrap().written_bytes, bytes as u64);
    drop(s);
    let chunks = |dir: &std::path::Path, number: u32| {
        let newest = format!("test/rank-00000/c{number:012}/chunks");
        std::fs::read(dir.join(newest)).unwrap()
    };
    assert!(chunks(dir.path(), 2) == chunks(full.path(), 1));

    cuda.write(device, &vec![0; sizes[0]]);
    cuda.write(managed, &vec![0; sizes[1]]);
    plain.fill(0);
    let mut s = session(dir.path(), |_| ());
    protect(&mut s, &mut plain);
    assert_eq!(s.recover().unwrap(), 2);
    assert!(cuda.read(device, sizes[0]) == changed);
    assert!(cuda.read(managed, sizes[1]) == data[1]);
    assert!(plain == data[2]);
    drop(s);
    cuda.free(device);
    cuda.free(managed);
}

/// Every byte of host data goes over the link to be hashed, where that is asked for; the names are the CPU's.
#[test]
fn host_data_is_hashed_on_the_device_too() {
    let dir = tempfile::tempdir().unwrap();
    alone(
        "device::with_host_data_alone",
        dir.path(),
        &[held(dir.path())],
    );
}

#[test]
#[ignore = "is started by the test above"]
fn with_host_data_alone() {
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    Cuda::get();
    let mut link = Link::of_process();
    let mut data = noise((9 << 20) + 777, 1);
    let on = |on: bool| {
        move |c: &mut fermata_app::Config| {
            c.hash_host_on_gpu = on;
            c.block_bytes = 65_536;
        }
    };
    let written = |s: &mut fermata_app::Session, id| {
        s.checkpoint(id, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        s.status().last.unwrap().written_bytes
    };
    let mut s = session(&folder, on(true));
    s.protect(1, host(&mut data), BYTE).unwrap();
    let (bytes, passed) = link.little_by_little(|| written(&mut s, 1));
    assert_eq!(bytes, (9 << 20) + 777);
    assert!(passed >= 9 << 20, "{passed}");
    data[5 << 20] ^= 1;
    assert_eq!(written(&mut s, 2), 65_536);
    drop(s);
    let want = data.clone();
    let mut s = session(&folder, on(false));
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(link.only(0, || written(&mut s, 3)), 0);
    data.fill(0);
    assert_eq!(s.recover().unwrap(), 3);
    assert!(data == want);
}

/// What the library keeps in the program's contexts goes with a device that is reset, and is made anew.
#[test]
fn a_device_that_was_reset_is_checkpointed_again() {
    let dir = tempfile::tempdir().unwrap();
    alone("device::with_a_device_that_is_reset", dir.path(), &[]);
}

#[test]
#[ignore = "is started by the test above"]
fn with_a_device_that_is_reset() {
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let cuda = Cuda::get();
    let bytes = 5 << 20;
    let mut s = session(&folder, |c| c.block_bytes = 65_536);
    for id in 1..4 {
        let data = noise(bytes, id);
        let device = cuda.device(bytes);
        cuda.write(device, &data);
        s.protect(0, at(device, bytes), BYTE).unwrap();
        s.checkpoint(id as i64, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        assert_eq!(s.status().last.unwrap().written_bytes, bytes as u64);
        call!(
            cuda,
            "cuDevicePrimaryCtxReset_v2",
            unsafe extern "C" fn(i32) -> i32,
            0
        );
        cuda.use_device(0);
    }
    drop(s);
    let device = cuda.device(bytes);
    let mut s = session(&folder, |_| ());
    s.protect(0, at(device, bytes), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 3);
    assert!(cuda.read(device, bytes) == noise(bytes, 3));
}

#[test]
fn an_address_inside_an_allocation_will_do_even_unaligned() {
    let cuda = Cuda::get();
    let dir = tempfile::tempdir().unwrap();
    let bytes = 5 << 20;
    let data = noise(bytes, 77);
    let device = cuda.device(bytes + 100);
    for shift in [1u64, 16, 99] {
        let mut s = session(dir.path(), |_| ());
        cuda.write(device + shift, &data);
        s.protect(0, at(device + shift, bytes), BYTE).unwrap();
        s.checkpoint(1, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        cuda.write(device, &vec![1; bytes + 100]);
        assert_eq!(s.recover().unwrap(), 1);
        assert!(cuda.read(device + shift, bytes) == data, "{shift}");
        assert!(cuda.read(device, shift as usize).iter().all(|b| *b == 1));
        s.finalize(true).unwrap();
    }
    cuda.free(device);
}

#[test]
fn device_memory_that_is_freed_or_too_short_is_refused() {
    let cuda = Cuda::get();
    let dir = tempfile::tempdir().unwrap();
    let device = cuda.device(1 << 20);
    let mut s = session(dir.path(), |_| ());
    let e = s.protect(9, at(device, 64 << 20), BYTE).unwrap_err();
    assert!(matches!(e, AppError::Variable { id: 9, .. }), "{e}");
    s.protect(4, at(device, 1 << 20), BYTE).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    cuda.free(device);
    s.wait(Duration::from_secs(300)).unwrap();
    let e = s.checkpoint(2, Level::Local).unwrap_err();
    assert!(matches!(e, AppError::Variable { id: 4, .. }), "{e}");
    let again = cuda.device(1 << 20);
    s.protect(4, at(again, 1 << 20), BYTE).unwrap();
    // The same with managed memory.
    let managed = cuda.managed(1 << 20);
    s.protect(5, at(managed, 1 << 20), BYTE).unwrap();
    cuda.free(managed);
    let e = s.checkpoint(3, Level::Local).unwrap_err();
    assert!(matches!(e, AppError::Variable { id: 5, .. }), "{e}");
    s.unprotect(5).unwrap();
    cuda.write(again, &noise(1 << 20, 3));
    s.checkpoint(4, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    // One that was resized is refused before a byte of it is written.
    let larger = cuda.device(2 << 20);
    cuda.wipe(larger, 2 << 20);
    s.protect(4, at(larger, 2 << 20), BYTE).unwrap();
    let e = s.recover().unwrap_err();
    assert_eq!(e.code(), 5, "{e}");
    assert!(
        e.to_string().contains("had 1048576 bytes and has 2097152"),
        "{e}"
    );
    assert!(cuda.read(larger, 2 << 20).iter().all(|b| *b == 0xaa));
    s.protect(4, at(larger, 1 << 20), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 4);
    assert!(cuda.read(larger, 1 << 20) == noise(1 << 20, 3));
    cuda.free(again);
    cuda.free(larger);
}

/// Pinned buffers take long to make: none are made where there is nothing to copy.
#[test]
fn what_has_not_changed_needs_no_buffers() {
    let cuda = Cuda::get();
    let dir = tempfile::tempdir().unwrap();
    let device = cuda.device(1 << 20);
    cuda.write(device, &noise(1 << 20, 1));
    // More than there is, the second time.
    for (id, staging, written) in [(1, 16 << 20, 1 << 20), (2, 1 << 46, 0)] {
        let mut s = session(dir.path(), |c| c.staging_bytes = staging);
        s.protect(1, at(device, 1 << 20), BYTE).unwrap();
        s.checkpoint(id, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        assert_eq!(s.status().last.unwrap().written_bytes, written);
    }
    cuda.free(device);
}

#[test]
fn the_programs_current_context_is_left_alone() {
    let cuda = Cuda::get();
    let dir = tempfile::tempdir().unwrap();
    let device = cuda.device(1 << 20);
    let current = || {
        let mut context = std::ptr::null_mut();
        type Get = unsafe extern "C" fn(*mut *mut c_void) -> i32;
        call!(cuda, "cuCtxGetCurrent", Get, &mut context);
        context as usize
    };
    let before = current();
    // A thread that has no context at all can make checkpoints too, and has none afterwards.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut s = session(dir.path(), |_| ());
            s.protect(1, at(device, 1 << 20), BYTE).unwrap();
            s.checkpoint(1, Level::Local).unwrap();
            s.recover().unwrap();
            assert_eq!(current(), 0);
        });
    });
    let mut s = session(dir.path(), |_| ());
    s.protect(1, at(device, 1 << 20), BYTE).unwrap();
    s.recover().unwrap();
    s.checkpoint(2, Level::Local).unwrap();
    assert_eq!(current(), before);
    s.wait(Duration::from_secs(300)).unwrap();
    cuda.free(device);
}

/// The number of devices is the driver's, read when it is loaded: each run is a process of its own.
#[test]
fn a_job_comes_back_on_another_number_of_devices() {
    let dir = tempfile::tempdir().unwrap();
    for (devices, first) in [("2", 0), ("1", 1), ("4", 2), ("2", 3)] {
        let settings = [
            ("FERMATA_SOFTGPU_DEVICES", devices.to_string()),
            ("FERMATA_TEST_DEVICES", devices.to_string()),
            ("FERMATA_TEST_RUN", first.to_string()),
        ];
        alone("device::on_some_devices", dir.path(), &settings);
    }
}

#[test]
#[ignore = "is started by the test above"]
fn on_some_devices() {
    let number = |name: &str| -> u64 { std::env::var(name).unwrap().parse().unwrap() };
    let (devices, run) = (number("FERMATA_TEST_DEVICES"), number("FERMATA_TEST_RUN"));
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let cuda = Cuda::get();
    let mut s = session(&folder, |c| c.block_bytes = 65_536);
    let variables: Vec<u64> = (0..4)
        .map(|id| {
            cuda.use_device((id % devices) as i32);
            let address = cuda.device(300_000);
            s.protect(id as u32, at(address, 300_000), BYTE).unwrap();
            address
        })
        .collect();
    let content = |id: u64, run: u64| noise(300_000, 10 * run + id + 1);
    if run > 0 {
        assert_eq!(s.recover().unwrap(), run as i64 - 1);
        for (id, address) in (0..).zip(&variables) {
            assert!(cuda.read(*address, 300_000) == content(id, run - 1), "{id}");
        }
    }
    for (id, address) in (0..).zip(&variables) {
        cuda.write(*address, &content(id, run));
    }
    s.checkpoint(run as i64, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
}

fn held(dir: &std::path::Path) -> (&'static str, String) {
    (link::SETTING, dir.join("link").display().to_string())
}

/// Three devices with 40 MiB: what does not fit one GPU's room waits with its peers. What the program is held for is
/// told by what the link to the host lets pass meanwhile.
#[test]
fn captured_data_waits_on_devices_and_peers() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        ("FERMATA_SOFTGPU_DEVICES", "3".to_owned()),
        ("FERMATA_SOFTGPU_MEMORY", (40 << 20).to_string()),
        held(dir.path()),
    ];
    alone("device::with_room_on_devices", dir.path(), &settings);
}

#[test]
#[ignore = "is started by the test above"]
fn with_room_on_devices() {
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let cuda = Cuda::get();
    let sizes = [(12 << 20) + 5000, 2 << 20, 2 << 20];
    let content = |id: usize, run: u64| noise(sizes[id], 10 * run + id as u64);
    let variables: Vec<u64> = (0..3)
        .map(|id| {
            cuda.use_device(id as i32);
            let address = cuda.device(sizes[id]);
            cuda.write(address, &content(id, 0));
            address
        })
        .collect();
    let free = || -> Vec<usize> {
        type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> i32;
        let one = |id| {
            cuda.use_device(id);
            let (mut free, mut total) = (0, 0);
            call!(cuda, "cuMemGetInfo_v2", Info, &mut free, &mut total);
            free
        };
        (0..3).map(one).collect()
    };
    // Without room, with room for all of it on the own device, with some on the peers', and too little anywhere;
    // then some on the peers' that is not used, or used by the other schedule. Pieces of 4 MiB go one way each: what
    // must go to the host before the program goes on, in MiB, and whether it needs exactly that.
    use StageSchedule::{Greedy, LocalOnly, Optimum};
    let mut moved = Vec::new();
    let mut before = None;
    let mut link = Link::of_process();
    for (run, room, schedule, over_the_link, stays) in [
        (1, 0, Optimum, 16, false),
        (2, 14 << 20, Optimum, 0, true),
        (3, 6 << 20, Optimum, 4, true),
        (4, 2 << 20, Optimum, 12, false),
        (5, 6 << 20, LocalOnly, 8, false),
        (6, 6 << 20, Greedy, 4, true),
    ] {
        let with = |c: &mut fermata_app::Config| {
            c.stage_bytes = room;
            c.stage_schedule = schedule;
            c.block_bytes = 1 << 20;
            c.staging_bytes = 4 << 20;
        };
        let mut s = session(&folder, with);
        for (id, address) in variables.iter().enumerate() {
            cuda.write(*address, &content(id, run));
            s.protect(id as u32, at(*address, sizes[id]), BYTE).unwrap();
        }
        let bytes = over_the_link << 20;
        let mut make = || s.checkpoint(run as i64, Level::Local).unwrap();
        if stays {
            link.only(bytes, make);
        } else {
            let ((), passed) = link.little_by_little(&mut make);
            assert!(passed >= bytes, "run {run}: {passed} of {bytes}");
        }
        // Nothing of it is needed any more, though nothing of it has left the devices in some of the runs.
        for (id, address) in variables.iter().enumerate() {
            cuda.use_device(id as i32);
            cuda.wipe(*address, sizes[id]);
        }
        assert!(s.status().busy || !stays, "run {run} cannot be complete");
        link.open();
        s.wait(Duration::from_secs(300)).unwrap();
        let last = s.status().last.unwrap();
        moved.push((last.moved_seconds, last.predicted_seconds));
        drop(s);
        let mut s = session(&folder, with);
        for (id, address) in variables.iter().enumerate() {
            s.protect(id as u32, at(*address, sizes[id]), BYTE).unwrap();
        }
        assert_eq!(s.recover().unwrap(), run as i64);
        for (id, address) in variables.iter().enumerate() {
            assert!(
                cuda.read(*address, sizes[id]) == content(id, run),
                "{run} {id}"
            );
        }
        drop(s);
        // All room is given back; the first run has made what stays: hash kernels.
        let now = free();
        assert_eq!(*before.get_or_insert_with(|| now.clone()), now, "{run}");
    }
    let predicted = [0, 1, 2, 5, 4].map(|run: usize| moved[run].1);
    assert!(predicted[..2] == [0.0, 0.0], "{moved:?}");
    assert!(predicted[1..].is_sorted(), "{moved:?}");
    assert!(moved[0].0 == 0.0 && moved[1].0 > 0.0, "{moved:?}");
}

/// A peer whose memory the program wants while data waits in it: it gets it as soon as that has drained, and nothing
/// is lost, neither with nor without enough of it for the next checkpoint.
#[test]
fn a_peer_gets_its_memory_back_while_the_checkpoint_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        ("FERMATA_SOFTGPU_DEVICES", "2".to_owned()),
        ("FERMATA_SOFTGPU_MEMORY", (40 << 20).to_string()),
        held(dir.path()),
    ];
    alone(
        "device::with_a_peer_that_wants_its_memory",
        dir.path(),
        &settings,
    );
}

#[test]
#[ignore = "is started by the test above"]
fn with_a_peer_that_wants_its_memory() {
    const BYTES: usize = 12 << 20;
    type Alloc = unsafe extern "C" fn(*mut u64, usize) -> i32;
    const OUT_OF_MEMORY: i32 = 2;
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let cuda = Cuda::get();
    let address = cuda.device(BYTES);
    cuda.use_device(1);
    let with = |c: &mut fermata_app::Config| c.stage_bytes = 6 << 20;
    let mut s = session(&folder, with);
    s.protect(1, at(address, BYTES), BYTE).unwrap();
    cuda.write(address, &noise(BYTES, 1));
    // A third of it goes to the host at once; a third waits on the peer until the link is opened further.
    let mut link = Link::of_process();
    link.only(4 << 20, || s.checkpoint(1, Level::Local).unwrap());
    let last = |s: &fermata_app::Session| s.status().last.unwrap();
    cuda.use_device(1);
    // SAFETY: the function of this name has this type; the arguments are live locals or plain values.
    let alloc = unsafe { cuda.library.get::<Alloc>(b"cuMemAlloc_v2").unwrap() };
    let mut all = 0;
    // SAFETY: as above.
    let mut ask = || unsafe { alloc(&mut all, 37 << 20) };
    assert_eq!(ask(), OUT_OF_MEMORY, "nothing waits on the peer");
    link.open();
    let until = std::time::Instant::now() + Duration::from_secs(300);
    while ask() != 0 {
        assert!(std::time::Instant::now() < until, "it does not come back");
        std::thread::sleep(Duration::from_millis(5));
    }
    s.wait(Duration::from_secs(300)).unwrap();
    assert!(last(&s).predicted_seconds > 0.0);
    // The peer has next to no room now: all that does not fit goes to the host.
    cuda.write(address, &noise(BYTES, 2));
    s.checkpoint(2, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    drop(s);
    let mut back = vec![0; BYTES];
    let mut s = session(&folder, |_| ());
    s.protect(1, host(&mut back), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 2);
    assert!(back == noise(BYTES, 2));
    s.load(1).unwrap();
    assert!(back == noise(BYTES, 1));
}

/// Whichever allocation or copy of ours fails once, what a checkpoint said it has stored comes back.
#[test]
fn a_failing_allocation_or_copy_costs_at_most_one_checkpoint() {
    for (setting, numbers) in [("FAIL_ALLOC", 2..8), ("FAIL_COPY", 2..12)] {
        for number in numbers {
            let dir = tempfile::tempdir().unwrap();
            let start = |test: &str, more: (&str, String)| {
                let settings = [
                    ("FERMATA_SOFTGPU_DEVICES", "2".to_owned()),
                    ("FERMATA_SOFTGPU_MEMORY", (32 << 20).to_string()),
                    more,
                ];
                alone(test, dir.path(), &settings)
            };
            let failing = format!("FERMATA_SOFTGPU_{setting}");
            let text = start("device::with_one_failure", (&failing, number.to_string()));
            let made = text.lines().find_map(|l| l.strip_prefix("made "));
            let made = made.unwrap().to_owned();
            // A process that has lost its device can make no more; an allocation that fails costs nothing.
            assert!(made != "0" || setting == "FAIL_COPY", "{number}");
            if made != "0" {
                start("device::after_one_failure", ("FERMATA_TEST_MADE", made));
            }
        }
    }
}

#[test]
#[ignore = "is started by the test above"]
fn with_one_failure() {
    const BYTES: usize = 3 << 20;
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let cuda = Cuda::get();
    cuda.use_device(1);
    cuda.use_device(0);
    let address = cuda.device(BYTES);
    let with = |c: &mut fermata_app::Config| {
        c.block_bytes = 1 << 18;
        // Half of it has to go to the other device.
        c.stage_bytes = 2 << 20;
    };
    cuda.write(address, &noise(BYTES, 1));
    let mut s = session(&folder, with);
    s.protect(1, at(address, BYTES), BYTE).unwrap();
    let mut made = None;
    for id in 1..3 {
        let done = s
            .checkpoint(id, Level::Local)
            .and_then(|()| s.wait(Duration::from_secs(300)));
        match done {
            Ok(()) => made = Some(id),
            // A failing copy breaks the context, as on a GPU: then nothing works any more there.
            Err(e) => assert_eq!(e.code(), 11, "{}", e.text()),
        }
    }
    drop(s);
    println!("made {}", made.unwrap_or(0));
}

#[test]
#[ignore = "is started by the test above"]
fn after_one_failure() {
    const BYTES: usize = 3 << 20;
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let newest: i64 = std::env::var("FERMATA_TEST_MADE").unwrap().parse().unwrap();
    let mut back = vec![0; BYTES];
    let mut s = session(&folder, |_| ());
    s.protect(1, host(&mut back), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), newest);
    assert!(back == noise(BYTES, 1));
}
