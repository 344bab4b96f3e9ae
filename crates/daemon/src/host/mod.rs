//! Host memory of a session, copied while the program runs (decision 030).
//!
//! ```text
//!  begin ─► ahead ─────────► pass ────► [stop] follow, last ─► [run] settle
//!    │        passes, until    while CRIU   pages written         copy and CRIU's pages
//!    │        little is left   starts       since                 become one image
//!    └─ helper: a userfaultfd of each process (`fermata-hostmem`)
//! ```
//! The last pass of a process is made as soon as CRIU has dumped it (`follow`), while CRIU dumps the next ones, and after the last while it dumps what
//! is of no process; `last` makes those that are left.
//! The last pass also copies mappings that are not tracked, where there is little in them, or much that is new and has room. It copies
//! into memory that was made ready before, which goes to the file when the program runs on.
//! What a process has in common with the tracked process that has forked it is taken from that one's copy.
//! Processes that come while the checkpoint makes ready are tracked as well, if they have much memory. A
//! process that cannot be tracked, and one that came later, is dumped by CRIU inside the stop, but for pages that it still has in
//! common with the tracked process that has forked it: those are in that one's copy. If the copy fails, so does the dump that was
//! to leave its pages out, and the dump is taken again without it.

mod chunks;
mod exact;
pub mod for_criu;
mod helper;
pub mod kept;
mod late;
pub mod pages;
pub mod stored;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fermata_control::worker::FailureKind;
use fermata_hostmem::{Exact, Extent, Known, Passed, Room, SETTLED, Tracker};
use fermata_store::HostMemory;
use parking_lot::Mutex;

pub(crate) use self::exact::HostPages;
use self::exact::{CopyOfProcess, Heir};
pub(crate) use self::helper::helper;
use crate::criu::mappings::{LeftOut, Tree};
use crate::failure::{Failure, OrFail, Result, fail};
use crate::images::space;
use crate::parallel::cores;
use crate::proc::{self, ProcessId};

/// Less memory than this is not worth it: CRIU dumps it in less than 30 ms.
const LEAST: u64 = 16 << 20;
/// What may be left for the stop.
const LITTLE: u64 = 2 << 20;
/// The most passes before the stop.
const MOST_PASSES: u32 = 24;
/// A pass that finds more than this share of the least that one before has found, in tenths, gets no closer to the end.
const SHRINKS: u64 = 9;
/// So many of those that copy into memory, one after the other, and further ones would get no closer either.
const MOST_IN_VAIN: u32 = 3;
/// More memory than this in mappings, or a process, that has just been made is waited for before the stop, so many times; and room is
/// made for what comes: CRIU would dump it in the stop, at about 2 GB/s.
const YOUNG: u64 = 32 << 20;
const MOST_WAITS: u32 = 3;
/// What a program writes from the last pass before the stop until it stands still is expected to be what it writes in this time, and no
/// more than so many bytes of a process.
const UNTIL_STILL: Duration = Duration::from_millis(125);
const MOST_WRITTEN: u64 = 256 << 20;
/// A program's writes are kept in memory if that takes no more than this part of what is available.
const SHARE: u64 = 4;
/// The most threads that read memory at once.
const MOST_THREADS: usize = 8;

/// The copy of a session's host memory.
pub(crate) struct HostCopy {
    processes: Vec<Tracked>,
    /// Those that cannot be tracked.
    refused: Vec<ProcessId>,
    /// Bytes that all processes together had written when it began.
    first: u64,
    /// Processes that came later, once the program has been stopped.
    heirs: OnceLock<Vec<Heir>>,
    /// Whether the program writes faster than it is copied into a file.
    in_memory: bool,
    /// Whether the program writes faster than it is copied.
    hopeless: bool,
    /// Whether the last step has failed.
    failed: AtomicBool,
}

struct Tracked {
    process: ProcessId,
    /// Its number in CRIU's files.
    inner: u32,
    /// The process before it in [`HostCopy::processes`] in whose copy is what both have in common.
    from: Option<ProcessId>,
    /// Under a lock, because two threads make last passes.
    copy: Mutex<ProcessCopy>,
}

