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
