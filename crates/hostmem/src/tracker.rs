//! The copy of one process's memory.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rangemap::RangeSet;

use crate::PAGE;
use crate::error::{Error, Result};
use crate::extents::{Exact, Extent, lacking, select};
use crate::frames;
use crate::left_out::{Known, LITTLE};
use crate::looks::looks;
use crate::maps::{self, Kind, Mapping};
use crate::memory::Memory;
use crate::overlay::Overlay;
use crate::protection::Protection;
use crate::scan::{self, Pagemap, Pages};
use crate::slots::Slots;
use crate::working_set::WorkingSet;

/// How long a mapping must have been what it is before it is tracked.
pub const SETTLED: Duration = Duration::from_millis(100);
/// Bytes that are read at once, and the most pieces of memory they may come from.
const BUFFER: u64 = 1 << 20;
const PIECES: usize = 512;

/// What a pass has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes of mappings that have not been there for [`SETTLED`].
    pub young: u64,
    /// Bytes of mappings that are not worth tracking.
    pub little: u64,
}

/// Bytes in memory that are made ready for what the last pass copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// For mappings that are too young to be tracked: so many, CRIU is told to leave them out.
    pub young: u64,
    /// For all else: what was written since the pass before, and what is not worth tracking.
    pub others: u64,
}

/// An exact copy of what was tracked of a process.
#[derive(Debug)]
pub struct Copied {
    /// The file.
    pub file: File,
    /// What is where in it, by ascending address.
    pub extents: Vec<Extent>,
    /// The file of the process that has forked it, and what is where in that one.
    pub parents: Option<(File, Vec<Extent>)>,
    /// Pages that a restored program is likely to use first, in that order.
    pub working_set: Vec<Range<u64>>,
}

/// What is known of a mapping.
#[derive(Debug, Clone, Copy)]
struct Seen {
    since: Instant,
    /// Whether it was tracked by the pass before.
    tracked: bool,
}

impl Seen {
    fn at(since: Instant) -> Self {
        let tracked = false;
        Self { since, tracked }
    }
}

/// A mapping, and what of it has to be copied.
type Written = (Range<u64>, Vec<Range<u64>>);

/// A process whose private memory is being copied.
#[derive(Debug)]
pub struct Tracker {
    pid: u32,
    protection: Protection,
    slots: Slots,
    /// Where copies are kept first, if they are.
    overlay: Option<Overlay>,
    /// Where the last pass keeps what has no place there, if it does, and how much of it is for young mappings.
    room: Option<Overlay>,
    young: u64,
    /// How many threads the last pass looks at pages with.
    threads: usize,
    /// Pages that are protected, but could not be read.
    unsure: RangeSet<u64>,
    /// Pages that are in the copy of the process that has forked it.
    inherited: RangeSet<u64>,
    /// What the last pass has copied or forgotten, if that is noted.
    renewed: Option<RangeSet<u64>>,
    seen: HashMap<Mapping, Seen>,
    /// Those that are not worth tracking.
    little: HashSet<Mapping>,
    working_set: WorkingSet,
    /// What the last pass, in the stop, has found to be written.
    last_written: Vec<Range<u64>>,
    buffer: Vec<u8>,
}