/// The copy of one process's memory.
struct ProcessCopy {
    tracker: Tracker,
    /// What the last pass has found, when it began, and bytes that are expected to be written until the program stands still.
    passed: Passed,
    passed_at: Option<Instant>,
    expected: u64,
    /// The most that a pass has found in mappings that had just been made.
    most_young: u64,
    /// The exact copy, once the program has been stopped.
    exact: Option<Exact>,
    /// Whether its last pass has begun and not come to its end, and why not, if that is known.
    begun: bool,
    why: Option<Failure>,
}

impl ProcessCopy {
    /// A pass that began then has found this.
    fn note(&mut self, passed: Passed, begun: Instant) {
        // The first one copies what there is.
        self.expected = self.passed_at.replace(begun).map_or(0, |it| {
            let times = UNTIL_STILL.div_duration_f64(begun - it);
            (passed.bytes as f64 * times) as u64
        });
        self.passed = passed;
        self.most_young = self.most_young.max(passed.young);
    }

    /// Room for mappings that have just been made: for as much as there has been in such, and half as much again.
    fn young(&self) -> u64 {
        match self.most_young > YOUNG {
            true => self.most_young + self.most_young / 2,
            false => 0,
        }
    }

    /// Room for the rest of what the last pass copies: for what is in mappings that are not tracked, and what is expected to be written.
    fn others(&self) -> u64 {
        self.passed.little + self.expected.clamp(LITTLE, MOST_WRITTEN)
    }
}

impl Tracked {
    /// Makes its copy exact, unless it is. CRIU has dumped it, and this is what it has left out of it. `all` are the processes that are tracked.
    fn finish(&self, left_out: Option<&LeftOut>, all: &[Self]) -> Result<()> {
        let mut copy = self.copy.lock();
        if copy.exact.is_some() {
            return Ok(());
        }
        let failed = || format!("cannot copy the memory of process {}", self.process.pid);
        // One that has failed, or panicked, leaves a copy that may lack pages.
        if std::mem::replace(&mut copy.begun, true) {
            let why = copy.why.take();
            return Err(why.unwrap_or_else(|| fail(FailureKind::Internal, failed())));
        }
        let pages = left_out.map_or(&[][..], |it| &it.pages);
        // CRIU takes parents first. A process waits for one before it in `all`.
        let parent = self.from.and_then(|from| find(all, from));
        let parent = parent.map(|it| it.copy.lock());
        let parent = parent.as_ref();
        let parent = parent.and_then(|it| Some((&it.tracker, &it.exact.as_ref()?.own[..])));
        let exact = copy.tracker.last_after(pages, parent);
        copy.exact = exact.or_fail(FailureKind::Internal, failed)?;
        copy.begun = false;
        Ok(())
    }
}

fn find(all: &[Tracked], process: ProcessId) -> Option<&Tracked> {
    all.iter().find(|it| it.process == process)
}

impl HostCopy {
    /// Begins to track the processes of the tree below `root`; the copy is kept, without a name, in `folder`, where an image
    /// is going to take `needed` bytes. None where nothing can be tracked, or it is not worth it; `note` gets the reasons.
    pub fn begin(
        executable: &Path,
        root: u32,
        folder: &Path,
        needed: u64,
        note: &dyn Fn(String),
    ) -> Option<Self> {
        let bytes = space::resident_bytes(root);
        if bytes < LEAST {
            return None;
        }
        // The copy, beside the image that it becomes part of.
        let needed = needed.saturating_add(bytes + LEAST);
        if space::free_bytes(folder).is_some_and(|free| free < needed) {
            note("host memory is not copied ahead: too little space is free".into());
            return None;
        }
        let mut copy = Self::of(Vec::new());
        copy.first = space::written_bytes(root);
        copy.track(executable, &proc::tree(root), folder, note);
        (!copy.processes.is_empty()).then_some(copy)
    }

