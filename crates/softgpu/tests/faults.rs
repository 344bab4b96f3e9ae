//! What needs a process of its own: settings, which are read once, and addresses that nobody else may be given.

#[path = "common/mod.rs"]
mod common;
#[path = "common/hold.rs"]
mod hold;

use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::{Context, check, cuda};
use fermata_abi::narrow;
use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::narrow as old;
use fermata_softgpu::api::{
    checkpoint, context, copy, device, init, memop, memory, memset, pool, stream, unsupported,
};
use hold::{COPIES, Hold, SETTING};

/// Runs one of the scenarios below with these settings, and returns what it printed.
fn scenario(name: &str, settings: &[(&str, &str)]) -> String {
    outputs(name, settings).0
}

/// What a scenario wrote to standard output and to standard error.
fn outputs(name: &str, settings: &[(&str, &str)]) -> (String, String) {
    let program = std::env::current_exe().expect("a test has a program");
    let mut command = Command::new(program);
    command.args(["--exact", name, "--ignored", "--test-threads=1"]);
    for (setting, value) in settings {
        command.env(format!("FERMATA_SOFTGPU_{setting}"), value);
    }
    let output = command.output().expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    (text, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Alone, for tests beside it would be given the freed address again.
#[test]
fn what_was_freed_is_unknown() {
    scenario("a_program_frees_twice", &[]);
    scenario("a_program_frees_pool_memory_twice", &[]);
}

#[test]
#[ignore = "run by what_was_freed_is_unknown"]
fn a_program_frees_twice() {
    let context = Context::new();
    let address = context.allocate(100);
    check(cuda!(memory::cuMemFree_v2(address)));
    assert_eq!(
        cuda!(memory::cuMemFree_v2(address)),
        cu::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        cuda!(memset::cuMemsetD8_v2(address, 1, 10)),
        cu::CUDA_ERROR_INVALID_VALUE
    );
    let mut byte = 0u8;
    let to: Out<c_void> = common::out((&raw mut byte).cast());
    assert_eq!(
        cuda!(copy::cuMemcpyDtoH_v2(to, address, 1)),
        cu::CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "run by what_was_freed_is_unknown"]
fn a_program_frees_pool_memory_twice() {
    let _context = Context::new();
    let mut handle = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut handle), 1)));
    let mut address = 0;
    check(cuda!(pool::cuMemAllocAsync(
        Out::from(&mut address),
        3 << 20,
        handle
    )));
    check(cuda!(memset::cuMemsetD8Async(address, 1, 3 << 20, handle)));
    check(cuda!(pool::cuMemFreeAsync(address, handle)));
    check(cuda!(stream::cuStreamSynchronize(handle)));
    let mut byte = 0u8;
    let to: Out<c_void> = common::out((&raw mut byte).cast());
    assert_eq!(
        cuda!(copy::cuMemcpyDtoH_v2(to, address, 1)),
        cu::CUDA_ERROR_INVALID_VALUE
    );
    let mut address = 0;
    check(cuda!(pool::cuMemAllocAsync(
        Out::from(&mut address),
        100,
        handle
    )));
    check(cuda!(pool::cuMemFreeAsync(address, handle)));
    let twice = cuda!(pool::cuMemFreeAsync(address, handle));
    assert_eq!(twice, cu::CUDA_ERROR_INVALID_VALUE);
    check(cuda!(stream::cuStreamSynchronize(handle)));
}

/// Alone, for tests beside it would change how much is free.
#[test]
fn memory_is_freed_whose_address_does_not_fit() {
    scenario("a_program_has_32_bits_for_an_address", &[]);
}

#[test]
#[ignore = "run by memory_is_freed_whose_address_does_not_fit"]
fn a_program_has_32_bits_for_an_address() {
    let _context = Context::new();
    let before = free_bytes();
    let mut address = narrow::DevicePointer(7);
    let refused = cuda!(old::cuMemAlloc(&raw mut address, narrow::Size(64)));
    assert_eq!((refused, address.0), (cu::CUDA_ERROR_OUT_OF_MEMORY, 7));
    assert_eq!(free_bytes(), before);
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    check(cuda!(memory::cuMemGetInfo_v2(
        Out::from(&mut free),
        Out::from(&mut total)
    )));
    free
}

#[test]
fn what_is_refused_is_told_once_on_standard_error_unless_the_user_wants_none() {
    let told = outputs("a_program_asks_for_what_is_not_there", &[]).1;
    for what in [
        "cuDestroyExternalMemory",
        "cannot launch `bad`",
        "frobnicate",
    ] {
        assert_eq!(told.matches(what).count(), 1, "{what}: {told}");
    }
    let quiet = outputs("a_program_asks_for_what_is_not_there", &[("QUIET", "1")]).1;
    assert!(!quiet.contains("software GPU"), "{quiet}");
}

