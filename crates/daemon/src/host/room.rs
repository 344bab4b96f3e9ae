//! How much memory is made ready for what the last pass will copy, and for what a program writes faster than it is copied into a file.

use std::time::{Duration, Instant};

use fermata_hostmem::{Passed, Room};
use fermata_store::HostMemory;

use super::tracked::ProcessCopy;
use super::{HostCopy, LITTLE, MOST_THREADS, YOUNG, threads};
use crate::parallel::cores;
use crate::proc::ProcessId;

/// What a program writes from the last pass before the stop until it stands still is expected to be what it writes in this time, and no
/// more than so many bytes of a process.
const UNTIL_STILL: Duration = Duration::from_millis(125);
const MOST_WRITTEN: u64 = 256 << 20;
/// A program's writes are kept in memory if that takes no more than this part of what is available.
const SHARE: u64 = 4;

impl ProcessCopy {
    /// A pass that began then has found this.
    pub(super) fn note(&mut self, passed: Passed, begun: Instant) {
        // The first one copies what there is.
        self.expected = self.passed_at.replace(begun).map_or(0, |it| {
            let times = UNTIL_STILL.div_duration_f64(begun - it);
            (passed.bytes as f64 * times) as u64
        });
        self.passed = passed;
        self.most_young = self.most_young.max(passed.young);
    }

    /// Room for mappings that have just been made: for as much as there has been in such, and half as much again; and for the one
    /// that is made in the stop, of what is staged then.
    fn young(&self) -> u64 {
        let made = match self.most_young > YOUNG {
            true => self.most_young + self.most_young / 2,
            false => 0,
        };
        made + self.staged
    }

    /// Room for the rest of what the last pass copies: for what is in mappings that are not tracked, and what is expected to be written.
    fn others(&self) -> u64 {
        self.passed.little + self.expected.clamp(LITTLE, MOST_WRITTEN)
    }
}

impl HostCopy {
    /// Notes what may be staged for a device when each process is stopped.
    pub fn note_staged(&mut self, bytes: impl Fn(ProcessId) -> u64) {
        for it in &mut self.processes {
            it.copy.get_mut().staged = bytes(it.process);
        }
    }

    /// Makes room for what the last pass will have to copy, as far as that can be foreseen.
    pub(super) fn make_room(&mut self) {
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
    pub(super) fn keep_in_memory(&mut self) -> bool {
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
}
