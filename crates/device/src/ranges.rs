//! A set of free address ranges, neighbours joined, from which the best fitting one is taken.
//!
//! Taking depends on nothing but the set, so that the same requests always get the same addresses.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges by address and by length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    by_address: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    /// Ranges do not join at multiples of this; 0 where they always do.
    boundary: u64,
}

impl Ranges {
    pub(crate) fn new(start: u64, len: u64) -> Self {
        let mut ranges = Self::default();
        ranges.insert(start, len);
        ranges
    }

    /// An empty set whose ranges never cross a multiple of `boundary`.
    pub(crate) fn within(boundary: u64) -> Self {
        Self {
            boundary,
            ..Self::default()
        }
    }

    fn joins_at(&self, place: u64) -> bool {
        self.boundary == 0 || !place.is_multiple_of(self.boundary)
    }

    fn add(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_address.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn drop(&mut self, start: u64, len: u64) {
        self.by_address.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Gives a range back. It must not overlap a free one.
    pub(crate) fn insert(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &before_len)) = self.by_address.range(..start).next_back()
            && before + before_len == start
            && self.joins_at(start)
        {
            self.drop(before, before_len);
            start = before;
            len += before_len;
        }
        if let Some(&after_len) = self.by_address.get(&(start + len))
            && self.joins_at(start + len)
        {
            self.drop(start + len, after_len);
            len += after_len;
        }
        self.add(start, len);
    }

    /// Takes `len` bytes at a multiple of `align` (a power of two) from the shortest range with room, the
    /// lowest among equals.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (start, place) = self.by_len.range((len, 0)..).find_map(|(room, start)| {
            let place = start.checked_next_multiple_of(align)?;
            (place - start <= room - len).then_some((*start, place))
        })?;
        let room = self.by_address[&start];
        self.carve(start, room, place, len);
        Some(place)
    }

    /// Takes exactly this range, if it is free.
    pub(crate) fn take_at(&mut self, place: u64, len: u64) -> bool {
        let Some((&start, &room)) = self.by_address.range(..=place).next_back() else {
            return false;
        };
        let fits = place
            .checked_add(len)
            .is_some_and(|end| end <= start + room);
        if fits {
            self.carve(start, room, place, len);
        }
        fits
    }

    fn carve(&mut self, start: u64, room: u64, place: u64, len: u64) {
        self.drop(start, room);
        self.add(start, place - start);
        self.add(place + len, start + room - (place + len));
    }

    /// Takes away a whole range that is free, as when the page below it is given up.
    pub(crate) fn remove(&mut self, place: u64, len: u64) {
        let taken = self.take_at(place, len);
        debug_assert!(taken, "only free ranges are removed");
    }
}