    /// Tracks these processes too; those of them that cannot be are refused from then on.
    fn track(&mut self, executable: &Path, pids: &[u32], folder: &Path, note: &dyn Fn(String)) {
        let refused = pids.iter().copied().filter_map(ProcessId::of);
        self.refused.extend(refused);
        let uffds = match helper::acquire(executable, pids) {
            Ok(uffds) => uffds,
            Err(error) => return note(format!("host memory is not copied ahead: {error}")),
        };
        for (pid, uffd) in pids.iter().copied().zip(uffds) {
            let tracked = uffd
                .map_err(|why| format!("memory of process {pid} is not copied ahead: {why}"))
                .and_then(|uffd| {
                    let from = self.source_of(pid);
                    track(pid, from, uffd, folder)
                        .map_err(|e| format!("memory of process {pid} is not copied ahead: {e}"))
                });
            match tracked {
                Ok(tracked) => self.add(tracked),
                // One that has ended by now is not worth a word.
                Err(_) if ProcessId::of(pid).is_none_or(|it| it.is_ending()) => {}
                Err(why) => note(why),
            }
        }
        let tracked: HashSet<_> = self.processes.iter().map(|it| it.process).collect();
        self.refused.retain(|it| !tracked.contains(it));
    }

    fn add(&mut self, tracked: Option<Tracked>) {
        let from = tracked.as_ref().and_then(|it| it.from);
        let mut all = self.processes.iter_mut();
        if let Some(parent) = all.find(|it| Some(it.process) == from) {
            parent.copy.get_mut().tracker.is_parent();
        }
        self.processes.extend(tracked);
    }

    /// The tracked process that has forked process `pid`, or the first one of those that have forked each other down to it.
    fn source_of(&self, pid: u32) -> Option<ProcessId> {
        let mut ancestors = proc::ancestors(pid).into_iter().skip(1);
        let tracked = |pid: u32| self.processes.iter().find(|it| it.process.pid == pid);
        let nearest = ancestors.find_map(tracked)?;
        let is_forked = nearest.process.alive() && proc::are_forked(nearest.process.pid, pid);
        is_forked.then(|| nearest.from.unwrap_or(nearest.process))
    }

    fn of(processes: Vec<Tracked>) -> Self {
        Self {
            processes,
            refused: Vec::new(),
            first: 0,
            heirs: OnceLock::new(),
            in_memory: false,
            hopeless: false,
            failed: AtomicBool::new(false),
        }
    }

    /// Waits until mappings are known to stay, and copies them while the program runs, as [`Self::converge`].
    pub fn ahead(&mut self, report: &mut dyn FnMut(u64)) -> u64 {
        // The time itself is what makes them settled.
        std::thread::sleep(SETTLED);
        self.converge(report)
    }

    /// Copies what was written, until little is left to copy or passes find no less; the bytes copied. When they find no less,
    /// further passes copy into memory, which is faster. Once those find no less either, they would not later: then nothing is
    /// done.
    pub fn converge(&mut self, report: &mut dyn FnMut(u64)) -> u64 {
        let (mut copied, mut least, mut in_vain) = (0, u64::MAX, 0);
        if self.hopeless {
            return copied;
        }
        for _ in 0..MOST_PASSES {
            let bytes = self.pass();
            copied += bytes;
            report(copied);
            if bytes <= LITTLE {
                break;
            }
            if bytes / SHRINKS <= least / 10 {
                (least, in_vain) = (bytes, 0);
                continue;
            }
            in_vain += 1;
            if self.keep_in_memory() {
                (least, in_vain) = (u64::MAX, 0);
            } else if in_vain == MOST_IN_VAIN {
                self.hopeless = true;
                break;
            }
        }
        copied
    }

    /// As [`Self::converge`], and again once mappings with much in them, which the program has just made, have settled; unless it
    /// goes on to make as many, for which there is room then.
    pub fn converge_and_settle(&mut self) {
        self.wait_for_young();
        self.make_room();
    }

    fn wait_for_young(&mut self) {
        self.converge(&mut |_| {});
        for _ in 0..MOST_WAITS {
            let young = self.young();
            if self.hopeless || young <= YOUNG {
                return;
            }
            self.ahead(&mut |_| {});
            if self.young() > young / 2 {
                return;
            }
        }
    }

