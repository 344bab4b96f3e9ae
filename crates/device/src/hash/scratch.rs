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

    /// Addresses for arrays of these sizes. What was placed before is overwritten, so the work
    /// that used it must have ended.
    pub fn place<const N: usize>(&mut self, sizes: [usize; N]) -> Result<[u64; N]> {
        let lengths = sizes.map(|size| size.next_multiple_of(ALIGN) as u64);
        let mut next = self.at_least(lengths.iter().sum())?;
        Ok(lengths.map(|length| {
            let at = next;
            next += length;
            at
        }))
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
