//! What checkpoints and recoveries have cost so far, and the interval that follows from it.

use fermata_planner::interval::{self, Costs};

use crate::{Config, Interval};

/// Running means, in seconds. Newer measurements weigh more: costs follow the program's phases.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measured {
    blocked: Option<f64>,
    total: Option<f64>,
    restart: f64,
}

const WEIGHT: f64 = 0.3;

impl Measured {
    /// A checkpoint held the program for `blocked` seconds and was complete after `total`.
    pub(crate) fn checkpoint(&mut self, blocked: f64, total: f64) {
        let mix =
            |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + WEIGHT * (new - old)));
        self.blocked = mix(self.blocked, blocked);
        self.total = mix(self.total, total);
    }

    /// A recovery took so many seconds, both phases together.
    pub(crate) fn recovery(&mut self, seconds: f64) {
        self.restart = seconds;
    }

    /// Seconds between checkpoints; `None` if there shall be none, 0 until the first one was measured.
    pub(crate) fn interval(&self, config: &Config) -> Option<f64> {
        match config.interval {
            Interval::Never => None,
            Interval::Seconds(s) => Some(s),
            Interval::Auto => {
                let Some(total) = self.total else {
                    return Some(0.0);
                };
                let costs = self.costs(config, total);
                Some(interval::best_with_restart(&costs).unwrap_or(total))
            }
        }
    }

    /// The share of time lost with checkpoints every `interval` seconds; `None` before the first.
    pub(crate) fn waste(&self, config: &Config, interval: f64) -> Option<f64> {
        let blocked = self.blocked?;
        Some(interval::waste_with_restart(
            &self.costs(config, blocked),
            interval,
        ))
    }

    fn costs(&self, config: &Config, checkpoint: f64) -> Costs {
        Costs {
            checkpoint,
            restart: self.restart + config.downtime,
            between_failures: config.between_failures,
            shortest_interval: self.total.unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_follows_the_costs() {
        let auto = Config {
            interval: Interval::Auto,
            between_failures: 10_000.0,
            downtime: 0.0,
            ..Config::default()
        };
        let mut m = Measured::default();
        assert_eq!(m.interval(&auto), Some(0.0));
        m.checkpoint(0.5, 2.0);
        let cheap = m.interval(&auto).unwrap();
        assert!((cheap - (2.0 * 10_000.0 * 2.0f64).sqrt()).abs() < 1e-9);
        m.checkpoint(0.5, 20.0);
        assert!(m.interval(&auto).unwrap() > cheap);
        assert!(m.waste(&auto, cheap).unwrap() < 0.05);
        assert_eq!(m.interval(&Config::default()), None);
    }
}
