//! The gate of an on-demand restore: an operation waits until the blocks in its access set are present.
//!
//! ```text
//!  operation ─┬─ access set has absent blocks ────────────► these are fetched first, then it passes
//!             ├─ kernel that follows pointers in memory, or is unpredictable by the profile ► all data, then it passes
//!             ├─ kernel, if the session cannot be rolled back ► all data, then it passes
//!             ├─ graph made, peers, context destroyed ────► all data, then it passes
//!             ├─ memory shared, or made a texture ────────► its blocks, which must be mapped for that
//!             ├─ memory made or asked for ────────────────► once the image's own memory is made
//!             └─ memory freed ────────────────────────────► dropped if absent, else fetched
//! ```
//! A mis-speculation touches memory that is not mapped: the device faults, and the session is rolled back (PhoenixOS, section
//! 6; gCROP, section 3.3). With validation by instrumented kernels, launches run instrumented until all data is present, so that
//! the fault names its kernel. Kernels of a program that cannot be rolled back wait for all data (`Pace::Certain`), or only
//! those whose access set is open (`Pace::Foreseen`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_abi::op::{Address, ExecId, FunctionId, Launch, MemoryId, Op, StreamRef};
use fermata_device::DriverError;

use crate::access::{AccessSet, Predictor, Range, Target, kernels_of};
use crate::link;
use crate::restore::blocks::Blocks;
use crate::restore::common::claims::Claims;
use crate::restore::gate::relearning::Relearning;
use crate::restore::learning::checked_launches::CheckedLaunches;
use crate::restore::learning::recorder::Recorder;
use crate::restore::loading::schedule::{Schedule, Stand};
use crate::restore::loading::verifier::Verifier;
use crate::restore::times::Times;
use crate::{EngineError, Gate, Passage, Site};
use fermata_terms::Pace;

/// Between two looks at the reports of instrumented kernels.
const LOOK: Duration = Duration::from_millis(2);

/// What an operation needs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Needs {
    Nothing,
    Blocks(Vec<usize>),
    /// These, and that all memory of the image has been made: the launch is instrumented, which takes memory.
    Checked(Vec<usize>),
    /// All memory of the image has been made.
    Room,
    Everything,
}

/// See the module.
pub(in crate::restore) struct OnDemand {
    schedule: Arc<Schedule>,
    /// The blocks that are claimed as common memory, if any are.
    claims: Option<Arc<Claims>>,
    blocks: Arc<Blocks>,
    predictor: Predictor,
    recorder: Arc<Recorder>,
    /// Which kernels wait for all data, whatever their access set is.
    pace: Pace,
    checks: Arc<CheckedLaunches>,
    /// Functions for which the predictor has been given the profile of earlier restores.
    taught: HashSet<FunctionId>,
    /// All memory but absent blocks, and the schedule's counter of arrivals at which that was so.
    allowed: (u64, Vec<Range>),
    looked: Instant,
    /// Whether the devices are idle, since the last operation.
    rests: bool,
    verifier: Arc<Verifier>,
    times: Arc<Times>,
    news: u64,
    /// What the waiting operation needs.
    waits: Option<Needs>,
    /// Whether an operation waits.
    held: bool,
}

impl OnDemand {
    pub fn new(
        (schedule, claims): (Arc<Schedule>, Option<Arc<Claims>>),
        blocks: Arc<Blocks>,
        (recorder, predictor, pace): (Arc<Recorder>, Predictor, Pace),
        checks: Arc<CheckedLaunches>,
        verifier: Arc<Verifier>,
        times: Arc<Times>,
    ) -> Self {
        Self {
            schedule,
            claims,
            blocks,
            predictor,
            recorder,
            pace,
            checks,
            taught: HashSet::new(),
            allowed: (u64::MAX, Vec::new()),
            looked: Instant::now(),
            rests: false,
            verifier,
            times,
            news: u64::MAX,
            waits: None,
            held: false,
        }
    }

    /// Tells the address space which blocks have come.
    fn adopt(&mut self, site: &mut Site) {
        let news = self.schedule.news();
        if news == self.news {
            return;
        }
        self.news = news;
        for arrived in self.schedule.arrivals() {
            let block = &self.blocks.all()[arrived.block];
            let space = &mut site.live.space;
            space.adopt(block.at.raw(), block.len, arrived.memory, arrived.common);
        }
    }

