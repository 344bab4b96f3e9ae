//! Locks between processes and threads: `flock` on a file of the store or on a draft's folder.
//!
//! Writers, readers and drafts share; collection and cleaning are alone. The kernel lets go of a
//! dead process's locks, so that nothing is ever left locked.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::{Result, StoreError, error, sync};

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

/// Keeps collections of garbage out of a store, and out of the one around it, until it is dropped.
#[derive(Debug)]
pub struct SharedLock {
    _own: Guard,
    _around: Option<Box<SharedLock>>,
}

impl SharedLock {
    pub(crate) fn of(own: Guard, around: Option<Self>) -> Self {
        Self {
            _own: own,
            _around: around.map(Box::new),
        }
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
    let special = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::open(path, flags | special, sync::FILE_MODE);
    let fd = match open(OFlags::RDWR | OFlags::CREATE) {
        // A store on a medium that cannot be written can still be read.
        Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => open(OFlags::RDONLY),
        other => other,
    };
    let fd = match fd {
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
            return error::damaged(path, "it is not a regular file");
        }
        other => other.map_err(|e| StoreError::io("open lock", path, 0, e))?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(|e| StoreError::io("examine", path, 0, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return error::damaged(path, "it is not a regular file");
    }
    let (is, own) = (
        Mode::from_raw_mode(stat.st_mode),
        rustix::process::geteuid(),
    );
    if is != sync::FILE_MODE && stat.st_uid == own.as_raw() {
        // It may be on a medium that cannot be written; what others can do with a lock is keep it.
        let _ = rustix::fs::fchmod(&fd, sync::FILE_MODE);
    }
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
            // Polled: `flock` waits for ever or not at all, and nothing tells that another has let go.
            Err(Errno::WOULDBLOCK) => std::thread::sleep(POLL),
            Err(Errno::INTR) => {}
            Err(e) => return Err(StoreError::io("lock", path, 0, e)),
        }
    }
}
