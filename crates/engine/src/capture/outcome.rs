//! How a capture ends, and what it has cost the program.

use std::collections::BTreeSet;
use std::time::Duration;

use fermata_abi::op::Handle;

use super::timeline::Timeline;
use super::vouch::Vouched;
use crate::Summary;
use crate::sink::Sink;

/// What a capture has cost the program.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stall {
    /// Operations that had to wait.
    pub waits: u64,
    /// How long they waited, in all.
    pub waited: Duration,
    /// Time spent on putting copies before operations.
    pub issuing: Duration,
    /// Bytes copied aside.
    pub isolated_bytes: u64,
    /// The most bytes that lay aside at once.
    pub pool_bytes: u64,
    /// Operations that may touch more than could be foreseen.
    pub incomplete: u64,
    /// How long the copying took; what has been copied is hashed and checked behind it.
    pub copying: Duration,
    /// When what was done, from the begin of the copying.
    pub timeline: Timeline,
}

/// What an image is made of.
pub struct Image {
    /// Totals.
    pub summary: Summary,
    /// What it cost.
    pub stall: Stall,
    /// How it was validated.
    pub vouched: Vouched,
}

/// How a capture has ended.
pub enum Outcome {
    /// The image is complete and durable.
    Complete(Image),
    /// Everything has been copied ahead; the sink takes the rest in the stop.
    Ahead(Ahead),
    /// Mis-speculations have written these buffers before they were copied, or it cannot be ruled out that one has. What was
    /// copied is not lost.
    Overtaken(Ahead, BTreeSet<u64>),
}

/// What has been copied before a stop, which compares all of it.
pub struct Ahead {
    pub(crate) sink: Sink,
    /// What it has cost.
    pub stall: Stall,
    /// How the image that comes of it is validated.
    pub vouched: Vouched,
    /// Whether the copying was to be an image and was overtaken.
    pub(super) overtaken: bool,
    /// Buffers that were written by what no instrumented kernel has named.
    pub(super) unexplained: BTreeSet<u64>,
    /// Kernels that may have.
    pub(super) suspects: Vec<Handle>,
}
