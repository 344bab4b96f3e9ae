//! The parts of a session that a checkpoint has taken, until its image is written.

use std::time::Instant;

use fermata_control::user::{Mode, Totals, Waited};
use fermata_store::Totals as Stored;

use crate::agent::bring_back::Parked;
use crate::awake::Awake;
use crate::criu::dump::HeldTree;
use crate::host::{HostCopy, HostPages};
use crate::images::record::Record;
use crate::pause::data::Entry;

/// The parts taken so far, and the processes to be brought back.
pub(super) struct Parts {
    pub(super) record: Record,
    /// Host memory whose writes are still tracked.
    pub(super) copy: Option<HostCopy>,
    /// The program, if CRIU keeps all its processes from running. It must be dropped before they are brought back.
    pub(super) held: Option<HeldTree>,
    /// Host memory that is to become part of the image.
    pub(super) pages: Option<HostPages>,
    /// What of the image's host memory was put into the store.
    pub(super) memory: Stored,
    pub(super) device: Totals,
    pub(super) parked: Vec<Parked>,
    /// The entry of a paused session: its device part was copied from there, and its processes are not brought back.
    pub(super) paused: Option<Entry>,
    /// The protocol that was used.
    pub(super) mode: Mode,
    /// Buffers that a mis-speculation has changed before they were copied.
    pub(super) overtaken: u64,
    /// The work that the stop waited for, if that took long.
    pub(super) waited: Option<Waited>,
    /// When copying in the background began, in seconds.
    pub(super) began: f64,
    /// Seconds of all stops that have ended.
    pub(super) stopped_seconds: f64,
    /// When the current stop began; `None` outside a stop.
    pub(super) since: Option<Instant>,
    /// Keeps processors awake during the current stop.
    pub(super) awake: Option<Awake>,
    /// Whether the program already runs again.
    pub(super) resumed: bool,
    /// Whether its device part is already complete.
    pub(super) saved: bool,
    /// Whether CRIU's files are already a part of the image.
    pub(super) dumped: bool,
}

impl Parts {
    /// Empty parts for a program that stands still.
    pub(super) fn new(record: Record, mode: Mode) -> Self {
        Self {
            record,
            copy: None,
            held: None,
            pages: None,
            memory: Stored::default(),
            device: Totals::default(),
            parked: Vec::new(),
            paused: None,
            mode,
            overtaken: 0,
            waited: None,
            began: 0.0,
            stopped_seconds: 0.0,
            since: None,
            awake: None,
            resumed: false,
            saved: false,
            dumped: false,
        }
    }

    /// Adds the current stop, if there is one, to the total: it has ended.
    pub(super) fn count_stop(&mut self) {
        self.awake = None;
        if let Some(since) = self.since.take() {
            self.stopped_seconds += since.elapsed().as_secs_f64();
        }
    }

    /// Ends the tracking of host memory, so that the program writes to it at full speed when it runs again.
    pub(super) fn release(&mut self) {
        if let Some(copy) = self.copy.take() {
            self.pages = Some(copy.release());
        }
    }
}
