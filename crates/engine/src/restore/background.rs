//! A loader's work as others see it: how far it is, what it has spent its time on, and its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fermata_store::Taken;
use parking_lot::Mutex;

use super::checks::{Caught, Checks};
use super::schedule::{Schedule, Stand};
use crate::steps::{Step, Steps};
use crate::{EngineError, Progress};

/// How long threads may take to notice that the session is over.
const END_TIME: Duration = Duration::from_secs(5);
/// How often it is told how far an eager restore is.
const TURN: Duration = Duration::from_millis(20);

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

    fn time(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// When what was done first, what took how long, and how much came in which way.
#[derive(Default)]
pub(super) struct Times {
    /// The first copy has begun.
    pub first: OnceLock<Instant>,
    /// All memory has been made.
    pub made: OnceLock<Instant>,
    /// Memory was made.
    pub make: Spent,
    /// Memory was short: that of a process that has ended had not come back yet.
    pub room: Spent,
    /// What had arrived was hashed.
    pub check: Spent,
    /// Blocks were mapped at their addresses.
    pub map: Spent,
    /// Nothing had been read that could be copied.
    pub starved: Spent,
    /// Copies were under way, and no more were to be begun.
    pub copies: Spent,
    /// Kernels that check themselves were made.
    pub instrumented: Spent,
    /// Operations of the program waited for what they touch, and since when one does.
    waits: Mutex<(Duration, Option<Instant>)>,
    /// Bytes that were read, not copied straight out of registered memory.
    pub read: AtomicU64,
}

impl Times {
    /// From now on an operation of the program waits, or none does.
    pub fn holds(&self, held: bool) {
        let mut waits = self.waits.lock();
        let since = std::mem::replace(&mut waits.1, held.then(Instant::now));
        waits.0 += since.map_or(Duration::ZERO, |since| since.elapsed());
    }

    fn waited(&self) -> Duration {
        let waits = self.waits.lock();
        waits.0 + waits.1.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn tell(&self, steps: &mut Steps, begun: Instant, bytes: u64, seconds: Duration) {
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
    }
}

/// A restore under way behind a program. Dropping it ends it.
pub struct Background {
    pub(super) schedule: Arc<Schedule>,
    pub(super) thread: Option<std::thread::JoinHandle<()>>,
    pub(super) total: u64,
    pub(super) begun: Instant,
    pub(super) times: Arc<Times>,
    pub(super) checks: Arc<Checks>,
    /// Where its bytes come from.
    pub(super) taken: Arc<Taken>,
}

/// How far a restore is.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Bytes that are there.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// How it stands.
    pub stand: Stand,
    /// Seconds since it began.
    pub seconds: f64,
    /// What they were spent on.
    pub steps: Vec<Step>,
    /// What kernels that check themselves have told of a fault.
    pub caught: Vec<Caught>,
}

impl Background {
    /// How far it is.
    pub fn standing(&self) -> Standing {
        let time = self.schedule.ended_after(self.begun);
        let mut steps = Steps::since(self.begun);
        let done = self.schedule.bytes_done();
        self.times.tell(&mut steps, self.begun, done, time);
        steps.sources(&[&self.taken]);
        // The one comes before the other.
        let stand = self.schedule.stand();
        Standing {
            done,
            total: self.total,
            stand,
            caught: self.checks.caught(),
            seconds: time.as_secs_f64(),
            steps: steps.list(),
        }
    }

    /// Waits until all memory is made.
    ///
    /// # Errors
    /// It cannot be, or data that was on its way already cannot be brought.
    pub(super) fn made(&self) -> Result<(), EngineError> {
        self.schedule.await_all_made();
        match self.schedule.stand() {
            Stand::Coming | Stand::Complete => Ok(()),
            stand => Err(self.failure(stand)),
        }
    }

    /// Why the data does not come; nobody else is told of it.
    fn failure(&self, stand: Stand) -> EngineError {
        match stand {
            Stand::Failed(error) => {
                self.schedule.forget();
                Arc::try_unwrap(error)
                    .unwrap_or_else(|error| EngineError::Internal(error.to_string()))
            }
            other => EngineError::Internal(format!("the data has not come: {other:?}")),
        }
    }

    /// Waits until everything is there, and notes what took how long.
    ///
    /// # Errors
    /// It does not come.
    pub(super) fn complete(
        &self,
        progress: Progress<'_>,
        steps: &mut Steps,
    ) -> Result<(), EngineError> {
        let stand = loop {
            match self.schedule.await_end(TURN) {
                Stand::Coming => progress(self.schedule.bytes_done(), self.total),
                other => break other,
            }
        };
        let time = self.schedule.ended_after(self.begun);
        self.times.tell(steps, self.begun, self.total, time);
        match stand {
            Stand::Complete => Ok(()),
            other => Err(self.failure(other)),
        }
    }

    /// Whether everything is there.
    pub fn is_complete(&self) -> bool {
        matches!(self.schedule.stand(), Stand::Complete)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.schedule.end(Stand::Cancelled);
        let until = Instant::now() + END_TIME;
        // A thread that hangs in the driver ends with the process.
        while self.thread.as_ref().is_some_and(|it| !it.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
