//! Turns device memory into a file mapped at its addresses, so that other processes can map it.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance;
use std::sync::Arc;

use super::map::{Kind, Placed, Range};
use super::physical::NAME;
use super::{GRANULARITY, Memory, Protection, SMALL, sys};
use crate::device::Device;
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
        let (start, len) = match range.footprint <= SMALL {
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
        let file = File::from(file_of(device, len)?);
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

    /// Allocates memory that is a file from the beginning, so that [`Memory::share`] changes nothing.
    ///
    /// # Errors
    /// `size` is 0, or the device has not that much left.
    pub fn allocate_shared(&self, device: &Arc<Device>, size: u64, kind: Kind) -> Result<u64> {
        let len = size.checked_next_multiple_of(GRANULARITY);
        let footprint = len.filter(|len| *len > 0).ok_or(INVALID_VALUE)?;
        let mut inner = self.inner.write();
        let base = inner.allocate_mapping(device, footprint)?;
        let made = file_of(device.ordinal, footprint).and_then(|file| {
            sys::map_file(base, footprint, &file, 0, Protection::ReadWrite)
                .map_err(|_| OPERATING_SYSTEM)?;
            Ok(file)
        });
        let file = made.inspect_err(|_| inner.unmap(base, footprint))?;
        inner.shared.insert(base, file);
        let placed = Placed {
            base,
            size,
            footprint,
        };
        let id = self.fresh_id();
        let range = Range::new(placed, kind, device.ordinal, 0, id);
        inner.map.insert(range);
        Ok(base)
    }

    /// Whether other processes may have some of it.
    pub fn is_shared(&self) -> bool {
        !self.inner.read().shared.is_empty()
    }
}

/// A file of memory of a device.
fn file_of(device: i32, len: u64) -> Result<OwnedFd> {
    let name = format!("{NAME}{device}-{}", cu::CU_MEM_LOCATION_TYPE_DEVICE);
    sys::memory_file(&name, len).map_err(|_| OPERATING_SYSTEM)
}
