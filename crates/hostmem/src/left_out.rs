//! What CRIU leaves out of a process that stands still, because it is in a copy.
//!
//! | of a process | left out | its content |
//! | --- | --- | --- |
//! | that is tracked | mappings that are tracked, those with little in them, and those too young to be tracked, as far as there is room | [`crate::Tracker::last`] copies it |
//! | that has begun since | pages that it still has in common with the tracked process that has forked it | in that one's copy |
//!
//! **Little**: CRIU asks the kernel for the pages of each mapping, and writes each run of pages by itself, some microseconds each
//! time. A process with a thousand libraries has thousands of both, and a copy of all takes less.
//!
//! **Young**: a program that makes new mappings all the time, as one that gathers weights on the host, has much in mappings that cannot
//! be tracked yet. Several threads read it into memory that has been prepared, faster than CRIU writes it.
//!
//! **In common**: parent and child have the same frame of memory until one of them writes ([`crate::frames`]).

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rangemap::RangeSet;

use crate::PAGE;
use crate::frames::{self, TOGETHER};
use crate::maps::{self, Kind, Mapping};
use crate::pieces;
use crate::scan::{self, Pagemap, Pages};
use crate::threads::side_by_side;

/// Mappings with less content than this are not tracked: they are copied in the stop.
pub const LITTLE: u64 = 8 * PAGE;
/// Fewer pages than this one behind the other are not worth an entry.
const LEAST: u64 = 8 * PAGE;
/// The most threads that look at frames, which takes each 0.1 us a page.
const MOST_THREADS: usize = 8;

/// Less in a young mapping is CRIU's.
const WORTH: u64 = 1 << 20;

/// What the passes over the memory of a running process know of its mappings.
#[derive(Debug, Clone)]
pub struct Known {
    pub(crate) pid: u32,
    pub(crate) tracked: RangeSet<u64>,
    pub(crate) little: HashSet<Mapping>,
    /// Bytes that the last pass has room for of mappings that are young.
    pub(crate) room: u64,
}

/// Mappings that follow each other, and what is to be found out about them.
struct Looked {
    range: Range<u64>,
    may_be_tracked: bool,
    /// Whether their pages are asked for.
    is_asked: bool,
}

/// The pages of these mappings, as far as they are asked for; none if the first is tracked.
fn look(pagemap: &mut Pagemap, looked: &Looked) -> io::Result<Option<Vec<Pages>>> {
    if looked.may_be_tracked && pagemap.is_tracked(looked.range.start)? {
        return Ok(None);
    }
    match looked.is_asked {
        true => pagemap.content(&looked.range).map(Some),
        false => Ok(Some(Vec::new())),
    }
}

impl Known {
    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The mappings that CRIU can leave out if [`crate::Tracker::last`] is given them, ascending: those that are tracked still,
    /// those that had and have little in them, and other anonymous ones that there is room for. The process stands still. Up to `threads`
    /// threads look at it.
    ///
    /// # Errors
    /// It has ended, or may not be examined.
    pub fn left_out(&self, threads: usize) -> io::Result<Vec<Range<u64>>> {
        let mappings = maps::read(self.pid)?;
        let (mut left_out, mut room) = (Vec::new(), self.room);
        let may_be_tracked = |it: &Mapping| self.tracked.overlaps(&it.range);
        let had_little = |it: &Mapping| self.little.contains(it);
        // The kernel is asked once for those with little in them that follow each other.
        let is_little = |it: &Mapping| had_little(it) && !may_be_tracked(it);
        let follows = |one: &Mapping, next: &Mapping| {
            one.range.end == next.range.start && is_little(one) && is_little(next)
        };
        let groups: Vec<&[Mapping]> = mappings.chunk_by(follows).collect();
        let is_asked =
            |it: &Mapping| had_little(it) || it.kind == Kind::Anonymous && self.room >= WORTH;
        let looked_at = groups.iter().map(|group| {
            let (first, last) = (&group[0], &group[group.len() - 1]);
            Looked {
                range: first.range.start..last.range.end,
                may_be_tracked: may_be_tracked(first),
                is_asked: is_asked(first),
            }
        });
        let looks = pieces::each(self.pid, looked_at.collect(), threads, look)?;
        for (group, pages) in groups.into_iter().zip(looks) {
            let first = &group[0];
            let Some(pages) = pages else {
                left_out.push(first.range.clone());
                continue;
            };
            if !had_little(first) && (first.kind == Kind::File || room < WORTH) {
                continue;
            }
            // The program may have put another one in its place, or filled it. A mapping that another tracks cannot be copied.
            let is_free = !pages.iter().any(Pages::are_tracked);
            for mapping in group {
                let own = scan::own(&pages, mapping);
                let bytes: u64 = own.map(|it| it.end - it.start).sum();
                let may_come = is_free && mapping.kind == Kind::Anonymous;
                let has_room = may_come && (WORTH..=room).contains(&bytes);
                if has_room {
                    room -= bytes;
                }
                if has_room || bytes < LITTLE && had_little(mapping) {
                    left_out.push(mapping.range.clone());
                }
            }
        }
        Ok(left_out)
    }
}

/// The pages of process `pid` that lie in a frame of process `from` at the same address, where that is tracked, as far as they are
/// found `until` then; ascending. Both stand still. None without the right to see frames (`CAP_SYS_ADMIN`).
///
/// # Errors
/// One of them has ended, or may not be examined.
pub fn inherited(pid: u32, from: u32, until: Instant) -> io::Result<Vec<Range<u64>>> {
    let mut theirs = Pagemap::open(from)?;
    let mut tracked = RangeSet::new();
    for mapping in maps::read(from)? {
        if theirs.is_tracked(mapping.range.start)? {
            tracked.insert(mapping.range);
        }
    }
    let mut parts = Vec::new();
    for Mapping { range, kind } in maps::read(pid)? {
        for part in tracked.overlapping(&range) {
            let (start, end) = (part.start.max(range.start), part.end.min(range.end));
            let cut = |at| (at..end.min(at + TOGETHER), kind);
            parts.extend((start..end).step_by(TOGETHER as usize).map(cut));
        }
    }
    let mut common = common(pid, from, &parts, until)?;
    common.retain(|it| it.end - it.start >= LEAST);
    Ok(common)
}

/// The pages of `parts` that both have in the same frame.
fn common(
    pid: u32,
    from: u32,
    parts: &[(Range<u64>, Kind)],
    until: Instant,
) -> io::Result<Vec<Range<u64>>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut own, theirs) = (Pagemap::open(pid)?, Pagemap::open(from)?);
        let mut found = Vec::new();
        while Instant::now() < until
            && let Some((part, kind)) = parts.get(next.fetch_add(1, Ordering::Relaxed))
        {
            for pages in own.private(part, *kind)? {
                if pages.range.end - pages.range.start >= LEAST {
                    frames::add_common(&own, &theirs, &pages.range, &mut found)?;
                }
            }
        }
        io::Result::Ok(found)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let found = side_by_side(cores.min(MOST_THREADS).min(parts.len()), work)?;
    let found = found.into_iter().collect::<io::Result<Vec<_>>>()?;
    let together: RangeSet<u64> = found.into_iter().flatten().collect();
    Ok(together.into_iter().collect())
}
