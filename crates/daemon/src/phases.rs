//! Measures the steps of a checkpoint or restore.

use std::time::Instant;

use fermata_control::user;
use fermata_control::worker::Step;
use fermata_store::image;
use parking_lot::Mutex;

/// A worker's step, part of the phase `of` that began at `offset` seconds.
pub fn part(step: &Step, of: &str, offset: f64) -> user::Phase {
    let name = match of {
        "" => step.name.clone(),
        of => format!("{of}.{}", step.name),
    };
    user::Phase {
        name,
        start: offset + step.start,
        seconds: step.seconds,
        bytes: step.bytes,
    }
}

/// A clock that steps, also those of several threads, report to.
#[derive(Debug)]
pub struct Phases {
    begun: Instant,
    done: Mutex<Vec<user::Phase>>,
}

impl Phases {
    /// Starts the clock.
    pub fn start() -> Self {
        Self {
            begun: Instant::now(),
            done: Mutex::default(),
        }
    }

    /// Does `work` and records how long it took under `name`.
    pub fn time<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        self.record(name, begun, begun.elapsed().as_secs_f64(), 0);
        result
    }

    /// Records the parts of step `of`, which began at `begun`, as the worker has measured them.
    pub fn parts(&self, of: &str, begun: Instant, steps: &[Step]) {
        let offset = begun.saturating_duration_since(self.begun).as_secs_f64();
        let phases = steps.iter().map(|it| part(it, of, offset));
        self.done.lock().extend(phases);
    }

    fn record(&self, name: &str, begun: Instant, seconds: f64, bytes: u64) {
        self.done.lock().push(user::Phase {
            name: name.into(),
            start: begun.saturating_duration_since(self.begun).as_secs_f64(),
            seconds,
            bytes,
        });
    }

    /// Sets the bytes that a step moved.
    pub fn moved(&self, name: &str, bytes: u64) {
        if let Some(phase) = self.done.lock().iter_mut().find(|p| p.name == name) {
            phase.bytes = bytes;
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// The steps so far, for users.
    pub fn list(&self) -> Vec<user::Phase> {
        self.done.lock().clone()
    }

    /// The steps so far, for a manifest.
    pub fn recorded(&self) -> Vec<image::Phase> {
        let convert = |p: user::Phase| image::Phase {
            name: p.name,
            start: p.start,
            seconds: p.seconds,
            bytes: p.bytes,
        };
        self.list().into_iter().map(convert).collect()
    }
}
