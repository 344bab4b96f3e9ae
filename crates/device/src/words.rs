//! Words of pinned memory that kernels write while the host looks.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::sys::driver as cu;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::driver::Result;
use crate::{Driver, DriverError};

/// Zeroed 64-bit words that every context can reach. They stay until the process ends: a kernel may write
/// them as long as it runs, and the host may look when their context is gone. So they are ordinary memory,
/// registered; what a driver allocates goes with its context.
pub struct PinnedWords {
    words: &'static [AtomicU64],
}

impl PinnedWords {
    /// `count` words.
    ///
    /// # Errors
    /// What the driver says, or that there is no memory.
    pub fn new(driver: &Driver, count: usize) -> Result<Self> {
        let bytes = (count.max(1) * size_of::<AtomicU64>()).next_multiple_of(4096);
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let start = start.map_err(|error| DriverError {
            call: "cuMemHostRegister",
            code: cu::CUDA_ERROR_OUT_OF_MEMORY,
            name: format!("no memory for {bytes} bytes: {error}").into(),
        })?;
        // SAFETY: the mapping has `bytes` bytes and is never unmapped.
        unsafe {
            driver.f.cuMemHostRegister_v2(
                start.cast::<c_void>(),
                bytes,
                cu::CU_MEMHOSTREGISTER_PORTABLE | cu::CU_MEMHOSTREGISTER_DEVICEMAP,
            )?
        };
        // SAFETY: the mapping is zeroed, aligned to a page, never unmapped, and has room for `count` words;
        // nobody else has its address yet, and devices write it only as whole words.
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
