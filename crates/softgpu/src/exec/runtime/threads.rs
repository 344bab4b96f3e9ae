//! The numbers of host threads that run blocks, and of threads in a block.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads per block at most.
pub const MAX_THREADS: usize = 1024;

static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Sets how many threads of the host run blocks, for the whole process; 0 is one per core. Threads
/// that have been started stay, but no more than `count` serve a launch.
pub fn set(count: usize) {
    LIMIT.store(count, Ordering::Relaxed);
}

/// Threads that may serve one launch.
pub fn limit() -> usize {
    match LIMIT.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
}

/// Bytes by which fiber `index` starts lower than the end of its room. Were all stacks equally far
/// from a power of two, the few lines that each fiber uses would all compete for the same cache sets.
pub fn stagger(index: usize) -> usize {
    index * 1088 % (64 << 10)
}
