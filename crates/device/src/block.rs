//! A block of device memory of our own, outside the program's range.

use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, PhysicalHandle};

/// Physical memory mapped where the driver had room; it is given back when dropped.
pub struct DeviceBlock {
    driver: Arc<Driver>,
    address: u64,
    size: u64,
    memory: PhysicalHandle,
}

impl DeviceBlock {
    /// At least `bytes` on device `index`, for that device only.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` among others; nothing is left behind.
    pub fn new(driver: &Arc<Driver>, index: u32, bytes: u64) -> Result<Self> {
        let size = bytes
            .max(1)
            .next_multiple_of(driver.granularity(index)?.max(1));
        let memory = driver.create_memory(index, size)?;
        let placed = driver.reserve_addresses(size, 0, 0).and_then(|address| {
            driver
                .map(address, size, 0, memory)
                .inspect_err(|_| drop(driver.release_addresses(address, size)))?;
            let access = cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            driver
                .set_access(address, size, access, &[index])
                .inspect_err(|_| drop(driver.unmap(address, size)))
                .inspect_err(|_| drop(driver.release_addresses(address, size)))?;
            Ok(address)
        });
        match placed {
            Ok(address) => Ok(Self {
                driver: Arc::clone(driver),
                address,
                size,
                memory,
            }),
            Err(error) => {
                driver.release_memory(memory)?;
                Err(error)
            }
        }
    }

    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes, a multiple of the device's pages.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        // Nothing can be done about a failure here: the context is gone, and the memory with it.
        let _ = self.driver.unmap(self.address, self.size);
        let _ = self.driver.release_addresses(self.address, self.size);
        let _ = self.driver.release_memory(self.memory);
    }
}
