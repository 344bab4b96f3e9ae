//! Which pages of a process are still missing, and where in the file their content is.

use std::ops::Range;

use rangemap::RangeMap;

use crate::PAGE;
use crate::image::OnDemand;

/// The content of a page. Pages that follow each other in memory and in the file have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    /// Added to an address, modulo 2^64, it is the place in the file.
    place: u64,
    /// Whether a child made by `fork` gets an empty page instead.
    wiped: bool,
}

/// Pages that follow each other in memory and in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Their addresses.
    pub range: Range<u64>,
    /// Where in the file they begin.
    pub offset: u64,
}

/// The missing pages of a process.
#[derive(Debug, Clone)]
pub struct Missing(RangeMap<u64, Content>);

impl Missing {
    /// All of `pages`.
    pub fn new(pages: &[OnDemand]) -> Self {
        let mut map = RangeMap::new();
        for it in pages.iter().filter(|it| !it.range.is_empty()) {
            let content = Content {
                place: it.offset.wrapping_sub(it.range.start),
                wiped: it.wiped,
            };
            map.insert(it.range.clone(), content);
        }
        Self(map)
    }

    /// Whether no page is missing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the page at `address` is missing.
    pub fn contains(&self, address: u64) -> bool {
        self.0.contains_key(&address)
    }

    /// Missing pages around the one at `address`, which begins a page: at most `most` bytes, a power of two, that begin at a
    /// multiple of that. None if it is not missing.
    pub fn around(&self, address: u64, most: u64) -> Option<Run> {
        let (range, content) = self.0.get_key_value(&address)?;
        let start = address & !(most - 1);
        let range = range.start.max(start)..range.end.min(start.saturating_add(most));
        Some(run(range, *content))
    }

    /// The first missing pages of `range`; at most `most` bytes.
    pub fn within(&self, range: &Range<u64>, most: u64) -> Option<Run> {
        let mut first = self.all_within(range).next()?;
        first.range.end = first.range.end.min(first.range.start + most);
        Some(first)
    }

    /// The missing pages of `range`, ascending.
    pub fn all_within(&self, range: &Range<u64>) -> impl Iterator<Item = Run> {
        let Range { start, end } = *range;
        let found = (start < end).then(|| self.0.overlapping(start..end));
        let found = found.into_iter().flatten();
        found.map(move |(it, content)| run(it.start.max(start)..it.end.min(end), *content))
    }

    /// The first missing pages from `address` on, or from the begin if there are none behind it; at most `most` bytes.
    pub fn next(&self, address: u64, most: u64) -> Option<Run> {
        let (range, content) = self
            .0
            .overlapping(address..u64::MAX)
            .next()
            .or_else(|| self.0.iter().next())?;
        let from = match range.contains(&address) {
            true => address,
            false => range.start,
        };
        Some(run(from..range.end.min(from + most), *content))
    }

    /// Pages in `range` are not missing, or not any more.
    pub fn remove(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.0.remove(range);
        }
    }

    /// The program has moved `from` to address `to`.
    pub fn relocate(&mut self, from: Range<u64>, to: u64) {
        let inside = |range: &Range<u64>| range.start.max(from.start)..range.end.min(from.end);
        let moved: Vec<_> = self
            .0
            .overlapping(&from)
            .map(|(range, content)| (inside(range), *content))
            .collect();
        self.remove(from.clone());
        self.remove(to..to + (from.end - from.start));
        for (range, content) in moved {
            let start = to + (range.start - from.start);
            let content = Content {
                place: content.place.wrapping_add(range.start).wrapping_sub(start),
                ..content
            };
            self.0
                .insert(start..start + (range.end - range.start), content);
        }
    }

    /// What is missing in a child that the process has made by `fork`.
    pub fn of_child(&self) -> Self {
        let inherited = self.0.iter().filter(|(_, content)| !content.wiped);
        Self(inherited.map(|(range, it)| (range.clone(), *it)).collect())
    }
}

