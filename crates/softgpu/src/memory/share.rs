//! Device memory that becomes a file, at its addresses, so that other processes can map it.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance;

use super::physical::NAME;
use super::{GRANULARITY, Memory, Protection, SMALL, sys};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, Result};
use fermata_abi::sys::driver as cu;

/// Where other processes find an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// A descriptor of this process, open as long as the memory is there.
    pub descriptor: i32,
    /// Bytes of the file.
    pub size: u64,
    /// Where in there the allocation begins.
    pub offset: u64,
}

impl Memory {
    /// Makes the mapping that holds the allocation at `base` a file. Nothing may use device memory meanwhile.
    ///
    /// # Errors
    /// There is no such allocation, it crosses the end of its slab, or the operating system refuses.
    pub fn share(&self, base: u64) -> Result<Shared> {
        let mut inner = self.inner.write();
        let range = inner.map.at(base).ok_or(INVALID_VALUE)?;
        let (start, len) = match range.size <= SMALL {
            true => (base - base % GRANULARITY, GRANULARITY),
            false => (base, range.footprint),
        };
        if base + range.footprint > start + len {
            return Err(NOT_SUPPORTED);
        }
        let device = range.device;
        let shared = |file: &OwnedFd| Shared {
            descriptor: file.as_raw_fd(),
            size: len,
            offset: base - start,
        };
        if let Some(file) = inner.shared.get(&start) {
            return Ok(shared(file));
        }
        let name = format!("{NAME}{device}-{}", cu::CU_MEM_LOCATION_TYPE_DEVICE);
        let file = sys::memory_file(&name, len).map_err(|_| OPERATING_SYSTEM)?;
        let file = File::from(file);
        // SAFETY: the mapping of an allocation or slab is this long and stays while the map is locked, and nothing writes to
        // device memory now.
        let bytes = unsafe {
            std::slice::from_raw_parts(with_exposed_provenance::<u8>(start as usize), len as usize)
        };
        file.write_all_at(bytes, 0).map_err(|_| OPERATING_SYSTEM)?;
        let file = OwnedFd::from(file);
        sys::map_file(start, len, &file, 0, Protection::ReadWrite).map_err(|_| OPERATING_SYSTEM)?;
        let found = shared(&file);
        inner.shared.insert(start, file);
        Ok(found)
    }

    /// Whether other processes may have some of it.
    pub fn is_shared(&self) -> bool {
        !self.inner.read().shared.is_empty()
    }
}
