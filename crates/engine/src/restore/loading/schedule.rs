//! The schedule of a restore: which blocks are absent, coming or present, and which come next.
//!
//! ```text
//!            memory made       pieces read, copied         mapped at its address
//!  Absent ──────────────► Made ────────────────────► Full ───────────────────────► Present
//!    ▲ └────── freed by the program ────┴──► Dropped                                  ▲
//!  Elsewhere: another worker has or loads it ──── its memory comes ───────────────────┘
//!
//!  readers: take() ─► ready()      uploader: next() ─► copied()      mapper: job() ─► made(), present()
//! ```
//! Blocks that an operation waits for come first, then the others in the order given. Only a limited number of pieces
//! that no operation waits for are under way at once, so that an awaited one overtakes most of them. Blocks that are
//! claimed from other workers are in `elsewhere`.

mod elsewhere;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata_device::{HostEnd, PhysicalHandle};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::EngineError;
use crate::pipeline::STEP_LIMIT;
use crate::restore::common::foreign::Foreign;
use crate::restore::loading::limits::Limits;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Claimed from other workers, without an outcome yet.
    Elsewhere,
    Absent,
    Making,
    Made,
    Present,
    Dropped,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    pieces: usize,
    handed: usize,
    left: usize,
    urgent: bool,
}

/// Adjacent stored pieces of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::restore) struct Run {
    pub block: usize,
    /// The first piece.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Whether an operation waits for them.
    pub urgent: bool,
}

/// Pieces that can be copied at once, and their bytes.
pub(in crate::restore) struct Ready {
    pub run: Run,
    pub end: HostEnd,
}

/// What the uploader does next.
pub(in crate::restore) enum UploaderStep {
    /// Copy this.
    Item(Ready),
    /// Look after the copies under way.
    Idle,
    /// No more pieces will come.
    End,
}

/// What the maker does next.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::restore) enum MakerStep {
    /// Make memory for a block.
    Make(usize),
    /// The memory made for a block is not needed.
    Release(usize),
    /// Every block is settled.
    End,
}

/// What the mapper does next.
#[derive(Debug)]
#[cfg_attr(test, derive(PartialEq, Eq))]
pub(in crate::restore) enum MapperStep {
    /// Map these blocks, whose content is complete.
    Map(Vec<usize>),
    /// Map this memory of a block, which another worker has.
    Fetch(usize, Foreign),
    /// Every block is settled.
    End,
}

/// A block that has been mapped at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::restore) struct Arrived {
    pub block: usize,
    pub memory: PhysicalHandle,
    /// Mapped for reading alone: other sessions have the same memory, or may get it.
    pub common: bool,
}

/// The state of a restore while the program runs.
#[derive(Debug, Clone, Default)]
pub enum Stand {
    /// Data is coming.
    #[default]
    Coming,
    /// All data is present, and no access to absent data has happened.
    Complete,
    /// The program has accessed absent data, as the text says: it must be rolled back.
    Missed(String),
    /// The data cannot be loaded: the program must be rolled back.
    Failed(Arc<EngineError>),
    /// The session is over.
    Cancelled,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    order: VecDeque<usize>,
    urgent: VecDeque<usize>,
    /// Urgent blocks, whose memory has to be made first.
    make_first: VecDeque<usize>,
    make: VecDeque<usize>,
    full: VecDeque<usize>,
    release: VecDeque<usize>,
    foreign: VecDeque<(usize, Foreign)>,
    ready: VecDeque<Ready>,
    ready_urgent: VecDeque<Ready>,
    arrived: Vec<Arrived>,
    /// Pieces handed out whose copy is not done.
    under_way: usize,
    /// Pieces whose memory is being made, or has been, and which have not been handed out.
    waiting: usize,
    /// Whether somebody waits until all memory has been made.
    hurried: bool,
    /// Pieces that the uploader has not received yet.
    pieces_left: usize,
    settled: usize,
    unmade: usize,
    /// Blocks in the stage `Elsewhere`.
    elsewhere: usize,
    stand: Stand,
    ended: Option<Instant>,
}

/// See the module.
pub(in crate::restore) struct Schedule {
    /// How many pieces may be on their way.
    pub flow: Limits,
    /// Whether the program moves data to a device, too.
    shared: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// A counter of arrivals and changes of the stand, changed under the state's lock.
    news: AtomicU64,
    bytes_done: AtomicU64,
}

impl State {
    fn over(&self) -> bool {
        !matches!(self.stand, Stand::Coming)
    }

    fn slot(&mut self, block: usize) -> &mut Slot {
        &mut self.slots[block]
    }

