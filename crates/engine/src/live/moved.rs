//! Device variables that the program knows at another address than the driver has given them this time.
//!
//! ```text
//!  program ── known address ──► copies, fills, launch parameters, graphs ── translated ──► driver
//! ```
//! Code of the module itself refers to its variables by name and needs no help. An address that the
//! program has stored in memory cannot be translated, so a restore that finds one is refused.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fermata_abi::op::Address;

/// Known ranges of moved variables, each with where it lies.
#[derive(Debug, Clone, Default)]
pub struct Moved {
    ranges: BTreeMap<Address, (u64, Address)>,
}

impl Moved {
    /// Records that `size` bytes known at `known` lie at `actual`.
    pub fn insert(&mut self, known: Address, size: u64, actual: Address) {
        self.ranges.insert(known, (size, actual));
    }

    /// A variable is gone with its module.
    pub fn remove(&mut self, known: Address) {
        self.ranges.remove(&known);
    }

    /// Whether no variable has moved.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The address for the driver.
    #[inline]
    pub fn translate(&self, address: Address) -> Address {
        if self.ranges.is_empty() {
            address
        } else {
            self.find(address).unwrap_or(address)
        }
    }

    fn find(&self, address: Address) -> Option<Address> {
        let (known, (size, actual)) = self.ranges.range(..=address).next_back()?;
        let offset = address - known;
        (offset < *size).then(|| actual + offset)
    }

    /// A parameter block with every address of a moved variable replaced.
    pub fn patch<'p>(&self, params: &'p [u8]) -> Cow<'p, [u8]> {
        let mut patched = Cow::Borrowed(params);
        if self.ranges.is_empty() {
            return patched;
        }
        for (index, word) in params.as_chunks::<8>().0.iter().enumerate() {
            if let Some(actual) = self.find(u64::from_le_bytes(*word)) {
                patched.to_mut()[index * 8..index * 8 + 8].copy_from_slice(&actual.to_le_bytes());
            }
        }
        patched
    }

    /// The first address of a moved variable that stands in `bytes`.
    pub fn mentioned(&self, bytes: &[u8]) -> Option<Address> {
        let (first, _) = self.ranges.first_key_value()?;
        let (last, (size, _)) = self.ranges.last_key_value()?;
        let within = *first..last + size;
        let words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        words
            .filter(|word| within.contains(word))
            .find(|word| self.find(*word).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved() -> Moved {
        let mut moved = Moved::default();
        moved.insert(0x7000, 16, 0x9000);
        moved.insert(0x8000, 4, 0xa000);
        moved
    }

    #[test]
    fn addresses_inside_are_translated_and_others_are_not() {
        for (known, actual) in [
            (0x7000, 0x9000),
            (0x700f, 0x900f),
            (0x7010, 0x7010),
            (0x6fff, 0x6fff),
            (0x8003, 0xa003),
        ] {
            assert_eq!(moved().translate(known), actual);
        }
        assert_eq!(Moved::default().translate(0x7000), 0x7000);
    }

    #[test]
    fn parameters_are_patched_at_aligned_words_only() {
        let mut params = vec![0; 28];
        params[8..16].copy_from_slice(&0x7004u64.to_le_bytes());
        params[20..28].copy_from_slice(&0x7004u64.to_le_bytes());
        let patched = moved().patch(&params);
        assert_eq!(patched[8..16], 0x9004u64.to_le_bytes());
        assert_eq!(patched[20..28], params[20..28]);
        assert!(matches!(Moved::default().patch(&params), Cow::Borrowed(_)));
    }

    #[test]
    fn a_stored_address_is_found() {
        let mut bytes = vec![0xff; 64];
        assert_eq!(moved().mentioned(&bytes), None);
        bytes[32..40].copy_from_slice(&0x8002u64.to_le_bytes());
        assert_eq!(moved().mentioned(&bytes), Some(0x8002));
    }
}
