//! Physical memory and where it is mapped.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, PhysicalHandle};

fn properties(device: cu::CUdevice) -> cu::CUmemAllocationProp {
    let mut properties = cu::CUmemAllocationProp {
        type_: cu::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        ..Default::default()
    };
    properties.location.type_ = cu::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties
}

impl Driver {
    /// Reserves device addresses; `fixed` 0 lets the driver choose.
    ///
    /// # Errors
    /// What the driver says. A driver that grants another address than `fixed` has it taken back.
    pub fn reserve_addresses(&self, size: u64, align: u64, fixed: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuMemAddressReserve(&mut address, size as usize, align as usize, fixed, 0)?
        };
        if fixed != 0 && address != fixed {
            self.release_addresses(address, size)?;
            return Err(crate::DriverError {
                call: "cuMemAddressReserve",
                code: cu::CUDA_ERROR_OUT_OF_MEMORY,
                name: format!("{fixed:#x} is not free").into(),
            });
        }
        Ok(address)
    }

    /// Gives reserved addresses back.
    ///
    /// # Errors
    /// What the driver says.
    pub fn release_addresses(&self, address: u64, size: u64) -> Result<()> {
        self.f.cuMemAddressFree(address, size as usize)
    }

    /// Bytes that physical memory of device `index` comes in multiples of.
    ///
    /// # Errors
    /// What the driver says.
    pub fn granularity(&self, index: u32) -> Result<u64> {
        let properties = properties(self.device(index)?);
        let mut granularity = 0;
        let option = cu::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: both pointers refer to live locals.
        unsafe {
            self.f
                .cuMemGetAllocationGranularity(&mut granularity, &properties, option)?
        };
        Ok(granularity as u64)
    }

    /// Physical memory on device `index`.
    ///
    /// # Errors
    /// What the driver says, `CUDA_ERROR_OUT_OF_MEMORY` among it.
    pub fn create_memory(&self, index: u32, size: u64) -> Result<PhysicalHandle> {
        let properties = properties(self.device(index)?);
        let mut memory = 0;
        // SAFETY: both pointers refer to live locals.
        unsafe {
            self.f
                .cuMemCreate(&mut memory, size as usize, &properties, 0)?
        };
        Ok(PhysicalHandle(memory))
    }

    /// Lets physical memory go; it is freed once no mapping is left.
    ///
    /// # Errors
    /// What the driver says.
    pub fn release_memory(&self, memory: PhysicalHandle) -> Result<()> {
        self.f.cuMemRelease(memory.0)
    }

    /// A descriptor of physical memory, which other processes can import. It keeps the memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn export_memory(&self, memory: PhysicalHandle) -> Result<OwnedFd> {
        let mut number: c_int = -1;
        let kind = cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: the driver writes a descriptor, an `int`, to the live local.
        unsafe {
            let out = (&raw mut number).cast();
            self.f
                .cuMemExportToShareableHandle(out, memory.0, kind, 0)?;
            // SAFETY: the descriptor is new, and the caller's.
            Ok(OwnedFd::from_raw_fd(number))
        }
    }

    /// Physical memory of another process, and the index of its device.
    ///
    /// # Errors
    /// The descriptor is of no memory, or what the driver says.
    pub fn import_memory(&self, descriptor: BorrowedFd<'_>) -> Result<(PhysicalHandle, u32)> {
        let kind = cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let number = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        let mut memory = 0;
        let mut properties = cu::CUmemAllocationProp::default();
        // SAFETY: the pointer to the handle is to a live local; the descriptor stands where another one would be.
        unsafe {
            self.f
                .cuMemImportFromShareableHandle(&mut memory, number, kind)?
        };
        // SAFETY: the pointer is to a live local.
        let known = unsafe {
            self.f
                .cuMemGetAllocationPropertiesFromHandle(&mut properties, memory)
        };
        let device = known.and_then(|()| {
            let id = properties.location.id;
            let mut all = 0..self.device_count();
            let index = all.find(|index| self.device(*index).is_ok_and(|it| it == id));
            index.ok_or_else(|| crate::DriverError {
                call: "cuMemGetAllocationPropertiesFromHandle",
                code: cu::CUDA_ERROR_INVALID_DEVICE,
                name: "the memory is on a device that is not visible here".into(),
            })
        });
        match device {
            Ok(device) => Ok((PhysicalHandle(memory), device)),
            Err(error) => {
                self.release_memory(PhysicalHandle(memory))?;
                Err(error)
            }
        }
    }

    /// Maps physical memory at reserved addresses, with no access yet.
    ///
    /// # Errors
    /// What the driver says.
    pub fn map(&self, address: u64, size: u64, offset: u64, memory: PhysicalHandle) -> Result<()> {
        self.f
            .cuMemMap(address, size as usize, offset as usize, memory.0, 0)
    }

    /// Undoes [`Driver::map`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn unmap(&self, address: u64, size: u64) -> Result<()> {
        self.f.cuMemUnmap(address, size as usize)
    }

    /// Gives `devices` the access `flags` (`CUmemAccess_flags`) to mapped addresses.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_access(&self, address: u64, size: u64, flags: u32, devices: &[u32]) -> Result<()> {
        let access = devices
            .iter()
            .map(|index| {
                let mut access = cu::CUmemAccessDesc {
                    flags,
                    ..Default::default()
                };
                access.location.type_ = cu::CU_MEM_LOCATION_TYPE_DEVICE;
                access.location.id = self.device(*index)?;
                Ok(access)
            })
            .collect::<Result<Vec<_>>>()?;
        // SAFETY: the array has as many entries as said.
        unsafe {
            self.f
                .cuMemSetAccess(address, size as usize, access.as_ptr(), access.len())
        }
    }
}
