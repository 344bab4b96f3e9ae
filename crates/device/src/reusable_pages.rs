//! Pages that stay mapped after their allocation has been freed, so that the next allocation of that size reuses them. Pure.
//!
//! Mapping pages costs a hundred times as much as the rest of an allocation. The addresses count as free;
//! code that takes them for something else must first unmap what is kept there.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes kept on one device, at most.
const MOST_BYTES: u64 = 1 << 30;
/// Ranges kept on one device, at most: giving them all back takes a few milliseconds.
const MOST_RANGES: usize = 128;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReusablePages {
    /// Length and age, by start.
    ranges: BTreeMap<u64, (u64, u64)>,
    by_len: BTreeSet<(u64, u64)>,
    by_age: BTreeMap<u64, u64>,
    bytes: u64,
    clock: u64,
}

impl ReusablePages {
    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps a range, which overlaps no other; the answer is what must be unmapped instead.
    #[must_use]
    pub fn add(&mut self, start: u64, len: u64) -> Vec<u64> {
        if len > MOST_BYTES {
            return vec![start];
        }
        self.clock += 1;
        self.ranges.insert(start, (len, self.clock));
        self.by_len.insert((len, start));
        self.by_age.insert(self.clock, start);
        self.bytes += len;
        let mut out = Vec::new();
        while self.bytes > MOST_BYTES || self.ranges.len() > MOST_RANGES {
            let Some(oldest) = self.by_age.values().next().copied() else {
                break;
            };
            self.remove(oldest);
            out.push(oldest);
        }
        out
    }

    /// Where a range of exactly this length lies, if one is kept.
    pub fn find(&self, len: u64) -> Option<u64> {
        let (found, start) = self.by_len.range((len, 0)..).next()?;
        (*found == len).then_some(*start)
    }

    /// Forgets the range at `start`; its length if there was one.
    pub fn remove(&mut self, start: u64) -> Option<u64> {
        let (len, age) = self.ranges.remove(&start)?;
        self.by_len.remove(&(len, start));
        self.by_age.remove(&age);
        self.bytes -= len;
        Some(len)
    }

    /// Forgets the range if it is exactly this one.
    pub fn remove_exact(&mut self, start: u64, len: u64) -> bool {
        if self.ranges.get(&start).is_none_or(|(is, _)| *is != len) {
            return false;
        }
        self.remove(start).is_some()
    }

    /// Starts of the ranges that overlap this one.
    pub fn overlapping(&self, start: u64, len: u64) -> Vec<u64> {
        let end = start.saturating_add(len);
        let before = self.ranges.range(..end).rev();
        before
            .take_while(|(at, (len, _))| **at + len > start)
            .map(|(at, _)| *at)
            .collect()
    }

    /// Starts of all ranges.
    pub fn all(&self) -> Vec<u64> {
        self.ranges.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_range_serves_its_own_length_only() {
        let mut kept = ReusablePages::default();
        assert!(kept.add(64 * MIB, 2 * MIB).is_empty());
        assert!(kept.add(32 * MIB, 4 * MIB).is_empty());
        assert_eq!(kept.find(4 * MIB), Some(32 * MIB));
        assert_eq!(kept.find(3 * MIB), None);
        assert!(!kept.remove_exact(32 * MIB, 2 * MIB));
        assert!(kept.remove_exact(32 * MIB, 4 * MIB));
        assert_eq!(kept.find(4 * MIB), None);
        assert_eq!(kept.bytes(), 2 * MIB);
    }

    #[test]
    fn overlaps_are_found_and_neighbours_are_not() {
        let mut kept = ReusablePages::default();
        for at in [10, 12, 14] {
            assert!(kept.add(at * MIB, 2 * MIB).is_empty());
        }
        assert_eq!(kept.overlapping(12 * MIB, 2 * MIB), [12 * MIB]);
        assert_eq!(kept.overlapping(11 * MIB, 2 * MIB), [12 * MIB, 10 * MIB]);
        assert!(kept.overlapping(16 * MIB, 4 * MIB).is_empty());
        assert!(kept.overlapping(8 * MIB, 2 * MIB).is_empty());
    }

    #[test]
    fn the_oldest_goes_when_there_is_too_much() {
        let mut kept = ReusablePages::default();
        assert!(kept.add(MOST_BYTES, MOST_BYTES / 2).is_empty());
        assert!(kept.add(4 * MOST_BYTES, MOST_BYTES / 2).is_empty());
        assert_eq!(kept.add(8 * MOST_BYTES, MIB), [MOST_BYTES]);
        assert_eq!(
            kept.add(16 * MOST_BYTES, MOST_BYTES + MIB),
            [16 * MOST_BYTES]
        );
        assert_eq!(kept.bytes(), MOST_BYTES / 2 + MIB);
        let mut many = ReusablePages::default();
        let gone: usize = (0..MOST_RANGES as u64 + 3)
            .map(|n| many.add(n * MIB, MIB).len())
            .sum();
        assert_eq!((gone, many.all().len()), (3, MOST_RANGES));
    }
}