impl Tracker {
    /// Tracks process `pid` by `uffd`, which came from [`crate::acquire`]; the copy goes to `file`, which is empty.
    ///
    /// # Errors
    /// The process has ended.
    pub fn new(pid: u32, uffd: OwnedFd, file: File) -> Result<Self> {
        let now = Instant::now();
        let mappings = maps::read(pid).map_err(Error::kernel("read the mappings", pid))?;
        Ok(Self {
            pid,
            protection: Protection::new(uffd),
            slots: Slots::new(file),
            overlay: None,
            room: None,
            young: 0,
            threads: 1,
            unsure: RangeSet::new(),
            inherited: RangeSet::new(),
            renewed: None,
            seen: mappings.into_iter().map(|it| (it, Seen::at(now))).collect(),
            little: HashSet::new(),
            working_set: WorkingSet::default(),
            last_written: Vec::new(),
            buffer: Vec::new(),
        })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Has the next passes, and the last, keep what they copy in memory, up to so many bytes, and read it by up to `threads`
    /// threads; it is written when the process runs on. Without that memory they go on as before.
    pub fn keep_in_memory(&mut self, bytes: u64, threads: usize) {
        if bytes > 0 && self.overlay.is_none() {
            self.overlay = Overlay::new(bytes, threads).ok();
        }
    }

    /// Has the last pass look at pages on up to `threads` threads, and keep what it copies in memory, as far as there is room, read by as many;
    /// it is written when the process runs on. Without that memory, young mappings are CRIU's, and the last pass writes all else to the file.
    pub fn make_room(&mut self, room: Room, threads: usize) {
        self.threads = threads;
        let bytes = room.young + room.others;
        if bytes > 0
            && self.room.is_none()
            && let Ok(made) = Overlay::new(bytes, threads)
        {
            self.room = Some(made);
            self.young = room.young;
        }
    }

    /// From now on, processes that this one has forked can take what they have in common with it from its copy.
    pub fn is_parent(&mut self) {
        self.renewed.get_or_insert_default();
    }

    /// Copies what the running process has written since the last pass, and begins to track mappings that have been there
    /// for [`SETTLED`].
    ///
    /// # Errors
    /// The process has ended, or the copy cannot be written.
    pub fn pass(&mut self) -> Result<Passed> {
        self.pass_after(None)
    }

    /// The same after a pass over the process that has forked it ([`Self::is_parent`]): what both have in common need not be copied.
    /// Without that one, all is.
    ///
    /// # Errors
    /// As there.
    pub fn pass_after(&mut self, parent: Option<&Self>) -> Result<Passed> {
        let pid = self.pid;
        self.begin_after(parent);
        let parent = parent.filter(|it| it.renewed.is_some());
        // Without it nothing is known to be in common.
        let parent = parent.and_then(|it| Some((it, Pagemap::open(it.pid).ok()?)));
        self.check_descriptors()?;
        let kernel = |what| Error::kernel(what, pid);
        let mut pagemap = Pagemap::open(pid).map_err(kernel("open the page map"))?;
        let memory = Memory::open(pid).map_err(kernel("open the memory"))?;
        let mut passed = Passed::default();
        let new = self.register(&mut pagemap, &mut passed);
        let new = new.map_err(kernel("read the mappings"))?;
        self.working_set.begin_pass();
        for mapping in maps::read(pid).map_err(kernel("read the mappings"))? {
            if let Some(ranges) = self.pending(&mut pagemap, &mapping, &new, parent.as_ref()) {
                self.renew(&ranges);
                passed.bytes += self.copy(&memory, &ranges)?;
            }
        }
        Ok(passed)
    }

    /// What the last pass knows of the mappings.
    pub fn known(&self) -> Known {
        Known {
            pid: self.pid,
            tracked: self.protection.registered().clone(),
            little: self.little.clone(),
            room: self.young,
        }
    }

    /// Makes the copy exact. It also gets the mappings of `left_out` that are not tracked ([`Known::left_out`]). The process must
    /// stand still from before this call until CRIU's dump has ended. None if it has ended instead.
    ///
    /// # Errors
    /// Memory cannot be read, one of these mappings is no more, or the copy cannot be written: the copy is of no use then.
    pub fn last(&mut self, left_out: &[Range<u64>]) -> Result<Option<Vec<Extent>>> {
        let exact = self.last_after(left_out, None)?;
        Ok(exact.map(|it| it.own))
    }

    /// The same after that of the process that has forked it, whose exact copy is there: what was taken from its copy stays there. Without that one,
    /// all is copied.
    ///
    /// # Errors
    /// As there.
    pub fn last_after(
        &mut self,
        left_out: &[Range<u64>],
        parent: Option<(&Self, &[Extent])>,
    ) -> Result<Option<Exact>> {
        self.begin_after(parent.map(|(it, _)| it));
        let theirs = parent.map_or(&[][..], |(_, exact)| exact);
        let gone = self.inherited.iter().flat_map(|it| lacking(theirs, it));
        self.doubt(gone.collect());
        let mappings = maps::read(self.pid);
        let mappings = mappings.map_err(Error::kernel("read the mappings", self.pid))?;
        if mappings.is_empty() && left_out.is_empty() {
            // Its parent has not waited for it yet.
            return Ok(None);
        }
        self.check_descriptors()?;
        let memory = Memory::written(self.pid);
        let memory = memory.map_err(Error::kernel("open the memory", self.pid))?;
        let (mut tracked, mut others) = self.examine(&mappings, left_out)?;
        self.unsure.clear();
        let all = |of: &[Written]| {
            of.iter()
                .flat_map(|(_, it)| it)
                .cloned()
                .collect::<Vec<_>>()
        };
        let (written, rest) = (all(&tracked), all(&others));
        self.renew(&written);
        self.copy_last(&memory, &[&written[..], &rest].concat())?;
        if !self.unsure.is_empty() {
            let failed = Error::kernel("read all memory", self.pid);
            return Err(failed(io::ErrorKind::Other.into()));
        }
        if !maps::has_any(self.pid) {
            // It was killed, perhaps while its mappings were read.
            return Ok(None);
        }
        self.last_written = written;
        tracked.append(&mut others);
        tracked.sort_unstable_by_key(|(range, _)| range.start);
        let ranges = || tracked.iter().map(|(range, _)| range);
        let places = ranges().flat_map(|it| self.slots.within(it));
        let own = places.map(|(range, offset)| Extent { range, offset });
        let inherited: Vec<_> = ranges()
            .flat_map(|it| within(&self.inherited, it))
            .collect();
        let [parents] = select([theirs], &inherited).map_err(|address| {
            let why = format!("its parent's copy lacks {address:#x}");
            Error::untrackable(self.pid, why)
        })?;
        Ok(Some(Exact {
            own: own.collect(),
            parents,
        }))
    }

    /// What the last pass has to copy: of mappings that are tracked, and of others that are left out.
    fn examine(
        &mut self,
        mappings: &[Mapping],
        left_out: &[Range<u64>],
    ) -> Result<(Vec<Written>, Vec<Written>)> {
        let pid = self.pid;
        let failed = || Error::kernel("examine a mapping", pid);
        let by_another = |range: &Range<u64>| {
            // CRIU has left it out.
            let why = format!("the mapping at {:#x} is tracked by another", range.start);
            Error::untrackable(pid, why)
        };
        let mut lacking: HashSet<&Range<u64>> = left_out.iter().collect();
        // The kernel is asked once for mappings that are only left out and follow each other.
        let is_registered = |it: &Range<u64>| self.protection.registered().overlaps(it);
        let only_left_out = |it: &Mapping| lacking.contains(&it.range) && !is_registered(&it.range);
        let follows = |one: &Mapping, next: &Mapping| {
            one.range.end == next.range.start && only_left_out(one) && only_left_out(next)
        };
        let groups: Vec<&[Mapping]> = mappings.chunk_by(follows).collect();
        let looks = looks(pid, &groups, &lacking, self.threads).map_err(failed())?;
        let pagemap = Pagemap::open(pid);
        let mut pagemap = pagemap.map_err(Error::kernel("open the page map", pid))?;
        let (mut tracked, mut others) = (Vec::new(), Vec::new());
        for (group, look) in groups.into_iter().zip(looks) {
            let Mapping { range, kind } = &group[0];
            if look.is_tracked {
                if !self.protection.registered().overlaps(range) {
                    return Err(by_another(range));
                }
                lacking.remove(range);
                let mut written = match kind {
                    Kind::Anonymous => self.changed(look.pages),
                    Kind::File => self.own(range, look.pages),
                };
                for unsure in self.doubtful(range) {
                    let pages = pagemap.private(&unsure, *kind).map_err(failed())?;
                    written.extend(pages.into_iter().map(|it| it.range));
                }
                tracked.push((range.clone(), written));
                continue;
            }
            if !lacking.contains(range) {
                continue;
            }
            let pages = look.pages;
            if let Some(other) = pages.iter().find(|it| it.are_tracked()) {
                return Err(by_another(&other.range));
            }
            for mapping in group {
                let range = &mapping.range;
                lacking.remove(range);
                // What is known of these addresses is of an earlier mapping.
                self.forget(range);
                others.push((range.clone(), scan::own(&pages, mapping).collect()));
            }
        }
        match lacking.into_iter().next() {
            None => Ok((tracked, others)),
            Some(range) => {
                let why = format!("the mapping at {:#x} is no more", range.start);
                Err(Error::untrackable(pid, why))
            }
        }
    }

    /// Ends the tracking, bit by bit so that the running program's faults do not wait long, and hands the copy out.
    ///
    /// # Errors
    /// The copy cannot be written.
    pub fn release(mut self, extents: Vec<Extent>) -> Result<Copied> {
        drop(self.protection);
        for overlay in [self.overlay, self.room].into_iter().flatten() {
            let flushed = overlay.flush(&mut self.slots);
            flushed.map_err(Error::copy("write", self.pid))?;
        }
        self.working_set.begin_pass();
        self.working_set.note(&self.last_written);
        Ok(Copied {
            file: self.slots.into_file(),
            extents,
            parents: None,
            working_set: self.working_set.hottest(),
        })
    }

    /// The process may have opened a file since that the kernel reads past the page tables.
    fn check_descriptors(&self) -> Result<()> {
        match maps::has_direct_io(self.pid) {
            true => Err(Error::untrackable(self.pid, maps::DIRECT_IO)),
            false => Ok(()),
        }
    }

    /// Begins to track mappings, if that is worth it and they have settled; which it is now.
    ///
    /// The kernel cuts a mapping where a tracked range ends, and refuses to move two mappings at once. So a range must be
    /// exactly one mapping, and one that the program is not about to move: those that have stayed what they are for a while.
    /// `passed` gets what has not settled yet, and what is not worth it.
    fn register(
        &mut self,
        pagemap: &mut Pagemap,
        passed: &mut Passed,
    ) -> io::Result<RangeSet<u64>> {
        let now = Instant::now();
        let mappings = maps::read(self.pid)?;
        let mut former = std::mem::take(&mut self.seen);
        let mut worth = Vec::new();
        self.little.clear();
        for mapping in mappings {
            let mut seen = former.remove(&mapping).unwrap_or(Seen::at(now));
            let settled = now - seen.since >= SETTLED;
            let tracked = match settled {
                true => pagemap.is_tracked(mapping.range.start).ok(),
                false => None,
            };
            // Another one has taken its place, and may go as fast.
            let replaced = seen.tracked && tracked == Some(false);
            if replaced {
                seen.since = now;
            }
            if replaced || !settled {
                passed.young += content(pagemap, &mapping).unwrap_or(0);
            } else if tracked == Some(false) {
                passed.little += self.judge(pagemap, &mapping, &mut worth);
            }
            seen.tracked = tracked == Some(true);
            self.seen.insert(mapping, seen);
        }
        // Looking at the pages takes long; are they still what they were?
        let mappings: HashSet<Mapping> = maps::read(self.pid)?.into_iter().collect();
        worth.retain(|it| mappings.contains(it));
        let new = self.protection.add(self.pid, pagemap, &worth, &mappings)?;
        for mapping in &worth {
            if let Some(seen) = self.seen.get_mut(mapping) {
                seen.tracked = new.overlaps(&mapping.range);
            }
        }
        Ok(new)
    }

    /// Adds a mapping that is not tracked to `worth` or to those with little in them, and says how much that is. One that cannot be
    /// examined is CRIU's.
    fn judge(&mut self, pagemap: &mut Pagemap, mapping: &Mapping, worth: &mut Vec<Mapping>) -> u64 {
        let Ok(bytes) = content(pagemap, mapping) else {
            return 0;
        };
        if bytes < LITTLE {
            self.little.insert(mapping.clone());
            return bytes;
        }
        if mapping.kind == Kind::Anonymous || !maps::is_huge(self.pid, mapping) {
            worth.push(mapping.clone());
        }
        0
    }

    /// The parts of `range` that have to be read whatever their marks say.
    fn doubtful(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts: RangeSet<u64> = within(&self.unsure, range).into_iter().collect();
        parts.extend(within(self.protection.unmarked(), range));
        parts.into_iter().collect()
    }

    /// What a pass has to copy of a mapping; none if it is not tracked. First pages are protected, then they are read: what is
    /// written in between is found by the next pass.
    fn pending(
        &mut self,
        pagemap: &mut Pagemap,
        mapping: &Mapping,
        new: &RangeSet<u64>,
        parent: Option<&(&Self, Pagemap)>,
    ) -> Option<Vec<Range<u64>>> {
        let Mapping { range, kind } = mapping;
        // Each call fails if the mapping has been replaced just now.
        let tracked = pagemap.is_tracked(range.start).ok()?;
        if !tracked || new.overlaps(range) {
            // What is known of these addresses is of an earlier mapping. A part of them may be tracked all the same, if the
            // program has just split this mapping: that is read again, for marks say only what was written since.
            self.forget(range);
            self.unsure.insert(range.clone());
        }
        if !tracked {
            return None;
        }
        let Ok(written) = pagemap.protect(range, *kind) else {
            // Some pages may be protected, and are not copied.
            self.unsure.insert(range.clone());
            return None;
        };
        let mut ranges: Vec<Range<u64>> = written.into_iter().map(|it| it.range).collect();
        let doubtful = self.doubtful(range);
        ranges.retain(|it| !doubtful.iter().any(|all| contains(all, it)));
        self.working_set.note(&ranges);
        for unsure in doubtful {
            let Ok(pages) = pagemap.private(&unsure, *kind) else {
                self.unsure.insert(range.clone());
                return None;
            };
            let pages = pages.into_iter().map(|it| it.range).collect();
            ranges.extend(self.inherit(pagemap, pages, parent));
        }
        self.unsure.remove(range.clone());
        Some(ranges)
    }

    /// What has to be read of an anonymous mapping of which these pages are written, or not there; what is not there any more is forgotten.
    fn changed(&mut self, pages: Vec<Pages>) -> Vec<Range<u64>> {
        let mut written = Vec::new();
        for pages in pages {
            if pages.are_empty() {
                self.forget(&pages.range);
            } else if pages.are_written() || !self.has(&pages.range) {
                written.push(pages.range);
            }
        }
        written
    }

    /// What has to be read of a mapping of a file of which the process's own pages are these; what is the file's again is forgotten. A mark
    /// that protects a page that is not there looks like a swapped page, so only pages in memory are known to be unchanged.
    fn own(&mut self, range: &Range<u64>, own: Vec<Pages>) -> Vec<Range<u64>> {
        let mut others = RangeSet::new();
        others.insert(range.clone());
        let mut written = Vec::new();
        for Pages { range, .. } in &own {
            others.remove(range.clone());
        }
        for pages in own {
            if !pages.are_unchanged() || !self.has(&pages.range) {
                written.push(pages.range);
            }
        }
        for other in others.iter() {
            self.forget(other);
        }
        written
    }

    /// Whether all of `range` is in a copy.
    fn has(&self, range: &Range<u64>) -> bool {
        let mut others = self.inherited.gaps(range);
        others.all(|it| self.slots.has(&it))
    }

    fn forget(&mut self, range: &Range<u64>) {
        self.renew(std::slice::from_ref(range));
        self.forget_own(range);
    }

    /// Forgets what is in its own copy.
    fn forget_own(&mut self, range: &Range<u64>) {
        self.slots.forget(range);
        let overlays = [&mut self.overlay, &mut self.room].into_iter();
        overlays.flatten().for_each(|it| it.forget(range));
    }

    /// Notes that these pages are copied, or forgotten.
    fn renew(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            self.inherited.remove(range.clone());
        }
        if let Some(renewed) = &mut self.renewed {
            renewed.extend(ranges.iter().cloned());
        }
    }

