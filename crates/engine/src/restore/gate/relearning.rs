//! The gate of a program that was rolled back because kernels had mis-speculated. All data is present now. Those kernels
//! run instrumented for a while, so that the next restore of the image knows every buffer they reach, not only the first.
//!
//! ```text
//!  launch of such a kernel ─► instrumented kernel; allowed: its access set, and all outside on-demand blocks ─► device
//!      recorder ◄── look ◄── report: an address in another block ◄─────────────────────────────────┘
//! ```
//! No launch can fault for absent data here. The gate ends when enough launches have reported nothing new.

use std::collections::HashSet;
use std::sync::Arc;

use fermata_abi::op::{Address, ExecId, FunctionId, Launch, Op, StreamRef};
use fermata_device::DriverError;

use crate::access::{Predictor, Range, kernels_of};
use crate::restore::blocks::Blocks;
use crate::restore::learning::checked_launches::CheckedLaunches;
use crate::restore::learning::recorder::Recorder;
use crate::restore::times::Times;
use crate::{EngineError, Gate, Passage, Site};

/// Launches without a new report after which the program's kernels run uninstrumented again.
const LAUNCHES: u32 = 64;

/// See the module.
pub(in crate::restore) struct Relearning {
    checks: CheckedLaunches,
    blocks: Arc<Blocks>,
    recorder: Arc<Recorder>,
    predictor: Predictor,
    taught: HashSet<FunctionId>,
    /// The kernels of the current operation, if it launches any that has mis-speculated.
    kernels: Vec<FunctionId>,
    /// Ranges that they may touch without a report.
    allowed: Vec<Range>,
    /// Launches left.
    left: u32,
    /// Whether the devices are idle, since the last operation.
    rests: bool,
}

impl Relearning {
    /// The gate of a session whose image has these on-demand blocks.
    pub fn new(blocks: Arc<Blocks>, recorder: Arc<Recorder>, times: Arc<Times>) -> Self {
        Self {
            checks: CheckedLaunches::new(true, Arc::clone(&blocks), Arc::clone(&recorder), times),
            blocks,
            recorder,
            predictor: Predictor::default(),
            taught: HashSet::new(),
            kernels: Vec::new(),
            allowed: Vec::new(),
            left: LAUNCHES,
            rests: false,
        }
    }

    fn look(&mut self, site: &mut Site) {
        for (function, address) in self.checks.take(site) {
            self.predictor.remember(function, address);
            self.left = LAUNCHES;
        }
    }

    /// Whether this kernel has mis-speculated; if so, teaches the predictor what is known of it.
    fn was_caught(&mut self, site: &Site, function: FunctionId) -> bool {
        let Ok(record) = site.session.functions.get(function) else {
            return false;
        };
        let mis_speculations = self.recorder.mis_speculations(&record.name);
        if self.taught.insert(function) {
            for address in &mis_speculations {
                self.predictor.remember(function, *address);
            }
        }
        !mis_speculations.is_empty()
    }

    fn foresee(&mut self, site: &Site, op: &Op<'_>, kernels: Vec<FunctionId>) {
        let caught = kernels
            .iter()
            .filter(|it| self.was_caught(site, **it))
            .count();
        if caught == 0 {
            return;
        }
        let set = self.predictor.predict(op, site);
        let foreseen = self.blocks.of(&set);
        self.allowed = self
            .blocks
            .all_but(|index| foreseen.binary_search(&index).is_err());
        self.kernels = kernels;
    }
}

impl Gate for Relearning {
    fn before(&mut self, site: &mut Site, op: &Op<'_>) -> Result<Passage, EngineError> {
        let idle = std::mem::replace(&mut self.rests, false);
        self.kernels.clear();
        self.look(site);
        if self.left == 0 {
            if idle {
                self.checks.release(site, true);
            }
            return Ok(Passage::Go);
        }
        match op {
            Op::Launch { launch, .. } => self.foresee(site, op, vec![launch.function]),
            Op::GraphLaunch { exec, .. } => {
                let kernels = kernels_of(&site.session, *exec);
                self.foresee(site, op, kernels);
            }
            _ => {}
        }
        Ok(Passage::Go)
    }

    fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        if self.kernels.is_empty() {
            return Ok(false);
        }
        self.left = self.left.saturating_sub(1);
        self.checks.launch(site, launch, stream, &self.allowed)
    }

    fn launch_graph(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        if self.kernels.is_empty() {
            self.checks.put_back(site, exec);
            return Ok(false);
        }
        self.left = self.left.saturating_sub(1);
        self.checks
            .launch_graph(site, (exec, &self.kernels), stream, &self.allowed)
    }

    fn holds(&self, _: Address) -> bool {
        false
    }

    fn rests(&mut self) {
        self.rests = true;
    }

    fn finished(&self) -> bool {
        !self.checks.are_on()
    }

    fn frees(&self) -> bool {
        false
    }

    fn close(&mut self, site: &mut Site) {
        self.look(site);
        self.checks.release(site, false);
    }
}
