//! The guard of common memory: before an operation may write a common block, the block is made the session's own.
//!
//! ```text
//!  operation ─┬─ may write no common block ─────────────────────────────────► device
//!             └─ may write some ─► wait until the device is idle ─► these made its own ─► device
//!                                        │ no other session has it: the mapping is made writable
//!                                        └ others have it: copied on the device, mapped in its place
//! ```
//! A kernel that writes through pointers which it loads, or that an earlier restore has seen to mis-speculate, may
//! write every block. Sharing memory with another process counts as a write. A kernel without text may write what its
//! parameters name, except what earlier restores have seen it leave unchanged ([`Examination`]). The guard lasts,
//! also over checkpoints, as long as there are common blocks, or launches to record.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use fermata_abi::op::{Address, FunctionId, MemoryId, Op};
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, StreamHandle};
use fermata_graph::{Graph, NodeKind};
use fermata_state::Session;
use parking_lot::Mutex;

use crate::access::{AccessSet, Predictor, Target, kernels_of};
use crate::restore::blocks::Blocks;
use crate::restore::common::claims::Claims;
use crate::restore::common::examination::Examination;
use crate::restore::common::keeper::CommonKey;
use crate::restore::learning::recorder::Recorder;
use crate::restore::loading::schedule::Schedule;
use crate::{EngineError, Live, Site};

/// Why a session must start again from its image, if it must.
pub type Missed = Arc<Mutex<Option<String>>>;

#[derive(Debug, Clone, Copy)]
struct Block {
    len: u64,
    key: CommonKey,
}

fn replace(live: &mut Live, at: Address, alone: bool) -> Result<(), DriverError> {
    let device = fermata_device::layout::device_of(at.raw()).unwrap_or_default();
    if live.enter_device(device).is_err() {
        live.enter_any()?;
    }
    match alone {
        true => live.space.open(&live.driver, at.raw()),
        false => live.space.make_own(&live.driver, at.raw()),
    }
}

/// See the module.
pub struct Guard {
    claims: Arc<Claims>,
    /// Blocks that are common, or were claimed and may become common, by address.
    blocks: BTreeMap<Address, Block>,
    /// The loader's schedule, until every claimed block has come.
    schedule: Option<Arc<Schedule>>,
    /// Blocks that the program has freed, until their memory is released.
    freed: Vec<Address>,
    predictor: Predictor,
    /// Functions for which the predictor has been given the profile of earlier restores.
    taught: HashSet<FunctionId>,
    /// Whether the blocks that the last operation needs are blocks that it writes, as far as can be known.
    certain: bool,
    /// Whether the last operation was a kernel without text.
    opaque: bool,
    recorder: Arc<Recorder>,
    examination: Examination,
    missed: Missed,
}

impl Guard {
    pub(in crate::restore) fn new(
        claims: Arc<Claims>,
        blocks: &Arc<Blocks>,
        schedule: Arc<Schedule>,
        (recorder, predictor): (Arc<Recorder>, Predictor),
    ) -> Self {
        let asked = claims.blocks(blocks).into_iter();
        let asked = asked.map(|(at, len, key)| (at, Block { len, key }));
        let asked: BTreeMap<Address, Block> = asked.collect();
        Self {
            examination: Examination::new(
                Arc::clone(blocks),
                asked.keys().copied(),
                recorder.written(),
            ),
            blocks: asked,
            claims,
            schedule: Some(schedule),
            freed: Vec::new(),
            predictor,
            taught: HashSet::new(),
            certain: false,
            opaque: false,
            recorder,
            missed: Missed::default(),
        }
    }

    /// The place where the guard writes why the session must start again.
    pub fn missed(&self) -> Missed {
        Arc::clone(&self.missed)
    }

    /// Whether no block is common or will be, and no launches are recorded.
    pub fn is_over(&self) -> bool {
        self.blocks.is_empty() && !self.examination.is_on()
    }

    /// Whether an examination of the blocks is due.
    pub fn is_due(&self) -> bool {
        self.schedule.is_none() && self.examination.is_due()
    }

    /// Examines which blocks kernels without text have left unchanged, and updates the image's profile. The device
    /// must be idle.
    pub fn look(&mut self, site: &mut Site) {
        self.settle(&site.live);
        if self.schedule.is_none() && self.missed.lock().is_none() {
            let Site { session, live } = site;
            // If this fails, the next restore only needs more memory.
            let _ = self.examination.look(live, session, &self.recorder);
        }
    }

