//! What CRIU leaves out of a process that stands still, because it is in a copy.
//!
//! | of a process | left out | its content |
//! | --- | --- | --- |
//! | that is tracked | mappings that are tracked, and those with little in them | [`crate::Tracker::last`] copies it |
//! | that has begun since | pages that it still has in common with the tracked process that has forked it | in that one's copy |
//!
//! **Little**: CRIU asks the kernel for the pages of each mapping, and writes each run of pages by itself, some microseconds each
//! time. A process with a thousand libraries has thousands of both, and a copy of all takes less.
//!
//! **In common**: the kernel gives parent and child the same frame of memory at the same address until one of them writes (copy
//! on write), and `/proc/PID/pagemap` tells the frame.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rangemap::RangeSet;

use crate::PAGE;
use crate::maps::{self, Mapping};
use crate::scan::Pagemap;
use crate::threads::side_by_side;

/// Bytes whose frames are looked at together.
const TOGETHER: u64 = 16 << 20;
/// Fewer pages than this one behind the other are not worth an entry.
const LEAST: u64 = 8 * PAGE;
/// The most threads that look at frames, which takes each 0.1 us a page.
const MOST_THREADS: usize = 8;

/// What the passes over the memory of a running process know of its mappings.
#[derive(Debug, Clone)]
pub struct Known {
    pub(crate) pid: u32,
    pub(crate) tracked: RangeSet<u64>,
    pub(crate) little: HashSet<Mapping>,
}

impl Known {
    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The mappings that CRIU can leave out if [`crate::Tracker::last`] is given them, ascending: those that are as they were. The
    /// process stands still.
    ///
    /// # Errors
    /// It has ended, or may not be examined.
    pub fn left_out(&self) -> io::Result<Vec<Range<u64>>> {
        let mut mappings = maps::read(self.pid)?;
        let is_tracked = |it: &Range<u64>| self.tracked.gaps(it).next().is_none();
        mappings.retain(|it| self.little.contains(it) || is_tracked(&it.range));
        Ok(mappings.into_iter().map(|it| it.range).collect())
    }
}

/// The pages of process `pid` that lie in a frame of process `from` at the same address, where that is tracked; ascending. Both
/// stand still. None without the right to see frames (`CAP_SYS_ADMIN`).
///
/// # Errors
/// One of them has ended, or may not be examined.
pub fn inherited(pid: u32, from: u32) -> io::Result<Vec<Range<u64>>> {
    let (mut own, mut theirs) = (Pagemap::open(pid)?, Pagemap::open(from)?);
    let mut tracked = RangeSet::new();
    for mapping in maps::read(from)? {
        if theirs.is_tracked(mapping.range.start)? {
            tracked.insert(mapping.range);
        }
    }
    let mut parts = Vec::new();
    for mapping in maps::read(pid)? {
        for part in tracked.overlapping(&mapping.range) {
            let part = part.start.max(mapping.range.start)..part.end.min(mapping.range.end);
            for pages in own.private(&part, mapping.kind)? {
                let Range { start, end } = pages.range;
                if end - start >= LEAST {
                    let cut = |at| at..end.min(at + TOGETHER);
                    parts.extend((start..end).step_by(TOGETHER as usize).map(cut));
                }
            }
        }
    }
    let mut common = common(&own, &theirs, &parts)?;
    common.retain(|it| it.end - it.start >= LEAST);
    Ok(common)
}

/// The pages of `parts` that both have in the same frame.
fn common(own: &Pagemap, theirs: &Pagemap, parts: &[Range<u64>]) -> io::Result<Vec<Range<u64>>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            add_common(own, theirs, part, &mut found)?;
        }
        io::Result::Ok(found)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let found = side_by_side(cores.min(MOST_THREADS).min(parts.len()), work)?;
    let found = found.into_iter().collect::<io::Result<Vec<_>>>()?;
    let together: RangeSet<u64> = found.into_iter().flatten().collect();
    Ok(together.into_iter().collect())
}

/// Adds the pages of `part` that both have in the same frame.
fn add_common(
    own: &Pagemap,
    theirs: &Pagemap,
    part: &Range<u64>,
    found: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    // The kernel may move a frame meanwhile, and give its place to another. One that is there before and after was there.
    let before = theirs.frames(part)?;
    let here = own.frames(part)?;
    let after = theirs.frames(part)?;
    let frames = before.into_iter().zip(here).zip(after);
    for (page, ((before, here), after)) in part.clone().step_by(PAGE as usize).zip(frames) {
        if before.is_some() && before == here && before == after {
            match found.last_mut() {
                Some(last) if last.end == page => last.end += PAGE,
                _ => found.push(page..page + PAGE),
            }
        }
    }
    Ok(())
}
