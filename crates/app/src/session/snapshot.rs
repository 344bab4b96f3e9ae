//! Checkpoints by time: a program calls `snapshot` at every good moment, and some of the calls do something.

use std::time::Instant;

use super::clock::Clock;
use crate::ranks::roll::{Call, roll};
use crate::{Result, Session};

/// What a call of [`Session::snapshot`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// It was not time yet.
    Nothing,
    /// A checkpoint was made, with this number.
    Checkpoint(i64),
    /// The variables were recovered from the checkpoint of this number.
    Recovered(i64),
}

impl Session {
    /// At the first call of a restarted job: recovers. Later: makes a checkpoint if the interval has
    /// passed since the last one, on rank 0's clock. Collective.
    ///
    /// # Errors
    /// As `recover` and `checkpoint`. When there are checkpoints of which none can be used, the first call
    /// says so and does nothing; the calls after it go on without.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        if std::mem::take(&mut self.clock.first) {
            if self.status().recoverable.is_some() {
                return self.recover().map(Snapshot::Recovered);
            }
            if let Some(error) = self.only_unusable() {
                return Err(error);
            }
        }
        if !self.is_time()? {
            return Ok(Snapshot::Nothing);
        }
        self.clock.count += 1;
        self.clock.last = Instant::now();
        let level = Clock::level(&self.config, self.clock.count);
        let id = self.next_id();
        self.checkpoint(id, level)?;
        Ok(Snapshot::Checkpoint(id))
    }

    /// Rank 0 decides, so that all do the same.
    fn is_time(&self) -> Result<bool> {
        let passed = self.clock.last.elapsed().as_secs_f64();
        let due = self
            .measured
            .interval(&self.config)
            .is_some_and(|interval| passed >= interval);
        Ok(roll(&*self.comm, Call::Snapshot, u64::from(due))? != 0)
    }
}
