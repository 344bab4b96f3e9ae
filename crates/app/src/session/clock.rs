//! When snapshots were turned into checkpoints, and at which level the next one is.

use std::time::Instant;

use crate::{Config, Level};

/// When checkpoints were made.
pub(crate) struct Clock {
    pub(super) last: Instant,
    /// Snapshots that became checkpoints.
    pub(super) count: u64,
    /// Whether the next call is the first one, at which a restarted job recovers.
    pub(super) first: bool,
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
    pub(super) fn level(config: &Config, count: u64) -> Level {
        let due = |level: &Level| {
            let every = u64::from(config.every[usize::from(level.number())]);
            every > 0 && count.is_multiple_of(every)
        };
        let turn = Level::ALL.into_iter().rev().find(due);
        turn.unwrap_or(Level::Local)
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
