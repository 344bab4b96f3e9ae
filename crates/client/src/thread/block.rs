//! Blocks signals in the calling thread, by the system call itself: this library replaces the C library's functions for that
//! (`mask`). Async-signal-safe.

/// Signals that the C library reserves for itself and never blocks.
pub const RESERVED: u64 = 1 << 31 | 1 << 32;

/// Runs `act` with every signal blocked, so that a thread it makes inherits that.
pub fn all<T>(act: impl FnOnce() -> T) -> T {
    blocking(u64::MAX, act)
}

/// Runs `act` with every signal blocked for which the program may have a handler.
pub fn handlers<T>(act: impl FnOnce() -> T) -> T {
    blocking(!RESERVED, act)
}

fn blocking<T>(signals: u64, act: impl FnOnce() -> T) -> T {
    let before = set(signals);
    let result = act();
    set(before);
    result
}

/// Sets the thread's mask and returns the one before.
fn set(new: u64) -> u64 {
    let mut before = 0;
    // SAFETY: both sets are eight bytes, as the kernel's are.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            std::ptr::from_ref(&new),
            std::ptr::from_mut(&mut before),
            size_of::<u64>(),
        );
    }
    before
}
