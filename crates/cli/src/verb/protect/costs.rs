//! The interval between two images, from what images, restarts and failures have been seen to cost (PhoenixOS, appendix
//! A.1: measured online).

use std::time::{Duration, Instant};

use fermata_planner::interval::{self, Costs as Model};

/// What one more measurement counts against all before it.
const WEIGHT: f64 = 0.3;
/// Until an image is complete that says what one costs.
const FIRST: Duration = Duration::from_secs(60);

/// What has been measured.
#[derive(Debug)]
pub struct Costs {
    every: Option<Duration>,
    began: Instant,
    /// Seconds between two failures before any was seen.
    expected: f64,
    failures: u32,
    /// Seconds that the program lost to an image.
    lost: Option<f64>,
    /// Seconds that an image took in all.
    took: Option<f64>,
    restart: Option<f64>,
}

impl Costs {
    /// Nothing has been measured. `every` is an interval that is kept to whatever it costs; `expected` are the seconds
    /// between two failures that are assumed at first.
    pub fn new(every: Option<Duration>, expected: f64) -> Self {
        Self {
            every,
            began: Instant::now(),
            expected,
            failures: 0,
            lost: None,
            took: None,
            restart: None,
        }
    }

    /// An image is complete for which the program stood still, or waited, `lost` seconds, after `took` in all.
    pub fn image(&mut self, lost: f64, took: f64) {
        mix(&mut self.lost, lost);
        mix(&mut self.took, took);
    }

    /// The program died.
    pub fn failure(&mut self) {
        self.failures += 1;
    }

    /// It ran again after `seconds`.
    pub fn restart(&mut self, seconds: f64) {
        mix(&mut self.restart, seconds);
    }

    /// The interval now.
    pub fn interval(&self) -> Duration {
        self.interval_after(self.began.elapsed().as_secs_f64())
    }

    /// As [`Costs::interval`], `seconds` after the begin.
    fn interval_after(&self, seconds: f64) -> Duration {
        if let Some(every) = self.every {
            return every;
        }
        let (Some(checkpoint), Some(took)) = (self.lost, self.took) else {
            return FIRST;
        };
        let model = Model {
            checkpoint,
            restart: self.restart.unwrap_or(0.0),
            // As if one failure more had been seen, after the time that was expected.
            between_failures: (seconds + self.expected) / f64::from(self.failures + 1),
            shortest_interval: took.max(1.0),
        };
        let best = interval::best_with_restart(&model).or_else(|| interval::best(&model));
        best.and_then(|it| Duration::try_from_secs_f64(it).ok())
            .unwrap_or(FIRST)
    }
}

fn mix(known: &mut Option<f64>, new: f64) {
    *known = Some(known.map_or(new, |old| old + WEIGHT * (new - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_what_is_measured() {
        let mut costs = Costs::new(None, 3600.0);
        assert_eq!(costs.interval_after(0.0), FIRST);
        costs.image(0.5, 2.0);
        let at = |costs: &Costs, seconds: f64| costs.interval_after(seconds).as_secs_f64();
        assert!((at(&costs, 0.0) - 60.0).abs() < 1e-6);
        // Nothing fails: less often. Something does: more often.
        assert!((at(&costs, 3600.0) - 7200f64.sqrt()).abs() < 1e-6);
        costs.failure();
        assert!((at(&costs, 3600.0) - 60.0).abs() < 1e-6);
        costs.restart(600.0);
        assert!((at(&costs, 3600.0) - 3000f64.sqrt()).abs() < 1e-6);
        // Never before the last one is complete.
        costs.image(0.0, 1000.0);
        assert!(at(&costs, 3600.0) > 250.0);
    }

    #[test]
    fn an_interval_that_was_asked_for_is_kept() {
        let every = Duration::from_millis(300);
        let mut costs = Costs::new(Some(every), 3600.0);
        costs.image(5.0, 100.0);
        costs.failure();
        assert_eq!(costs.interval(), every);
    }
}