    /// Begins a pass, which looks again at what was taken from the copy of `parent` and has been copied there again, or forgotten, since; at
    /// all of it if there is no such copy any more.
    fn begin_after(&mut self, parent: Option<&Self>) {
        let renewed = parent.and_then(|it| it.renewed.as_ref());
        let left = match renewed {
            Some(renewed) => {
                let left = renewed.iter().flat_map(|it| within(&self.inherited, it));
                left.collect()
            }
            None => self.inherited.iter().cloned().collect(),
        };
        self.doubt(left);
        if let Some(renewed) = &mut self.renewed {
            renewed.clear();
        }
    }

    /// Pages that are not in the copy of another any more have to be looked at.
    fn doubt(&mut self, pages: Vec<Range<u64>>) {
        for range in pages {
            self.inherited.remove(range.clone());
            self.unsure.insert(range);
        }
    }

    /// Takes from the copy of `parent` what both have in the same frame of memory; the others of `pages`, which are protected, have to be
    /// copied. As long as neither writes to such a page its content is that of the frame. If one does, it gets another frame, and a pass over
    /// it finds the page written.
    fn inherit(
        &mut self,
        pagemap: &Pagemap,
        pages: Vec<Range<u64>>,
        parent: Option<&(&Self, Pagemap)>,
    ) -> Vec<Range<u64>> {
        let Some((parent, theirs)) = parent else {
            return pages;
        };
        let copied = pages.iter().flat_map(|it| parent.slots.within(it));
        let copied: Vec<_> = copied.map(|(range, _)| range).collect();
        // Who may not see frames copies all.
        let Ok(common) = frames::common(pagemap, theirs, &copied) else {
            return pages;
        };
        for range in &common {
            self.forget_own(range);
        }
        let common: RangeSet<u64> = common.into_iter().collect();
        let others = pages.iter().flat_map(|it| common.gaps(it)).collect();
        self.inherited.extend(common);
        others
    }

