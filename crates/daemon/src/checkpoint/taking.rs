//! A checkpoint under way: the data that is known from its beginning.

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
    /// The folders for the device parts of its processes, in the order of the processes.
    pub folders: Vec<PathBuf>,
    pub root: ProcessId,
    /// Whether TCP connections to processes outside the session are closed in the image (`--tcp-close`).
    pub tcp_close: bool,
    /// Whether the program ends with the image: then nothing of it runs between its dump and its end.
    pub ends: bool,
    /// Whether host memory may be copied before the stop.
    pub copies_memory: bool,
    /// Whether chunks that several of its workers have are stored by one of them.
    pub stores_once: bool,
    /// Bytes that the image may take on the file system of its folder.
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
