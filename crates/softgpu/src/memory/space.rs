//! Allocates from free ranges: addresses of the window, or bytes within a slab.

use std::collections::BTreeMap;

/// Disjoint free ranges, merged where they touch.
#[derive(Debug, Default, Clone)]
pub struct FreeRanges {
    /// Start to length.
    free: BTreeMap<u64, u64>,
}

impl FreeRanges {
    /// One free range.
    pub fn new(start: u64, len: u64) -> Self {
        Self {
            free: BTreeMap::from([(start, len)]),
        }
    }

    /// Takes `len` from the lowest free range that holds it at a multiple of `align` and inside
    /// `low..high`.
    pub fn allocate(&mut self, len: u64, align: u64, low: u64, high: u64) -> Option<u64> {
        let align = align.max(1);
        let found = self.free.iter().find_map(|(start, size)| {
            let first = (*start).max(low).checked_next_multiple_of(align)?;
            let end = first.checked_add(len)?;
            (end <= start + size && end <= high).then_some(first)
        })?;
        self.take(found, len).then_some(found)
    }

    /// Takes exactly this range; false when a part of it is not free.
    pub fn take(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else {
            return false;
        };
        let Some((&from, &size)) = self.free.range(..=start).next_back() else {
            return false;
        };
        if end > from + size {
            return false;
        }
        self.free.remove(&from);
        if from < start {
            self.free.insert(from, start - from);
        }
        if end < from + size {
            self.free.insert(end, from + size - end);
        }
        true
    }

    /// Releases a range. It must not be free already.
    pub fn give(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            self.free.remove(&before);
            start = before;
            len += size;
        }
        if let Some(size) = self.free.remove(&(start + len)) {
            len += size;
        }
        self.free.insert(start, len);
    }

    /// Whether all of this range is free.
    pub fn is_free(&self, start: u64, len: u64) -> bool {
        self.free
            .range(..=start)
            .next_back()
            .is_some_and(|(from, size)| start + len <= from + size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn allocations_never_overlap_and_everything_comes_back(
            steps in prop::collection::vec((1u64..40, 0u32..4, any::<prop::sample::Index>()), 1..80)
        ) {
            let mut space = FreeRanges::new(0, 1024);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (len, shift, index) in steps {
                if shift == 3 && !live.is_empty() {
                    let (start, len) = live.swap_remove(index.index(live.len()));
                    space.give(start, len);
                } else if let Some(start) = space.allocate(len, 1 << shift, 0, 1024) {
                    prop_assert_eq!(start % (1 << shift), 0);
                    prop_assert!(live.iter().all(|(s, l)| start + len <= *s || s + l <= start));
                    live.push((start, len));
                }
            }
            for (start, len) in live {
                prop_assert!(!space.is_free(start, len));
                space.give(start, len);
            }
            prop_assert!(space.is_free(0, 1024));
        }
    }

    #[test]
    fn a_range_in_use_cannot_be_taken() {
        let mut space = FreeRanges::new(100, 100);
        assert!(space.take(120, 10));
        assert!(!space.take(129, 5));
        assert!(!space.take(190, 20));
        assert_eq!(space.allocate(15, 1, 0, u64::MAX), Some(100));
    }
}
