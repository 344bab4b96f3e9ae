//! Checkpoints by time: a program calls `snapshot` at every good moment, and some of the calls do something.

use std::time::Instant;

use crate::roll::{Call, roll};
use crate::{Config, Level, Result, Session};

/// When checkpoints were made.
pub(crate) struct Clock {
    last: Instant,
    /// Snapshots that became checkpoints.
    count: u64,
    /// Whether the next call is the first one, at which a restarted job recovers.
    first: bool,
}

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

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            last: Instant::now(),
            count: 0,
            first: true,
        }
    }

    /// The program has recovered: the interval begins anew.
    pub(crate) fn recovered(&mut self) {
        self.first = false;
        self.last = Instant::now();
    }

    /// The level of the checkpoint of this number, counted from 1: the highest whose turn it is.
    fn level(config: &Config, count: u64) -> Level {
        let due = |level: &Level| {
            let every = u64::from(config.every[usize::from(level.number())]);
            every > 0 && count.is_multiple_of(every)
        };
        let turn = Level::ALL.into_iter().rev().find(due);
        turn.unwrap_or(Level::Local)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_takes_its_turn() {
        let mut config = Config::default();
        config.every[2] = 2;
        config.every[4] = 4;
        let levels: Vec<u8> = (1..=8).map(|n| Clock::level(&config, n).number()).collect();
        assert_eq!(levels, [1, 2, 1, 4, 1, 2, 1, 4]);
    }
}