    /// Blocks that must be the session's own before `op` is given to the driver.
    pub fn needs(&mut self, site: &Site, op: &Op<'_>) -> Vec<Address> {
        self.settle(&site.live);
        if self.is_over() {
            return Vec::new();
        }
        self.forget(&site.session, op);
        (self.certain, self.opaque) = (false, false);
        let mut found = match op {
            Op::Launch { launch, .. } => self.kernels(site, op, &[launch.function]),
            Op::GraphLaunch { exec, .. } => {
                let functions = kernels_of(&site.session, *exec);
                self.kernels(site, op, &functions)
            }
            Op::MemFree { address } | Op::MemFreeAsync { address, .. } => {
                self.examination.freed(*address);
                self.freed.extend(self.around(*address).collect::<Vec<_>>());
                Vec::new()
            }
            _ if self.blocks.is_empty() => Vec::new(),
            // All of the memory is shared with another process.
            Op::MemShare {
                address, memory, ..
            } if *memory == MemoryId::NULL => self.around(*address).collect(),
            op => {
                let set = self.predictor.predict(op, site);
                self.certain = true;
                self.foreseen(&set)
            }
        };
        found.retain(|at| site.live.space.is_common(at.raw()));
        found
    }

    /// Blocks that must be the session's own before the driver gets `graph`: it checks addresses in nodes other than
    /// kernels.
    pub fn needs_of_graph(&self, live: &Live, graph: &Graph) -> Vec<Address> {
        let mut found = Vec::new();
        self.collect(graph, &mut found);
        found.retain(|at| live.space.is_common(at.raw()));
        found.sort_unstable();
        found.dedup();
        found
    }

    fn collect(&self, graph: &Graph, found: &mut Vec<Address>) {
        for (_, node) in graph.nodes() {
            match &node.kind {
                NodeKind::Memcpy(copy) => {
                    found.extend(self.around(Address::from_raw(copy.dst.address)))
                }
                NodeKind::Memset(fill) => found.extend(self.around(Address::from_raw(fill.dst))),
                NodeKind::BatchMemOp(ops) => {
                    found.extend(
                        ops.iter()
                            .flat_map(|op| self.around(Address::from_raw(op.address))),
                    );
                }
                _ => {}
            }
            for inside in node.kind.graphs() {
                self.collect(inside, found);
            }
        }
    }

    /// Whether the devices have finished all work of the program.
    ///
    /// # Errors
    /// A driver error of a stream, also a fault of earlier work.
    pub fn is_idle(&self, live: &mut Live) -> Result<bool, EngineError> {
        let asked = || EngineError::driver("look whether the device is idle");
        let contexts: Vec<_> = live.contexts.keys().copied().collect();
        for context in contexts {
            live.enter(context).map_err(asked())?;
            let of_it = live.streams.values().filter(|it| it.context == context);
            let streams = of_it.map(|it| it.handle).chain([StreamHandle::LEGACY]);
            for stream in streams {
                match live.driver.query_stream(stream) {
                    Ok(()) => {}
                    Err(error) if error.code == cu::CUDA_ERROR_NOT_READY => return Ok(false),
                    Err(error) => return Err(asked()(error)),
                }
            }
        }
        Ok(true)
    }

    /// Makes these blocks the session's own. The device must be idle.
    ///
    /// For a kernel without text, and while nothing is known of what such kernels leave unchanged, every block that
    /// no other session has is made its own at once: more such kernels will follow, and the device need not become
    /// idle for each.
    ///
    /// # Errors
    /// There is no memory for a block (it is as before), or a driver error.
    pub fn make_own(&mut self, live: &mut Live, needed: &[Address]) -> Result<(), EngineError> {
        let mut wanted: Vec<(Address, CommonKey)> = Vec::new();
        let all = self.opaque && !self.recorder.knows_harmless();
        for (at, block) in &self.blocks {
            let is_needed = needed.contains(at);
            if (is_needed || all) && live.space.is_common(at.raw()) {
                wanted.push((*at, block.key));
            }
        }
        let keys: Vec<CommonKey> = wanted.iter().map(|(_, key)| *key).collect();
        let keeper = self.claims.keeper();
        let alone = keeper.withdraw(&keys);
        let mut told: Vec<_> = wanted.into_iter().zip(alone).collect();
        // Blocks that the keeper has given to this session alone come first.
        told.sort_by_key(|(_, alone)| !alone);
        for ((at, key), alone) in told {
            if !alone && !needed.contains(&at) {
                continue;
            }
            replace(live, at, alone).map_err(EngineError::driver(format!(
                "make memory at {at:#x}, which other sessions have, too, this session's own"
            )))?;
            if !alone {
                keeper.leave(&key);
            }
            self.blocks.remove(&at);
        }
        Ok(())
    }

