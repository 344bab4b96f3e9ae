//! Replaces `sigprocmask` and `pthread_sigmask` for the program: they never block the parking signal.
//!
//! A thread that blocks every signal, as many libraries' threads do, could not be parked. Masks set in other ways (by the
//! C library itself, by system calls) are found by the agent, which then refuses the stop.

use core::ffi::c_int;

use crate::thread::block::RESERVED;
use crate::thread::signal;

/// # Safety
/// As POSIX says of `sigprocmask`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's promise is handed on.
    match unsafe { change(how, set, old) } {
        0 => 0,
        error => {
            // SAFETY: errno is the thread's own word.
            unsafe { *libc::__errno_location() = error };
            -1
        }
    }
}

/// # Safety
/// As POSIX says of `pthread_sigmask`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's promise is handed on.
    unsafe { change(how, set, old) }
}

/// Changes the mask; 0 or an error number. Async-signal-safe.
///
/// # Safety
/// Both pointers are null or point to signal sets.
unsafe fn change(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    let ours = if how == libc::SIG_UNBLOCK {
        0
    } else {
        RESERVED | 1 << (signal::chosen() - 1)
    };
    // SAFETY: the kernel's set, eight bytes, is the beginning of the C library's.
    let wanted = unsafe { set.cast::<u64>().as_ref() }.map(|set| set & !ours);
    let new = wanted.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `new` is null or the set above; the caller's promise covers `old`.
    let done = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, size_of::<u64>()) };
    if done == 0 {
        return 0;
    }
    // SAFETY: errno is the thread's own word.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parking_signal_stays_open_when_all_are_blocked() {
        // SAFETY: sets on the stack; the old mask comes back at the end.
        unsafe {
            let (mut all, mut old, mut now) = std::mem::zeroed();
            libc::sigfillset(&mut all);
            assert_eq!(pthread_sigmask(libc::SIG_SETMASK, &all, &mut old), 0);
            assert_eq!(sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &mut now), 0);
            assert_eq!(libc::sigismember(&now, signal::chosen()), 0);
            assert_eq!(libc::sigismember(&now, libc::SIGUSR1), 1);
            assert_eq!(
                pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()),
                0
            );
            assert_eq!(
                pthread_sigmask(77, &old, std::ptr::null_mut()),
                libc::EINVAL
            );
        }
    }
}
