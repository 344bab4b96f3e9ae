//! A checkpoint under way: what is known of it from its beginning.

use std::path::PathBuf;
use std::sync::Arc;

use fermata_store::image::Draft;

use super::halt::Halt;
use crate::criu::Criu;
use crate::daemon::Daemon;
use crate::phases::Phases;
use crate::proc::ProcessId;
use crate::session::Session;

/// A checkpoint under way.
pub(super) struct Taking<'a> {
    pub daemon: &'a Arc<Daemon>,
    pub session: &'a Arc<Session>,
    pub criu: Criu,
    pub draft: Draft,
    /// Where the device parts of its processes go.
    pub folders: Vec<PathBuf>,
    pub root: ProcessId,
    /// TCP connections to elsewhere are closed in the image.
    pub tcp_close: bool,
    /// Whether host memory may be copied before the stop.
    pub copies_memory: bool,
    /// Bytes that the image may take.
    pub needed_bytes: u64,
    pub phases: Phases,
}

impl<'a> Taking<'a> {
    pub fn halt(&self) -> Halt<'_> {
        Halt {
            session: self.session,
            phases: &self.phases,
        }
    }
}
