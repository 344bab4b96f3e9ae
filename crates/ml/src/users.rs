//! Whether the program has called `nvmlInit`.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often `nvmlInit` was called more than `nvmlShutdown`. A forked child has its parent's count, as with NVIDIA's.
pub static USERS: AtomicU32 = AtomicU32::new(0);

/// Whether functions may be called.
pub fn initialised() -> bool {
    USERS.load(Ordering::Relaxed) > 0
}
