//! In which order the program uses memory from the consistent point on. A program that is restored from the image goes on from there,
//! so its data is brought in this order: it begins the image's first-use profile (gCROP, figure 11, learns it by a restore).

use std::collections::HashSet;

use fermata_abi::op::Address;

use crate::access::{AccessSet, Target};

/// Addresses that are noted at most.
const MOST: usize = 1 << 16;

/// Addresses of device memory, first used first.
#[derive(Debug, Default)]
pub(crate) struct FirstUse {
    seen: HashSet<Address>,
    order: Vec<Address>,
}

impl FirstUse {
    /// The program is about to use what is in `set`.
    pub fn note(&mut self, set: &AccessSet) {
        if self.order.len() >= MOST {
            return;
        }
        for target in set.reads.iter().chain(&set.writes) {
            let address = match target {
                Target::Exactly(range) => range.start,
                Target::Around(address) => *address,
                Target::Array(_) => continue,
            };
            if address.is_on_device() && self.seen.insert(address) {
                self.order.push(address);
            }
        }
    }

    /// What has been noted; nothing more is kept of it.
    pub fn take(&mut self) -> Vec<Address> {
        std::mem::take(self).order
    }
}
