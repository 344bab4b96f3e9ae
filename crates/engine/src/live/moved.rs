//! The former addresses of device variables that the driver has placed elsewhere in a restore.
//!
//! Kernels refer to variables by name, so they are not affected. But a program may hold such an address as a number:
//! it has asked for it, or its memory contains it, as objects with virtual functions do. Then the restore is refused.
//! Addresses in memory are never rewritten, because a number that looks like an address may be none ([decision
//! 017](../../../../docs/decisions/017-variables-stay-where-they-were.md)).

use std::collections::BTreeMap;

use fermata_abi::op::Address;

/// Former ranges of variables that have moved.
#[derive(Debug, Clone, Default)]
pub struct Moved {
    ranges: BTreeMap<Address, u64>,
}

impl Moved {
    /// Records that `size` bytes lay at `before`.
    pub fn insert(&mut self, before: Address, size: u64) {
        self.ranges.insert(before, size);
    }

    /// Whether no variable has moved.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether an address lies in the former range of a moved variable, or at its end.
    fn is_stale(&self, address: Address) -> bool {
        let before = self.ranges.range(..=address).next_back();
        before.is_some_and(|(start, size)| address - *start <= *size)
    }

    /// The first address of a moved variable that stands in `bytes`.
    pub fn mentioned(&self, bytes: &[u8]) -> Option<Address> {
        let (first, _) = self.ranges.first_key_value()?;
        let (last, size) = self.ranges.last_key_value()?;
        let within = *first..=*last + *size;
        let words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| Address::from_raw(u64::from_le_bytes(*word)));
        words
            .filter(|word| within.contains(word))
            .find(|word| self.is_stale(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_address_is_found() {
        let mut moved = Moved::default();
        assert_eq!(moved.mentioned(&[0; 64]), None);
        moved.insert(Address::from_raw(0x7000), 16);
        moved.insert(Address::from_raw(0x8000), 4);
        for (address, found) in [
            (0x7000, true),
            (0x700f, true),
            (0x7010, true),
            (0x7011, false),
            (0x6fff, false),
            (0x8002, true),
        ] {
            let mut bytes = vec![0xff; 64];
            bytes[32..40].copy_from_slice(&u64::to_le_bytes(address));
            assert_eq!(
                moved.mentioned(&bytes),
                found.then_some(Address::from_raw(address))
            );
        }
    }
}
