//! Marks that streams pass.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// One recording of an event.
#[derive(Debug, Default)]
pub struct Mark {
    passed: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Mark {
    /// The stream is here now.
    pub fn pass(&self) {
        *self.passed.lock() = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Waits until the stream has been here.
    pub fn wait(&self) {
        let mut passed = self.passed.lock();
        while passed.is_none() {
            self.changed.wait(&mut passed);
        }
    }

    /// When the stream was here, if it has been.
    pub fn time(&self) -> Option<Instant> {
        *self.passed.lock()
    }
}
