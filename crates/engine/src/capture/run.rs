//! A capture under way: the gate and the thread that copies.

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

/// Starts the thread that copies. An image of the start has something to finish with; that of the end is
/// finished by the stop.
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
    /// How it goes: a snapshot that no longer fits goes as `cow`.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Bytes copied and bytes in all.
    pub fn progress(&self) -> (u64, u64) {
        let moved = self.shared.inner.lock().moved;
        (moved, self.total.max(moved))
    }

    /// What the stop at its begin has spent its time on.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether it has ended, one way or the other.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it early: the program goes on, and there is no image. Copying ahead ends without harm.
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
