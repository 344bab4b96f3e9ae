//! Words of pinned memory that kernels write while the host looks.

use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::sys::driver as cu;

use crate::Driver;
use crate::driver::Result;

/// Zeroed 64-bit words that every context can reach; they stay until the process ends, for a kernel may
/// write them as long as it runs.
pub struct PinnedWords {
    words: &'static [AtomicU64],
}

impl PinnedWords {
    /// `count` words.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(driver: &Driver, count: usize) -> Result<Self> {
        let mut start = std::ptr::null_mut();
        let bytes = count.max(1) * size_of::<AtomicU64>();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            driver
                .f
                .cuMemHostAlloc(&mut start, bytes, cu::CU_MEMHOSTALLOC_PORTABLE)?
        };
        // SAFETY: the driver gave `bytes` bytes, aligned to a page, that are never freed; nobody else has
        // their address yet.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        // SAFETY: as above, for `count` words; devices write them only as whole words.
        let words = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), count) };
        Ok(Self { words })
    }

    /// Where the device finds a word.
    pub fn address(&self, index: usize) -> u64 {
        self.words
            .get(index)
            .map_or(0, |word| std::ptr::from_ref(word) as u64)
    }

    /// A word as it is now; 0 beyond the last.
    pub fn load(&self, index: usize) -> u64 {
        self.words
            .get(index)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Changes a word.
    pub fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.words.get(index) {
            word.store(value, Ordering::Release);
        }
    }
}
