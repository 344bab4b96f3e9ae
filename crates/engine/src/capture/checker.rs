//! Instrumented launches during a capture: a kernel may write its access set and nothing else (PhoenixOS, section 4.1).
//!
//! ```text
//!  before ─ set ─► launch ─ instrumented kernel, ranges of the set ─► device
//!                                       │ first store outside
//!  look, now and then and at the end ◄──┘ kernel and address: counted, and in the access set from then on
//! ```
//! An executable graph is launched with instrumented kernels, and has its own back when the capture is over.

use std::time::{Duration, Instant};

use fermata_abi::op::{ExecId, FunctionId, Launch, StreamRef};
use fermata_device::{ContextHandle, DriverError};

use super::shared::Shared;
use crate::access::{AccessSet, Places, Predictor, Range};
use crate::instrumented::{Guard, Instrumented};
use crate::{Site, variables};
use fermata_terms::Miss;

/// Launches of a kernel in a stream that are told apart.
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
        // What a launch has reported after the end of an earlier capture is of no interest.
        let _ = instrumented.violations(&mut site.live);
        Self {
            instrumented,
            places: Places::default(),
            looked: Instant::now(),
        }
    }

    /// Launches the instrumented kernel, if there is one; `set` is what is foreseen.
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

    /// Launches an executable graph of these kernels, instrumented; `set` is what is foreseen. False if nothing is
    /// watched any more: then it has its own kernels back.
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

    /// Instruments the kernels of modules that have just been loaded. Without variables their sets stay open.
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

    /// Takes what instrumented kernels have found: now, or if it is time.
    pub fn look(&mut self, site: &mut Site, predictor: &mut Predictor, shared: &Shared, now: bool) {
        if !now && self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        // Reports that cannot be fetched now come again.
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

    /// Gives the instrumented kernels back to the session, and executable graphs their own kernels. No launch with
    /// instrumented kernels is under way.
    pub fn close(mut self, site: &mut Site) {
        self.instrumented.put_back_all(site);
        site.live.lasting.put(self.instrumented);
    }
}

fn none() -> Box<Instrumented> {
    Box::new(Instrumented::new(Guard::Writes, DEPTH))
}

/// Instruments the kernels of a session while its program runs. The answer is why they cannot vouch for all of it;
/// empty if they can.
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

/// Whether a launch in this context is one to check. Noted before it is launched: what is issued before the end of the
/// copying is waited for.
fn watches(shared: &Shared, context: ContextHandle) -> bool {
    let mut inner = shared.inner.lock();
    inner.checked_in.insert(context);
    !shared.is_over() && !inner.is_given_up()
}
