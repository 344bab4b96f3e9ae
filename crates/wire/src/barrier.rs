//! The memory barrier between a producer's message and its read of the doorbell, paid by the consumer where the kernel can.
//!
//! The protocol of `protocol.rs` has a fence on either side. The producer's would be paid with every
//! message, the consumer's only before a sleep; so where the kernel can (`membarrier`), the consumer
//! makes every running thread of the producer's process execute the barrier instead.
//!
//! ```text
//!   consumer offers (a word in the header)   producer has registered its process   producer's fence
//!                 no                                   -                                its own
//!                 yes                                  not yet, or not able             its own
//!                 yes                                  yes                              the consumer's
//! ```
//! The kernel takes its time for a registration, 5 to 30 ms in a process with several threads: the producer
//! works with fences of its own meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// The word's value when the consumer executes the barrier for both.
const OFFERED: u32 = 1;

/// The consumer's side.
#[derive(Debug)]
pub(crate) struct Heavy(bool);

impl Heavy {
    /// Offers the barrier in `word` if the kernel has it.
    pub fn offer(word: &AtomicU32) -> Self {
        let able = membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED);
        word.store(if able { OFFERED } else { 0 }, Ordering::Release);
        Self(able)
    }

    /// Executes it; false if that failed, so that its effect must not be relied on.
    pub fn execute(&self) -> bool {
        !self.0 || membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }
}

/// The producer's side: whether its process is registered.
#[derive(Debug, Default)]
pub(crate) struct Light(AtomicBool);

impl Light {
    /// Registers this process for the barriers of consumers. A child made by fork has to do so again.
    pub fn register(&self) {
        let done = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        // Relaxed: a thread that sees the old value executes one fence too many.
        self.0.store(done, Ordering::Relaxed);
    }

    /// The process may be another one by now, which is not registered.
    pub fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the consumer behind `word` executes the barrier.
    #[inline]
    pub fn is_relieved(&self, word: &AtomicU32) -> bool {
        self.0.load(Ordering::Relaxed) && word.load(Ordering::Relaxed) == OFFERED
    }
}
