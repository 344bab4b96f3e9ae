//! What every stop works on, whether an image is taken in it or the session is paused by it.

use std::sync::Arc;

use crate::phases::Phases;
use crate::session::{Served, Session};
use crate::worker::Worker;

/// A session whose processes are being parked.
#[derive(Clone, Copy)]
pub(crate) struct Halt<'a> {
    /// The session.
    pub(crate) session: &'a Arc<Session>,
    /// What takes how long.
    pub(crate) phases: &'a Phases,
}

/// Their workers.
pub(super) fn workers_of(served: &[Served]) -> Vec<Arc<Worker>> {
    served.iter().map(|it| it.worker.clone()).collect()
}
