//! Kernels that check themselves while a capture watches: each launch goes out as its twin, with what is
//! foreseen to be written as all that may be (PhoenixOS, section 4.1).
//!
//! ```text
//!  before ─ set ─► launch ─ twin, ranges of the set ─► device
//!                                       │ first store outside
//!  look, now and then and at the end ◄──┘ kernel and address: counted, and foreseen from then on
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fermata_abi::op::{Handle, Launch, StreamRef};
use fermata_device::DriverError;
use fermata_graph::{Graph, KernelNode, NodeKind};
use fermata_state::Session;

use super::shared::Shared;
use super::vouch::Miss;
use crate::access::{AccessSet, Places, Predictor, Range};
use crate::twin::{Guard, Twins};
use crate::{Site, variables};

/// Launches of a kernel in a stream that are told apart.
const DEPTH: usize = 16;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// See the module.
pub(super) struct Checker {
    twins: Box<Twins>,
    places: Places,
    looked: Instant,
}

impl Checker {
    /// Takes the session's twins.
    pub fn new(site: &mut Site) -> Self {
        Self {
            twins: site.live.twins.take().unwrap_or_else(none),
            places: Places::default(),
            looked: Instant::now(),
        }
    }

    /// Launches the twin, if there is one; `set` is what is foreseen.
    pub fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
        set: &AccessSet,
        shared: &Shared,
    ) -> Result<bool, DriverError> {
        let Ok(context) = site.live.enter(stream.context) else {
            return Ok(false);
        };
        {
            let mut inner = shared.inner.lock();
            // Noted before the launch: what is issued before the end of the copying is waited for.
            inner.checked_in.insert(context.handle);
            if shared.is_over() || inner.is_given_up() {
                return Ok(false);
            }
        }
        if !self.twins.knows(launch.function) {
            // A kernel of a module that has just been loaded. Without variables its set stays open.
            let _ = variables::discover(site);
            self.twins.prepare(site)?;
        }
        let targets = set.writes.iter();
        let allowed: Vec<Range> = targets
            .filter_map(|target| self.places.range(&site.session, target))
            .collect();
        let checked = self.twins.launch(site, launch, stream, &allowed)?;
        let mut inner = shared.inner.lock();
        match checked {
            true => inner.vouched.checked += 1,
            false => {
                let kernel = site.session.functions.get(launch.function);
                let name = kernel.map(|it| it.name.clone()).unwrap_or_default();
                let why = self.twins.without(launch.function);
                let why = why.map_or("its block is too large for it", |it| it.why.as_str());
                inner.unchecked(&format!("kernel `{name}` ran without its twin: {why}"));
            }
        }
        Ok(checked)
    }

    /// Takes what twins have found: now, or if it is time.
    pub fn look(&mut self, site: &mut Site, predictor: &mut Predictor, shared: &Shared, now: bool) {
        if !now && self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        // Reports that cannot be fetched now come again.
        for found in self.twins.violations(&mut site.live).unwrap_or_default() {
            let mut inner = shared.inner.lock();
            let buffer = inner.map.buffer_at(found.address).unwrap_or(0);
            inner.vouched.miss(Miss {
                kernel: found.kernel,
                address: found.address,
                bytes: found.bytes,
                buffer,
            });
            predictor.remember(found.function, found.address);
        }
    }

    /// Gives the twins back to the session.
    pub fn close(self, site: &mut Site) {
        site.live.twins = Some(self.twins);
    }
}

fn none() -> Box<Twins> {
    Box::new(Twins::new(Guard::Writes, DEPTH))
}

/// Makes the twins of a session while its program runs. The answer is why they cannot vouch for all of it;
/// empty if they can.
pub(super) fn prepare(site: &mut Site) -> String {
    let mut twins = site.live.twins.take().unwrap_or_else(none);
    let prepared = twins.prepare(site);
    site.live.twins = Some(twins);
    let graphs = || {
        let all = site.session.executables.iter();
        all.filter(|(_, it)| !kernels(&it.graph).is_empty()).count()
    };
    match prepared {
        Err(error) => format!("twins cannot be made: {error}"),
        Ok(prepared) => match (prepared.without.first(), graphs()) {
            (Some(first), _) => format!("kernel `{}` has no twin: {}", first.kernel, first.why),
            (None, 0) => String::new(),
            (None, n) => format!("{n} executable graphs launch kernels, which run as they are"),
        },
    }
}

/// The kernels that a launch of `exec` runs.
pub(super) fn kernels_of(session: &Session, exec: Handle) -> Vec<Handle> {
    let found = session.executables.get(exec);
    found.map(|it| kernels(&it.graph)).unwrap_or_default()
}

fn kernels(graph: &Graph) -> Vec<Handle> {
    let mut found = BTreeSet::new();
    collect(graph, &mut found);
    found.into_iter().collect()
}

fn collect(graph: &Graph, into: &mut BTreeSet<Handle>) {
    for (_, node) in graph.nodes() {
        match &node.kind {
            NodeKind::Kernel(KernelNode { function, .. }) => {
                into.insert(*function);
            }
            NodeKind::ChildGraph(child) => collect(child, into),
            _ => {}
        }
    }
}