    /// Records in the image's profile that the program writes these blocks, which the last operation needed, so that
    /// later restores load them as their own. Blocks that a kernel without text may only possibly write are not
    /// recorded.
    pub fn learn(&self, written: &[Address]) {
        if self.certain {
            self.recorder.wrote(written);
        }
    }

    /// Called when a context has died of an illegal access, for `reason`. True if a write to common memory may be the
    /// cause: the session must start again from its image, and the program must get no more answers.
    pub fn condemns(&mut self, live: &Live, reason: &str) -> bool {
        let may = self.blocks.keys().any(|at| live.space.is_common(at.raw()));
        if may {
            self.recorder.mis_speculated(&[]);
            self.give_up(reason);
        }
        may
    }

    /// Marks the session to be started again from its image, for `reason`.
    pub fn give_up(&self, reason: &str) {
        self.missed.lock().get_or_insert_with(|| reason.to_owned());
    }

    /// Forgets blocks that did not become common, and leaves those that the program has freed.
    fn settle(&mut self, live: &Live) {
        if self.schedule.as_ref().is_some_and(|it| !it.is_adopted()) {
            return;
        }
        // First: a block that the program has freed is not common any more, but may have been.
        self.leave_freed(live);
        if self.schedule.take().is_some() {
            self.blocks.retain(|at, _| live.space.is_common(at.raw()));
        }
    }

    /// Drops what is known about the graph that `op` destroys; where `op` unloads kernels, about all objects that are gone
    /// before it. Handles are never given twice.
    fn forget(&mut self, session: &Session, op: &Op<'_>) {
        match op {
            Op::GraphDestroy { exec } => {
                self.predictor.forget_graph(*exec);
                self.examination.forget_graph(*exec);
            }
            Op::ModuleUnload { .. } | Op::ContextDestroy { .. } => {
                self.predictor.forget(session);
                self.taught.retain(|it| session.functions.contains(*it));
            }
            _ => {}
        }
    }

    fn leave_freed(&mut self, live: &Live) {
        if self.freed.is_empty() {
            return;
        }
        let (blocks, keeper) = (&mut self.blocks, self.claims.keeper());
        self.freed.retain(|at| {
            let there = live.space.is_common(at.raw());
            if let (false, Some(block)) = (there, blocks.get(at)) {
                keeper.leave(&block.key);
                blocks.remove(at);
            }
            there
        });
    }

    fn kernels(&mut self, site: &Site, op: &Op<'_>, functions: &[FunctionId]) -> Vec<Address> {
        let known = (&mut self.predictor, &mut self.taught);
        self.recorder.teach(known, &site.session, functions);
        if self.examination.is_on() {
            self.note(site, op);
        }
        let set = self.predictor.predict(op, site);
        let mut anywhere = false;
        for function in functions {
            let Ok(record) = site.session.functions.get(*function) else {
                continue;
            };
            anywhere |= self.predictor.writes_through_pointers(*function, site);
            anywhere |= self.recorder.launched(&record.name, set.complete);
            self.opaque |= !self.predictor.has_text(*function, site);
        }
        self.certain = set.complete && !anywhere;
        match anywhere {
            true => self.blocks.keys().copied().collect(),
            false => self.foreseen(&set),
        }
    }

    /// Records the doubts about the kernels of `op`.
    fn note(&mut self, site: &Site, op: &Op<'_>) {
        let is_new = match op {
            Op::GraphLaunch { exec, .. } => {
                let revision = site.live.graph_revision(*exec);
                self.examination.is_new(*exec, revision)
            }
            _ => true,
        };
        if is_new {
            for doubts in self.predictor.doubts(op, site) {
                let is_known = |it: &_| self.predictor.is_dispelled(it);
                self.examination.note(&doubts, is_known);
            }
        }
    }

    /// Blocks that an operation with this access set may write.
    fn foreseen(&self, set: &AccessSet) -> Vec<Address> {
        let mut found = Vec::new();
        for target in &set.writes {
            match target {
                Target::Exactly(range) => found.extend(self.within(range.start, range.len)),
                Target::Around(address) => found.extend(self.around(*address)),
                Target::Array(_) => {}
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The block that contains `address`.
    fn around(&self, address: Address) -> impl Iterator<Item = Address> {
        self.within(address, 1)
    }

    /// Blocks that share a byte with `start .. start + len`.
    fn within(&self, start: Address, len: u64) -> impl Iterator<Item = Address> {
        let end = start.saturating_add(len);
        let before = self.blocks.range(..end).rev();
        let touching = before.take_while(move |(at, block)| **at + block.len > start);
        touching.map(|(at, _)| *at)
    }
}
