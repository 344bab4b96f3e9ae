//! Copies of pages that are written all the time, or lie in new mappings: they are kept in memory, and written to the file when the
//! program runs on.
//!
//! A program that writes faster than its memory gets into a file never comes to an end of passes. Memory is read several times
//! faster, by several threads and without a second copy, so that each pass finds less than the one before, and so that what a
//! program has just mapped is copied sooner than CRIU would have it.
//!
//! ```text
//!  pass ─► place: a page keeps its place in memory ─► threads read ─► pass ─► ... [stop] last ... [run] flush: to the file
//! ```

use std::io;
use std::ops::Range;
use std::sync::Mutex;

use crate::PAGE;
use crate::memory::Memory;
use crate::places::Places;
use crate::slots::Slots;
use crate::sys::Prepared;
use crate::threads::side_by_side;

/// Bytes that a thread reads at once, and the most pieces that they are.
const BATCH: usize = 1 << 20;
const PIECES: usize = 512;
/// Less than so many bytes for each thread are not worth starting it.
const LEAST: usize = 4 << 20;

/// Pages of a process and their bytes.
#[derive(Debug)]
pub struct Overlay {
    memory: Prepared,
    threads: usize,
    places: Places,
}

/// Pages that follow each other, and where their bytes are.
pub type Placed = (Range<u64>, usize);

/// What one call of the kernel reads.
type Batch<'m> = (Vec<Range<u64>>, Vec<&'m mut [u8]>);

impl Overlay {
    /// Room for so many bytes, which up to `threads` threads fill.
    pub fn new(bytes: u64, threads: usize) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        Ok(Self {
            memory: Prepared::new(length)?,
            threads,
            places: Places::new(bytes / PAGE * PAGE),
        })
    }

    /// Gives pages of `ranges`, some of which may be named twice, a place as long as there is room; those with one, and the
    /// others, each once.
    pub fn place(&mut self, ranges: &[Range<u64>]) -> (Vec<Placed>, Vec<Range<u64>>) {
        let (mut placed, mut others) = (Vec::new(), Vec::new());
        for range in &once(ranges) {
            others.extend(self.places.reserve(range));
            let places = self.places.within(range);
            placed.extend(places.map(|(part, at)| (part, at as usize)));
        }
        (placed, others)
    }

    /// Reads these pages to their places. Those that are not there are handed to `missing`.
    pub fn read(
        &mut self,
        memory: &Memory,
        mut placed: Vec<Placed>,
        missing: &mut Vec<u64>,
    ) -> io::Result<()> {
        placed.sort_by_key(|(_, at)| *at);
        let bytes: usize = placed.iter().map(|(range, _)| length(range)).sum();
        let batches = Mutex::new(batches(self.memory.bytes_mut(), &placed).into_iter());
        let not_there = Mutex::new(missing);
        let next = || batches.lock().ok()?.next();
        let work = || {
            while let Some((ranges, mut buffers)) = next() {
                memory.read(&ranges, &mut buffers, &mut |address| {
                    if let Ok(mut not_there) = not_there.lock() {
                        not_there.push(address);
                    }
                });
            }
        };
        side_by_side(self.threads.min(bytes / LEAST), work).map(drop)
    }

    /// Forgets what lies in `range`.
    pub fn forget(&mut self, range: &Range<u64>) {
        self.places.forget(range);
    }

    /// Writes everything to its places in the file.
    pub fn flush(&self, slots: &mut Slots) -> io::Result<()> {
        for (range, at) in self.places.all() {
            let at = at as usize;
            let bytes = &self.memory.bytes()[at..at + length(&range)];
            slots.write(&[range], bytes)?;
        }
        Ok(())
    }
}

fn length(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// The same pages, ascending, each once.
fn once(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|it| it.start);
    sorted.dedup_by(|next, last| {
        let goes_on = next.start <= last.end;
        if goes_on {
            last.end = last.end.max(next.end);
        }
        goes_on
    });
    sorted
}

