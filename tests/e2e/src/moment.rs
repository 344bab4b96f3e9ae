//! When a checkpoint is asked for: a seeded place between start and end.

use std::time::Duration;

use serde::Serialize;

/// A place in a run: after so many printed steps, and a little later; or
/// exactly before one of its calls.
///
/// Steps make the place independent of the speed of the machine; the delay
/// spreads it over the calls and kernels between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Steps to wait for.
    pub steps: usize,
    /// Microseconds to wait after them.
    pub delay_us: u64,
    /// The call of the CUDA driver API, counted from 1, before which the
    /// program waits to be stopped; then there are no steps and no delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
}

impl Moment {
    /// The `index`-th of `count` moments of a run that prints `steps` steps in
    /// `duration`. They are spread evenly and jittered by `seed`; none lies in
    /// the last tenth, where the program may end first.
    pub fn seeded(seed: u64, index: usize, count: usize, steps: usize, duration: Duration) -> Self {
        let jitter = scramble(seed.wrapping_mul(0x9e37_79b9).wrapping_add(index as u64));
        let unit = (jitter >> 11) as f64 / (1u64 << 53) as f64;
        let place = 0.9 * (index as f64 + unit) / count.max(1) as f64 * steps as f64;
        let per_step = duration.as_secs_f64() / steps.max(1) as f64;
        Self {
            steps: place as usize,
            delay_us: (place.fract() * per_step * 1e6) as u64,
            call: None,
        }
    }

    /// The `index`-th of `count` moments of a run that makes `calls` calls:
    /// spread evenly and jittered by `seed`, the first and the last call
    /// included.
    pub fn at_call(seed: u64, index: usize, count: usize, calls: u64) -> Self {
        let jitter = scramble(seed.wrapping_mul(0x9e37_79b9).wrapping_add(index as u64));
        let count = count.max(1) as u64;
        let first = calls * index as u64 / count;
        let span = (calls * (index as u64 + 1) / count - first).max(1);
        Self {
            steps: 0,
            delay_us: 0,
            call: Some((first + jitter % span + 1).min(calls.max(1))),
        }
    }

    /// A moment well before this one, for a run that has ended before it came.
    #[must_use]
    pub fn earlier(self) -> Self {
        Self {
            steps: self.steps * 3 / 4,
            delay_us: if self.steps == 0 {
                self.delay_us / 2
            } else {
                self.delay_us
            },
            call: self.call.map(|call| (call * 3 / 4).max(1)),
        }
    }

    /// How it is printed.
    pub fn name(&self) -> String {
        match self.call {
            Some(call) => format!("call {call}"),
            None => format!("{}+{}us", self.steps, self.delay_us),
        }
    }
}

/// A bijection of 64 bits that looks random.
fn scramble(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_repeatable_ordered_and_end_before_the_run() {
        let second = Duration::from_secs(1);
        let moments: Vec<_> = (0..20)
            .map(|i| Moment::seeded(7, i, 20, 40, second))
            .collect();
        let again: Vec<_> = (0..20)
            .map(|i| Moment::seeded(7, i, 20, 40, second))
            .collect();
        assert_eq!(moments, again);
        let place = |m: &Moment| m.steps as f64 + m.delay_us as f64 / 25_000.0;
        assert!(moments.windows(2).all(|w| place(&w[0]) < place(&w[1])));
        assert!(moments.iter().all(|m| place(m) <= 36.0));
    }

    #[test]
    fn an_earlier_moment_is_earlier_until_there_is_none() {
        let late = Moment {
            steps: 9,
            delay_us: 500,
            call: None,
        };
        assert_eq!(late.earlier().steps, 6);
        let first = Moment {
            steps: 0,
            delay_us: 500,
            call: None,
        };
        assert_eq!(first.earlier().delay_us, 250);
        let call = Moment {
            steps: 0,
            delay_us: 0,
            call: Some(1),
        };
        assert_eq!(call.earlier().call, Some(1));
    }

    #[test]
    fn calls_are_spread_over_the_whole_run() {
        let calls: Vec<_> = (0..50)
            .filter_map(|i| Moment::at_call(3, i, 50, 500).call)
            .collect();
        assert_eq!(calls.len(), 50);
        for (i, call) in calls.iter().enumerate() {
            assert!((i as u64 * 10 + 1..=i as u64 * 10 + 10).contains(call));
        }
        let few: Vec<_> = (0..9)
            .filter_map(|i| Moment::at_call(3, i, 9, 3).call)
            .collect();
        assert!(few.iter().all(|call| (1..=3).contains(call)));
        assert!(few.contains(&1) && few.contains(&3));
    }
}
