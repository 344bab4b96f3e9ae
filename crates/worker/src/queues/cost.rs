//! Estimates how long pieces of work take, by their kind, from how long stretches of a stream's work took.
//!
//! A stretch is the work up to an event. The last query that found the event pending gives a lower bound of the stretch's
//! duration, the first that found it completed an upper bound. The estimates of its pieces are scaled to fit between the
//! two. So one stretch is enough to correct an estimate, and a stretch that was not watched changes no estimate that fits.

use std::time::Duration;

use fermata_abi::op::{ExecId, FunctionId, Op, Place};
use fermata_engine::HandleMap;

/// Nanoseconds of a kind of work that has never been measured.
const UNKNOWN: u64 = 2_500_000;
/// Nanoseconds of work that costs the device next to nothing.
const NOTHING: u64 = 1_000;
/// The bounds of an estimate, nanoseconds.
const LEAST: u64 = 500;
const MOST: u64 = 3_600_000_000_000;
/// The most kinds of work that are remembered; with more, all are forgotten and learnt again.
const KINDS: usize = 1 << 16;

/// What a piece of work does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum What {
    /// A kernel.
    Kernel(FunctionId),
    /// A graph.
    Graph(ExecId),
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A function of the program on the host.
    Callback,
    /// A wait for an event or a value.
    Wait,
    /// A record, a write of a value.
    #[default]
    Other,
}

impl What {
    /// Whether it keeps the device or the host at work: all but waits and records.
    pub fn works(self) -> bool {
        !matches!(self, Self::Wait | Self::Other)
    }
}

/// A piece of work: what it does, and the power of two of its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub what: What,
    size: u8,
}

fn power(size: u64) -> u8 {
    (64 - size.leading_zeros()) as u8
}

impl Work {
    /// The work of an operation.
    #[inline]
    pub fn of(op: &Op<'_>) -> Self {
        let (what, size) = match op {
            Op::Launch { launch, .. } => {
                let blocks = launch.grid.map(u64::from);
                let blocks = blocks.into_iter().fold(1, u64::saturating_mul);
                (What::Kernel(launch.function), power(blocks))
            }
            Op::GraphLaunch { exec, .. } => (What::Graph(*exec), 0),
            Op::Copy { to, from, len, .. } => {
                // Over the bus or not: an order of magnitude.
                let near = matches!((to, from), (Place::Address(_), Place::Address(_)));
                (What::Copy, power(*len) | u8::from(near) << 7)
            }
            Op::Copy3d { extent, .. } => {
                let rows = extent.height.saturating_mul(extent.depth);
                (What::Copy, power(extent.width.saturating_mul(rows)))
            }
            Op::Fill { width, height, .. } => (What::Fill, power(width.saturating_mul(*height))),
            Op::HostCall { .. } => (What::Callback, 0),
            Op::StreamWait { .. } | Op::WaitValue { .. } => (What::Wait, 0),
            _ => (What::Other, 0),
        };
        Self { what, size }
    }

    /// A record.
    #[cfg(test)]
    pub const fn light() -> Self {
        Self {
            what: What::Other,
            size: 0,
        }
    }

    /// A kernel of one block.
    #[cfg(test)]
    pub const fn kernel(handle: FunctionId) -> Self {
        Self {
            what: What::Kernel(handle),
            size: 1,
        }
    }

    /// Whether it may wait for other work than that before it in its stream.
    pub fn waits(self) -> bool {
        matches!(self.what, What::Wait | What::Callback)
    }

    fn key(self) -> u64 {
        let kind = |kind: u64| kind << 48;
        let of = match self.what {
            What::Kernel(handle) => handle.raw() << 1,
            What::Graph(handle) => handle.raw() << 1,
            What::Copy => kind(1) | 1,
            What::Fill => kind(2) | 1,
            What::Callback => kind(3) | 1,
            What::Wait | What::Other => kind(4) | 1,
        };
        of ^ u64::from(self.size) << 56
    }
}

/// Estimates, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Costs(HandleMap<u64, u64>);

impl Costs {
    /// The estimate for such a piece, nanoseconds.
    #[inline]
    pub fn of(&self, work: Work) -> u64 {
        match work.what {
            What::Wait | What::Other => NOTHING,
            _ => self.0.get(&work.key()).copied().unwrap_or(UNKNOWN),
        }
    }

    /// Corrects the estimates of these pieces, which together took at least `least` and at most `most`. Uses the current
    /// estimates, which may have changed since the pieces were issued.
    pub fn learn(&mut self, pieces: &[(Work, u32)], least: Duration, most: Duration) {
        let estimate =
            |(work, times): &(Work, u32)| self.of(*work).saturating_mul(u64::from(*times));
        let sum = pieces.iter().map(estimate).fold(0, u64::saturating_add);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (least, most) = (nanoseconds(least), nanoseconds(most).max(1));
        let fits = sum.max(least.min(most)).min(most);
        if fits == sum || sum == 0 {
            return;
        }
        if self.0.len() >= KINDS {
            self.0.clear();
        }
        for (work, _) in pieces {
            if matches!(work.what, What::Wait | What::Other) {
                continue;
            }
            let known = u128::from(self.of(*work));
            let scaled = known * u128::from(fits) / u128::from(sum);
            let scaled = u64::try_from(scaled).unwrap_or(MOST).clamp(LEAST, MOST);
            self.0.insert(work.key(), scaled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(handle: FunctionId) -> Work {
        Work {
            what: What::Kernel(handle),
            size: 3,
        }
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn one_stretch_corrects_an_estimate() {
        let mut costs = Costs::default();
        let pieces = [(kernel(FunctionId::from_raw(0x100)), 4)];
        assert_eq!(costs.of(kernel(FunctionId::from_raw(0x100))), UNKNOWN);
        costs.learn(&pieces, ms(40), ms(41));
        assert_eq!(costs.of(kernel(FunctionId::from_raw(0x100))), 10_000_000);
        costs.learn(&pieces, ms(0), Duration::from_micros(12));
        assert_eq!(costs.of(kernel(FunctionId::from_raw(0x100))), 3_000);
        assert_eq!(costs.of(kernel(FunctionId::from_raw(0x101))), UNKNOWN);
    }

    #[test]
    fn what_nobody_has_watched_changes_nothing_that_fits() {
        let mut costs = Costs::default();
        costs.learn(&[(kernel(FunctionId::from_raw(0x100)), 1)], ms(0), ms(1000));
        assert_eq!(costs.of(kernel(FunctionId::from_raw(0x100))), UNKNOWN);
    }

    #[test]
    fn what_costs_nothing_learns_nothing() {
        let mut costs = Costs::default();
        let wait = Work {
            what: What::Wait,
            size: 0,
        };
        costs.learn(&[(wait, 1)], ms(500), ms(501));
        assert_eq!(costs.of(wait), NOTHING);
    }
}