    /// The next pieces, at most `stride`, of the first block that has some.
    fn hand(&mut self, urgent: bool, stride: usize) -> Option<Run> {
        loop {
            let queue = if urgent {
                &mut self.urgent
            } else {
                &mut self.order
            };
            let block = *queue.front()?;
            let slot = &mut self.slots[block];
            // A block that is elsewhere is queued again if it has to be loaded here.
            let over = matches!(
                slot.stage,
                Stage::Dropped | Stage::Elsewhere | Stage::Present
            );
            if over || slot.handed == slot.pieces {
                queue.pop_front();
                continue;
            }
            let (first, count) = (slot.handed, stride.min(slot.pieces - slot.handed));
            slot.handed += count;
            if matches!(slot.stage, Stage::Making | Stage::Made) {
                self.waiting -= count;
            }
            self.under_way += count;
            return Some(Run {
                block,
                first,
                count,
                urgent,
            });
        }
    }

    /// The next block to be made; with `most` pieces waiting, only one that an operation waits for.
    fn next_to_make(&mut self, most: usize) -> Option<usize> {
        loop {
            let may_go_on = self.hurried || self.waiting < most;
            let next = match self.make_first.pop_front() {
                None if may_go_on => self.make.pop_front(),
                next => next,
            };
            let slot = &mut self.slots[next?];
            if slot.stage == Stage::Absent {
                slot.stage = Stage::Making;
                self.waiting += slot.pieces - slot.handed;
                return next;
            }
        }
    }
}

impl Schedule {
    /// A schedule of blocks with `pieces[i]` stored pieces each, to come in `order`, which names each block once.
    pub fn new(pieces: &[usize], order: &[usize], flow: Limits) -> Self {
        let slot = |count: &usize| Slot {
            stage: Stage::Absent,
            pieces: *count,
            handed: 0,
            left: *count,
            urgent: false,
        };
        let state = State {
            slots: pieces.iter().map(slot).collect(),
            order: order.iter().copied().collect(),
            make: order.iter().copied().collect(),
            pieces_left: pieces.iter().sum(),
            unmade: pieces.len(),
            ..State::default()
        };
        Self {
            flow,
            shared: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::default(),
            news: AtomicU64::default(),
            bytes_done: AtomicU64::default(),
        }
    }

