//! Programs against the library, with a daemon and a worker that the test plays. Each program is a
//! process of its own: an ignored test of this binary, which its stage starts.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod support;

use core::ffi::{c_int, c_uint, c_void};
use std::ffi::CStr;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use fermata_control::agent::{FromAgent, ToAgent};
use support::driver::{
    cuCtxCreate_v2, cuCtxSetCurrent, cuCtxSynchronize, cuInit, cuLaunchKernel, cuMemAlloc_v2,
    cuModuleGetFunction, cuModuleLoadData, cuStreamCreate, cuStreamSynchronize,
};
use support::{Stage, WAIT};

unsafe extern "C" {
    fn cuDeviceGetCount(count: *mut c_int) -> CUresult;
    fn cuDeviceGetName(name: *mut i8, len: c_int, device: CUdevice) -> CUresult;
    fn cuMemFree_v2(address: CUdeviceptr) -> CUresult;
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize) -> CUresult;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize) -> CUresult;
    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> CUresult;
    fn cuMemsetD8_v2(address: CUdeviceptr, value: u8, count: usize) -> CUresult;
    fn cuMemAllocHost_v2(pointer: *mut *mut c_void, size: usize) -> CUresult;
    fn cuMemFreeHost(pointer: *mut c_void) -> CUresult;
    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: c_uint) -> CUresult;
    fn cuMemHostUnregister(pointer: *mut c_void) -> CUresult;
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) -> CUresult;
    fn cuGetProcAddress_v2(
        symbol: *const i8,
        function: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut c_uint,
    ) -> CUresult;
}

fn context() -> CUcontext {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    context
}

fn alloc(size: usize) -> CUdeviceptr {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, size));
    address
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 251) as u8 ^ seed).collect()
}

#[test]
#[ignore = "a program for its stage"]
fn copies() {
    context();
    for len in [
        1,
        100,
        2048,
        2049,
        16 << 10,
        (16 << 10) + 1,
        9 << 20,
        (32 << 20) + 5,
    ] {
        let (first, second) = (alloc(len), alloc(len));
        let data = pattern(len, 7);
        ok!(cuMemcpyHtoD_v2(first, data.as_ptr().cast(), len));
        ok!(cuMemcpyDtoD_v2(second, first, len));
        let mut back = vec![0u8; len];
        ok!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), second, len));
        assert!(back == data, "{len} bytes");
        // SAFETY: the addresses are numbers; a range that is not one allocation must be refused.
        unsafe {
            assert_eq!(
                cuMemcpyHtoD_v2(first, data.as_ptr().cast(), len + (1 << 21)),
                CUDA_ERROR_INVALID_VALUE
            );
            assert_eq!(cuMemFree_v2(first + 1), CUDA_ERROR_INVALID_VALUE);
        }
        ok!(cuMemFree_v2(first));
        ok!(cuMemFree_v2(second));
    }
    let mut pinned = std::ptr::null_mut();
    ok!(cuMemAllocHost_v2(&mut pinned, 5000));
    let device = alloc(5000);
    // SAFETY: the block is 5000 bytes long.
    let bytes = unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 5000) };
    bytes.copy_from_slice(&pattern(5000, 9));
    ok!(cuMemcpyHtoD_v2(device, pinned, 5000));
    ok!(cuMemsetD8_v2(device, 0xab, 10));
    ok!(cuMemcpyDtoH_v2(pinned, device, 5000));
    assert!(bytes[..10] == [0xab; 10] && bytes[10..] == pattern(5000, 9)[10..]);
    ok!(cuMemFreeHost(pinned));
    let mut own = pattern(20_000, 3);
    ok!(cuMemHostRegister_v2(own.as_mut_ptr().cast(), own.len(), 0));
    assert!(own == pattern(20_000, 3));
    ok!(cuMemcpyHtoD_v2(device, own[100..].as_ptr().cast(), 4000));
    own[0] = 77;
    ok!(cuMemHostUnregister(own.as_mut_ptr().cast()));
    assert!(own[0] == 77 && own[1..] == pattern(20_000, 3)[1..]);
    ok!(cuMemcpyDtoH_v2(own.as_mut_ptr().cast(), device, 4000));
    assert!(own[..4000] == pattern(20_000, 3)[100..4100]);
}

#[test]
fn copies_of_every_size_arrive() {
    assert!(Stage::start("copies").finish());
}

