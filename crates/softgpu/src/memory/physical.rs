//! Physical allocations of `cuMemCreate`: memory without an address, shareable with other processes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::Charge;
use crate::error::{INVALID_VALUE, OPERATING_SYSTEM, Result};
use crate::handle::{self, Tag};

use super::sys;

/// Memory that can be mapped at any number of addresses. It lives as long as a handle or a mapping does.
#[derive(Debug)]
pub struct Physical {
    /// Its handle.
    pub handle: u64,
    /// How often the program holds the handle.
    holders: AtomicU32,
    /// The memory itself.
    pub file: OwnedFd,
    /// Bytes.
    pub size: u64,
    /// Device ordinal, or -1 for host memory.
    pub device: i32,
    /// `CU_MEM_HANDLE_TYPE_*` bits it may be exported as.
    pub handle_types: u32,
    /// `CU_MEM_LOCATION_TYPE_*` it was made with.
    pub location: u32,
    /// What it counts against its device; imported memory counts where it was made.
    _charge: Option<Charge>,
}

/// Prefix of the names of files of device memory; the device's ordinal and location type follow.
pub(super) const NAME: &str = "softgpu-memory-";

impl Physical {
    /// New zeroed memory.
    ///
    /// # Errors
    /// The operating system has none.
    pub fn create(
        size: u64,
        device: i32,
        location: u32,
        handle_types: u32,
        charge: Option<Charge>,
    ) -> Result<Arc<Self>> {
        let file = sys::memory_file(&format!("{NAME}{device}-{location}"), size)
            .map_err(|_| OPERATING_SYSTEM)?;
        Ok(Self::new(
            file,
            size,
            (device, location),
            handle_types,
            charge,
        ))
    }

    /// Memory that another handle, perhaps in another process, was made for. `file` stays the caller's.
    ///
    /// # Errors
    /// It is not such a file.
    pub fn import(file: impl AsFd, handle_types: u32) -> Result<Arc<Self>> {
        let link = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&file.as_fd())
        );
        let target = std::fs::read_link(link).map_err(|_| INVALID_VALUE)?;
        let (device, location) = parse_name(&target.to_string_lossy()).ok_or(INVALID_VALUE)?;
        let size = rustix::fs::fstat(&file).map_err(|_| INVALID_VALUE)?.st_size as u64;
        let file = rustix::io::fcntl_dupfd_cloexec(&file, 3).map_err(|_| OPERATING_SYSTEM)?;
        Ok(Self::new(
            file,
            size,
            (device, location),
            handle_types,
            None,
        ))
    }

    fn new(
        file: OwnedFd,
        size: u64,
        (device, location): (i32, u32),
        handle_types: u32,
        charge: Option<Charge>,
    ) -> Arc<Self> {
        let (handle, holders) = (handle::fresh(Tag::Physical), AtomicU32::new(0));
        Arc::new(Self {
            handle,
            holders,
            file,
            size,
            device,
            handle_types,
            location,
            _charge: charge,
        })
    }

    /// The program holds the handle once more.
    pub fn retain(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes one holder of the handle; returns how many are left.
    pub fn release(&self) -> u32 {
        self.holders
            .fetch_sub(1, Ordering::Relaxed)
            .saturating_sub(1)
    }

    /// A descriptor for another process; the caller owns it.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn export(&self) -> Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 3).map_err(|_| OPERATING_SYSTEM)
    }
}

/// Device and location in `/memfd:softgpu-memory-0-1 (deleted)`.
fn parse_name(target: &str) -> Option<(i32, u32)> {
    let rest = target.strip_prefix("/memfd:")?.strip_prefix(NAME)?;
    let rest = rest.split_whitespace().next()?;
    let (device, location) = rest.rsplit_once('-')?;
    Some((device.parse().ok()?, location.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_imported_file_tells_its_device() {
        let made = Physical::create(4096, 1, 1, 1, None).unwrap();
        let imported = Physical::import(made.export().unwrap(), 1).unwrap();
        assert_eq!(
            (imported.device, imported.location, imported.size),
            (1, 1, 4096)
        );
        assert!(Physical::import(std::io::stdin(), 1).is_err());
        assert_eq!(
            parse_name("/memfd:softgpu-memory--1-2 (deleted)"),
            Some((-1, 2))
        );
    }
}
