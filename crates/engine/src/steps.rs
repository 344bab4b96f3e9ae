//! The named steps of a load, each with its time and bytes.

use std::time::{Duration, Instant};

use fermata_store::Taken;
use fermata_terms::Step;

/// The steps so far.
#[derive(Debug)]
pub(crate) struct Steps {
    begun: Instant,
    done: Vec<Step>,
}

impl Steps {
    /// No steps yet; times count from `begun`.
    pub fn since(begun: Instant) -> Self {
        Self {
            begun,
            done: Vec::new(),
        }
    }

    /// Does `work`, and records it as a step.
    pub fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let from = Instant::now();
        let done = work();
        self.add(name, from, 0);
        done
    }

    /// Records a step that ends now.
    pub fn add(&mut self, name: &'static str, from: Instant, bytes: u64) {
        self.until(name, from, Some(&Instant::now()), bytes);
    }

    /// Records a step that has ended at `end`, if it has ended.
    pub fn until(&mut self, name: &'static str, from: Instant, end: Option<&Instant>, bytes: u64) {
        if let Some(end) = end {
            self.spent(name, from, end.saturating_duration_since(from), bytes);
        }
    }

    /// Records a step that took `time` in all, at once or in parts.
    pub fn spent(&mut self, name: &'static str, from: Instant, time: Duration, bytes: u64) {
        self.done.push(Step {
            name: name.to_owned(),
            start: from.saturating_duration_since(self.begun).as_secs_f64(),
            seconds: time.as_secs_f64(),
            bytes,
        });
    }

    /// Records where bytes came from: the cache, or a disk.
    pub fn sources(&mut self, taken: &[&Taken]) {
        let sum = |bytes: fn(&Taken) -> u64| -> u64 { taken.iter().map(|it| bytes(it)).sum() };
        for (name, bytes) in [
            ("cache", sum(Taken::from_copies)),
            ("disk", sum(Taken::from_disk)),
        ] {
            if bytes > 0 {
                self.spent(name, self.begun, Duration::ZERO, bytes);
            }
        }
    }

    /// All of them.
    pub fn list(self) -> Vec<Step> {
        self.done
    }
}
