//! A checkpoint that is being made on a thread of its own, and how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use super::job::Progress;
use crate::status::CheckpointReport;
use crate::{Level, Result};

/// A checkpoint that is being made.
pub(super) struct Running {
    pub(super) thread: JoinHandle<Result<()>>,
    /// Says how far it is, and closes when the thread ends.
    pub(super) progress: Receiver<Progress>,
    pub(super) sequence: u64,
    pub(super) level: Level,
    /// Whether ranks work together on it behind the program.
    pub(super) behind: bool,
    /// Set when the program waits for it no more.
    pub(super) abandoned: Arc<AtomicBool>,
    /// Whether it is there; what follows is the removal of old ones.
    pub(super) complete: bool,
    pub(super) report: CheckpointReport,
}

impl Running {
    /// The program waits for it no more: if it has not been captured yet there shall be no checkpoint.
    pub(super) fn abandon(self) {
        self.abandoned.store(true, Ordering::Release);
    }
}
