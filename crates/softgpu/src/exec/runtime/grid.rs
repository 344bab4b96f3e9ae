//! A launch as the host threads that run its blocks share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::context::{Context, Stop};
use crate::exec::Host;

/// The compiled form of a kernel.
pub type Entry = unsafe extern "C" fn(*mut Context);

/// A launch. Lives on the stack of the launching thread, which waits for all others to leave it.
pub struct Grid<'l> {
    /// The kernel.
    pub entry: Entry,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Parameter block.
    pub params: &'l [u8],
    /// Statically declared shared memory, rounded up to where dynamic memory begins.
    pub static_shared: u32,
    /// Dynamic shared memory.
    pub dynamic_shared: u32,
    /// `%nsmid`
    pub multiprocessors: u32,
    /// `%gridid`
    pub grid_id: u64,
    /// When to give up.
    pub deadline: Option<Instant>,
    /// Set by others to stop.
    pub stop: &'l AtomicBool,
    /// Address checks and output.
    pub host: Arc<dyn Host>,
    /// Next block to hand out.
    pub next: AtomicU64,
    /// Set with the first fault.
    pub failed: AtomicBool,
    /// The first fault.
    pub fault: Mutex<Option<Stop>>,
}

/// Shared memory behind a block's own that libraries of the toolkit use for their barriers; zero at
/// the start of a block.
pub const RESERVED_SHARED: u64 = 1024;

impl Grid<'_> {
    /// Bytes of shared memory of a block, rounded up so that what is behind is aligned.
    pub fn shared_bytes(&self) -> u64 {
        (u64::from(self.static_shared) + u64::from(self.dynamic_shared)).next_multiple_of(16)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Takes the next block in order.
    pub fn take(&self) -> Option<u64> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.blocks()).then_some(index)
    }

    /// Records a fault; the first one counts.
    pub fn fail(&self, why: Stop) {
        self.fault.lock().get_or_insert(why);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether threads must end now, and why.
    pub fn interrupted(&self) -> Option<Stop> {
        if self.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed) {
            return Some(Stop::Stopped);
        }
        self.deadline
            .filter(|&at| Instant::now() >= at)
            .map(|_| Stop::Timeout)
    }
}
