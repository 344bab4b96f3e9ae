//! Pinned buffers of one size, made once and used again.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use fermata_abi::sys::driver as cu;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::{Driver, DriverError};

struct Slot {
    start: *mut u8,
}

// SAFETY: a slot is the only name of its memory, so its holder is the only user.
unsafe impl Send for Slot {}

struct Shared {
    free: Mutex<Vec<Slot>>,
    returned: Condvar,
    bytes: usize,
}

/// Buffers of pinned host memory; the memory stays until the process ends, or until the program resets the device in
/// whose context it was made ([`PinnedPool::lives`]).
#[derive(Clone)]
pub struct PinnedPool {
    shared: Arc<Shared>,
    address: u64,
    /// The driver's name of this memory, which is never given twice; `None` from a driver that has none for it.
    id: Option<u64>,
}

/// One buffer, exclusively held; it goes back to the pool when dropped.
pub struct PinnedBuffer {
    slot: Option<Slot>,
    shared: Arc<Shared>,
}

impl PinnedPool {
    /// `count` buffers of `bytes` each, pinned, usable from every context. NVIDIA's driver has their pages in memory then.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(driver: &Driver, count: usize, bytes: usize) -> Result<Self, DriverError> {
        let mut start = std::ptr::null_mut();
        let all = count * bytes;
        // SAFETY: the pointer refers to a live local.
        unsafe {
            driver
                .f
                .cuMemHostAlloc(&mut start, all.max(1), cu::CU_MEMHOSTALLOC_PORTABLE)?
        };
        Ok(Self::of(driver, start.cast(), count, bytes))
    }

    /// As [`PinnedPool::new`], touched, at an address where nothing may be mapped yet, so that where the kernel and
    /// the driver put other things does not depend on it.
    ///
    /// # Errors
    /// What the driver says; `CUDA_ERROR_ALREADY_MAPPED` if something is mapped there, and
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the memory cannot be mapped.
    pub fn at(
        driver: &Driver,
        address: u64,
        count: usize,
        bytes: usize,
    ) -> Result<Self, DriverError> {
        let all = count * bytes;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: NOREPLACE makes the kernel refuse addresses that are in use.
        let mapped = unsafe { mmap_anonymous(address as *mut c_void, all, access, flags) };
        let start = mapped.map_err(|error| DriverError {
            call: "mapping staging buffers",
            code: match error {
                Errno::EXIST => cu::CUDA_ERROR_ALREADY_MAPPED,
                _ => cu::CUDA_ERROR_OUT_OF_MEMORY,
            },
            name: error.to_string().into(),
        })?;
        let start = start.cast::<u8>();
        // SAFETY: the mapping has `all` bytes, nobody else knows of them yet, and it stays if it is registered.
        let registered = unsafe {
            std::ptr::write_bytes(start, 0, all);
            driver.register_range(start, all)
        };
        if let Err(error) = registered {
            // SAFETY: as above. The place is free for another try.
            let _ = unsafe { munmap(start.cast(), all) };
            return Err(error);
        }
        Ok(Self::of(driver, start, count, bytes))
    }

    /// Whether the memory is still there: a device that is reset (`cuDevicePrimaryCtxReset`) takes with it what was made
    /// in its context, under whose handle there may be another one now. A context must be current.
    pub fn lives(&self, driver: &Driver) -> bool {
        self.id
            .is_none_or(|id| driver.buffer_id(self.address) == Ok(id))
    }

    /// A pool of memory that is pinned and stays.
    fn of(driver: &Driver, start: *mut u8, count: usize, bytes: usize) -> Self {
        let slot = |i: usize| Slot {
            // SAFETY: for every i below `count` the offset stays within the allocation.
            start: unsafe { start.add(i * bytes) },
        };
        let free = (0..count).map(slot).collect();
        Self {
            shared: Arc::new(Shared {
                free: Mutex::new(free),
                returned: Condvar::new(),
                bytes,
            }),
            address: start as u64,
            id: driver.buffer_id(start as u64).ok(),
        }
    }

    /// Bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.bytes
    }

    /// A buffer, if one is free.
    pub fn try_take(&self) -> Option<PinnedBuffer> {
        let slot = self.shared.free.lock().pop()?;
        Some(PinnedBuffer {
            slot: Some(slot),
            shared: Arc::clone(&self.shared),
        })
    }

    /// A buffer, waited for at most `deadline`.
    pub fn take(&self, deadline: std::time::Duration) -> Option<PinnedBuffer> {
        let until = std::time::Instant::now() + deadline;
        let mut free = self.shared.free.lock();
        loop {
            if let Some(slot) = free.pop() {
                return Some(PinnedBuffer {
                    slot: Some(slot),
                    shared: Arc::clone(&self.shared),
                });
            }
            if self
                .shared
                .returned
                .wait_until(&mut free, until)
                .timed_out()
            {
                return None;
            }
        }
    }
}

impl PinnedBuffer {
    /// Its address, as the device sees it too.
    pub fn address(&self) -> u64 {
        self.start() as u64
    }

    /// The word at `offset`, which the device may write meanwhile; what it wrote before is seen then too.
    ///
    /// # Panics
    /// The word is outside the buffer or not aligned: our own mistake.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        let aligned = (self.address() + offset as u64).is_multiple_of(4);
        assert!(aligned && offset + 4 <= self.shared.bytes);
        // SAFETY: inside the slot and aligned by the line above; the slot lives as long as the process, and
        // every bit pattern is a word.
        unsafe { AtomicU32::from_ptr(self.start().add(offset).cast()) }
    }

    fn start(&self) -> *mut u8 {
        self.slot
            .as_ref()
            .map_or(std::ptr::null_mut(), |slot| slot.start)
    }

    pub(crate) fn as_void(&self) -> *mut c_void {
        self.start().cast::<c_void>()
    }
}

impl std::ops::Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot's memory has that many bytes and lives as long as the process; `self` holds it
        // alone, and a copy in flight owns the buffer until it is done.
        unsafe { std::slice::from_raw_parts(self.start(), self.shared.bytes) }
    }
}

impl std::ops::DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.shared.bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.shared.free.lock().push(slot);
            self.shared.returned.notify_one();
        }
    }
}
