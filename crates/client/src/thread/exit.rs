//! Whether the process has begun to exit.
//!
//! A runtime releases its primary context as the process exits. That would have the worker end the context, and the program wait for
//! it, as long as a checkpoint copies the context's memory behind the program. The worker ends it with the process anyway.

use std::sync::atomic::{AtomicBool, Ordering};

static BEGUN: AtomicBool = AtomicBool::new(false);

extern "C" fn begin() {
    BEGUN.store(true, Ordering::Relaxed);
}

/// Notices the exit before what has been registered so far does: handlers run in the reverse order.
pub fn notice() {
    // SAFETY: the library stays loaded, and the handler only stores. If there is no room for it, exits take longer.
    let _ = unsafe { libc::atexit(begin) };
}

/// Whether handlers of the exit run.
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}
