//! Signals of other threads to the one that takes: the program waits, or the save has been given up.

use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    hurry: AtomicBool,
    given_up: AtomicBool,
}

impl Signals {
    /// Sets whether the program waits for what is being taken. If it does, the sink does not wait for storage as long
    /// as there is host memory for chunks that storage has not taken yet.
    pub fn hurry(&self, waits: bool) {
        self.hurry.store(waits, Ordering::Release);
    }

    /// Gives the save up: [`super::Sink::take`] returns as soon as the copies under way have ended. Without this it
    /// could wait for a staging buffer as long as storage takes for a chunk.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Undoes [`Signals::give_up`]: a stop takes the rest.
    pub fn go_on(&self) {
        self.given_up.store(false, Ordering::Release);
    }

    pub(super) fn hurries(&self) -> bool {
        self.hurry.load(Ordering::Acquire)
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}
