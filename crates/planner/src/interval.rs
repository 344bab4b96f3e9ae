//! How often to checkpoint, and what it costs (PhoenixOS, appendix A.1; FTI on GPUs, equations 1
//! and 2; both rest on Young's first-order model).
//!
//! With a checkpoint every T seconds, each costing C seconds of the program's time, a mean time
//! between failures M and a restart of R seconds, the share of time lost is about
//! `C / T + (T / 2 + R) / M`: checkpoints made, plus half an interval repeated and a restart per
//! failure. It is least at `T = sqrt(2 C M)`.

/// Costs and failures, all in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Program time lost to one checkpoint (the stall, not the time behind it).
    pub checkpoint: f64,
    /// Time from failure to running again.
    pub restart: f64,
    /// Mean time between failures of the whole job.
    pub between_failures: f64,
    /// The shortest interval possible: a checkpoint must be complete before the next begins.
    pub shortest_interval: f64,
}

/// The interval that wastes least, in seconds.
///
/// `None` if a cost is negative or not a number, or there is no time between failures.
pub fn best(costs: &Costs) -> Option<f64> {
    let valid = [costs.checkpoint, costs.restart, costs.shortest_interval]
        .iter()
        .all(|v| *v >= 0.0);
    if !valid || costs.between_failures.is_nan() || costs.between_failures <= 0.0 {
        return None;
    }
    Some(
        (2.0 * costs.checkpoint * costs.between_failures)
            .sqrt()
            .max(costs.shortest_interval),
    )
}

/// The share of time wasted with a checkpoint every `interval` seconds, between 0 and 1.
pub fn waste(costs: &Costs, interval: f64) -> f64 {
    let per_checkpoint = if costs.checkpoint == 0.0 {
        0.0
    } else {
        costs.checkpoint / interval
    };
    (per_checkpoint + (interval / 2.0 + costs.restart) / costs.between_failures).min(1.0)
}

/// The interval that wastes least when restarts count too: `sqrt(2 (M - R) C)` with R everything from
/// the failure until the lost work begins again (FTI on GPUs, equation 1, whose D and R are one here).
///
/// `None` as for [`best`], and when a restart takes longer than the time between failures.
pub fn best_with_restart(costs: &Costs) -> Option<f64> {
    let between_failures = costs.between_failures - costs.restart;
    best(&Costs {
        between_failures,
        ..*costs
    })
}

/// The share of time wasted, between 0 and 1: `1 - (1 - C / T) (1 - (R + T / 2) / M)` (FTI on GPUs,
/// equation 2). C is what the program is held for; a checkpoint written behind it costs less than it takes.
pub fn waste_with_restart(costs: &Costs, interval: f64) -> f64 {
    // What costs nothing wastes nothing, however often it is made.
    let held = match costs.checkpoint > 0.0 {
        true => (costs.checkpoint / interval).min(1.0),
        false => 0.0,
    };
    let useful = 1.0 - held;
    let lost = (costs.restart + interval / 2.0) / costs.between_failures;
    (1.0 - useful * (1.0 - lost.min(1.0))).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        checkpoint: 5.0,
        restart: 60.0,
        between_failures: 3600.0,
        shortest_interval: 0.0,
    };

    #[test]
    fn best_interval_is_a_minimum() {
        let best = best(&COSTS).expect("costs are valid");
        assert!((best - 36000f64.sqrt()).abs() < 1e-9);
        for other in [best * 0.8, best * 0.95, best * 1.05, best * 1.3] {
            assert!(waste(&COSTS, other) > waste(&COSTS, best));
        }
    }

    #[test]
    fn cheap_checkpoints_are_bounded_by_their_own_duration() {
        let costs = Costs {
            checkpoint: 0.0,
            shortest_interval: 2.0,
            ..COSTS
        };
        assert_eq!(best(&costs), Some(2.0));
    }

    #[test]
    fn restarts_shorten_the_interval() {
        let with = best_with_restart(&COSTS).expect("costs are valid");
        assert!((with - (2.0 * 3540.0 * 5.0f64).sqrt()).abs() < 1e-9);
        let hopeless = Costs {
            restart: 4000.0,
            ..COSTS
        };
        assert_eq!(best_with_restart(&hopeless), None);
        let by_hand = 1.0 - (1.0 - 5.0 / 200.0) * (1.0 - (60.0 + 100.0) / 3600.0);
        assert!((waste_with_restart(&COSTS, 200.0) - by_hand).abs() < 1e-12);
        for other in [with * 0.7, with * 1.4] {
            assert!(waste_with_restart(&COSTS, other) > waste_with_restart(&COSTS, with));
        }
    }

    #[test]
    fn what_costs_nothing_wastes_nothing() {
        let free = Costs {
            checkpoint: 0.0,
            restart: 0.0,
            ..COSTS
        };
        assert_eq!(best_with_restart(&free), Some(0.0));
        assert_eq!(waste_with_restart(&free, 0.0), 0.0);
        assert_eq!(waste(&free, 0.0), 0.0);
        assert_eq!(waste_with_restart(&COSTS, 0.0), 1.0);
        for checkpoint in [-1.0, f64::NAN] {
            let costs = Costs {
                checkpoint,
                ..COSTS
            };
            assert_eq!(best_with_restart(&costs), None);
            let waste = waste_with_restart(&costs, 100.0);
            assert!((0.0..=1.0).contains(&waste), "{waste}");
        }
    }

    #[test]
    fn nonsense_has_no_interval() {
        assert_eq!(
            best(&Costs {
                between_failures: 0.0,
                ..COSTS
            }),
            None
        );
        assert_eq!(
            best(&Costs {
                checkpoint: f64::NAN,
                ..COSTS
            }),
            None
        );
    }
}
