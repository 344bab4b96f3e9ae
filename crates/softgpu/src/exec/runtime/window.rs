//! A piece of the device window per host thread, for shared and local memory and parameters.
//!
//! ```text
//! slot  +0        shared memory of the running block, 1 MiB
//!       +1 MiB    parameters of the running grid, 64 KiB
//!       +64 MiB   local memory, 512 KiB per fiber
//! ```

use std::io;
use std::sync::Mutex;

/// First slot.
pub const AREA: u64 = 0x3F00_0000_0000;
const SLOT: u64 = 1 << 30;
const SLOTS: u64 = 1024;
/// Room for shared memory.
pub const SHARED: u64 = 1 << 20;
const PARAMS_AT: u64 = 1 << 20;
/// Room for parameters.
pub const PARAMS: usize = 64 << 10;
const LOCAL_AT: u64 = 64 << 20;
/// Room for local memory per thread.
pub const LOCAL: u64 = 512 << 10;

static USED: Mutex<Vec<bool>> = Mutex::new(Vec::new());

/// A mapped slot; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    base: u64,
}

impl Slot {
    /// Maps a free slot.
    ///
    /// # Errors
    /// None free, or the system refuses the mapping.
    pub fn new() -> io::Result<Self> {
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
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            used[index] = true;
            if got as u64 == base {
                return Ok(Self { base });
            }
            last = io::Error::last_os_error();
        }
        Err(last)
    }

    /// Generic address of shared address 0.
    pub fn shared(&self) -> u64 {
        self.base
    }

    /// Generic address of the parameters.
    pub fn params(&self) -> u64 {
        self.base + PARAMS_AT
    }

    /// Generic address of the local memory of a fiber.
    pub fn local(&self, fiber: usize) -> u64 {
        self.base + LOCAL_AT + fiber as u64 * LOCAL
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
