//! Counts what the time of a restore is spent on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::steps::Steps;

/// Time spent on one kind of work, in all.
#[derive(Default)]
pub(super) struct Spent(AtomicU64);

impl Spent {
    /// Does `work`.
    pub fn on<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
        result
    }

    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// First times, time spent by kind of work, and bytes by source.
#[derive(Default)]
pub(super) struct Times {
    /// The first copy has begun.
    pub first: OnceLock<Instant>,
    /// All memory has been made.
    pub made: OnceLock<Instant>,
    /// Memory was made.
    pub make: Spent,
    /// Memory was short, because the driver had not yet released that of a process that has ended.
    pub room: Spent,
    /// Copied data was hashed on the device.
    pub check: Spent,
    /// Blocks were mapped at their addresses.
    pub map: Spent,
    /// Nothing had been read that could be copied.
    pub starved: Spent,
    /// Waiting for copies under way, at their limit.
    pub copies: Spent,
    /// Instrumented kernels were made.
    pub instrumented: Spent,
    /// Time that operations of the program waited at the gate, and since when one waits.
    waits: Mutex<(Duration, Option<Instant>)>,
    /// Bytes that were read, not copied straight out of registered memory.
    pub read: AtomicU64,
    /// Bytes that other workers had already.
    pub common: AtomicU64,
}

impl Times {
    /// Notes whether an operation of the program waits from now on.
    pub fn holds(&self, held: bool) {
        let mut waits = self.waits.lock();
        let since = std::mem::replace(&mut waits.1, held.then(Instant::now));
        waits.0 += since.map_or(Duration::ZERO, |since| since.elapsed());
    }

    pub fn waited(&self) -> Duration {
        let waits = self.waits.lock();
        waits.0 + waits.1.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub fn tell(&self, steps: &mut Steps, begun: Instant, bytes: u64, seconds: Duration) {
        steps.until("memory", begun, self.made.get(), 0);
        steps.until("first copy", begun, self.first.get(), 0);
        steps.spent("data", begun, seconds, bytes);
        for (name, spent) in [
            ("make", &self.make),
            ("room", &self.room),
            ("check", &self.check),
            ("map", &self.map),
            ("starved", &self.starved),
            ("copies", &self.copies),
        ] {
            steps.spent(name, begun, spent.time(), 0);
        }
        if !self.instrumented.time().is_zero() {
            steps.spent("instrumented", begun, self.instrumented.time(), 0);
        }
        steps.spent("waits", begun, self.waited(), 0);
        let read = self.read.load(Ordering::Relaxed);
        if read > 0 {
            steps.spent("read", begun, Duration::ZERO, read);
        }
        let common = self.common.load(Ordering::Relaxed);
        if common > 0 {
            steps.spent("common", begun, Duration::ZERO, common);
        }
    }
}
