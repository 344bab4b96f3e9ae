//! Blocks that are claimed from other workers: each is mapped here when another worker has it, or else loaded here.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::{Schedule, Stage, State};
use crate::restore::common::foreign::Foreign;

impl State {
    /// Takes a block over to be loaded here; true if it was elsewhere.
    fn take_over(&mut self, block: usize) -> bool {
        let slot = self.slot(block);
        if slot.stage != Stage::Elsewhere {
            return false;
        }
        slot.stage = Stage::Absent;
        let (pieces, urgent) = (slot.pieces, slot.urgent);
        self.pieces_left += pieces;
        self.elsewhere -= 1;
        match urgent {
            true => {
                self.urgent.push_back(block);
                self.make_first.push_back(block);
            }
            false => {
                self.order.push_back(block);
                self.make.push_back(block);
            }
        }
        true
    }

    /// Takes all blocks over that are elsewhere and have not come; false if there are none.
    pub(super) fn take_over_all(&mut self) -> bool {
        let mut any = false;
        for block in 0..self.slots.len() {
            let comes = self.foreign.iter().any(|it| it.0 == block);
            any |= !comes && self.take_over(block);
        }
        any
    }
}

impl Schedule {
    /// Marks blocks as elsewhere, none of which has begun to come. Each then ends with [`Self::fetched`], or with
    /// [`Self::take_over`] if it is loaded here.
    pub fn ask_elsewhere(&self, blocks: &[usize]) {
        let mut state = self.state.lock();
        for block in blocks {
            let slot = state.slot(*block);
            slot.stage = Stage::Elsewhere;
            let pieces = slot.pieces;
            state.pieces_left -= pieces;
            state.elsewhere += 1;
        }
    }

    /// Takes the memory of a block that another worker has. False if the block is loaded here already.
    pub fn fetched(&self, block: usize, memory: OwnedFd) -> bool {
        let mut state = self.state.lock();
        let waits = state.slots[block].stage == Stage::Elsewhere;
        if waits {
            state.foreign.push_back((block, Foreign(memory)));
        }
        drop(state);
        self.changed.notify_all();
        waits
    }

    /// Loads a block here that was elsewhere. False if it is loaded here already.
    pub fn take_over(&self, block: usize) -> bool {
        let taken = self.state.lock().take_over(block);
        self.changed.notify_all();
        taken
    }

    /// Loads all blocks here that are elsewhere.
    pub fn take_over_all(&self) {
        self.state.lock().take_over_all();
        self.changed.notify_all();
    }

    /// Whether every block is settled, and the address space has been told.
    pub fn is_adopted(&self) -> bool {
        let state = self.state.lock();
        state.settled == state.slots.len() && state.arrived.is_empty()
    }

    /// Counts `bytes` that have come from another worker.
    pub fn count(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use fermata_device::PhysicalHandle;

    use super::*;
    use crate::restore::loading::limits::Limits;
    use crate::restore::loading::schedule::{Arrived, MakerStep, MapperStep, UploaderStep};

    fn schedule(pieces: &[usize]) -> Schedule {
        let order: Vec<usize> = (0..pieces.len()).collect();
        Schedule::new(pieces, &order, Limits::of(true, false))
    }

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").expect("a file").into()
    }

    #[test]
    fn a_block_that_another_worker_has_is_neither_made_nor_read() {
        let schedule = schedule(&[1]);
        schedule.ask_elsewhere(&[0]);
        schedule.want(&[0]);
        assert!(!schedule.drop_block(0), "its memory may be on its way");
        assert!(matches!(schedule.next(false), UploaderStep::Idle));
        assert!(schedule.fetched(0, descriptor()));
        let step = schedule.to_map();
        assert!(matches!(step, MapperStep::Fetch(0, _)), "{step:?}");
        assert!(!schedule.have(&[0]) && !schedule.all_made());
        schedule.present(Arrived {
            block: 0,
            memory: PhysicalHandle::default(),
            common: true,
        });
        assert!(schedule.have_all() && schedule.all_made() && !schedule.is_adopted());
        assert_eq!(schedule.to_map(), MapperStep::End);
        assert!(schedule.take().is_none());
        assert!(matches!(schedule.next(true), UploaderStep::End));
        assert_eq!(schedule.arrivals().len(), 1);
        assert!(schedule.is_adopted());
    }

    #[test]
    fn what_no_other_worker_brings_is_loaded_here_and_what_is_waited_for_first() {
        let schedule = schedule(&[1, 1, 1]);
        schedule.ask_elsewhere(&[0, 1, 2]);
        schedule.want(&[2]);
        assert!(schedule.take_over(1) && !schedule.take_over(1));
        assert_eq!(schedule.to_make(), MakerStep::Make(1));
        assert!(schedule.fetched(0, descriptor()));
        schedule.take_over_all();
        let step = schedule.to_map();
        assert!(matches!(step, MapperStep::Fetch(0, _)), "{step:?}");
        assert_eq!(schedule.to_make(), MakerStep::Make(2));
        let runs = [schedule.take(), schedule.take()];
        let blocks = runs.map(|it| it.map(|run| (run.block, run.urgent)));
        assert_eq!(blocks, [Some((2, true)), Some((1, false))]);
        assert!(!schedule.fetched(1, descriptor()), "it is loaded here");
    }
}