    fn young(&mut self) -> u64 {
        let copies = self.processes.iter_mut().map(|it| it.copy.get_mut());
        copies.map(|it| it.passed.young).sum()
    }

    /// Makes room for what the last pass will have to copy, as far as that can be foreseen.
    fn make_room(&mut self) {
        // The program stands still by then, and so do its threads.
        let threads = cores().clamp(1, MOST_THREADS);
        let wanted = |it: &ProcessCopy| it.young() + it.others();
        self.share_out(wanted, |it, bytes| {
            let others = it.others().min(bytes);
            let young = bytes - others;
            it.tracker.make_room(Room { young, others }, threads);
        });
    }

    /// Has what the program writes all the time kept in memory until it runs on; whether that is new.
    fn keep_in_memory(&mut self) -> bool {
        if self.in_memory {
            return false;
        }
        self.in_memory = true;
        let threads = threads();
        // It may have written other pages by then.
        let wanted = |it: &ProcessCopy| match it.passed.bytes > LITTLE {
            true => it.passed.bytes + it.passed.bytes / 4,
            false => 0,
        };
        self.share_out(wanted, |it, bytes| {
            it.tracker.keep_in_memory(bytes, threads)
        });
        true
    }

    /// Gives each process the memory that it wants, as long as all of them together have no more than their part of what is
    /// available.
    fn share_out(
        &mut self,
        wanted: impl Fn(&ProcessCopy) -> u64,
        give: impl Fn(&mut ProcessCopy, u64),
    ) {
        let mut free = HostMemory::now().map_or(0, |it| it.available) / SHARE;
        for it in &mut self.processes {
            let it = it.copy.get_mut();
            let bytes = wanted(it).min(free);
            free -= bytes;
            give(it, bytes);
        }
    }

    /// Copies what was written since the last pass; the bytes copied.
    pub fn pass(&mut self) -> u64 {
        let (mut copied, mut lost) = (0, HashSet::new());
        for at in 0..self.processes.len() {
            let (before, others) = self.processes.split_at_mut(at);
            let Tracked {
                process,
                from,
                copy,
                ..
            } = &mut others[0];
            let from = from.filter(|it| !lost.contains(it));
            let mut before = before.iter_mut();
            let parent = before.find(|it| Some(it.process) == from);
            let parent = parent.map(|it| &it.copy.get_mut().tracker);
            let copy = copy.get_mut();
            let begun = Instant::now();
            match copy.tracker.pass_after(parent) {
                Ok(passed) => {
                    copied += passed.bytes;
                    copy.note(passed, begun);
                }
                // It has ended, or there is no space: CRIU says more.
                Err(_) => {
                    lost.insert(*process);
                }
            }
        }
        self.processes.retain(|it| !lost.contains(&it.process));
        copied
    }

    /// What is known of the processes that are tracked.
    pub fn known(&self) -> Vec<Known> {
        let alive = self.processes.iter().filter(|it| it.process.alive());
        alive.map(|it| it.copy.lock().tracker.known()).collect()
    }

    /// Makes the copy of each process exact once CRIU has dumped it, until it has dumped all of `tree`: less is left for
    /// [`Self::last`], which may be called meanwhile, and fails if this has.
    pub fn follow(&self, tree: &Tree) {
        let dumped = (0..).map_while(|nth| tree.dumped(nth));
        for (process, left_out) in dumped {
            let tracked = self.processes.iter().find(|it| it.process == process);
            if let Some(tracked) = tracked
                && let Err(failure) = tracked.finish(left_out.as_deref(), &self.processes)
            {
                tracked.copy.lock().why = Some(failure);
                return;
            }
        }
    }