#[test]
#[ignore = "a program for its stage"]
fn crowd() {
    let context = context() as usize;
    std::thread::scope(|scope| {
        for seed in 1..=8 {
            scope.spawn(move || {
                ok!(cuCtxSetCurrent(context as CUcontext));
                let len = 20 << 20;
                let device = alloc(len);
                let data = vec![seed; len];
                ok!(cuMemcpyHtoD_v2(device, data.as_ptr().cast(), len));
                let mut back = vec![0u8; len];
                ok!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), device, len));
                assert!(back == data);
            });
        }
    });
}

#[test]
fn threads_that_copy_at_the_same_time_do_not_wait_for_each_other_for_ever() {
    // Room for two pieces of a copy: a thread that waited for a third while it held both would wait for ever, as many threads do
    // with the usual room.
    let config = fermata_wire::Config {
        staging: 8 << 20,
        ..fermata_wire::Config::default()
    };
    assert!(Stage::start_with("crowd", config).finish());
}

/// Grid, block and shared memory that no device, or not this kernel, takes.
const IMPOSSIBLE: [[c_uint; 7]; 7] = [
    [0, 1, 1, 32, 1, 1, 0],
    [1, 1, 1, 32, 0, 1, 0],
    [1 << 31, 1, 1, 32, 1, 1, 0],
    [1, 65536, 1, 32, 1, 1, 0],
    [1, 1, 1, 1, 1, 65, 0],
    [1, 1, 1, 64, 32, 1, 0],
    [1, 1, 1, 32, 1, 1, 48 << 10],
];

#[test]
#[ignore = "a program for its stage"]
fn launches() {
    context();
    let (mut count, mut name) = (0, [0i8; 64]);
    ok!(cuDeviceGetCount(&mut count));
    ok!(cuDeviceGetName(name.as_mut_ptr(), 64, 1));
    // SAFETY: the library has written a NUL.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    assert_eq!((count, name), (2, c"Test device 1"));
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    ok!(cuModuleLoadData(
        &mut module,
        c".version 8.0".as_ptr().cast()
    ));
    ok!(cuModuleGetFunction(
        &mut function,
        module,
        c"second".as_ptr()
    ));
    let mut other = std::ptr::null_mut();
    // SAFETY: all pointers are good; the name is not one of the module's.
    let missing = unsafe { cuModuleGetFunction(&mut other, module, c"third".as_ptr()) };
    assert_eq!(missing, CUDA_ERROR_NOT_FOUND);
    let (mut a, mut b, mut c) = (0x1111_2222_3333_4444u64, 0x5555_6666u32, 0x7777u64);
    let mut params = [
        std::ptr::from_mut(&mut a).cast(),
        std::ptr::from_mut(&mut b).cast(),
        std::ptr::from_mut(&mut c).cast(),
    ];
    let none = std::ptr::null_mut();
    ok!(cuLaunchKernel(
        function,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        none,
        params.as_mut_ptr(),
        none.cast()
    ));
    ok!(cuCtxSynchronize());
    for shape in IMPOSSIBLE {
        let [gx, gy, gz, bx, by, bz, shared] = shape;
        let params = params.as_mut_ptr();
        // SAFETY: all pointers are good.
        let refused = unsafe {
            cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared,
                none,
                params,
                none.cast(),
            )
        };
        assert_eq!(refused, CUDA_ERROR_INVALID_VALUE, "{shape:?}");
    }
    for _ in 0..20_000 {
        ok!(cuLaunchKernel(
            function,
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            none,
            params.as_mut_ptr(),
            none.cast()
        ));
    }
    let (mut entry, mut status) = (std::ptr::null_mut(), 9);
    ok!(cuGetProcAddress_v2(
        c"cuMemAlloc".as_ptr(),
        &mut entry,
        13000,
        0,
        &mut status
    ));
    assert_eq!(
        (entry as usize, status),
        (cuMemAlloc_v2 as *const () as usize, 0)
    );
    ok!(cuCtxSynchronize());
}

/// What cannot be launched is told by the launch itself, and never sent.
#[test]
fn launches_carry_their_parameters() {
    let stage = Stage::start("launches");
    let device = stage.device.clone();
    assert!(stage.finish());
    let launches = &device.lock().unwrap().launches;
    let mut expected = 0x1111_2222_3333_4444u64.to_le_bytes().to_vec();
    expected.extend(0x5555_6666u32.to_le_bytes());
    expected.extend([0; 4]);
    expected.extend(0x7777u64.to_le_bytes());
    assert_eq!((launches[0].1, &launches[0].2), ([2, 3, 4], &expected));
    assert_eq!(launches.len(), 20_001);
}

