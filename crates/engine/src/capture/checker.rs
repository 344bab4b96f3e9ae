//! Launches instrumented kernels during a capture: a store outside the access set is a mis-speculation (PhoenixOS,
//! section 4.1).
//!
//! ```text
//!  before ─ set ─► launch ─ instrumented kernel, ranges of the set ─► device
//!                                       │ first store outside
//!  look, at intervals and at the end ◄──┘ kernel and address: counted, and in the access set from then on
//! ```
//! During a capture, graph launches use instrumented kernels; afterwards each graph has its own kernels again.

use std::time::{Duration, Instant};

use fermata_abi::op::{ExecId, FunctionId, Launch, StreamRef};
use fermata_device::{ContextHandle, DriverError};

use super::shared::Shared;
use crate::access::{AccessSet, Places, Predictor, Range};
use crate::instrumented::{Guard, Instrumented};
use crate::{Site, variables};
use fermata_terms::Miss;

/// Launches of a kernel in a stream that report separately.
const DEPTH: usize = 16;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// See the module.
pub(super) struct Checker {
    instrumented: Box<Instrumented>,
    places: Places,
    looked: Instant,
}

impl Checker {
    /// Takes the session's instrumented kernels.
    pub fn new(site: &mut Site) -> Self {
        let mut instrumented = site
            .live
            .lasting
            .take::<Instrumented>()
            .unwrap_or_else(none);
        // Discards reports that came after the end of an earlier capture.
        let _ = instrumented.violations(&mut site.live);
        Self {
            instrumented,
            places: Places::default(),
            looked: Instant::now(),
        }
    }

    /// Launches the instrumented kernel, if there is one; `set` is the launch's access set.
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
        if !watches(shared, context.handle) {
            return Ok(false);
        }
        self.learn(site, &[launch.function])?;
        let allowed = self.allowed(site, set);
        let checked = self.instrumented.launch(site, launch, stream, &allowed)?;
        let mut inner = shared.inner.lock();
        match checked {
            true => inner.validation.checked += 1,
            false => {
                let kernel = site.session.functions.get(launch.function);
                let name = kernel.map(|it| it.name.clone()).unwrap_or_default();
                let why = self.instrumented.without(launch.function);
                let why = why.map_or("it does not fit the launch", |it| it.why.as_str());
                inner.unchecked(&format!(
                    "kernel `{name}` ran as it is, not instrumented: {why}"
                ));
            }
        }
        Ok(checked)
    }

    /// Launches an executable graph of these kernels, instrumented; `set` is its access set. False if nothing is
    /// watched any more; the graph then has its own kernels again.
    pub fn launch_graph(
        &mut self,
        site: &mut Site,
        (exec, kernels): (ExecId, &[FunctionId]),
        stream: StreamRef,
        set: &AccessSet,
        shared: &Shared,
    ) -> Result<bool, DriverError> {
        let Ok(context) = site.live.enter(stream.context) else {
            return Ok(false);
        };
        if !watches(shared, context.handle) {
            self.instrumented.put_back(site, exec);
            return Ok(false);
        }
        if kernels.is_empty() {
            return Ok(false);
        }
        self.learn(site, kernels)?;
        let allowed = self.allowed(site, set);
        let without = self
            .instrumented
            .launch_graph(site, exec, stream, &allowed)?;
        let mut inner = shared.inner.lock();
        match without.is_empty() {
            true => inner.validation.checked += 1,
            false => inner.unchecked(&format!(
                "a graph ran with kernels that are not instrumented: {without}"
            )),
        }
        Ok(true)
    }

    /// Instruments the kernels of modules that have just been loaded. Until their variables are known, their sets are
    /// open.
    fn learn(&mut self, site: &mut Site, kernels: &[FunctionId]) -> Result<(), DriverError> {
        if kernels
            .iter()
            .all(|kernel| self.instrumented.knows(*kernel))
        {
            return Ok(());
        }
        let _ = variables::discover(site);
        self.instrumented.prepare(site).map(|_| ())
    }

    fn allowed(&mut self, site: &Site, set: &AccessSet) -> Vec<Range> {
        let targets = set.writes.iter();
        targets
            .filter_map(|target| self.places.range(&site.session, target))
            .collect()
    }

    /// Reads the reports of instrumented kernels, if that is due or `now`.
    pub fn look(&mut self, site: &mut Site, predictor: &mut Predictor, shared: &Shared, now: bool) {
        if !now && self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        // Reports that cannot be read now are read at the next look.
        for found in self
            .instrumented
            .violations(&mut site.live)
            .unwrap_or_default()
        {
            let mut inner = shared.inner.lock();
            let buffer = inner.map.buffer_at(found.address).unwrap_or(0);
            inner.validation.add(Miss {
                kernel: found.kernel,
                address: found.address.raw(),
                bytes: found.bytes,
                buffer,
            });
            predictor.remember(found.function, found.address);
        }
    }

    /// Returns the instrumented kernels to the session, and gives executable graphs their own kernels. No
    /// instrumented launch may be under way.
    pub fn close(mut self, site: &mut Site) {
        self.instrumented.put_back_all(site);
        site.live.lasting.put(self.instrumented);
    }
}

fn none() -> Box<Instrumented> {
    Box::new(Instrumented::new(Guard::Writes, DEPTH))
}

/// Instruments the kernels of a session while its program runs. Returns why they cannot validate all of it; empty if they
/// can.
pub(super) fn prepare(site: &mut Site) -> String {
    let mut instrumented = site
        .live
        .lasting
        .take::<Instrumented>()
        .unwrap_or_else(none);
    let prepared = instrumented.prepare(site);
    site.live.lasting.put(instrumented);
    match prepared {
        Err(error) => format!("instrumented kernels cannot be made: {error}"),
        Ok(prepared) => prepared.without.first().map_or_else(String::new, |first| {
            format!(
                "kernel `{}` cannot be instrumented: {}",
                first.kernel, first.why
            )
        }),
    }
}

/// Whether a launch in this context has to be checked. Records the context before the launch, because checked launches
/// that are issued before the copying ends are waited for.
fn watches(shared: &Shared, context: ContextHandle) -> bool {
    let mut inner = shared.inner.lock();
    inner.checked_in.insert(context);
    !shared.is_over() && !inner.is_given_up()
}