    /// Makes the copy exact. Every process of the tree below `root` stands still, and CRIU has dumped them to `dir`; `tree` says
    /// what it has left out. A process whose copy is exact is passed over.
    ///
    /// # Errors
    /// The copy is of no use; [`Self::has_failed`] from then on.
    pub fn last(&self, root: u32, dir: &Path, tree: &Tree) -> Result<()> {
        let left_out = tree.left_out();
        let (heirs, own): (Vec<_>, Vec<_>) = left_out.iter().partition(|it| it.from.is_some());
        let last = match tree.returned() {
            false => self.try_last(root, dir, &own),
            // It has not been seen to; what it did there may not be in the copy.
            true => {
                let message = "CRIU has dumped a process twice".to_owned();
                Err(fail(FailureKind::Internal, message))
            }
        };
        let last = last.and_then(|()| {
            let heirs = heirs.into_iter().map(|it| self.heir(it));
            // Asked once for each dump.
            let _ = self.heirs.set(heirs.collect::<Result<_>>()?);
            Ok(())
        });
        self.failed.store(last.is_err(), Ordering::Relaxed);
        last
    }

    fn try_last(&self, root: u32, dir: &Path, left_out: &[&Arc<LeftOut>]) -> Result<()> {
        let tree = proc::still_tree(root);
        let known: HashSet<ProcessId> = self.processes.iter().map(|it| it.process).collect();
        let is_known = |pid: u32| ProcessId::of(pid).is_some_and(|it| known.contains(&it));
        for pid in tree.iter().filter(|it| !is_known(**it)) {
            // CRIU has left out what it shares with a process that is tracked.
            let tracked = fermata_hostmem::is_tracked(*pid);
            let tracked = tracked.or_fail(FailureKind::Internal, || {
                format!("cannot examine the memory of process {pid}")
            })?;
            if tracked {
                let message = format!("memory of process {pid} is tracked by another");
                return Err(fail(FailureKind::Internal, message));
            }
        }
        let is_still = |it: ProcessId| tree.contains(&it.pid) && ProcessId::of(it.pid) == Some(it);
        // From the end: the thread that follows CRIU has begun with the first.
        let still = self.processes.iter().rev();
        let still = Mutex::new(still.filter(|it| is_still(it.process)));
        let failed = AtomicBool::new(false);
        let next = || match failed.load(Ordering::Relaxed) {
            true => None,
            false => still.lock().next(),
        };
        let copy = || {
            while let Some(tracked) = next() {
                let finish = |it: &Tracked| {
                    let own = left_out.iter().find(|own| own.process == it.process);
                    it.finish(own.map(|it| &***it), &self.processes)
                };
                let parent = tracked.from.and_then(|it| find(&self.processes, it));
                let parent = parent.filter(|it| is_still(it.process));
                let finished = parent.map_or(Ok(()), finish).and_then(|()| finish(tracked));
                // The others are of no use then, either.
                failed.fetch_or(finished.is_err(), Ordering::Relaxed);
                finished?;
            }
            Ok(())
        };
        let ends = fermata_hostmem::side_by_side(threads().min(tree.len()), copy);
        let ends = ends.or_fail(FailureKind::Internal, || "cannot copy host memory".into())?;
        ends.into_iter().collect::<Result<()>>()?;
        let copied = self
            .processes
            .iter()
            .filter(|it| it.copy.lock().exact.is_some());
        let copied: HashSet<ProcessId> = copied.map(|it| it.process).collect();
        // CRIU leaves out what is tracked of each. One that it has dumped may have been killed since.
        let dumped = |it: &&Tracked| dir.join(format!("mm-{}.img", it.inner)).exists();
        let dumped = self.processes.iter().filter(dumped).map(|it| it.process);
        let mut needed = left_out.iter().map(|it| it.process).chain(dumped);
        match needed.find(|it| !copied.contains(it)) {
            None => Ok(()),
            Some(lost) => Err(in_no_copy(lost.pid)),
        }
    }

