//! Marks: points in streams, which are passed once and can be waited for.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::recordings::Recordings;

/// One recording of an event.
#[derive(Debug, Default)]
pub struct Mark {
    passed: Mutex<Option<Instant>>,
    changed: Condvar,
    /// The recording, if other processes may wait for it.
    between: Option<(Arc<Recordings>, u64)>,
}

impl Mark {
    /// A recording that other processes know by its number.
    pub fn of(recordings: &Arc<Recordings>, number: u64) -> Arc<Self> {
        Arc::new(Self {
            between: Some((Arc::clone(recordings), number)),
            ..Self::default()
        })
    }

    /// The stream is here now.
    pub fn pass(&self) {
        if let Some((recordings, number)) = &self.between {
            recordings.pass(*number);
        }
        *self.passed.lock() = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Waits until the stream has been here.
    pub fn wait(&self) {
        if let Some((recordings, number)) = &self.between {
            return recordings.wait(*number);
        }
        let mut passed = self.passed.lock();
        while passed.is_none() {
            self.changed.wait(&mut passed);
        }
    }

    /// Whether the stream has been here.
    pub fn is_passed(&self) -> bool {
        match &self.between {
            Some((recordings, number)) => recordings.is_passed(*number),
            None => self.time().is_some(),
        }
    }

    /// When a stream of this process passed the mark, if it has.
    pub fn time(&self) -> Option<Instant> {
        *self.passed.lock()
    }
}
