//! The state that every stop works on, for an image or a pause.

use std::sync::Arc;

use crate::phases::Phases;
use crate::session::{Served, Session};
use crate::worker::Worker;

/// A session whose processes are being parked.
#[derive(Clone, Copy)]
pub(crate) struct Halt<'a> {
    /// The session.
    pub(crate) session: &'a Arc<Session>,
    /// The clock to which each step of the stop reports its time.
    pub(crate) phases: &'a Phases,
}

/// The workers of these members.
pub(super) fn workers_of(served: &[Served]) -> Vec<Arc<Worker>> {
    served.iter().map(|it| it.worker.clone()).collect()
}
