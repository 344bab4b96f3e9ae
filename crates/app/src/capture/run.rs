//! One capture under way: its plan, and what the threads that read and write share.

use std::time::Duration;

use fermata_device::ContextHandle;
use fermata_store::{ChunkId, PackWriter};
use parking_lot::Mutex;

use super::offers::{Node, Offer};
use super::piece::Piece;
use crate::config::StageSchedule;
use crate::gpu::Gpu;
use crate::queue::Queue;
use crate::target::Target;
use crate::{AppError, Result};

/// What is to be captured, and how.
pub(crate) struct CapturePlan<'a> {
    pub(crate) targets: &'a [Target],
    /// Bytes of a block.
    pub(crate) block: u64,
    /// Whether a GPU of the program's hashes host data.
    pub(crate) host_on_gpu: bool,
    /// Whether GPU digests are checked by the CPU.
    pub(crate) verify: bool,
    /// Longest wait for a buffer or a piece.
    pub(crate) limit: Duration,
    /// Bytes of each device's memory in which data may wait; see [`super::device_staging`].
    pub(crate) stage: u64,
    /// How it is divided when it is more than that.
    pub(crate) schedule: StageSchedule,
    /// Tells the other ranks what this one needs and offers, if they share their devices' room, and hears who they are.
    pub(crate) tell: Option<Tell<'a>>,
}

/// See [`CapturePlan::tell`].
pub(crate) type Tell<'a> = &'a (dyn Fn(Vec<Offer>) -> Result<Node> + Sync);

/// One capture under way: what its threads share.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a CapturePlan<'a>,
    pub(super) writer: &'a PackWriter,
    pub(crate) queue: Queue<Piece>,
    /// What hashes host data, if the CPU does not.
    pub(super) over: Option<(&'a Gpu, (ContextHandle, u32))>,
    pub(super) ids: Mutex<Vec<Vec<ChunkId>>>,
}

impl Run<'_> {
    /// Whether the store has this block already; if so the checkpoint refers to it.
    pub(super) fn has(&self, id: &ChunkId, bytes: usize) -> bool {
        self.writer.put_known(id, bytes as u64)
    }

    /// No buffer came free in time.
    pub(crate) fn late(&self) -> AppError {
        AppError::Deadline {
            what: "waiting for a staging buffer",
            seconds: self.plan.limit.as_secs_f64(),
        }
    }
}
