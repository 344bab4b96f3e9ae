//! The handle of a loader: reports its progress and times, and waits for its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_store::Taken;

use crate::restore::learning::checked_launches::CheckedLaunches;
use crate::restore::loading::disk_turns::DiskTurns;
use crate::restore::loading::schedule::{Schedule, Stand};
use crate::restore::times::Times;
use crate::steps::Steps;
use crate::thread::Thread;
use crate::{EngineError, Progress};
use fermata_terms::Miss;
use fermata_terms::Step;

/// How long the threads may take to notice that the session has ended.
const END_TIME: Duration = Duration::from_secs(5);
/// How often an eager restore reports progress.
const TURN: Duration = Duration::from_millis(20);

/// An on-demand restore under way. Dropping this ends it.
pub struct Background {
    pub(in crate::restore) schedule: Arc<Schedule>,
    pub(in crate::restore) thread: Thread<()>,
    pub(in crate::restore) total: u64,
    pub(in crate::restore) begun: Instant,
    pub(in crate::restore) times: Arc<Times>,
    pub(in crate::restore) checks: Arc<CheckedLaunches>,
    /// Where its bytes come from.
    pub(in crate::restore) taken: Arc<Taken>,
    /// At the disk that they come from.
    pub(in crate::restore) turns: Arc<DiskTurns>,
}

/// The progress of a restore.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Bytes that are present.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Its state.
    pub stand: Stand,
    /// Seconds since it began.
    pub seconds: f64,
    /// What they were spent on.
    pub steps: Vec<Step>,
    /// Mis-speculations that instrumented kernels have reported for a fault.
    pub caught: Vec<Miss>,
}

impl Background {
    /// Its progress.
    pub fn standing(&self) -> Standing {
        let time = self.schedule.ended_after(self.begun);
        let mut steps = Steps::since(self.begun);
        let done = self.schedule.bytes_done();
        self.times.tell(&mut steps, self.begun, done, time);
        steps.sources(&[&self.taken]);
        // Before `caught`: a fault is recorded there before the state changes.
        let stand = self.schedule.stand();
        Standing {
            done,
            total: self.total,
            stand,
            caught: self.checks.caught(),
            seconds: time.as_secs_f64(),
            steps: steps.list(),
        }
    }

    /// Waits until all memory is made.
    ///
    /// # Errors
    /// Memory cannot be made, or data that was already being read cannot be loaded.
    pub(in crate::restore) fn made(&self) -> Result<(), EngineError> {
        self.schedule.await_all_made();
        match self.schedule.stand() {
            Stand::Coming | Stand::Complete => Ok(()),
            stand => Err(self.failure(stand)),
        }
    }

    /// The error for a restore that has ended without all data; only the first caller gets it in full.
    fn failure(&self, stand: Stand) -> EngineError {
        match stand {
            Stand::Failed(error) => {
                self.schedule.forget();
                Arc::try_unwrap(error)
                    .unwrap_or_else(|error| EngineError::Internal(error.to_string()))
            }
            other => EngineError::Internal(format!("the data has not come: {other:?}")),
        }
    }

    /// Waits until all data is present, and records the steps.
    ///
    /// # Errors
    /// The data cannot be loaded.
    pub(in crate::restore) fn complete(
        &self,
        progress: Progress<'_>,
        steps: &mut Steps,
    ) -> Result<(), EngineError> {
        let stand = loop {
            match self.schedule.await_end(TURN) {
                Stand::Coming => progress(self.schedule.bytes_done(), self.total),
                other => break other,
            }
        };
        let time = self.schedule.ended_after(self.begun);
        self.times.tell(steps, self.begun, self.total, time);
        match stand {
            Stand::Complete => Ok(()),
            other => Err(self.failure(other)),
        }
    }

    /// The program's host memory is there: nobody else reads the image any more.
    pub fn has_the_disk(&self) {
        self.turns.end();
    }

    /// Whether all data is present.
    pub fn is_complete(&self) -> bool {
        matches!(self.schedule.stand(), Stand::Complete)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.schedule.end(Stand::Cancelled);
        // A thread that hangs in the driver ends with the process.
        self.thread.ends_within(END_TIME);
    }
}
