//! The gate of a program that starts again because a kernel was caught: with everything there, the kernels that were go
//! on instrumented for a while, so that the next restore knows all they reach and not only what came first.
//!
//! ```text
//!  launch of a kernel that was caught ─► instrumented kernel, all but blocks that it is not foreseen to touch ─► device
//!       lessons ◄── look ◄── report: an address in another block ◄─────────────────────────────────┘
//! ```
//! Nothing can fault for want of data here. It ends when launches have found nothing new for long enough.

use std::collections::HashSet;
use std::sync::Arc;

use fermata_abi::op::{Address, Handle, Launch, Op, StreamRef};
use fermata_device::DriverError;

use super::background::Times;
use super::blocks::Blocks;
use super::checks::Checks;
use super::lessons::Lessons;
use crate::access::{Predictor, Range, kernels_of};
use crate::{EngineError, Gate, Passage, Site};

/// Launches without news after which a program's kernels run as they are again.
const LAUNCHES: u32 = 64;

/// See the module.
pub(super) struct Learn {
    checks: Checks,
    blocks: Arc<Blocks>,
    lessons: Arc<Lessons>,
    predictor: Predictor,
    taught: HashSet<Handle>,
    /// Kernels of the operation at hand, if it launches any that was caught.
    kernels: Vec<Handle>,
    /// What they may touch without its being news.
    allowed: Vec<Range>,
    /// Launches left.
    left: u32,
    /// The program has nothing on its devices, since the last operation.
    rests: bool,
}

impl Learn {
    /// For a session whose image has these late blocks.
    pub fn new(blocks: Arc<Blocks>, lessons: Arc<Lessons>, times: Arc<Times>) -> Self {
        Self {
            checks: Checks::new(true, Arc::clone(&blocks), Arc::clone(&lessons), times),
            blocks,
            lessons,
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

    /// Whether this kernel was caught; then what is known of it is foreseen.
    fn was_caught(&mut self, site: &Site, function: Handle) -> bool {
        let Ok(record) = site.session.functions.get(function) else {
            return false;
        };
        let strays = self.lessons.strays(&record.name);
        if self.taught.insert(function) {
            for address in &strays {
                self.predictor.remember(function, *address);
            }
        }
        !strays.is_empty()
    }

    fn foresee(&mut self, site: &Site, op: &Op<'_>, kernels: Vec<Handle>) {
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

impl Gate for Learn {
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
        exec: Handle,
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