    /// The program moves data to a device, and probably will again, as in each of its steps.
    pub fn share_link(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Whether copies leave gaps for those of the program.
    pub fn shares_link(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// Counts a change of the state, which the caller has locked: a thread that sees the change also sees the new number.
    fn changed(&self, _: &mut State) {
        self.news.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits for a change; a stall of all steps ends the restore.
    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        let until = Instant::now() + STEP_LIMIT;
        if !self.changed.wait_until(state, until).timed_out() || state.over() {
            return;
        }
        // Blocks of a worker that delivers nothing are loaded here.
        if !state.take_over_all() {
            let stalls = EngineError::Internal("a step of the restore stalls".to_owned());
            state.stand = Stand::Failed(Arc::new(stalls));
        }
        self.changed(state);
    }

    /// Pieces to be read. `None` when there are none left.
    pub fn take(&self) -> Option<Run> {
        let mut state = self.state.lock();
        loop {
            if state.over() {
                return None;
            }
            let maker_waits = state.waiting >= self.flow.made;
            let mut run = state.hand(true, self.flow.stride);
            if run.is_none() && state.under_way < self.flow.ahead {
                run = state.hand(false, self.flow.stride);
                if run.is_none() && state.elsewhere == 0 {
                    return None;
                }
            }
            if run.is_some() {
                if maker_waits && state.waiting < self.flow.made {
                    self.changed.notify_all();
                }
                return run;
            }
            self.wait(&mut state);
        }
    }

    /// Adds pieces that have been read.
    pub fn ready(&self, ready: Ready) {
        let mut state = self.state.lock();
        if ready.run.urgent {
            state.ready_urgent.push_back(ready);
        } else {
            state.ready.push_back(ready);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The next pieces to copy; waits for some only if no copy is under way (`idle`).
    pub fn next(&self, idle: bool) -> UploaderStep {
        let mut state = self.state.lock();
        loop {
            if state.over() {
                return UploaderStep::End;
            }
            let item = state.ready_urgent.pop_front();
            if let Some(item) = item.or_else(|| state.ready.pop_front()) {
                state.pieces_left -= item.run.count;
                return UploaderStep::Item(item);
            }
            if state.pieces_left == 0 && state.elsewhere == 0 {
                return UploaderStep::End;
            }
            if !idle {
                return UploaderStep::Idle;
            }
            self.wait(&mut state);
        }
    }

    /// Waits until a block's memory is made; false if it never will be.
    pub fn await_made(&self, block: usize) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.over() {
                return false;
            }
            match state.slots[block].stage {
                Stage::Made | Stage::Present => return true,
                Stage::Dropped => return false,
                Stage::Elsewhere | Stage::Absent | Stage::Making => self.wait(&mut state),
            }
        }
    }

    /// Notes that pieces of `bytes` bytes in all have been copied to the device.
    pub fn copied(&self, run: Run, bytes: u64) {
        let block = run.block;
        let mut state = self.state.lock();
        state.under_way -= run.count;
        let slot = state.slot(block);
        slot.left -= run.count;
        if slot.left == 0 {
            state.full.push_back(block);
        }
        drop(state);
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits until the memory of every block is made, or the restore has ended.
    pub fn await_all_made(&self) {
        self.want_all_made();
        let mut state = self.state.lock();
        while state.unmade > 0 && !state.over() {
            self.wait(&mut state);
        }
    }

    /// Notes that somebody waits until all memory has been made.
    pub fn want_all_made(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.hurried, true) {
            self.changed.notify_all();
        }
    }

    /// What the maker does next.
    pub fn to_make(&self) -> MakerStep {
        let mut state = self.state.lock();
        loop {
            if state.over() {
                return MakerStep::End;
            }
            if let Some(block) = state.next_to_make(self.flow.made) {
                return MakerStep::Make(block);
            }
            if let Some(block) = state.release.pop_front() {
                return MakerStep::Release(block);
            }
            if state.settled == state.slots.len() {
                return MakerStep::End;
            }
            self.wait(&mut state);
        }
    }

    /// What the mapper does next.
    pub fn to_map(&self) -> MapperStep {
        let mut state = self.state.lock();
        loop {
            if state.over() {
                return MapperStep::End;
            }
            if !state.full.is_empty() {
                return MapperStep::Map(state.full.drain(..).collect());
            }
            if let Some((block, memory)) = state.foreign.pop_front() {
                return MapperStep::Fetch(block, memory);
            }
            if state.settled == state.slots.len() {
                return MapperStep::End;
            }
            self.wait(&mut state);
        }
    }

    /// Notes that a block has memory.
    pub fn made(&self, block: usize) {
        let mut state = self.state.lock();
        state.unmade -= 1;
        let slot = state.slot(block);
        slot.stage = Stage::Made;
        if slot.left == 0 {
            state.full.push_back(block);
        }
        self.changed(&mut state);
    }

    /// Notes that a block has been mapped at its address.
    pub fn present(&self, arrived: Arrived) {
        let mut state = self.state.lock();
        let slot = state.slot(arrived.block);
        if std::mem::replace(&mut slot.stage, Stage::Present) == Stage::Elsewhere {
            state.elsewhere -= 1;
            state.unmade -= 1;
        }
        state.settled += 1;
        state.arrived.push(arrived);
        self.changed(&mut state);
    }

    /// Notes that an operation waits for these blocks.
    pub fn want(&self, blocks: &[usize]) {
        let mut state = self.state.lock();
        for block in blocks {
            let slot = state.slot(*block);
            if !std::mem::replace(&mut slot.urgent, true) {
                let absent = slot.stage == Stage::Absent;
                state.urgent.push_back(*block);
                if absent {
                    state.make_first.push_back(*block);
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Drops a block that the program has freed; false if it is coming already, and has to be waited for.
    pub fn drop_block(&self, block: usize) -> bool {
        let mut state = self.state.lock();
        let slot = state.slot(block);
        match slot.stage {
            Stage::Dropped => return true,
            Stage::Absent | Stage::Made if slot.handed == 0 && slot.pieces > 0 => {}
            _ => return false,
        }
        let made = slot.stage == Stage::Made;
        slot.stage = Stage::Dropped;
        let pieces = slot.pieces;
        state.pieces_left -= pieces;
        state.settled += 1;
        if made {
            state.waiting -= pieces;
            state.release.push_back(block);
        } else {
            state.unmade -= 1;
        }
        self.changed(&mut state);
        true
    }

    /// Whether none of these blocks has to be waited for.
    pub fn have(&self, blocks: &[usize]) -> bool {
        let state = self.state.lock();
        blocks
            .iter()
            .all(|it| matches!(state.slots[*it].stage, Stage::Present | Stage::Dropped))
    }

    /// Which blocks are absent, so that an access would fault.
    pub fn absent(&self) -> Vec<bool> {
        let state = self.state.lock();
        let there = |it: &Slot| matches!(it.stage, Stage::Present | Stage::Dropped);
        state.slots.iter().map(|it| !there(it)).collect()
    }

    /// Whether every block is settled.
    pub fn have_all(&self) -> bool {
        let state = self.state.lock();
        state.settled == state.slots.len()
    }

    /// Whether all memory that the image needs has been made, so that further free memory is the program's.
    pub fn all_made(&self) -> bool {
        self.state.lock().unmade == 0
    }

    /// A counter that has changed once an arrival can be seen.
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Blocks that have become present since the last call.
    pub fn arrivals(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.state.lock().arrived)
    }

    /// Waits until the restore has ended, `limit` at most; returns its state.
    pub fn await_end(&self, limit: Duration) -> Stand {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        while !state.over() && !self.changed.wait_until(&mut state, until).timed_out() {}
        state.stand.clone()
    }

    /// Forgets the failure, which the caller reports.
    pub fn forget(&self) {
        self.state.lock().stand = Stand::Cancelled;
    }

    /// How the restore stands.
    pub fn stand(&self) -> Stand {
        self.state.lock().stand.clone()
    }

    /// Bytes copied so far.
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// Time from `begun` to the end, or until now.
    pub fn ended_after(&self, begun: Instant) -> Duration {
        let ended = self.state.lock().ended;
        ended
            .unwrap_or_else(Instant::now)
            .saturating_duration_since(begun)
    }

    /// Ends the restore, unless it has ended before.
    pub fn end(&self, stand: Stand) {
        let mut state = self.state.lock();
        if !state.over() {
            state.stand = stand;
            state.ended = Some(Instant::now());
            // Dropping them returns their buffers.
            state.ready.clear();
            state.ready_urgent.clear();
        }
        self.changed(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const SINGLY: Limits = Limits {
        stride: 1,
        ..Limits::BEHIND
    };

    fn takes(schedule: &Schedule, count: usize) -> Vec<usize> {
        (0..count)
            .map_while(|_| schedule.take())
            .map(|run| run.block)
            .collect()
    }

    fn run(block: usize, first: usize, count: usize, urgent: bool) -> Run {
        Run {
            block,
            first,
            count,
            urgent,
        }
    }

    #[test]
    fn what_is_awaited_overtakes_the_order() {
        let schedule = Schedule::new(&[2, 2, 2], &[2, 1, 0], SINGLY);
        assert_eq!(schedule.take(), Some(run(2, 0, 1, false)));
        schedule.want(&[0]);
        schedule.want(&[0]);
        assert_eq!(takes(&schedule, 9), [0, 0, 2, 1, 1]);
        assert_eq!(schedule.to_make(), MakerStep::Make(0));
        assert_eq!(schedule.to_make(), MakerStep::Make(2));
    }

    #[test]
    fn a_block_is_present_when_its_last_piece_is_and_it_is_mapped() {
        let schedule = Schedule::new(&[2, 0], &[0, 1], SINGLY);
        assert_eq!(schedule.to_make(), MakerStep::Make(0));
        schedule.made(0);
        assert_eq!(schedule.to_make(), MakerStep::Make(1));
        schedule.made(1);
        assert!(schedule.all_made());
        assert_eq!(
            schedule.to_map(),
            MapperStep::Map(vec![1]),
            "a block of zeros needs no copy"
        );
        schedule.present(arrived(1));
        assert_eq!(takes(&schedule, 2), [0, 0]);
        schedule.copied(run(0, 0, 1, false), 10);
        schedule.copied(run(0, 1, 1, false), 10);
        assert_eq!(schedule.to_map(), MapperStep::Map(vec![0]));
        assert!(!schedule.have(&[0]) && schedule.have(&[1]));
        schedule.present(arrived(0));
        assert!(schedule.have_all() && schedule.bytes_done() == 20);
        assert!(!schedule.is_adopted());
        assert_eq!(schedule.arrivals(), [arrived(1), arrived(0)]);
        assert!(schedule.is_adopted());
        assert_eq!(schedule.to_map(), MapperStep::End);
        assert_eq!(schedule.take(), None);
    }

    /// The gate lets an operation pass when its blocks are there, and looks at arrivals if there is news: one that it has not seen may be
    /// common, and be written as it is.
    #[test]
    fn what_is_there_is_news() {
        const BLOCKS: usize = 20_000;
        let order: Vec<usize> = (0..BLOCKS).collect();
        let schedule = Schedule::new(&[0; BLOCKS], &order, SINGLY);
        let awaited = AtomicUsize::new(0);
        let unheard = std::thread::scope(|scope| {
            scope.spawn(|| {
                for block in &order {
                    while awaited.load(Ordering::Acquire) <= *block {}
                    schedule.present(arrived(*block));
                }
            });
            let mut known = schedule.news();
            let heard = |block: &&usize| {
                awaited.store(**block + 1, Ordering::Release);
                while !schedule.have(&[**block]) {}
                let news = schedule.news();
                std::mem::replace(&mut known, news) != news
            };
            let heard = order.iter().filter(heard).count();
            BLOCKS - heard
        });
        assert_eq!(unheard, 0, "blocks are there, and nobody knows");
    }

    #[test]
    fn only_what_has_not_begun_to_come_is_dropped() {
        let schedule = Schedule::new(&[1, 1, 1], &[0, 1, 2], SINGLY);
        assert_eq!(schedule.to_make(), MakerStep::Make(0));
        assert!(!schedule.drop_block(0), "its memory is being made");
        schedule.made(0);
        assert!(schedule.drop_block(0) && schedule.drop_block(0));
        assert!(schedule.drop_block(1));
        assert_eq!(takes(&schedule, 3), [2]);
        assert!(!schedule.drop_block(2), "its piece is being read");
        assert_eq!(schedule.to_make(), MakerStep::Make(2));
        schedule.made(2);
        assert_eq!(schedule.to_make(), MakerStep::Release(0));
        assert!(schedule.have(&[0, 1]) && schedule.all_made());
    }

    #[test]
    fn pieces_nobody_waits_for_are_limited() {
        let ahead = SINGLY.ahead;
        let schedule = Schedule::new(&[ahead + 1, 1], &[0, 1], SINGLY);
        assert_eq!(takes(&schedule, ahead).len(), ahead);
        schedule.want(&[1]);
        let awaited = run(1, 0, 1, true);
        assert_eq!(schedule.take(), Some(awaited));
        schedule.copied(awaited, 1);
        schedule.copied(run(0, 0, 1, false), 1);
        assert_eq!(schedule.take(), Some(run(0, ahead, 1, false)));
    }

    #[test]
    fn memory_is_made_a_little_ahead_of_what_is_handed_out() {
        let few = Limits { made: 5, ..SINGLY };
        let schedule = Schedule::new(&[4, 4, 4, 1, 1], &[0, 1, 2, 3, 4], few);
        let next = || schedule.state.lock().next_to_make(few.made);
        assert_eq!([next(), next(), next()], [Some(0), Some(1), None]);
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| schedule.to_make());
            assert_eq!(takes(&schedule, 4), [0; 4]);
            assert_eq!(maker.join().expect("told"), MakerStep::Make(2));
        });
        assert_eq!(next(), None);
        schedule.want(&[3]);
        assert_eq!([next(), next()], [Some(3), None], "an operation waits");
        schedule.made(2);
        assert!(schedule.drop_block(2), "it is not needed any more");
        assert_eq!(next(), None, "the second block and what is waited for");
        schedule.want_all_made();
        assert_eq!([next(), next()], [Some(4), None]);
    }

    #[test]
    fn pieces_that_follow_each_other_are_handed_out_together() {
        let schedule = Schedule::new(&[5, 1], &[0, 1], Limits::of(true, true));
        let whole = run(0, 0, 4, false);
        assert_eq!(schedule.take(), Some(whole));
        assert_eq!(schedule.take(), Some(run(0, 4, 1, false)));
        assert_eq!(schedule.take(), Some(run(1, 0, 1, false)));
        assert_eq!(schedule.take(), None);
        schedule.made(0);
        schedule.copied(whole, 40);
        assert_eq!(schedule.to_make(), MakerStep::Make(1));
        schedule.made(1);
        schedule.copied(run(1, 0, 1, false), 10);
        let next = schedule.to_map();
        assert_eq!(next, MapperStep::Map(vec![1]), "a piece of 0 is missing");
    }

    fn arrived(block: usize) -> Arrived {
        Arrived {
            block,
            memory: PhysicalHandle::default(),
            common: false,
        }
    }

    #[test]
    fn the_first_end_is_the_one_that_counts() {
        let schedule = Schedule::new(&[1], &[0], SINGLY);
        schedule.end(Stand::Missed("x".to_owned()));
        schedule.end(Stand::Complete);
        assert!(matches!(schedule.stand(), Stand::Missed(_)));
        assert!(schedule.take().is_none() && !schedule.await_made(0));
        assert!(matches!(schedule.next(true), UploaderStep::End));
        assert_eq!(schedule.to_map(), MapperStep::End);
    }
}