#[test]
#[ignore = "run by what_is_refused_is_told_once_on_standard_error_unless_the_user_wants_none"]
fn a_program_asks_for_what_is_not_there() {
    let context = Context::new();
    let text = c".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry bad() { frobnicate.u32 %r1, 3; ret; }";
    let bad = context.load(text).function(c"bad");
    for _ in 0..3 {
        // SAFETY: it refuses whatever it is given.
        let refused = unsafe { unsupported::cuDestroyExternalMemory(null_mut()) };
        assert_eq!(refused, cu::CUDA_ERROR_NOT_SUPPORTED);
        let launched = bad.try_launch([1; 3], [1; 3], 0, null_mut(), &[]);
        assert_eq!(launched, cu::CUDA_ERROR_NOT_SUPPORTED);
    }
}

#[test]
fn settings_make_devices_and_faults() {
    scenario("the_second_allocation_fails", &[("FAIL_ALLOC", "2")]);
    scenario(
        "the_second_copy_fails_and_kills_the_context",
        &[("FAIL_COPY", "2")],
    );
    scenario(
        "the_device_is_lost_at_the_second_launch",
        &[("LOSE_DEVICE", "2")],
    );
    scenario("copies_take_the_time_of_the_link", &[("HOST_LINK", "20M")]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    scenario("what_is_held_waits", &[("HOLD", path)]);
    scenario("the_device_is_lost_when_a_file_says_so", &[("HOLD", path)]);
    scenario(
        "memory_is_as_large_as_set",
        &[("MEMORY", "16M"), ("DEVICES", "2")],
    );
    scenario("an_endless_kernel_is_stopped", &[("KERNEL_LIMIT", "1")]);
    scenario("nonsense_is_refused", &[("MEMORY", "plenty")]);
    scenario("a_fork_cannot_use_the_driver", &[]);
    scenario("calls_wait_while_the_process_is_checkpointed", &[]);
    scenario("a_lock_waits_for_work_as_long_as_it_may", &[]);
    scenario("a_launch_without_memory_for_its_threads_fails", &[]);
    let printed = scenario("a_kernel_prints", &[]);
    assert!(printed.contains("<42>"), "{printed}");
}

/// Private memory of this process that can be written, bytes.
fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process's status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmData:"));
    let digits = line.and_then(|l| l.trim().strip_suffix(" kB"));
    1024 * digits
        .and_then(|d| d.parse::<u64>().ok())
        .expect("a number of kilobytes")
}

/// Without a limit on the time: it waited for itself for ever.
#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn a_launch_without_memory_for_its_threads_fails() {
    let context = Context::new();
    let text = c".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() { ret; }";
    let kernel = context.load(text).function(c"k");
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_DATA, &mut limit) }, 0);
    // Enough for everything but the local memory of a block.
    limit.rlim_cur = data_bytes() + (256 << 20);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
    kernel.try_launch([1; 3], [1; 3], 0, null_mut(), &[]);
    assert_ne!(cuda!(context::cuCtxSynchronize()), cu::CUDA_SUCCESS);
}