    /// What the image gets of what CRIU has left out of a process, from the exact copy of another.
    fn heir(&self, left_out: &LeftOut) -> Result<Heir> {
        let LeftOut {
            process,
            inner,
            from,
            pages,
        } = left_out;
        let pid = process.pid;
        let of = from
            .and_then(ProcessId::of)
            .ok_or_else(|| in_no_copy(pid))?;
        let from = self.processes.iter().position(|it| it.process == of);
        let from = from.ok_or_else(|| in_no_copy(pid))?;
        let copy = self.processes[from].copy.lock();
        let exact = copy.exact.as_ref().ok_or_else(|| in_no_copy(pid))?;
        let found = fermata_hostmem::select([&exact.own, &exact.parents], pages);
        let [own, parents] = found.map_err(|address| {
            let message = format!("the copy lacks the memory of process {pid} at {address:#x}");
            fail(FailureKind::Internal, message)
        })?;
        Ok(Heir {
            inner: *inner,
            from,
            exact: Exact { own, parents },
        })
    }

    /// Bytes of processes that came later, which are in the copy of another.
    pub fn inherited_bytes(&self) -> u64 {
        let heirs = self.heirs.get().into_iter().flatten();
        let extents = heirs.map(|it| bytes_of(&it.exact.own) + bytes_of(&it.exact.parents));
        extents.sum()
    }

    /// Bytes of processes that are in the copy of the one that has forked them.
    pub fn common_bytes(&self) -> u64 {
        let bytes = |it: &Tracked| {
            let copy = it.copy.lock();
            copy.exact.as_ref().map_or(0, |it| bytes_of(&it.parents))
        };
        self.processes.iter().map(bytes).sum()
    }

    /// Whether it was the copy that has failed, not CRIU.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Ends the tracking, and writes what was kept in memory; the program may run.
    pub fn release(self) -> HostPages {
        let all: Vec<_> = self.processes.iter().map(|it| it.process).collect();
        let released = |it: Tracked| {
            let copy = it.copy.into_inner();
            let exact = copy.exact.unwrap_or_default();
            let from = all.iter().position(|process| Some(*process) == it.from);
            CopyOfProcess {
                inner: it.inner,
                copied: copy.tracker.release(exact.own),
                parents: from.map(|from| (from, exact.parents)),
            }
        };
        HostPages {
            copies: self.processes.into_iter().map(released).collect(),
            heirs: self.heirs.into_inner().unwrap_or_default(),
        }
    }
}

fn bytes_of(extents: &[Extent]) -> u64 {
    let bytes = extents.iter().map(|it| it.range.end - it.range.start);
    bytes.sum()
}

fn in_no_copy(pid: u32) -> Failure {
    let message = format!("what CRIU has left out of process {pid} is in no copy");
    fail(FailureKind::Internal, message)
}

/// How many threads read memory at once.
fn threads() -> usize {
    (cores() / 2).clamp(1, MOST_THREADS)
}

fn track(
    pid: u32,
    from: Option<ProcessId>,
    uffd: OwnedFd,
    folder: &Path,
) -> io::Result<Option<Tracked>> {
    let (Some(process), Some(inner)) = (ProcessId::of(pid), proc::inner_pid(pid)) else {
        return Ok(None);
    };
    let tracker = Tracker::new(pid, uffd, nameless(folder)?).map_err(io::Error::other)?;
    let copy = ProcessCopy {
        tracker,
        passed: Passed::default(),
        passed_at: None,
        expected: 0,
        most_young: 0,
        exact: None,
        begun: false,
        why: None,
    };
    Ok(Some(Tracked {
        process,
        inner,
        from,
        copy: Mutex::new(copy),
    }))
}

