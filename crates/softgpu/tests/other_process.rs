//! `cuCheckpointProcess*` of another process: one that computes is stopped at any moment, its memory is taken and given
//! back, and it goes on as if nothing had been.

#[path = "common/mod.rs"]
mod common;

use std::ffi::c_int;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Context, check, cuda};
use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{checkpoint, device, memory};

const LIMIT: Duration = Duration::from_secs(300);
/// What a scenario says when it has begun, and when it has seen nothing wrong.
const BEGUN: &str = "has begun";
const WHOLE: &str = "whole";

/// A process that runs one of the scenarios below until its input ends.
struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(scenario: &str) -> Self {
        let program = std::env::current_exe().expect("a test has a program");
        let mut child = Command::new(program)
            .args(["--exact", scenario, "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut other = Self { child, output };
        other.says(BEGUN);
        other
    }

    fn says(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            let bytes = self.output.read_line(&mut line).expect("text");
            assert!(bytes > 0, "it has ended without saying `{word}`");
        }
    }

    fn pid(&self) -> c_int {
        self.child.id() as c_int
    }

    fn state(&self) -> cu::CUprocessState {
        let mut state = 99;
        let asked = cuda!(checkpoint::cuCheckpointProcessGetState(
            self.pid(),
            Out::from(&mut state)
        ));
        check(asked);
        state
    }

    fn lock(&self, milliseconds: u32) -> cu::CUresult {
        let args = cu::CUcheckpointLockArgs {
            timeoutMs: milliseconds,
            ..Default::default()
        };
        cuda!(checkpoint::cuCheckpointProcessLock(
            self.pid(),
            In::from(&args)
        ))
    }

    fn checkpoint(&self) -> cu::CUresult {
        cuda!(checkpoint::cuCheckpointProcessCheckpoint(
            self.pid(),
            In::null()
        ))
    }

    fn restore(&self, pairs: &mut [cu::CUcheckpointGpuPair]) -> cu::CUresult {
        let args = cu::CUcheckpointRestoreArgs {
            gpuPairs: pairs.as_mut_ptr(),
            gpuPairsCount: pairs.len() as u32,
            ..Default::default()
        };
        cuda!(checkpoint::cuCheckpointProcessRestore(
            self.pid(),
            In::from(&args)
        ))
    }

    fn unlock(&self) -> cu::CUresult {
        cuda!(checkpoint::cuCheckpointProcessUnlock(
            self.pid(),
            In::null()
        ))
    }

    /// Lets it come to its end.
    fn ends_well(mut self) {
        drop(self.child.stdin.take());
        self.says(WHOLE);
        assert!(self.child.wait().expect("waited").success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Both fail only when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scenario begins; the answer says whether the other process wants its end.
fn begin() -> impl Fn() -> bool {
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        told.send(())
    });
    println!("{BEGUN}");
    std::io::stdout().flush().expect("written");
    let begun = Instant::now();
    move || {
        assert!(begun.elapsed() < LIMIT, "the other process does nothing");
        tell.try_recv().is_ok()
    }
}

#[test]
fn a_process_that_computes_is_taken_at_any_moment_and_goes_on() {
    let other = Other::start("counts");
    assert_eq!(other.state(), cu::CU_PROCESS_STATE_RUNNING);
    assert_eq!(other.unlock(), cu::CUDA_ERROR_ILLEGAL_STATE);
    assert_eq!(other.checkpoint(), cu::CUDA_ERROR_ILLEGAL_STATE);
    for _ in 0..20 {
        check(other.lock(0));
        assert_eq!(other.state(), cu::CU_PROCESS_STATE_LOCKED);
        assert_eq!(other.lock(0), cu::CUDA_ERROR_ILLEGAL_STATE);
        check(other.checkpoint());
        assert_eq!(other.state(), cu::CU_PROCESS_STATE_CHECKPOINTED);
        assert_eq!(other.unlock(), cu::CUDA_ERROR_ILLEGAL_STATE);
        check(other.restore(&mut []));
        check(other.unlock());
        assert_eq!(other.state(), cu::CU_PROCESS_STATE_RUNNING);
    }
    let mut thread = 0;
    check(cuda!(checkpoint::cuCheckpointProcessGetRestoreThreadId(
        other.pid(),
        Out::from(&mut thread)
    )));
    assert_ne!(thread, 0);
    assert_ne!(thread, other.pid());
    other.ends_well();
}

#[test]
#[ignore = "run by a_process_that_computes_is_taken_at_any_moment_and_goes_on"]
fn counts() {
    let context = Context::new();
    let kernel = context.load(common::COUNT).function(c"count");
    let large = context.upload(&vec![7u8; 5 << 20]);
    let words = context.upload(&[0u32; 64]);
    let ends = begin();
    let mut rounds = 0u32;
    while !ends() {
        let params: [&[u8]; 4] = [
            &words.to_ne_bytes(),
            &64u32.to_ne_bytes(),
            &50u32.to_ne_bytes(),
            &1u32.to_ne_bytes(),
        ];
        kernel.launch([2, 1, 1], [32, 1, 1], 0, std::ptr::null_mut(), &params);
        rounds += 1;
        assert_eq!(context.download::<u32>(words, 64), [rounds * 50; 64]);
    }
    assert_eq!(context.download::<u8>(large, 5 << 20), vec![7; 5 << 20]);
    println!("{WHOLE}");
}

#[test]
fn a_lock_that_takes_too_long_leaves_the_process_running() {
    let other = Other::start("waits_for_a_kernel_that_does_not_end");
    assert_eq!(other.lock(20), cu::CUDA_ERROR_NOT_READY);
    assert_eq!(other.state(), cu::CU_PROCESS_STATE_RUNNING);
    other.ends_well();
}

#[test]
#[ignore = "run by a_lock_that_takes_too_long_leaves_the_process_running"]
fn waits_for_a_kernel_that_does_not_end() {
    let context = Context::new();
    let words = context.upload(&[0u32; 1]);
    let mut stream = std::ptr::null_mut();
    use fermata_softgpu::api::{memop, stream as streams};
    check(cuda!(streams::cuStreamCreate(Out::from(&mut stream), 1)));
    check(cuda!(memop::cuStreamWaitValue32_v2(
        stream,
        words,
        7,
        cu::CU_STREAM_WAIT_VALUE_EQ
    )));
    let ends = begin();
    while !ends() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut writer = std::ptr::null_mut();
    check(cuda!(streams::cuStreamCreate(Out::from(&mut writer), 1)));
    check(cuda!(memop::cuStreamWriteValue32_v2(writer, words, 7, 0)));
    check(cuda!(streams::cuStreamSynchronize(stream)));
    println!("{WHOLE}");
}

#[test]
fn managed_memory_is_refused_and_the_process_goes_on() {
    let other = Other::start("has_managed_memory");
    check(other.lock(0));
    assert_eq!(other.checkpoint(), cu::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(other.state(), cu::CU_PROCESS_STATE_LOCKED);
    check(other.unlock());
    other.ends_well();
}

#[test]
#[ignore = "run by managed_memory_is_refused_and_the_process_goes_on"]
fn has_managed_memory() {
    let context = Context::new();
    let mut address = 0;
    check(cuda!(memory::cuMemAllocManaged(
        Out::from(&mut address),
        4096,
        1
    )));
    let ends = begin();
    while !ends() {
        assert_eq!(context.download::<u8>(address, 8), [0; 8]);
    }
    println!("{WHOLE}");
}

/// The UUID of a device, as this process sees it.
fn uuid(ordinal: i32) -> cu::CUuuid {
    common::init();
    let mut uuid = cu::CUuuid::default();
    check(cuda!(device::cuDeviceGetUuid(
        Out::from(&mut uuid),
        ordinal
    )));
    uuid
}

#[test]
fn devices_are_exchanged_by_their_uuids() {
    let other = Other::start("sees_its_devices_exchanged");
    let pair = |old, new| cu::CUcheckpointGpuPair {
        oldUuid: uuid(old),
        newUuid: uuid(new),
    };
    check(other.lock(0));
    check(other.checkpoint());
    let wrong = other.restore(&mut [pair(0, 1)]);
    assert_eq!(wrong, cu::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(other.state(), cu::CU_PROCESS_STATE_CHECKPOINTED);
    check(other.restore(&mut [pair(0, 1), pair(1, 0)]));
    check(other.unlock());
    other.ends_well();
}

#[test]
#[ignore = "run by devices_are_exchanged_by_their_uuids"]
fn sees_its_devices_exchanged() {
    let context = Context::new();
    let before = [0, 1].map(|ordinal| uuid(ordinal).bytes);
    let words = context.upload(&[5u32; 8]);
    let ends = begin();
    while !ends() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let [one, two] = before;
    assert_eq!([0, 1].map(|ordinal| uuid(ordinal).bytes), [two, one]);
    assert_eq!(context.download::<u32>(words, 8), [5; 8]);
    println!("{WHOLE}");
}

#[test]
fn what_does_not_use_the_driver_is_no_process_of_it() {
    let mut sleep = Command::new("sleep").arg("1000").spawn().expect("starts");
    let mut state = 0;
    let mut ask = |pid| {
        cuda!(checkpoint::cuCheckpointProcessGetState(
            pid,
            Out::from(&mut state)
        ))
    };
    assert_eq!(ask(sleep.id() as c_int), cu::CUDA_ERROR_INVALID_VALUE);
    sleep.kill().expect("killed");
    sleep.wait().expect("waited");
    assert_eq!(ask(-1), cu::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(ask(c_int::MAX), cu::CUDA_ERROR_INVALID_VALUE);
}