/// These pages, ascending by their places in `memory`, in pieces for one call each.
fn batches<'m>(memory: &'m mut [u8], placed: &[Placed]) -> Vec<Batch<'m>> {
    let mut batches: Vec<Batch<'m>> = Vec::new();
    let (mut rest, mut taken, mut filled) = (memory, 0, BATCH);
    for (range, at) in placed {
        rest = rest.split_at_mut(at - taken).1;
        let mut start = range.start;
        while start < range.end {
            if filled == BATCH || batches.last().is_some_and(|it| it.0.len() == PIECES) {
                batches.push((Vec::new(), Vec::new()));
                filled = 0;
            }
            let part = start..range.end.min(start + (BATCH - filled) as u64);
            let (own, behind) = rest.split_at_mut(length(&part));
            rest = behind;
            (start, filled) = (part.end, filled + length(&part));
            if let Some((ranges, buffers)) = batches.last_mut() {
                ranges.push(part);
                buffers.push(own);
            }
        }
        taken = at + length(range);
    }
    batches
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const fn pages(from: u64, to: u64) -> Range<u64> {
        from * PAGE..to * PAGE
    }

    #[test]
    fn a_page_keeps_its_place_and_what_has_none_is_named() {
        let mut overlay = Overlay::new(6 * PAGE, 1).expect("memory");
        let (placed, others) = overlay.place(&[pages(10, 12), pages(20, 21)]);
        let page = PAGE as usize;
        assert_eq!(placed, [(pages(10, 12), 0), (pages(20, 21), 2 * page)]);
        assert!(others.is_empty());
        let (placed, others) = overlay.place(&[pages(9, 16)]);
        assert_eq!(
            placed,
            [
                (pages(9, 10), 3 * page),
                (pages(10, 12), 0),
                (pages(12, 14), 4 * page)
            ]
        );
        assert_eq!(others, [pages(14, 16)]);
    }

    #[test]
    fn pages_that_are_named_twice_are_read_once() {
        let ranges = [pages(8, 10), pages(2, 5), pages(3, 4), pages(4, 6)];
        assert_eq!(once(&ranges), [pages(2, 6), pages(8, 10)]);
        let mut overlay = Overlay::new(16 * PAGE, 1).expect("memory");
        let (placed, _) = overlay.place(&ranges);
        assert_eq!(placed.len(), 2);
        let mut missing = Vec::new();
        let memory = Memory::open(std::process::id()).expect("opened");
        overlay
            .read(&memory, placed, &mut missing)
            .expect("all threads have read");
        assert_eq!(missing.len(), 6, "nothing is at these addresses");
    }

    #[test]
    fn memory_is_read_by_several_threads_and_flushed() {
        let source: Vec<u8> = (0..40 << 20).map(|it: u32| (it >> 9) as u8).collect();
        let start = (source.as_ptr() as u64).next_multiple_of(PAGE);
        let end = start + (39 << 20);
        let ranges: Vec<Range<u64>> = (start..end)
            .step_by(3 * PAGE as usize)
            .map(|it| it..it + 2 * PAGE)
            .collect();
        let mut overlay = Overlay::new(40 << 20, 3).expect("memory");
        let (mut placed, others) = overlay.place(&ranges);
        assert!(others.is_empty());
        placed.reverse();
        // A page of another place that is not there.
        let gone = 16 * PAGE..17 * PAGE;
        placed.extend(overlay.place(std::slice::from_ref(&gone)).0);
        let memory = Memory::open(std::process::id()).expect("opened");
        let mut missing = Vec::new();
        overlay
            .read(&memory, placed, &mut missing)
            .expect("all threads have read");
        assert_eq!(missing, [gone.start]);
        overlay.forget(&gone);
        let mut slots = Slots::new(tempfile::tempfile().expect("a file"));
        overlay.flush(&mut slots).expect("written");
        let places: Vec<_> = ranges.iter().flat_map(|it| slots.within(it)).collect();
        let file = slots.into_file();
        for (range, offset) in places {
            let mut bytes = vec![0; length(&range)];
            file.read_exact_at(&mut bytes, offset).expect("read");
            let from = (range.start - source.as_ptr() as u64) as usize;
            assert!(bytes == source[from..from + bytes.len()]);
        }
    }
}
