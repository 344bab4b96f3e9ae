//! What other threads tell the one that takes: the program waits, or nothing of it is needed any more.

use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    hurry: AtomicBool,
    given_up: AtomicBool,
}

impl Signals {
    /// Whether the program waits for what is being taken: then it does not wait for storage, as long as there is host
    /// memory for what storage has not taken yet.
    pub fn hurry(&self, waits: bool) {
        self.hurry.store(waits, Ordering::Release);
    }

    /// Nothing that is taken will be used: [`super::Sink::take`] returns as soon as the copies under way have landed. Without
    /// this it could wait as long for a staging buffer as storage takes for a chunk.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// What is taken from now on will be used: a stop takes the rest.
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