    /// Pages that are protected could not be read.
    fn miss(&mut self, addresses: Vec<u64>) {
        for address in addresses {
            let page = address..address + PAGE;
            self.forget(&page);
            self.unsure.insert(page);
        }
    }

    /// Copies `ranges`; the bytes copied.
    fn copy(&mut self, memory: &Memory, ranges: &[Range<u64>]) -> Result<u64> {
        let (copied, others) = self.copy_to(|it| &mut it.overlay, memory, ranges)?;
        Ok(copied + self.copy_to_file(memory, &others)?)
    }

    /// The same in the last pass, for which there may be more room.
    fn copy_last(&mut self, memory: &Memory, ranges: &[Range<u64>]) -> Result<()> {
        let (_, others) = self.copy_to(|it| &mut it.overlay, memory, ranges)?;
        let (_, others) = self.copy_to(|it| &mut it.room, memory, &others)?;
        self.copy_to_file(memory, &others).map(drop)
    }

    /// Copies those of `ranges` into this memory that have room there, if it is there; the bytes copied, and the others.
    fn copy_to(
        &mut self,
        overlay: fn(&mut Self) -> &mut Option<Overlay>,
        memory: &Memory,
        ranges: &[Range<u64>],
    ) -> Result<(u64, Vec<Range<u64>>)> {
        let Some(mut kept) = overlay(self).take() else {
            return Ok((0, ranges.to_vec()));
        };
        let (placed, others) = kept.place(ranges);
        let mut copied = 0;
        for (range, _) in &placed {
            self.slots.reserve(range);
            copied += range.end - range.start;
        }
        let mut missing = Vec::new();
        let read = kept.read(memory, placed, &mut missing);
        *overlay(self) = Some(kept);
        read.map_err(Error::kernel("read the memory", self.pid))?;
        self.miss(missing);
        Ok((copied, others))
    }

