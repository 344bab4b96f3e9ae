//! Checkpoints while the program runs: what has been prepared, the capture under way, and what was copied ahead.

use std::path::Path;
use std::time::{Duration, Instant};

use fermata_control::worker::{self as control, Failure, FailureKind, FromWorker};
use fermata_engine::capture::{self, Ahead, Capture, Outcome, Prepared, Wish};
use fermata_engine::{EngineError, Gate, Site};
use fermata_store::Store;

use super::serving::{Serving, ended, on_server};
use crate::failure::{failure, of_session};
use crate::server::Server;

/// The longest wait for module images to be examined; the rest is waited for where it is needed.
const EXAMINATION: Duration = Duration::from_secs(60);
/// Set in tests: each image is compared with a copy that was made in the stop.
const CHECK: &str = "FERMATA_TEST_REFERENCE";

/// The capture of this worker, in one of its stages. At most one field is set.
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
    let under_way = |server: &mut Server| {
        server.end_readings();
        server.site.examining_images()
    };
    while let Some(examining) = on_server(serving, under_way)? {
        if !examining.ends_within(until.saturating_duration_since(Instant::now())) {
            break;
        }
    }
    Ok(())
}

impl Capturing {
    /// Makes everything ready that can be while the program runs.
    pub fn prepare(
        &mut self,
        serving: Option<&Serving>,
        store: &Path,
        way: Option<control::Way>,
        pool_bytes: Option<u64>,
        validate: control::Validate,
    ) -> Result<FromWorker, Failure> {
        let serving = serving.ok_or_else(ended)?;
        if self.prepared.is_some() || self.capture.is_some() || self.ahead.is_some() {
            return Err(order("Prepare"));
        }
        let store = Store::open(store, true).map_err(|error| of_session(&error.into()))?;
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
        // The rest takes long; the program runs meanwhile.
        let prepared = sketch.and_then(|sketch| capture::prepare(sketch, &store));
        let prepared = prepared.map_err(|error| of_session(&error))?;
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
                // A gate that is still there belongs to a restore whose data has all come.
                server.close_gate();
                server.gate = Some(gate);
                capture
            })
        })?;
        let capture = begun.map_err(|error| of_session(&error))?;
        let way = capture.way();
        self.capture = Some(capture);
        let steps = Vec::new();
        Ok(FromWorker::Begun { way, steps })
    }

    /// Captures the session as it is now. Returns the gate that its operations have to pass from now on.
    pub fn begin(
        &mut self,
        site: &mut Site,
        image: &Path,
    ) -> Result<(Box<dyn Gate>, FromWorker), Failure> {
        let prepared = self.prepared.take().ok_or_else(|| order("Begin"))?;
        let check = std::env::var_os(CHECK).is_some();
        let begun = capture::begin(site, prepared, image, check);
        let (capture, gate) = begun.map_err(|error| of_session(&error))?;
        let way = capture.way();
        let steps = capture.steps().to_vec();
        self.capture = Some(capture);
        Ok((gate, FromWorker::Begun { way, steps }))
    }

    /// How far the capture is. When it has ended with an image, `totals` makes the answer.
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
        match capture.join().map_err(|error| of_session(&error))? {
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

    /// What has been copied ahead of the current stop.
    pub fn take_ahead(&mut self) -> Result<Option<Ahead>, EngineError> {
        if let Some(capture) = self.capture.take() {
            // The capture has ended since the last look.
            return match capture.join()? {
                Outcome::Ahead(ahead) | Outcome::Overtaken(ahead, _) => Ok(Some(ahead)),
                Outcome::Complete(_) => Ok(None),
            };
        }
        Ok(self.ahead.take())
    }

    /// Abandons the capture and frees the device memory that was set aside.
    pub fn abandon(&mut self) {
        self.ahead = None;
        self.prepared = None;
        if let Some(capture) = self.capture.take() {
            capture.give_up("the checkpoint was given up");
            // The gate notices, and releases what it holds.
            drop(capture.join());
        }
    }
}