extern "C" fn count_up(data: *mut c_void) {
    // SAFETY: the programs below pass an AtomicU64.
    unsafe { &*data.cast::<AtomicU64>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
#[ignore = "a program for its stage"]
fn callbacks() {
    context();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut stream = std::ptr::null_mut();
    ok!(cuStreamCreate(&mut stream, 0));
    for n in 1..=20 {
        let data = std::ptr::from_ref(&CALLS).cast_mut().cast();
        ok!(cuLaunchHostFunc(stream, Some(count_up), data));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(CALLS.load(Ordering::SeqCst), n);
    }
}

#[test]
fn callbacks_run_before_what_comes_after_them() {
    assert!(Stage::start("callbacks").finish());
}

/// A callback for every copy, as programs have it that hear so of the end of their steps.
#[test]
#[ignore = "a program for its stage"]
fn calls_back() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    context();
    let mut stream = std::ptr::null_mut();
    ok!(cuStreamCreate(&mut stream, 0));
    let address = alloc(4096);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until_let_go();
            STOP.store(true, Ordering::Relaxed);
        });
        let mut n = 0;
        while !STOP.load(Ordering::Relaxed) {
            n += 1;
            let data = std::ptr::from_ref(&CALLS).cast_mut().cast();
            ok!(cuLaunchHostFunc(stream, Some(count_up), data));
            ok!(cuStreamSynchronize(stream));
            assert_eq!(CALLS.load(Ordering::SeqCst), n);
            let bytes = pattern(4096, n as u8);
            ok!(cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
        }
    });
}

#[test]
fn callbacks_come_after_a_stop_and_from_the_next_worker() {
    let mut stage = Stage::start("calls_back");
    for round in 0..5 {
        stage.wait_for_copies(20);
        let quiesced = stage.quiesce();
        assert!(
            matches!(quiesced, FromAgent::Quiesced { .. }),
            "{quiesced:?}"
        );
        if round % 2 == 0 {
            assert_eq!(stage.order(&ToAgent::Resume), FromAgent::Resumed);
            continue;
        }
        stage.detach();
        // The thread for callbacks has left the memory that went.
        assert!(!stage.maps().contains("memfd:"), "{}", stage.maps());
        stage.reattach();
    }
    stage.wait_for_copies(20);
    assert!(stage.finish());
}

/// Returns when the stage lets the program end.
fn until_let_go() {
    let mut nothing = String::new();
    std::io::stdin().read_to_string(&mut nothing).unwrap();
}

#[test]
#[ignore = "a program for its stage"]
fn ends_as_soon_as_it_runs() {
    context();
    alloc(64);
    until_let_go();
    // SAFETY: it ends the process.
    unsafe { libc::_exit(0) }
}

/// What lets a program go on must not take its end for an end before that.
#[test]
fn a_program_that_ends_as_soon_as_it_runs_has_gone_on() {
    for detached in [false, true] {
        for _ in 0..10 {
            let mut stage = Stage::start("ends_as_soon_as_it_runs");
            stage.wait_for_allocation();
            let quiesced = stage.quiesce();
            assert!(matches!(quiesced, FromAgent::Quiesced { .. }));
            if detached {
                stage.detach();
            }
            drop(stage.program.stdin.take());
            if detached {
                stage.reattach();
            } else {
                assert_eq!(stage.order(&ToAgent::Resume), FromAgent::Resumed);
            }
            assert!(stage.finish());
        }
    }
}

/// Threads in loops, asleep, waiting for each other, and in calls; shared memory of two kinds.
#[test]
#[ignore = "a program for its stage"]
fn busy() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static SPINS: AtomicU64 = AtomicU64::new(0);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let context = context().addr();
    let mut pinned = std::ptr::null_mut();
    ok!(cuMemAllocHost_v2(&mut pinned, 1 << 20));
    let mut own = pattern(3 << 20, 5);
    ok!(cuMemHostRegister_v2(own.as_mut_ptr().cast(), own.len(), 0));
    // SAFETY: the block is 1 MiB long.
    let bytes = unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 1 << 20) };
    bytes.copy_from_slice(&pattern(1 << 20, 1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                SPINS.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            // Straight to the system: the standard library would hide an interruption.
            while !STOP.load(Ordering::Relaxed) {
                let (time, start) = (
                    libc::timespec {
                        tv_sec: 0,
                        tv_nsec: 300_000_000,
                    },
                    Instant::now(),
                );
                let mut left = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                // SAFETY: both times are on the stack.
                assert_eq!(unsafe { libc::nanosleep(&time, &mut left) }, 0);
                assert!(start.elapsed() >= Duration::from_millis(299));
            }
        });
        scope.spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                // SAFETY: no descriptors.
                assert_eq!(unsafe { libc::poll(std::ptr::null_mut(), 0, 150) }, 0);
            }
        });
        for n in 0..3u8 {
            scope.spawn(move || {
                ok!(cuCtxSetCurrent(std::ptr::without_provenance_mut(context)));
                let address = alloc(100_000);
                while !STOP.load(Ordering::Relaxed) {
                    let data = pattern(100_000, n);
                    ok!(cuMemcpyHtoD_v2(address, data.as_ptr().cast(), data.len()));
                    let mut back = vec![0u8; data.len()];
                    ok!(cuMemcpyDtoH_v2(
                        back.as_mut_ptr().cast(),
                        address,
                        data.len()
                    ));
                    assert!(back == data);
                    CALLS.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            until_let_go();
            STOP.store(true, Ordering::Relaxed);
        });
        while !STOP.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
            assert!(bytes == pattern(1 << 20, 1) && own == pattern(3 << 20, 5));
        }
    });
    assert!(CALLS.load(Ordering::Relaxed) > 10 && SPINS.load(Ordering::Relaxed) > 10);
    ok!(cuMemHostUnregister(own.as_mut_ptr().cast()));
    assert!(own == pattern(3 << 20, 5));
    ok!(cuMemFreeHost(pinned));
}

