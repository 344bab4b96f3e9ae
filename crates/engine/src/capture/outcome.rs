//! How a capture ends, and what it has cost the program.

use std::collections::BTreeSet;

use fermata_abi::op::Handle;
use fermata_terms::{Stall, Validation};

use crate::Summary;
use crate::sink::Sink;

/// What an image is made of.
pub struct Image {
    /// Totals.
    pub summary: Summary,
    /// What it cost.
    pub stall: Stall,
    /// How it was validated.
    pub validation: Validation,
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
    pub validation: Validation,
    /// Whether the copying was to be an image and was overtaken.
    pub(super) overtaken: bool,
    /// Buffers that were written by what no instrumented kernel has named.
    pub(super) unexplained: BTreeSet<u64>,
    /// Kernels that may have.
    pub(super) suspects: Vec<Handle>,
}
