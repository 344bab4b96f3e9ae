//! The gate of a restore behind a running program: an operation waits for what it touches.
//!
//! ```text
//!  operation ─┬─ touches blocks ────────────────────────► these are fetched first, then it passes
//!             ├─ kernel that strays, or has strayed before ► everything, then it passes
//!             ├─ graph made, peers, context destroyed ────► everything, then it passes
//!             ├─ memory made or asked for ────────────────► once the image has what it needs
//!             └─ memory freed ────────────────────────────► dropped if nothing of it is there, else fetched
//! ```
//! What a kernel touches without anybody having foreseen it is not mapped: the device faults, and the
//! session is rolled back (PhoenixOS, section 6; gCROP, section 3.3).

use std::sync::Arc;

use fermata_abi::op::{Address, Handle, Op};

use super::arrived::Arrived;
use super::background::Times;
use super::blocks::Blocks;
use super::lessons::Lessons;
use super::schedule::{Schedule, Stand};
use crate::access::{AccessSet, Predictor, Target};
use crate::{EngineError, Gate, Passage, Site};

/// What an operation needs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Needs {
    Nothing,
    Blocks(Vec<usize>),
    /// All memory of the image has been made.
    Room,
    Everything,
}

/// See the module.
pub(super) struct Late {
    schedule: Arc<Schedule>,
    blocks: Arc<Blocks>,
    predictor: Predictor,
    lessons: Arc<Lessons>,
    arrived: Arc<Arrived>,
    times: Arc<Times>,
    news: u64,
    /// What the operation that is being asked for again waits for.
    waits: Option<Needs>,
    /// Whether one waits.
    held: bool,
}

impl Late {
    pub fn new(
        schedule: Arc<Schedule>,
        blocks: Arc<Blocks>,
        lessons: Arc<Lessons>,
        arrived: Arc<Arrived>,
        times: Arc<Times>,
    ) -> Self {
        Self {
            schedule,
            blocks,
            predictor: Predictor::default(),
            lessons,
            arrived,
            times,
            news: u64::MAX,
            waits: None,
            held: false,
        }
    }

    /// The address space learns of what has arrived.
    fn adopt(&mut self, site: &mut Site) {
        let news = self.schedule.news();
        if news == self.news {
            return;
        }
        self.news = news;
        for (index, memory) in self.schedule.arrivals() {
            let block = &self.blocks.all()[index];
            site.live.space.adopt(block.at, block.len, memory);
        }
    }

    fn blocks_of(&self, set: &AccessSet) -> Vec<usize> {
        let mut found = Vec::new();
        for target in set.reads.iter().chain(&set.writes) {
            match target {
                Target::Exactly(range) => found.extend(self.blocks.within(range.start, range.len)),
                Target::Around(address) => found.extend(self.blocks.containing(*address)),
                Target::Array(_) => {}
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn needs(&mut self, site: &Site, op: &Op<'_>) -> Needs {
        match op {
            Op::ContextDestroy { .. }
            | Op::PeerEnable { .. }
            | Op::PeerDisable { .. }
            | Op::GraphInstantiate { .. }
            | Op::GraphUpdate { .. } => Needs::Everything,
            Op::MemAlloc { .. }
            | Op::MemAllocAsync { .. }
            | Op::MemCreate { .. }
            | Op::MemInfo { .. } => Needs::Room,
            Op::MemFree { address } | Op::MemFreeAsync { address, .. } => self.freed(*address),
            Op::Launch { launch, .. } => self.kernels(site, op, &[launch.function]),
            Op::GraphLaunch { exec, .. } => {
                let mut functions = Vec::new();
                if let Ok(executable) = site.session.executables.get(*exec) {
                    executable
                        .graph
                        .kernels(&mut |node| functions.push(node.function));
                }
                self.kernels(site, op, &functions)
            }
            op => {
                let set = self.predictor.predict(op, site);
                self.touched(&set)
            }
        }
    }

    fn touched(&mut self, set: &AccessSet) -> Needs {
        let blocks = self.blocks_of(set);
        self.lessons
            .used(blocks.iter().map(|it| self.blocks.all()[*it].at));
        if blocks.is_empty() {
            Needs::Nothing
        } else {
            Needs::Blocks(blocks)
        }
    }

    fn kernels(&mut self, site: &Site, op: &Op<'_>, functions: &[Handle]) -> Needs {
        let set = self.predictor.predict(op, site);
        let needs = self.touched(&set);
        let mut wary = false;
        for function in functions {
            let Ok(record) = site.session.functions.get(*function) else {
                continue;
            };
            wary |= self.predictor.strays(*function, site);
            wary |= self.lessons.launched(&record.name, set.complete);
        }
        if wary { Needs::Everything } else { needs }
    }

    fn freed(&mut self, address: Address) -> Needs {
        match self.blocks.starting(address) {
            // A block of its own: a slab starts at an allocation, too, but may hold others.
            Some(block) if self.alone(block, address) && self.schedule.drop_block(block) => {
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
            Stand::Complete => return Ok(Passage::Go),
            // Until the session is rolled back.
            Stand::Missed(_) | Stand::Failed(_) => return Ok(Passage::NotYet),
            Stand::Cancelled => {
                let text = "the restore of this session was given up";
                return Err(EngineError::Internal(text.to_owned()));
            }
        }
        let needs = match self.waits.take() {
            Some(needs) => needs,
            None => {
                let needs = self.needs(site, op);
                if let Needs::Blocks(blocks) = &needs
                    && !self.schedule.have(blocks)
                {
                    self.schedule.want(blocks);
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
            Needs::Room => self.schedule.all_made(),
            Needs::Everything => self.schedule.have_all(),
        }
    }
}

impl Gate for Late {
    fn before(&mut self, site: &mut Site, op: &Op<'_>) -> Result<Passage, EngineError> {
        let passage = self.pass(site, op)?;
        let held = passage == Passage::NotYet;
        if held != self.held {
            self.held = held;
            self.times.holds(held);
        }
        Ok(passage)
    }

    fn holds(&self, _: Address) -> bool {
        false
    }

    fn finished(&self) -> bool {
        matches!(self.schedule.stand(), Stand::Complete)
    }

    fn progress(&self) -> u64 {
        // Either only grows.
        self.schedule
            .news()
            .wrapping_add(self.schedule.bytes_done())
    }

    fn is_dispensable(&self) -> bool {
        self.finished()
    }

    fn close(&mut self, site: &mut Site) {
        self.adopt(site);
        self.schedule.end(Stand::Cancelled);
        self.arrived.hand_over(&mut site.live);
    }

    fn condemns(&mut self, reason: &str) -> bool {
        if matches!(self.schedule.stand(), Stand::Complete | Stand::Cancelled) {
            return false;
        }
        self.lessons.strayed();
        self.schedule.end(Stand::Missed(reason.to_owned()));
        true
    }
}