#[test]
fn a_busy_program_stops_detaches_and_goes_on() {
    let mut stage = Stage::start("busy");
    for round in 0..4 {
        stage.wait_for_copies(100);
        let threads = match stage.quiesce() {
            FromAgent::Quiesced { threads, .. } => threads,
            other => panic!("{other:?}"),
        };
        assert!(threads >= 6, "{threads}");
        if round == 0 {
            assert_eq!(stage.order(&ToAgent::Resume), FromAgent::Resumed);
            continue;
        }
        let open = stage.detach();
        let bad = |name: &&String| name.contains("memfd:") || name.contains("socket:");
        assert_eq!(open.iter().filter(bad).count(), 0, "{open:?}");
        assert!(!stage.maps().contains("memfd:"), "{}", stage.maps());
        // A thread that is about to sleep counts as asleep, and may have to be looked at twice.
        let asleep = stage.settled();
        assert!(asleep.len() >= 7, "{asleep:?}");
        if round == 2 {
            stage.summon("/nonexistent/socket");
            let end = Instant::now() + WAIT;
            while stage.is_summoned() {
                assert!(Instant::now() < end, "nobody looks at the summons");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        stage.reattach();
    }
    stage.wait_for_copies(100);
    assert!(stage.device.lock().unwrap().drains >= 4);
    assert!(stage.finish());
}

#[test]
#[ignore = "a program for its stage"]
fn orphan() {
    context();
    let address = alloc(100);
    // SAFETY: the child only makes calls that fail, then ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut count = 0;
        // SAFETY: as above.
        unsafe {
            let good = cuDeviceGetCount(&mut count) == CUDA_ERROR_NOT_INITIALIZED
                && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
                && cuMemFree_v2(address) == CUDA_ERROR_NOT_INITIALIZED;
            libc::_exit(c_int::from(!good));
        }
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    ok!(cuMemFree_v2(address));
}

#[test]
fn a_forked_child_has_no_cuda_and_its_parent_keeps_it() {
    assert!(Stage::start("orphan").finish());
}

#[test]
#[ignore = "a program for its stage"]
fn bereft() {
    context();
    let mut address = 0;
    let end = Instant::now() + WAIT;
    // SAFETY: the address is a live variable.
    while unsafe { cuMemAlloc_v2(&mut address, 100) } == CUDA_SUCCESS {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            cuMemAlloc_v2(&mut address, 100),
            CUDA_ERROR_DEVICE_UNAVAILABLE
        );
        assert_eq!(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
}

#[test]
fn a_lost_worker_is_an_error_and_no_hang() {
    let mut stage = Stage::start("bereft");
    stage.wait_for_allocation();
    stage.stop_worker();
    assert!(stage.finish());
}

#[test]
#[ignore = "a program for its stage"]
fn deaf() {
    context();
    // SAFETY: the set is a full one on the stack.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &set,
            0usize,
            8usize,
        );
    }
    // Tells the stage that it is so far.
    alloc(16);
    until_let_go();
    ok!(cuCtxSynchronize());
}

#[test]
fn a_thread_that_blocks_the_signal_is_named() {
    let stage = Stage::start("deaf");
    stage.wait_for_allocation();
    let FromAgent::Refused { reason, .. } = stage.quiesce() else {
        panic!("stopped")
    };
    assert!(reason.contains("blocks signal"), "{reason}");
    assert!(stage.finish());
}

#[test]
fn without_a_daemon_there_is_an_error() {
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuInit(0) }, CUDA_ERROR_SYSTEM_NOT_READY);
}
