//! A piece of the device window per engine, for shared and local memory and parameters.
//!
//! ```text
//! slot  +0             shared memory of the running block, as many pages as the launch asks for
//!       +4 GiB+1 MiB   parameters of the running grid, 64 KiB
//!       +4 GiB+64 MiB  local memory, 512 KiB per fiber
//! ```
//! Nothing else of a slot is accessible: a shared address, which has 32 bits, faults by itself where it is out of
//! bounds.

use std::io;
use std::sync::Mutex;

use super::threads::{MAX_THREADS, stagger};
use crate::exec::interface::WINDOW_END;

/// First slot.
pub const AREA: u64 = 0x3E00_0000_0000;
const SLOT: u64 = (4 << 30) + (640 << 20);
/// As many as there is room for, and thus blocks that can run at once.
pub const SLOTS: u64 = (WINDOW_END - AREA) / SLOT;
const SHARED_AT: u64 = 0;
/// Room for shared memory.
pub const SHARED: u64 = 1 << 20;
const PARAMS_AT: u64 = (4 << 30) + (1 << 20);
/// Room for parameters.
pub const PARAMS: usize = 64 << 10;
const LOCAL_AT: u64 = (4 << 30) + (64 << 20);
/// Room for local memory per thread.
pub const LOCAL: u64 = 512 << 10;
const PAGE: u64 = 4096;

const _: () = assert!(LOCAL_AT + LOCAL * MAX_THREADS as u64 <= SLOT);

static USED: Mutex<Vec<bool>> = Mutex::new(Vec::new());

/// A mapped slot; released when dropped.
#[derive(Debug)]
pub struct Slot {
    base: u64,
    /// Bytes of shared memory that are accessible.
    open: u64,
}

impl Slot {
    /// Maps a free slot.
    ///
    /// # Errors
    /// No slot is free, or the system refuses the mapping.
    pub fn new() -> io::Result<Self> {
        let slot = Self::reserve()?;
        slot.protect(slot.base + PARAMS_AT, PARAMS as u64, true)?;
        slot.protect(slot.base + LOCAL_AT, LOCAL * MAX_THREADS as u64, true)?;
        Ok(slot)
    }

    /// Maps a free slot, none of which is accessible yet. The list of slots is free again afterwards, for the slot to be
    /// given back to.
    fn reserve() -> io::Result<Self> {
        let mut used = USED.lock().unwrap_or_else(|e| e.into_inner());
        used.resize(SLOTS as usize, false);
        let mut last = io::Error::other("no room left for shared and local memory");
        for index in 0..SLOTS as usize {
            if used[index] {
                continue;
            }
            let base = AREA + index as u64 * SLOT;
            // SAFETY: NOREPLACE never touches an existing mapping.
            let got = unsafe {
                libc::mmap(
                    base as *mut _,
                    SLOT as usize,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE
                        | libc::MAP_ANONYMOUS
                        | libc::MAP_NORESERVE
                        | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            if got as u64 == base {
                used[index] = true;
                return Ok(Self { base, open: 0 });
            }
            last = io::Error::last_os_error();
            if last.kind() != io::ErrorKind::AlreadyExists {
                break;
            }
            // Something else lies there, so that this place is not tried again.
            used[index] = true;
        }
        Err(last)
    }

    fn protect(&self, address: u64, bytes: u64, open: bool) -> io::Result<()> {
        let access = if open {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_NONE
        };
        // SAFETY: a range of this slot, which is mapped, and used only by kernels of this host thread.
        match unsafe { libc::mprotect(address as *mut _, bytes as usize, access) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes exactly the pages accessible that `bytes` bytes of shared memory need.
    ///
    /// # Errors
    /// The system refuses.
    pub fn size_shared(&mut self, bytes: u64) -> io::Result<()> {
        let wanted = bytes.next_multiple_of(PAGE);
        let start = self.shared();
        if wanted > self.open {
            self.protect(start + self.open, wanted - self.open, true)?;
        } else if wanted < self.open {
            self.protect(start + wanted, self.open - wanted, false)?;
        }
        self.open = wanted;
        Ok(())
    }

    /// Generic address of shared address 0.
    pub fn shared(&self) -> u64 {
        self.base + SHARED_AT
    }

    /// Generic address of the parameters.
    pub fn params(&self) -> u64 {
        self.base + PARAMS_AT
    }

    /// Generic address of the local memory of a fiber.
    pub fn local(&self, fiber: usize) -> u64 {
        self.base + LOCAL_AT + fiber as u64 * LOCAL + (stagger(fiber) as u64 & !255)
    }

    /// End of the local memory of a fiber.
    pub fn local_end(&self, fiber: usize) -> u64 {
        self.base + LOCAL_AT + (fiber as u64 + 1) * LOCAL
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: this slot mapped exactly this range and nothing else has been given it.
        unsafe { libc::munmap(self.base as *mut _, SLOT as usize) };
        let mut used = USED.lock().unwrap_or_else(|e| e.into_inner());
        let index = ((self.base - AREA) / SLOT) as usize;
        if let Some(used) = used.get_mut(index) {
            *used = false;
        }
    }
}