fn run(range: Range<u64>, content: Content) -> Run {
    debug_assert!(range.start.is_multiple_of(PAGE) && !range.is_empty());
    Run {
        offset: range.start.wrapping_add(content.place),
        range,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Addresses of pages, small enough to meet each other.
    const PAGES: u64 = 64;

    #[derive(Debug, Clone)]
    enum Step {
        Remove(u64, u64),
        Relocate(u64, u64, u64),
        Fork,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..PAGES, 1..8u64).prop_map(|(at, n)| Step::Remove(at, n)),
            (0..PAGES, 1..12u64, 0..PAGES).prop_map(|(at, n, to)| Step::Relocate(at, n, to)),
            Just(Step::Fork),
        ];
        prop::collection::vec(step, 0..40)
    }

    /// One page of the file for each page that is missing; pages from 40 on are wiped by `fork`.
    fn begin() -> (Missing, BTreeMap<u64, (u64, bool)>) {
        let entry = |page: u64, count: u64, at: u64| OnDemand {
            range: page * PAGE..(page + count) * PAGE,
            offset: at * PAGE,
            wiped: page >= 40,
        };
        let pages = [entry(2, 20, 5), entry(30, 6, 25), entry(44, 9, 40)];
        let all = pages.iter().flat_map(|it| {
            let count = (it.range.end - it.range.start) / PAGE;
            (0..count).map(|n| {
                let page = it.range.start / PAGE + n;
                (page, (it.offset / PAGE + n, it.wiped))
            })
        });
        (Missing::new(&pages), all.collect())
    }

    proptest! {
        #[test]
        fn pages_keep_their_content_whatever_the_program_does_to_its_memory(steps in steps()) {
            let (mut missing, mut model) = begin();
            for step in steps {
                match step {
                    Step::Remove(at, n) => {
                        missing.remove(at * PAGE..(at + n) * PAGE);
                        model.retain(|page, _| !(at..at + n).contains(page));
                    }
                    // The kernel refuses to move memory over itself.
                    Step::Relocate(at, n, to) if to + n <= at || at + n <= to => {
                        missing.relocate(at * PAGE..(at + n) * PAGE, to * PAGE);
                        let moved: Vec<_> = (at..at + n).map(|page| model.remove(&page)).collect();
                        for (n, content) in (0..).zip(moved) {
                            model.remove(&(to + n));
                            model.extend(content.map(|it| (to + n, it)));
                        }
                    }
                    Step::Relocate(..) => {}
                    Step::Fork => {
                        missing = missing.of_child();
                        model.retain(|_, (_, wiped)| !*wiped);
                    }
                }
                prop_assert_eq!(missing.is_empty(), model.is_empty());
                for page in 0..3 * PAGES {
                    let found = missing.around(page * PAGE, PAGE).map(|it| it.offset / PAGE);
                    prop_assert_eq!(found, model.get(&page).map(|it| it.0));
                    prop_assert_eq!(missing.contains(page * PAGE), found.is_some());
                }
                let next = missing.next(10 * PAGE, 4 * PAGE).map(|it| it.range.start / PAGE);
                let first = model.range(10..).chain(&model).next();
                prop_assert_eq!(next, first.map(|it| *it.0));
                prop_assert_eq!(missing.within(&(30 * PAGE..30 * PAGE), PAGE), None);
                let all = missing.all_within(&(20 * PAGE..34 * PAGE));
                let pages = all.flat_map(|it| it.range.step_by(PAGE as usize).zip((it.offset..).step_by(PAGE as usize)));
                let pages: Vec<_> = pages.map(|(page, place)| (page / PAGE, place / PAGE)).collect();
                let model_has = model.range(20..34).map(|(page, it)| (*page, it.0));
                prop_assert_eq!(pages, model_has.collect::<Vec<_>>());
                let inside = missing.within(&(20 * PAGE..34 * PAGE), 3 * PAGE);
                let inside = inside.map(|it| (it.range.start / PAGE, it.range.end / PAGE));
                let first = model.range(20..34).next().map(|it| *it.0);
                prop_assert_eq!(inside.map(|it| it.0), first);
                if let Some((from, to)) = inside {
                    prop_assert!(from < to && to <= (from + 3).min(34));
                    prop_assert!((from..to).all(|page| model.contains_key(&page)));
                }
                if let Some(run) = missing.around(17 * PAGE, 4 * PAGE) {
                    prop_assert!(run.range.start >= 16 * PAGE && run.range.end <= 20 * PAGE);
                    for n in 0..(run.range.end - run.range.start) / PAGE {
                        let page = run.range.start / PAGE + n;
                        prop_assert_eq!(model.get(&page).map(|it| it.0), Some(run.offset / PAGE + n));
                    }
                }
            }
        }
    }
}
