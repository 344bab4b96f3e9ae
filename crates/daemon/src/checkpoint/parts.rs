//! What has been taken of a session until its image is written.

use std::time::Instant;

use fermata_control::user::{Mode, Totals, Waited};

use crate::agent::bring_back::Parked;
use crate::host::{HostCopy, HostPages};
use crate::images::record::Record;
use crate::pause::data::Entry;

/// What has been written, and who is to be brought back.
pub(super) struct Parts {
    pub(super) record: Record,
    /// Host memory that is tracked still.
    pub(super) copy: Option<HostCopy>,
    /// Host memory that is to become part of the image.
    pub(super) pages: Option<HostPages>,
    pub(super) device: Totals,
    pub(super) parked: Vec<Parked>,
    /// What the session is paused in, if it is: its device part was copied out of that, and it is not brought back.
    pub(super) paused: Option<Entry>,
    /// How it was done.
    pub(super) mode: Mode,
    /// Buffers that an unforeseen write has reached before their copy.
    pub(super) overtaken: u64,
    /// What the device had to end before the program was stopped.
    pub(super) waited: Option<Waited>,
    /// When copying behind the program began, in seconds.
    pub(super) began: f64,
    /// Seconds of the stops that are over.
    pub(super) stopped_seconds: f64,
    /// When the stop began that is not over.
    pub(super) since: Option<Instant>,
    /// Whether the program goes on already.
    pub(super) resumed: bool,
    /// Whether its device part is complete already.
    pub(super) saved: bool,
}

impl Parts {
    /// Those of a program that stands still, before anything is known of them.
    pub(super) fn new(record: Record, mode: Mode) -> Self {
        Self {
            record,
            copy: None,
            pages: None,
            device: Totals::default(),
            parked: Vec::new(),
            paused: None,
            mode,
            overtaken: 0,
            waited: None,
            began: 0.0,
            stopped_seconds: 0.0,
            since: None,
            resumed: false,
            saved: false,
        }
    }

    /// The stop is over, or will be as soon as this is done.
    pub(super) fn count_stop(&mut self) {
        if let Some(since) = self.since.take() {
            self.stopped_seconds += since.elapsed().as_secs_f64();
        }
    }

    /// Lets the program write its memory unnoticed, when it runs again.
    pub(super) fn release(&mut self) {
        if let Some(copy) = self.copy.take() {
            self.pages = Some(copy.release());
        }
    }
}
