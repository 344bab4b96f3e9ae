//! Device memory of our own, outside the program's range, that grows as needed.

use std::sync::Arc;

use crate::driver::Result;
use crate::{DeviceBlock, Driver};

/// One block of device memory; what is placed in it lasts until the next placing.
pub(super) struct Scratch {
    driver: Arc<Driver>,
    index: u32,
    block: Option<DeviceBlock>,
}

/// Alignment of everything placed.
const ALIGN: usize = 256;

impl Scratch {
    pub fn new(driver: &Arc<Driver>, index: u32) -> Self {
        Scratch {
            driver: Arc::clone(driver),
            index,
            block: None,
        }
    }

    /// Addresses for three arrays of these sizes. What was placed before is overwritten, so the work
    /// that used it must have ended.
    pub fn place(&mut self, sizes: [usize; 3]) -> Result<[u64; 3]> {
        let ends = sizes.map(|size| size.next_multiple_of(ALIGN) as u64);
        let base = self.at_least(ends.iter().sum())?;
        Ok([base, base + ends[0], base + ends[0] + ends[1]])
    }

    fn at_least(&mut self, bytes: u64) -> Result<u64> {
        if let Some(block) = self.block.as_ref().filter(|block| block.size() >= bytes) {
            return Ok(block.address());
        }
        self.block = None;
        let block = DeviceBlock::new(&self.driver, self.index, bytes)?;
        let address = block.address();
        self.block = Some(block);
        Ok(address)
    }
}