    /// The gate for a program that has been rolled back because kernels have mis-speculated; `None` if none has.
    pub fn learner(&self) -> Option<Relearning> {
        let learn = || {
            let (blocks, recorder) = (Arc::clone(&self.blocks), Arc::clone(&self.recorder));
            Relearning::new(blocks, recorder, Arc::clone(&self.times))
        };
        self.recorder.any_mis_speculations().then(learn)
    }

    fn needs(&mut self, site: &Site, op: &Op<'_>) -> Needs {
        match op {
            Op::ContextDestroy { .. }
            | Op::PeerEnable { .. }
            | Op::PeerDisable { .. }
            | Op::GraphInstantiate { .. }
            | Op::GraphUpdate { .. }
            | Op::GraphSetKernels { .. } => Needs::Everything,
            Op::MemAlloc { .. }
            | Op::MemAllocAsync { .. }
            | Op::MemCreate { .. }
            | Op::MemInfo { .. }
            | Op::Places { .. } => Needs::Room,
            Op::MemFree { address } | Op::MemFreeAsync { address, .. } => self.freed(*address),
            Op::MemShare {
                address, memory, ..
            } if *memory == MemoryId::NULL => self.mapped(*address, 1),
            Op::TextureCreate { texture, .. } | Op::ReferenceBind { texture, .. } => {
                match texture.resource.memory() {
                    Some((start, len)) => self.mapped(start, len),
                    None => Needs::Nothing,
                }
            }
            Op::Launch { launch, .. } => self.kernels(site, op, &[launch.function]),
            Op::GraphLaunch { exec, .. } => {
                let functions = kernels_of(&site.session, *exec);
                self.kernels(site, op, &functions)
            }
            op => {
                let set = self.predictor.predict(op, site);
                self.touched(&set)
            }
        }
    }

    fn mapped(&mut self, start: Address, len: u64) -> Needs {
        let all = Target::Exactly(Range { start, len });
        self.touched(&AccessSet {
            reads: vec![all],
            ..AccessSet::nothing()
        })
    }

    fn touched(&mut self, set: &AccessSet) -> Needs {
        let blocks = self.blocks.of(set);
        self.recorder
            .used(blocks.iter().map(|it| self.blocks.all()[*it].at));
        if blocks.is_empty() {
            Needs::Nothing
        } else {
            Needs::Blocks(blocks)
        }
    }

    fn kernels(&mut self, site: &Site, op: &Op<'_>, functions: &[FunctionId]) -> Needs {
        let known = (&mut self.predictor, &mut self.taught);
        self.recorder.teach(known, &site.session, functions);
        let set = self.predictor.predict(op, site);
        let needs = match self.touched(&set) {
            Needs::Blocks(blocks) if self.checks.are_on() => Needs::Checked(blocks),
            Needs::Nothing if self.checks.are_on() => Needs::Checked(Vec::new()),
            needs => needs,
        };
        let mut unpredictable = match self.pace {
            Pace::Certain => true,
            Pace::Foreseen => !set.complete,
            Pace::Eager | Pace::Behind(_) => false,
        };
        for function in functions {
            let Ok(record) = site.session.functions.get(*function) else {
                continue;
            };
            unpredictable |= self.predictor.follows_pointers(*function, site);
            unpredictable |= self.recorder.launched(&record.name, set.complete);
        }
        if unpredictable {
            Needs::Everything
        } else {
            needs
        }
    }

    fn freed(&mut self, address: Address) -> Needs {
        match self.blocks.starting(address) {
            // Only if it has the block to itself: a slab may hold other allocations.
            Some(block) if self.alone(block, address) && self.schedule.drop_block(block) => {
                // Another worker may wait for this one to load it.
                self.claims.iter().for_each(|it| it.give_up(block));
                Needs::Nothing
            }
            _ => match self.blocks.containing(address) {
                Some(block) => Needs::Blocks(vec![block]),
                None => Needs::Nothing,
            },
        }
    }

    fn alone(&self, block: usize, address: Address) -> bool {
        let block = &self.blocks.all()[block];
        let mut pieces = block
            .stored
            .iter()
            .map(|(piece, _)| piece)
            .chain(&block.zero);
        let bytes: u64 = pieces.clone().map(|piece| piece.len as u64).sum();
        let buffer = pieces.next().map(|piece| piece.buffer);
        block.at == address
            && bytes >= fermata_device::layout::LARGE
            && pieces.all(|piece| Some(piece.buffer) == buffer)
    }

