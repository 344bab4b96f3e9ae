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
//!
//! | file | of a copy |
//! | --- | --- |
//! | this | passes while the program runs |
//! | `late` | processes that come while the checkpoint makes ready |
//! | `room` | memory that is made ready for the stop |
//! | `last` | the last passes, in the stop |
//! | `tracked`, `exact` | one process; what its copy has at the end |
//! | `chunks`, `stored` | what becomes of it in the store |
//! | `for_criu`, `pages`, `kept` | what a restore gives CRIU and the program |

mod chunks;
mod exact;
pub mod for_criu;
mod helper;
pub mod kept;
mod last;
mod late;
pub mod pages;
mod room;
pub mod stored;
mod tracked;

use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fermata_hostmem::{Extent, Known, SETTLED};

pub(crate) use self::exact::HostPages;
use self::exact::{CopyOfProcess, Heir};
pub(crate) use self::helper::helper;
use self::tracked::Tracked;
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
                    Tracked::begin(pid, from, uffd, folder)
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

/// How many threads read memory at once.
fn threads() -> usize {
    (cores() / 2).clamp(1, MOST_THREADS)
}
