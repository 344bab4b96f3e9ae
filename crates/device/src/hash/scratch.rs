//! Device memory of our own, outside the program's range, that grows as needed.

use std::sync::Arc;

use crate::driver::Result;
use crate::{Driver, PhysicalHandle};

/// One block of device memory; what is placed in it lasts until the next placing.
pub(super) struct Scratch {
    driver: Arc<Driver>,
    index: u32,
    granularity: u64,
    block: Option<Block>,
}

struct Block {
    address: u64,
    size: u64,
    memory: PhysicalHandle,
}

/// Alignment of everything placed.
const ALIGN: usize = 256;

impl Scratch {
    pub fn new(driver: &Arc<Driver>, index: u32) -> Result<Self> {
        let granularity = driver.granularity(index)?;
        Ok(Scratch {
            driver: Arc::clone(driver),
            index,
            granularity,
            block: None,
        })
    }

    /// Addresses for three arrays of these sizes. What was placed before is overwritten, so the work
    /// that used it must have ended.
    pub fn place(&mut self, sizes: [usize; 3]) -> Result<[u64; 3]> {
        let ends = sizes.map(|size| size.next_multiple_of(ALIGN) as u64);
        let base = self.at_least(ends.iter().sum())?;
        Ok([base, base + ends[0], base + ends[0] + ends[1]])
    }

    fn at_least(&mut self, bytes: u64) -> Result<u64> {
        if let Some(block) = self.block.as_ref().filter(|block| block.size >= bytes) {
            return Ok(block.address);
        }
        self.release()?;
        let size = bytes.next_multiple_of(self.granularity);
        let memory = self.driver.create_memory(self.index, size)?;
        let placed = self
            .driver
            .reserve_addresses(size, 0, 0)
            .and_then(|address| {
                let mapped = self.driver.map(address, size, 0, memory).and_then(|()| {
                    let access = fermata_abi::sys::driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                    self.driver.set_access(address, size, access, &[self.index])
                });
                mapped.map(|()| address)
            });
        match placed {
            Ok(address) => {
                self.block = Some(Block {
                    address,
                    size,
                    memory,
                });
                Ok(address)
            }
            Err(error) => {
                self.driver.release_memory(memory)?;
                Err(error)
            }
        }
    }

    fn release(&mut self) -> Result<()> {
        let Some(block) = self.block.take() else {
            return Ok(());
        };
        self.driver.unmap(block.address, block.size)?;
        self.driver.release_addresses(block.address, block.size)?;
        self.driver.release_memory(block.memory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a failure here: the context is gone, and the memory with it.
        let _ = self.release();
    }
}
