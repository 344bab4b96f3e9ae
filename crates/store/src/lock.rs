//! Locks between processes and threads: `flock` on a file of the store or on a draft's folder.
//!
//! Writers, readers and drafts share; collection and cleaning are alone. The kernel lets go of a
//! dead process's locks, so that nothing is ever left locked.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::{Result, StoreError};

const POLL: Duration = Duration::from_millis(10);

/// A lock, held until dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    file: OwnedFd,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the same open file: closing ours would not let go of the lock.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Together with others.
    Shared,
    /// Alone.
    Exclusive,
}

/// Locks the file at `path`, made if absent, waiting at most `wait`. `None` when another holds it.
pub(crate) fn file(path: &Path, kind: Kind, wait: Duration) -> Result<Option<Guard>> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(path, flags, mode) {
        // A store on a medium that cannot be written can still be read.
        Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, mode)
        }
        other => other,
    };
    let fd = fd.map_err(|e| StoreError::io("open lock", path, 0, e))?;
    hold(fd, path, kind, wait)
}

/// Locks the folder at `path`, waiting at most `wait`. `None` when another holds it.
pub(crate) fn folder(path: &Path, kind: Kind, wait: Duration) -> Result<Option<Guard>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|e| StoreError::io("open folder", path, 0, e))?;
    hold(fd, path, kind, wait)
}

fn hold(file: OwnedFd, path: &Path, kind: Kind, wait: Duration) -> Result<Option<Guard>> {
    let op = match kind {
        Kind::Shared => FlockOperation::NonBlockingLockShared,
        Kind::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    let deadline = Instant::now() + wait;
    loop {
        match rustix::fs::flock(&file, op) {
            Ok(()) => return Ok(Some(Guard { file })),
            Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => return Ok(None),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(POLL),
            Err(Errno::INTR) => {}
            Err(e) => return Err(StoreError::io("lock", path, 0, e)),
        }
    }
}
