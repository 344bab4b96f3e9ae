//! Where the pages of a copy are. A page keeps its place; that of one that is forgotten is another page's next, so no more room is
//! taken than for what there has been at once.

use std::ops::Range;

use rangemap::{RangeMap, RangeSet};

/// Addresses of a process and their places.
#[derive(Debug)]
pub struct Places {
    /// Where there is no more room.
    limit: u64,
    /// Where a page goes for which there is no free place.
    end: u64,
    /// Places before that whose pages were forgotten.
    free: RangeSet<u64>,
    /// What has to be added to an address for its place, modulo 2^64.
    added: RangeMap<u64, u64>,
}

impl Places {
    /// None yet; there is room for so many bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            end: 0,
            free: RangeSet::new(),
            added: RangeMap::new(),
        }
    }

    /// Gives `range` a place, as long as there is room; the parts that have none.
    pub fn reserve(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let new: Vec<Range<u64>> = self.added.gaps(range).collect();
        let mut others = Vec::new();
        for gap in new {
            let mut at = gap.start;
            while at < gap.end {
                let place = self.take(gap.end - at);
                if place.is_empty() {
                    others.push(at..gap.end);
                    break;
                }
                let part = at..at + (place.end - place.start);
                at = part.end;
                let added = place.start.wrapping_sub(part.start);
                self.added.insert(part, added);
            }
        }
        others
    }

    /// A place for so many bytes, or for fewer of them; an empty one if there is no room.
    fn take(&mut self, bytes: u64) -> Range<u64> {
        if let Some(free) = self.free.first() {
            let place = free.start..free.end.min(free.start + bytes);
            self.free.remove(place.clone());
            return place;
        }
        let place = self.end..self.limit.min(self.end + bytes);
        self.end = place.end;
        place
    }

    /// Forgets what lies in `range`.
    pub fn forget(&mut self, range: &Range<u64>) {
        let free: Vec<_> = self
            .within(range)
            .map(|(part, at)| at..at + (part.end - part.start))
            .collect();
        self.free.extend(free);
        self.added.remove(range.clone());
    }

    /// Whether all of `range` has a place.
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.added.gaps(range).next().is_none()
    }

    /// The parts of `range` that have a place, and which.
    pub fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        self.added.overlapping(range).map(move |(part, added)| {
            let part = part.start.max(range.start)..part.end.min(range.end);
            let at = part.start.wrapping_add(*added);
            (part, at)
        })
    }

    /// All addresses that have a place, and which.
    pub fn all(&self) -> impl Iterator<Item = (Range<u64>, u64)> {
        let at = |part: &Range<u64>, added: &u64| part.start.wrapping_add(*added);
        let all = self.added.iter();
        all.map(move |(part, added)| (part.clone(), at(part, added)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_room_is_taken_than_for_what_there_has_been_at_once() {
        let mut places = Places::new(u64::MAX);
        for round in 0..20 {
            let all = round * 7..round * 7 + 16;
            assert!(places.reserve(&all).is_empty());
            let part = all.start + 3..all.start + 5;
            places.forget(&part);
            places.forget(&part);
            assert!(!places.has(&all));
            places.reserve(&part);
            let taken = places.within(&all);
            let taken: RangeSet<u64> = taken
                .map(|(part, at)| at..at + (part.end - part.start))
                .collect();
            assert!(taken.iter().eq([&(0..16)]), "each has its own: {taken:?}");
            places.forget(&all);
        }
        assert_eq!(places.all().next(), None);
    }

    #[test]
    fn what_has_no_room_is_named() {
        let mut places = Places::new(10);
        assert!(places.reserve(&(100..108)).is_empty());
        places.forget(&(102..104));
        assert!(places.reserve(&(200..206)).iter().eq([&(204..206)]));
        let expected = [(200..202, 2), (202..204, 8)];
        assert!(places.within(&(190..300)).eq(expected));
        assert!(places.reserve(&(300..301)).iter().eq([&(300..301)]));
    }
}