fn allocate(bytes: usize) -> (cu::CUresult, u64) {
    let mut address = 0;
    (
        cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), bytes)),
        address,
    )
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn the_second_allocation_fails() {
    let _context = Context::new();
    assert_eq!(allocate(4).0, cu::CUDA_SUCCESS);
    assert_eq!(allocate(4).0, cu::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(allocate(4).0, cu::CUDA_SUCCESS);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn the_second_copy_fails_and_kills_the_context() {
    let context = Context::new();
    let words = context.upload(&[1u32]);
    let mut word = 0u32;
    let to: Out<c_void> = Out::from(&mut word).cast();
    let failed = cuda!(copy::cuMemcpyDtoH_v2(to, words, 4));
    assert_eq!(failed, cu::CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_eq!(
        cuda!(context::cuCtxSynchronize()),
        cu::CUDA_ERROR_ECC_UNCORRECTABLE
    );
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn the_device_is_lost_at_the_second_launch() {
    let context = Context::new();
    let kernel = context.load(common::COUNT).function(c"count");
    let words = context.upload(&[0u32; 32]);
    let params: [&[u8]; 4] = [
        &words.to_ne_bytes(),
        &32u32.to_ne_bytes(),
        &1u32.to_ne_bytes(),
        &1u32.to_ne_bytes(),
    ];
    kernel.launch([1, 1, 1], [32, 1, 1], 0, null_mut(), &params);
    check(cuda!(context::cuCtxSynchronize()));
    kernel.launch([1, 1, 1], [32, 1, 1], 0, null_mut(), &params);
    assert_eq!(
        cuda!(context::cuCtxSynchronize()),
        cu::CUDA_ERROR_DEVICE_UNAVAILABLE
    );
    assert_eq!(allocate(4).0, cu::CUDA_ERROR_DEVICE_UNAVAILABLE);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn the_device_is_lost_when_a_file_says_so() {
    let folder = PathBuf::from(std::env::var_os(SETTING).expect("it is set"));
    let _context = Context::new();
    check(cuda!(context::cuCtxSynchronize()));
    std::fs::write(folder.join("lost"), "").expect("a file");
    for _ in 0..2 {
        assert_eq!(
            cuda!(context::cuCtxSynchronize()),
            cu::CUDA_ERROR_DEVICE_UNAVAILABLE
        );
        assert!(!folder.join("lost").exists(), "the next one is lost too");
    }
    assert_eq!(allocate(4).0, cu::CUDA_ERROR_DEVICE_UNAVAILABLE);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn copies_take_the_time_of_the_link() {
    let context = Context::new();
    let begun = Instant::now();
    let address = context.upload(&vec![0u8; 2 << 20]);
    assert!(begun.elapsed() >= Duration::from_millis(100));
    assert_eq!(context.download::<u8>(address, 16), [0; 16]);
}

/// Copies over the link wait as long as a test wants, and copies inside a device do not use the link.
#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn what_is_held_waits() {
    const LEN: usize = 2 << 20;
    let context = Context::new();
    let (first, second) = (context.upload(&vec![7u8; LEN]), context.allocate(LEN));
    let hold = Hold::at(PathBuf::from(std::env::var_os(SETTING).expect("it is set")));
    hold.only(COPIES, 0);
    check(cuda!(copy::cuMemcpyDtoD_v2(second, first, LEN)));
    check(cuda!(stream::cuStreamSynchronize(null_mut())));
    let current = context.0.addr();
    let download = move || {
        check(cuda!(context::cuCtxSetCurrent(
            std::ptr::without_provenance_mut(current)
        )));
        let mut bytes = vec![0u8; LEN];
        let to: Out<c_void> = Out::from(&mut bytes[..]).cast();
        check(cuda!(copy::cuMemcpyDtoH_v2(to, second, LEN)));
        bytes
    };
    let waiting = std::thread::spawn(download);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    hold.up_to(COPIES, LEN as u64);
    assert_eq!(waiting.join().expect("it goes on"), vec![7u8; LEN]);
    hold.release(COPIES);
    assert_eq!(download(), vec![7u8; LEN]);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn memory_is_as_large_as_set() {
    let _context = Context::on(1);
    let mut count = 0;
    check(cuda!(device::cuDeviceGetCount(Out::from(&mut count))));
    assert_eq!(count, 2);
    assert_eq!(allocate(17 << 20).0, cu::CUDA_ERROR_OUT_OF_MEMORY);
    let (code, address) = allocate(12 << 20);
    check(code);
    let (mut free, mut total) = (0, 0);
    check(cuda!(memory::cuMemGetInfo_v2(
        Out::from(&mut free),
        Out::from(&mut total)
    )));
    assert_eq!((free, total), (4 << 20, 16 << 20));
    assert_eq!(allocate(6 << 20).0, cu::CUDA_ERROR_OUT_OF_MEMORY);
    check(cuda!(memory::cuMemFree_v2(address)));
    check(allocate(16 << 20).0);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn an_endless_kernel_is_stopped() {
    let context = Context::new();
    let kernel = context.load(common::COUNT).function(c"count");
    let words = context.upload(&[0u32; 32]);
    let params: [&[u8]; 4] = [
        &words.to_ne_bytes(),
        &1u32.to_ne_bytes(),
        &u32::MAX.to_ne_bytes(),
        &1u32.to_ne_bytes(),
    ];
    for _ in 0..4 {
        kernel.launch([1, 1, 1], [32, 1, 1], 0, null_mut(), &params);
    }
    assert_eq!(
        cuda!(context::cuCtxSynchronize()),
        cu::CUDA_ERROR_LAUNCH_TIMEOUT
    );
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn nonsense_is_refused() {
    assert_eq!(cuda!(init::cuInit(0)), cu::CUDA_ERROR_INVALID_VALUE);
    let mut count = 0;
    let refused = cuda!(device::cuDeviceGetCount(Out::from(&mut count)));
    assert_eq!(refused, cu::CUDA_ERROR_NOT_INITIALIZED);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn a_fork_cannot_use_the_driver() {
    let context = Context::new();
    let words = context.upload(&[5u32]);
    // SAFETY: the child only calls the driver, which refuses without taking a lock, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut count = 0;
        let refused = cuda!(device::cuDeviceGetCount(Out::from(&mut count)));
        let started = cuda!(init::cuInit(0));
        let both = [refused, started]
            .iter()
            .all(|code| *code == cu::CUDA_ERROR_NOT_INITIALIZED);
        // SAFETY: leaves without running what belongs to the parent.
        unsafe { libc::_exit(if both { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(context.download::<u32>(words, 1), [5]);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn calls_wait_while_the_process_is_checkpointed() {
    let context = Context::new();
    let words = context.upload(&[5u32, 6]);
    let large = context.upload(&vec![7u8; 5 << 20]);
    let pid = std::process::id() as i32;
    check(cuda!(checkpoint::cuCheckpointProcessLock(pid, In::null())));
    let state = || {
        let mut state = 0;
        check(cuda!(checkpoint::cuCheckpointProcessGetState(
            pid,
            Out::from(&mut state)
        )));
        state
    };
    assert_eq!(state(), cu::CU_PROCESS_STATE_LOCKED);
    let waiting = std::thread::spawn(|| {
        let mut count = 0;
        check(cuda!(device::cuDeviceGetCount(Out::from(&mut count))));
    });
    std::thread::sleep(Duration::from_millis(50));
    check(cuda!(checkpoint::cuCheckpointProcessCheckpoint(
        pid,
        In::null()
    )));
    assert_eq!(state(), cu::CU_PROCESS_STATE_CHECKPOINTED);
    let early = cuda!(checkpoint::cuCheckpointProcessUnlock(pid, In::null()));
    assert_eq!(early, cu::CUDA_ERROR_ILLEGAL_STATE);
    check(cuda!(checkpoint::cuCheckpointProcessRestore(
        pid,
        In::null()
    )));
    assert!(!waiting.is_finished());
    check(cuda!(checkpoint::cuCheckpointProcessUnlock(
        pid,
        In::null()
    )));
    waiting.join().expect("the thread ends");
    assert_eq!(context.download::<u32>(words, 2), [5, 6]);
    assert_eq!(context.download::<u8>(large, 5 << 20), vec![7u8; 5 << 20]);
}

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn a_lock_waits_for_work_as_long_as_it_may() {
    let context = Context::new();
    let words = context.upload(&[0u32; 2]);
    let pid = std::process::id() as i32;
    let mut stream = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut stream), 1)));
    check(cuda!(memop::cuStreamWaitValue32_v2(
        stream,
        words,
        7,
        cu::CU_STREAM_WAIT_VALUE_EQ
    )));
    let args = cu::CUcheckpointLockArgs {
        timeoutMs: 20,
        ..Default::default()
    };
    let early = cuda!(checkpoint::cuCheckpointProcessLock(pid, In::from(&args)));
    assert_eq!(early, cu::CUDA_ERROR_NOT_READY);
    let mut writer = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut writer), 1)));
    check(cuda!(memop::cuStreamWriteValue32_v2(writer, words, 7, 0)));
    check(cuda!(checkpoint::cuCheckpointProcessLock(pid, In::null())));
    check(cuda!(checkpoint::cuCheckpointProcessUnlock(
        pid,
        In::null()
    )));
    check(cuda!(stream::cuStreamSynchronize(stream)));
}

/// Prints the number in its parameter between angle brackets.
const PRINT: &std::ffi::CStr = c"
.version 7.0
.target sm_75
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[6] = {60, 37, 100, 62, 10, 0};
.visible .entry show(.param .u32 value)
{
    .local .align 8 .b8 values[8];
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u32 %r1, [value];
    mov.u64 %rd1, values;
    cvta.local.u64 %rd2, %rd1;
    st.local.u32 [%rd1], %r1;
    mov.u64 %rd3, text;
    cvta.global.u64 %rd4, %rd3;
    {
    .param .b64 param0;
    st.param.b64 [param0], %rd4;
    .param .b64 param1;
    st.param.b64 [param1], %rd2;
    .param .b32 retval0;
    call.uni (retval0), vprintf, (param0, param1);
    ld.param.b32 %r2, [retval0];
    }
    ret;
}
";

#[test]
#[ignore = "run by settings_make_devices_and_faults"]
fn a_kernel_prints() {
    let context = Context::new();
    let kernel = context.load(PRINT).function(c"show");
    kernel.launch([1, 1, 1], [1, 1, 1], 0, null_mut(), &[&42u32.to_ne_bytes()]);
    check(cuda!(context::cuCtxSynchronize()));
}
