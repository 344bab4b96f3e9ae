//! Checkpoints behind the running program: what was prepared, what is under way, what was copied ahead.

use std::path::Path;
use std::time::{Duration, Instant};

use fermata_control::worker::{self as control, Failure, FailureKind, FromWorker};
use fermata_engine::capture::{self, Ahead, Capture, Outcome, Prepared, Wish};
use fermata_engine::{EngineError, Gate, Site};
use fermata_store::Store;

use super::serving::{Serving, ended, on_server};
use crate::failure::{failure, from_engine};

/// The longest wait for images to be examined; the rest is waited for where it is needed.
const EXAMINATION: Duration = Duration::from_secs(60);
/// Set for tests: the image is compared with the stopped copy of the same moment.
const CHECK: &str = "FERMATA_TEST_REFERENCE";

/// See the module. At most one of them is there.
#[derive(Default)]
pub(super) struct Capturing {
    prepared: Option<Prepared>,
    capture: Option<Capture>,
    ahead: Option<Ahead>,
}

fn order(what: &str) -> Failure {
    failure(FailureKind::Internal, format!("{what} out of order"), "")
}

/// Waits until the images of the session's modules have been examined, while the program runs. If that takes long, the
/// rest is waited for where it is needed.
fn wait_for_images(serving: &Serving) -> Result<(), Failure> {
    let until = Instant::now() + EXAMINATION;
    // The program may load more meanwhile.
    while let Some(examining) = on_server(serving, |server| server.site.examining_images())? {
        if !examining.ends_within(until.saturating_duration_since(Instant::now())) {
            break;
        }
    }
    Ok(())
}

impl Capturing {
    /// Makes ready what can be while the program runs.
    pub fn prepare(
        &mut self,
        serving: Option<&Serving>,
        store: &Path,
        way: Option<control::Way>,
        pool_bytes: u64,
        validate: control::Validate,
    ) -> Result<FromWorker, Failure> {
        let serving = serving.ok_or_else(ended)?;
        if self.prepared.is_some() || self.capture.is_some() || self.ahead.is_some() {
            return Err(order("Prepare"));
        }
        let store = Store::open(store, true).map_err(|error| from_engine(&error.into()))?;
        let wish = Wish {
            way,
            pool_bytes,
            validate,
        };
        wait_for_images(serving)?;
        let sketch = on_server(serving, move |server| {
            let sketch = capture::sketch(&mut server.site, wish);
            server.site.live.forget_current();
            sketch
        })?;
        // The rest takes its time, and the program does not wait for it.
        let prepared = sketch.and_then(|sketch| capture::prepare(sketch, &store));
        let prepared = prepared.map_err(|error| from_engine(&error))?;
        let way = prepared.way();
        self.prepared = Some(prepared);
        Ok(FromWorker::Prepared { way })
    }

    /// Begins to copy ahead of a stop.
    pub fn ahead(&mut self, serving: Option<&Serving>) -> Result<FromWorker, Failure> {
        let serving = serving.ok_or_else(ended)?;
        let prepared = self.prepared.take().ok_or_else(|| order("Ahead"))?;
        let begun = on_server(serving, move |server| {
            let begun = capture::begin_ahead(&mut server.site, prepared);
            server.site.live.forget_current();
            begun.map(|(capture, gate)| {
                // That of a restore whose data is all there.
                server.close_gate();
                server.gate = Some(gate);
                capture
            })
        })?;
        let capture = begun.map_err(|error| from_engine(&error))?;
        let way = capture.way();
        self.capture = Some(capture);
        let steps = Vec::new();
        Ok(FromWorker::Begun { way, steps })
    }

    /// Takes the session as it is; the answer is the gate that its operations have to pass from now on.
    pub fn begin(
        &mut self,
        site: &mut Site,
        image: &Path,
    ) -> Result<(Box<dyn Gate>, FromWorker), Failure> {
        let prepared = self.prepared.take().ok_or_else(|| order("Begin"))?;
        let check = std::env::var_os(CHECK).is_some();
        let begun = capture::begin(site, prepared, image, check);
        let (capture, gate) = begun.map_err(|error| from_engine(&error))?;
        let way = capture.way();
        let steps = capture.steps().to_vec();
        self.capture = Some(capture);
        Ok((gate, FromWorker::Begun { way, steps }))
    }

    /// How far it is; totals by `totals` when it has ended with an image.
    pub fn look(
        &mut self,
        totals: impl FnOnce(&capture::Image) -> control::Totals,
    ) -> Result<FromWorker, Failure> {
        let capture = self.capture.take().ok_or_else(|| order("Look"))?;
        if !capture.has_ended() {
            let (done, total) = capture.progress();
            self.capture = Some(capture);
            return Ok(FromWorker::Capturing { done, total });
        }
        match capture.join().map_err(|error| from_engine(&error))? {
            Outcome::Complete(captured) => Ok(FromWorker::Saved(totals(&captured))),
            Outcome::Ahead(ahead) => {
                self.ahead = Some(ahead);
                Ok(FromWorker::Ahead)
            }
            Outcome::Overtaken(ahead, buffers) => {
                self.ahead = Some(ahead);
                Ok(FromWorker::Overtaken {
                    buffers: buffers.len() as u64,
                })
            }
        }
    }

    /// What was copied ahead of the stop that is now.
    pub fn take_ahead(&mut self) -> Result<Option<Ahead>, EngineError> {
        if let Some(capture) = self.capture.take() {
            // Nobody has looked since it ended.
            return match capture.join()? {
                Outcome::Ahead(ahead) | Outcome::Overtaken(ahead, _) => Ok(Some(ahead)),
                Outcome::Complete(_) => Ok(None),
            };
        }
        Ok(self.ahead.take())
    }

    /// Gives everything up. Device memory that was set aside goes back.
    pub fn abandon(&mut self) {
        self.ahead = None;
        self.prepared = None;
        if let Some(capture) = self.capture.take() {
            capture.give_up("the checkpoint was given up");
            // Its gate notices, and gives back what it holds.
            drop(capture.join());
        }
    }
}
