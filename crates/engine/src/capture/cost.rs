//! Counts what a capture costs the program, while it goes on.

use std::time::Duration;

use fermata_terms::Stall;

use super::timeline::Spans;

/// Counts for a [`Stall`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Cost {
    pub waits: u64,
    pub waited: Duration,
    /// Time spent on putting copies before operations.
    pub issuing: Duration,
    pub isolated_bytes: u64,
    pub pool_bytes: u64,
    /// Operations with an open access set.
    pub incomplete: u64,
    pub copying: Duration,
    pub timeline: Spans,
}

impl Cost {
    /// What has been counted.
    pub fn stall(&self) -> Stall {
        Stall {
            waits: self.waits,
            waited_seconds: self.waited.as_secs_f64(),
            issuing_seconds: self.issuing.as_secs_f64(),
            isolated_bytes: self.isolated_bytes,
            pool_bytes: self.pool_bytes,
            incomplete: self.incomplete,
            copying_seconds: self.copying.as_secs_f64(),
            timeline: self.timeline.timeline(),
        }
    }
}
