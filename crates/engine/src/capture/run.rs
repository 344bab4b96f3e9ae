//! A capture under way: starts the gate and the thread that copies, and waits for the end.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use fermata_terms::{Step, Way};

use super::checker::Checker;
use super::conductor::Conductor;
use super::map::ChunkMap;
use super::outcome::{Finish, Outcome, conclude};
use super::purpose::Purpose;
use super::shared::Shared;
use super::tools::Tools;
use super::watch::Watch;
use crate::access::Predictor;
use crate::live::Exposed;
use crate::{EngineError, Gate, Site};

/// A capture under way.
pub struct Capture {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Outcome, EngineError>>,
    way: Way,
    total: u64,
    steps: Vec<Step>,
}

/// Starts the thread that copies. It finishes an image of the start itself (`finish`); the stop finishes an image of the
/// end.
pub(super) fn launch(
    site: &mut Site,
    tools: Tools,
    (map, exposed): (ChunkMap, Exposed),
    steps: Vec<Step>,
    finish: Option<Finish>,
) -> Result<(Capture, Box<dyn Gate>), EngineError> {
    let Tools {
        way,
        validation,
        sink,
        signals,
        pools,
    } = tools;
    let purpose = match finish {
        Some(_) => Purpose::Start,
        None => Purpose::End,
    };
    let total = map.left().bytes;
    let predictor = site.live.lasting.take::<Predictor>().unwrap_or_default();
    let by = validation.by;
    let checker = by.by_instrumenting().then(|| Checker::new(site));
    let shared = Arc::new(Shared::new(purpose, map, pools, validation, signals));
    let mut watch = Watch::new(Arc::clone(&shared), exposed, predictor, checker);
    let conductor = Conductor {
        shared: Arc::clone(&shared),
        driver: Arc::clone(&site.live.driver),
        sink,
        hashers: site.live.hashers.clone(),
    };
    let own = Arc::clone(&shared);
    let thread = std::thread::Builder::new()
        .name("capture".to_owned())
        .spawn(move || {
            let begun = Instant::now();
            let sink = conductor.run();
            conclude(own.verdict(begun.elapsed()), sink, finish)
        });
    match thread {
        Ok(thread) => {
            let capture = Capture {
                shared,
                thread,
                way,
                total,
                steps,
            };
            Ok((capture, Box::new(watch)))
        }
        Err(error) => {
            shared.end();
            watch.close(site);
            Err(EngineError::Internal(format!(
                "cannot start the thread that copies: {error}"
            )))
        }
    }
}

impl Capture {
    /// The protocol in use: a snapshot that no longer fits becomes `cow`.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Bytes copied and bytes in all.
    pub fn progress(&self) -> (u64, u64) {
        let moved = self.shared.inner.lock().moved;
        (moved, self.total.max(moved))
    }

    /// The steps of the stop at its beginning, with their times.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether it has ended, with an image or without.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it early, without an image; the program goes on. What was copied ahead can still be used.
    pub fn give_up(&self, why: &str) {
        self.shared.give_up(EngineError::Internal(why.to_owned()));
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// There is no image.
    pub fn join(self) -> Result<Outcome, EngineError> {
        let failed = || EngineError::Internal("the thread that copies has failed".to_owned());
        self.thread.join().map_err(|_| failed())?
    }
}