    fn copy_to_file(&mut self, memory: &Memory, ranges: &[Range<u64>]) -> Result<u64> {
        let mut copied = 0;
        let mut batch: Vec<Range<u64>> = Vec::new();
        let mut filled = 0;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let part = at..range.end.min(at + BUFFER - filled);
                at = part.end;
                filled += part.end - part.start;
                batch.push(part);
                if filled == BUFFER || batch.len() == PIECES {
                    copied += self.copy_batch(memory, &batch, filled)?;
                    batch.clear();
                    filled = 0;
                }
            }
        }
        Ok(copied + self.copy_batch(memory, &batch, filled)?)
    }

    fn copy_batch(&mut self, memory: &Memory, batch: &[Range<u64>], bytes: u64) -> Result<u64> {
        if batch.is_empty() {
            return Ok(0);
        }
        self.buffer.resize(BUFFER as usize, 0);
        let buffer = &mut self.buffer[..bytes as usize];
        let mut missing = Vec::new();
        let mut pieces = Vec::with_capacity(batch.len());
        let mut rest = &mut *buffer;
        for range in batch {
            let (own, behind) = rest.split_at_mut((range.end - range.start) as usize);
            pieces.push(own);
            rest = behind;
        }
        memory.read(batch, &mut pieces, &mut |address| missing.push(address));
        let written = self.slots.write(batch, buffer);
        written.map_err(Error::copy("write", self.pid))?;
        self.miss(missing);
        Ok(bytes)
    }
}

/// Bytes of the process's own in a mapping.
fn content(pagemap: &mut Pagemap, mapping: &Mapping) -> io::Result<u64> {
    let pages = pagemap.private(&mapping.range, mapping.kind)?;
    Ok(pages.iter().map(|it| it.range.end - it.range.start).sum())
}

/// Whether all of `part` is in `range`.
fn contains(range: &Range<u64>, part: &Range<u64>) -> bool {
    range.start <= part.start && part.end <= range.end
}

/// The parts of `range` that are in `set`.
fn within(set: &RangeSet<u64>, range: &Range<u64>) -> Vec<Range<u64>> {
    let part = |it: &Range<u64>| it.start.max(range.start)..it.end.min(range.end);
    set.overlapping(range).map(part).collect()
}