/// A file in `folder` that goes with its descriptor.
fn nameless(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    let named = || {
        let path = folder.join(".copy");
        let file = options.clone().create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    };
    // Not every file system has files without names.
    options
        .clone()
        .custom_flags(flags)
        .open(folder)
        .or_else(|_| named())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::Signal;

    use super::*;

    /// A process that runs, and the copy of its memory in `folder`.
    pub(super) fn tracked(pid: u32, folder: &Path) -> Tracked {
        let uffd = fermata_hostmem::acquire(pid).expect("a userfaultfd");
        let tracked = track(pid, None, uffd, folder).expect("tracked");
        tracked.expect("it runs")
    }

    /// A copy of a process that is killed while it stands still, and has ended when the shell that has started it has run `then`.
    fn killed_before_the_last_pass(then: &str) {
        let dir = tempfile::tempdir().expect("a folder");
        let mut shell = Command::new("sh")
            .args([
                "-c",
                &format!("sleep 30 & echo $!; read x; {then}; echo ended; read x"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(shell.stdout.take().expect("piped")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let pid = line().parse().expect("a number");
        let tracked = tracked(pid, dir.path());
        let (process, inner) = (tracked.process, tracked.inner);
        let mut copy = HostCopy::of(vec![tracked]);
        let tree = Tree::new(shell.id());
        copy.pass();
        process.signal(Signal::KILL);
        let mut input = shell.stdin.take().expect("piped");
        input.write_all(b"x\n").expect("written");
        assert_eq!(line(), "ended");
        assert!(process.ends_within(Duration::from_secs(60)));
        copy.last(shell.id(), dir.path(), &tree)
            .expect("CRIU has not dumped it either");
        fs::write(dir.path().join(format!("mm-{inner}.img")), "").expect("written");
        let lost = copy.last(shell.id(), dir.path(), &tree);
        lost.expect_err("its memory is in no copy");
        assert!(copy.has_failed());
        drop(input);
        shell.wait().expect("it ends");
    }

    /// A process that stands still, its copy in a folder, and the tree of which it is all.
    fn stopped() -> (tempfile::TempDir, Child, HostCopy, Tree) {
        let dir = tempfile::tempdir().expect("a folder");
        let child = Command::new("sleep").arg("30").spawn().expect("started");
        let tracked = tracked(child.id(), dir.path());
        tracked.process.signal(Signal::STOP);
        let mut copy = HostCopy::of(vec![tracked]);
        copy.pass();
        let tree = Tree::new(child.id());
        (dir, child, copy, tree)
    }

    pub(super) fn end(mut child: Child) {
        child.kill().expect("killed");
        child.wait().expect("it ends");
    }

    #[test]
    fn what_criu_has_dumped_is_copied_while_it_dumps_the_next() {
        let (dir, child, copy, tree) = stopped();
        let until = Instant::now() + Duration::from_secs(60);
        let is_exact = || copy.processes[0].copy.lock().exact.is_some();
        std::thread::scope(|scope| {
            let _ends = tree.ends();
            scope.spawn(|| copy.follow(&tree));
            tree.asks(copy.processes[0].process, None);
            assert!(!is_exact(), "CRIU dumps it now");
            tree.asks(ProcessId::ENDED, None);
            while !is_exact() {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
        });
        copy.last(child.id(), dir.path(), &tree).expect("exact");
        // It would not be known what CRIU has done there meanwhile.
        tree.asks(copy.processes[0].process, None);
        let twice = copy.last(child.id(), dir.path(), &tree);
        twice.expect_err("CRIU has come back to it");
        assert!(copy.has_failed());
        end(child);
    }

    #[test]
    fn a_pass_that_fails_while_criu_dumps_fails_the_copy() {
        let (dir, child, copy, tree) = stopped();
        let Tracked { process, inner, .. } = copy.processes[0];
        let left_out = LeftOut {
            process,
            inner,
            from: None,
            pages: std::iter::once(0x1000..0x2000).collect(),
        };
        tree.asks(process, Some(&Arc::new(left_out)));
        tree.asks(ProcessId::ENDED, None);
        // It returns although nobody says that CRIU is done.
        copy.follow(&tree);
        tree.end();
        let failure = copy.last(child.id(), dir.path(), &tree);
        let failure = failure.expect_err("nobody knows what the copy has");
        assert!(failure.message.contains("0x1000"), "{}", failure.message);
        assert!(copy.has_failed());
        end(child);
    }

    #[test]
    fn a_process_that_was_killed_behind_criu_fails_the_copy() {
        killed_before_the_last_pass("wait");
    }

    #[test]
    fn one_that_was_not_waited_for_fails_it_too() {
        killed_before_the_last_pass(":");
    }
}
