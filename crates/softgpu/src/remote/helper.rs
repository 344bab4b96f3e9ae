//! The helper thread: executes the commands of callers in other processes.
//!
//! A command is a signal to this thread alone, with a value: what to do in bits 56 to 63, a number for the answer in 32 to
//! 55, and an argument in 0 to 31. Commands that come while one is done wait in the kernel's queue.

use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use fermata_abi::sys::driver as cu;

use super::page::{self, Page};
use crate::checkpoint;
use crate::driver;
use crate::error::{CuError, INVALID_VALUE, Result};

/// The thread's name.
pub const NAME: &str = "softgpu-ckpt";

/// How long it may take to be scheduled for the first time.
const START_TIME: Duration = Duration::from_secs(30);

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// Lock; the argument is the limit in milliseconds, 0 for none.
    Lock = 1,
    /// Move device memory to host memory.
    Checkpoint = 2,
    /// Move it back; the argument is how many pairs of UUIDs are in the page.
    Restore = 3,
    /// Let calls go on.
    Unlock = 4,
}

/// The signal that commands come with. It never becomes deliverable in another thread.
pub fn signal() -> i32 {
    libc::SIGRTMAX() - 5
}

/// The value of a command.
pub fn value(command: Command, number: u32, argument: u32) -> u64 {
    (command as u64) << 56 | u64::from(number & 0xff_ffff) << 32 | u64::from(argument)
}

/// Starts the thread, once, and waits until it can be found. Without a thread, or a page, the process cannot be
/// checkpointed by another; all else works.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Some(page) = page::own() else { return };
        page::show(checkpoint::state());
        let former = block_signals();
        let thread = std::thread::Builder::new().name(NAME.into());
        let (ready, is_ready) = channel();
        let started = thread.spawn(move || serve(page, ready));
        set_signals(&former);
        if started.is_ok() {
            // Who starts the driver may say so to another process next.
            let _ = is_ready.recv_timeout(START_TIME);
        }
    });
}

/// Blocks all signals of this thread, which a new one inherits, but those of its own faults; the mask it had.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::uninit();
    let mut former = MaybeUninit::zeroed();
    // SAFETY: the first call fills `all`, the others are given live sets and known signals.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), former.as_mut_ptr());
        former.assume_init()
    }
}

fn set_signals(mask: &libc::sigset_t) {
    // SAFETY: the set is live, and one that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

fn serve(page: &'static Page, ready: Sender<()>) {
    page.publish();
    // It waits no longer only if this thread was not scheduled for very long.
    let _ = ready.send(());
    loop {
        let Some(value) = next() else { continue };
        let (number, argument) = ((value >> 32 & 0xff_ffff) as u32, value as u32);
        let code = match done((value >> 56) as u8, argument, page) {
            Ok(()) => cu::CUDA_SUCCESS,
            Err(CuError(code)) => code,
        };
        page.answer(number, code);
    }
}

fn done(command: u8, argument: u32, page: &Page) -> Result {
    let driver = driver::running()?;
    let is = |it: Command| command == it as u8;
    if is(Command::Lock) {
        let limit = (argument > 0).then(|| Duration::from_millis(argument.into()));
        checkpoint::lock(driver, limit)
    } else if is(Command::Checkpoint) {
        checkpoint::checkpoint(driver)
    } else if is(Command::Restore) {
        checkpoint::restore(driver, &page.pairs(argument as usize))
    } else if is(Command::Unlock) {
        checkpoint::unlock()
    } else {
        Err(INVALID_VALUE)
    }
}

/// The value of the next command; none where something else has ended the wait.
fn next() -> Option<u64> {
    let mut set = MaybeUninit::uninit();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the first two calls fill the set, the third is given it and room for what came.
    let got = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal());
        libc::sigwaitinfo(set.as_ptr(), info.as_mut_ptr())
    };
    if got != signal() {
        return None;
    }
    // SAFETY: the kernel has filled it, and zeros are one, too.
    let info = unsafe { info.assume_init() };
    // SAFETY: a signal that was queued has a value; of others it is what the kernel has left there.
    let value = unsafe { info.si_value() };
    (info.si_code == libc::SI_QUEUE).then_some(value.sival_ptr.expose_provenance() as u64)
}
