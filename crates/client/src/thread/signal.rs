//! The real-time signal that parks threads.
//!
//! Its number is the environment variable `FERMATA_PARK_SIGNAL`, else SIGRTMIN + 12.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

use fermata_control::settings::{self, WrongSetting};

use crate::thread::gate;

use crate::thread::restart;

const VARIABLE: &str = "FERMATA_PARK_SIGNAL";
static NUMBER: AtomicI32 = AtomicI32::new(0);

/// The signal's number.
pub fn chosen() -> i32 {
    let known = NUMBER.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let asked = asked().ok().flatten();
    let chosen = asked.unwrap_or_else(|| libc::SIGRTMIN() + 12);
    NUMBER.store(chosen, Ordering::Relaxed);
    chosen
}

/// The signal that the environment asks for.
///
/// # Errors
/// The value is no signal; a session then does not begin.
pub fn asked() -> Result<Option<i32>, WrongSetting> {
    let number = settings::number(VARIABLE)?;
    Ok(number.and_then(|number| i32::try_from(number).ok()))
}

/// Installs the handler for the signal.
///
/// # Errors
/// The system refuses the number.
pub fn install() -> Result<(), i32> {
    let number = chosen();
    // SAFETY: an all-zero sigaction is a valid one, filled in below; the handler is async-signal-safe.
    let done = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction =
            on_signal as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO;
        // A parked thread runs no other handler of the program. The gate sees to that where a thread parks outside this handler.
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(number, &action, std::ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err(number) }
}

/// Sends the signal to a thread of this process.
pub fn send(tid: i32) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill has no memory effects; a thread that has ended is an error that needs no care.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, chosen()) };
}

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is the thread's own word.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the context is the one this handler was given.
    unsafe { restart::resume_call(gate::gettid(), context) };
    gate::park_if_outside();
    // SAFETY: as above; the interrupted code may be about to read it.
    unsafe { *libc::__errno_location() = errno };
}
