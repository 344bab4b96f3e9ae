//! Host memory that program, worker and device share at one address.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fermata_abi::sys::driver as cu;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Driver, DriverError};

const PAGE: u64 = 4096;

/// A shared mapping at a fixed address of its descriptor's memory, registered with the driver.
///
/// The bytes are shared with another process and with the device, so they are only ever copied in and out,
/// never borrowed.
#[derive(Debug)]
pub struct HostMapping {
    address: u64,
    size: u64,
    fd: OwnedFd,
    registered: bool,
}

impl HostMapping {
    /// Maps `size` bytes of `fd` at `address`, where nothing may be mapped yet.
    ///
    /// # Errors
    /// What the system says; the descriptor must have that many bytes.
    pub fn map(fd: OwnedFd, address: u64, size: u64) -> std::io::Result<Self> {
        Self::map_part(fd, 0, address, size)
    }

    /// As [`HostMapping::map`], from `offset` on, a multiple of the page size. The file's last page may be a part of one.
    ///
    /// # Errors
    /// As there.
    pub fn map_part(fd: OwnedFd, offset: u64, address: u64, size: u64) -> std::io::Result<Self> {
        let held = rustix::fs::fstat(&fd)?.st_size;
        let pages = u64::try_from(held).unwrap_or(0).next_multiple_of(PAGE);
        if pages < offset.saturating_add(size) || size == 0 {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("the descriptor holds {held} bytes, {size} are to be mapped"),
            ));
        }
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        // SAFETY: NOREPLACE makes the kernel refuse addresses that are in use.
        let mapped = unsafe {
            mmap(
                address as *mut c_void,
                size as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &fd,
                offset,
            )?
        };
        let mapping = Self {
            address: mapped as u64,
            size,
            fd,
            registered: false,
        };
        if mapping.address != address {
            return Err(std::io::Error::new(
                std::io::ErrorKind::AddrInUse,
                "the address is not free",
            ));
        }
        Ok(mapping)
    }

    /// Makes `size` bytes of zeros in a new memory file and maps them at `address`.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(address: u64, size: u64) -> std::io::Result<Self> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("fermata-host", flags)?;
        rustix::fs::ftruncate(&fd, size)?;
        Self::map(fd, address, size)
    }

    /// Registers the memory with the driver, for all contexts, at the same device address.
    ///
    /// # Errors
    /// What the driver says; also if the device would use another address.
    pub fn register(&mut self, driver: &Driver) -> Result<(), DriverError> {
        let flags = cu::CU_MEMHOSTREGISTER_PORTABLE | cu::CU_MEMHOSTREGISTER_DEVICEMAP;
        let start = self.address as *mut c_void;
        let mut device = 0;
        // SAFETY: the range is mapped by this object, which unregisters it before it unmaps.
        unsafe {
            driver
                .f
                .cuMemHostRegister_v2(start, self.size as usize, flags)?
        };
        self.registered = true;
        // SAFETY: the range is registered, the pointer refers to a live local.
        unsafe {
            driver
                .f
                .cuMemHostGetDevicePointer_v2(&mut device, start, 0)?
        };
        if device != self.address {
            return Err(DriverError {
                call: "cuMemHostGetDevicePointer",
                code: cu::CUDA_ERROR_NOT_SUPPORTED,
                name: format!(
                    "the device sees host memory {:#x} at {device:#x}",
                    self.address
                )
                .into(),
            });
        }
        Ok(())
    }

    /// Undoes [`HostMapping::register`]; no work may use the memory any more.
    ///
    /// # Errors
    /// What the driver says.
    pub fn unregister(&mut self, driver: &Driver) -> Result<(), DriverError> {
        if std::mem::take(&mut self.registered) {
            // SAFETY: the range was registered by this object.
            unsafe { driver.f.cuMemHostUnregister(self.address as *mut c_void)? };
        }
        Ok(())
    }

    /// Where it lies.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The memory's descriptor, to be passed to the program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Copies out `into.len()` bytes from `offset`. Panics if they are not within the mapping.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        assert!(
            offset
                .checked_add(into.len() as u64)
                .is_some_and(|end| end <= self.size)
        );
        // SAFETY: the range lies in the mapping, which lives as long as `self`; a concurrent writer can only
        // make the bytes a mixture.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (self.address + offset) as *const u8,
                into.as_mut_ptr(),
                into.len(),
            )
        };
    }

    /// Copies `from` in at `offset`. Panics if it does not fit.
    pub fn write(&self, offset: u64, from: &[u8]) {
        assert!(
            offset
                .checked_add(from.len() as u64)
                .is_some_and(|end| end <= self.size)
        );
        // SAFETY: as for `read`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                (self.address + offset) as *mut u8,
                from.len(),
            )
        };
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // One that is still registered is left to the driver.
        if !self.registered {
            // SAFETY: the mapping is this object's own.
            let _ = unsafe { munmap(self.address as *mut c_void, self.size as usize) };
        }
    }
}

impl Driver {
    /// Makes `len` bytes at `start`, mapped for the rest of the process's life, fit for fast copies.
    ///
    /// # Safety
    /// The range must stay mapped until [`Driver::unregister_range`] or the end of the process.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn register_range(&self, start: *mut u8, len: usize) -> Result<(), DriverError> {
        let flags = cu::CU_MEMHOSTREGISTER_PORTABLE | cu::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller vouches for the range.
        unsafe {
            self.f
                .cuMemHostRegister_v2(start.cast::<c_void>(), len, flags)
        }
    }

    /// Undoes [`Driver::register_range`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn unregister_range(&self, start: *mut u8) -> Result<(), DriverError> {
        // SAFETY: the driver knows whether the address was registered.
        unsafe { self.f.cuMemHostUnregister(start.cast::<c_void>()) }
    }
}