    /// Whether an operation may pass.
    fn pass(&mut self, site: &mut Site, op: &Op<'_>) -> Result<Passage, EngineError> {
        self.adopt(site);
        match self.schedule.stand() {
            Stand::Coming => {}
            Stand::Complete => {
                // Blocks that have come since the first look may be common, and must not be written as they are.
                self.adopt(site);
                return Ok(Passage::Go);
            }
            // The operation waits until the session is rolled back.
            Stand::Missed(_) | Stand::Failed(_) => return Ok(Passage::NotYet),
            Stand::Cancelled => {
                let text = "the restore of this session was given up";
                return Err(EngineError::Internal(text.to_owned()));
            }
        }
        let needs = match self.waits.take() {
            Some(needs) => needs,
            None => {
                if !self.schedule.shares_link() && link::copies_to_device(op, &site.session) {
                    self.schedule.share_link();
                }
                let needs = self.needs(site, op);
                if let Needs::Blocks(blocks) | Needs::Checked(blocks) = &needs
                    && !self.schedule.have(blocks)
                {
                    self.schedule.want(blocks);
                }
                if matches!(needs, Needs::Checked(_) | Needs::Room) {
                    self.schedule.want_all_made();
                }
                needs
            }
        };
        if self.met(&needs) {
            self.adopt(site);
            return Ok(Passage::Go);
        }
        self.waits = Some(needs);
        Ok(Passage::NotYet)
    }

    fn met(&self, needs: &Needs) -> bool {
        match needs {
            Needs::Nothing => true,
            Needs::Blocks(blocks) => self.schedule.have(blocks),
            Needs::Checked(blocks) => self.schedule.all_made() && self.schedule.have(blocks),
            Needs::Room => self.schedule.all_made(),
            Needs::Everything => self.schedule.have_all(),
        }
    }
}

impl OnDemand {
    /// Extends access sets by the reports of instrumented kernels.
    fn look(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        for (function, address) in self.checks.look() {
            self.predictor.remember(function, address);
        }
    }

    /// Whether a launch may mis-speculate into absent data now.
    fn is_partial(&self) -> bool {
        matches!(self.schedule.stand(), Stand::Coming) && !self.schedule.have_all()
    }

    /// Computes the allowed ranges: all memory but absent blocks.
    fn allow(&mut self) {
        let news = self.schedule.news();
        if self.allowed.0 != news {
            let absent = self.schedule.absent();
            self.allowed = (news, self.blocks.all_but(|index| absent[index]));
        }
    }
}

impl Gate for OnDemand {
    fn before(&mut self, site: &mut Site, op: &Op<'_>) -> Result<Passage, EngineError> {
        let idle = std::mem::replace(&mut self.rests, false);
        if self.checks.are_on() {
            self.look();
            if idle && matches!(self.schedule.stand(), Stand::Complete) {
                self.checks.release(site, true);
            }
        }
        let passage = self.pass(site, op)?;
        let held = passage == Passage::NotYet;
        if held != self.held {
            self.held = held;
            self.times.holds(held);
        }
        Ok(passage)
    }

    fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        if !self.checks.are_on() || !self.is_partial() {
            return Ok(false);
        }
        self.allow();
        self.checks.launch(site, launch, stream, &self.allowed.1)
    }

    fn launch_graph(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        if !self.checks.are_on() {
            return Ok(false);
        }
        if !self.is_partial() {
            self.checks.put_back(site, exec);
            return Ok(false);
        }
        self.allow();
        let kernels = kernels_of(&site.session, exec);
        let allowed = &self.allowed.1;
        self.checks
            .launch_graph(site, (exec, &kernels), stream, allowed)
    }

    fn holds(&self, _: Address) -> bool {
        false
    }

    fn rests(&mut self) {
        self.rests = true;
    }

    fn finished(&self) -> bool {
        self.is_dispensable() && !self.checks.are_on()
    }

    fn progress(&self) -> u64 {
        // Both numbers only grow.
        self.schedule
            .news()
            .wrapping_add(self.schedule.bytes_done())
    }

    fn is_dispensable(&self) -> bool {
        matches!(self.schedule.stand(), Stand::Complete)
    }

    fn frees(&self) -> bool {
        !self.is_dispensable()
    }

    fn close(&mut self, site: &mut Site) {
        self.adopt(site);
        self.checks.release(site, false);
        self.schedule.end(Stand::Cancelled);
        self.verifier.hand_over(&mut site.live);
    }

    fn condemns(&mut self, reason: &str) -> bool {
        if matches!(self.schedule.stand(), Stand::Complete | Stand::Cancelled) {
            return false;
        }
        self.checks.faulted();
        self.schedule.end(Stand::Missed(reason.to_owned()));
        true
    }
}
