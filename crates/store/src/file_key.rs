//! Files told apart by what they are, not by name, and versions of a file told apart by what the kernel says of them.

use std::fs::File;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which file something is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileKey {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl FileKey {
    /// That of an open file.
    pub fn of(stat: &rustix::fs::Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

/// What the kernel says of a file: which it is, its length, and when its content and properties last changed. Every write changes the
/// last, except writes through a mapping of a file on a file system in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileVersion {
    /// Which file.
    pub key: FileKey,
    /// In bytes.
    pub length: i64,
    /// Of its content (`st_mtime`) and of its properties (`st_ctime`), in seconds and nanoseconds since 1970.
    pub changed: [(i64, i64); 2],
}

impl FileVersion {
    /// That of an open file.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(file: &File) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self {
            key: FileKey::of(&stat),
            length: stat.st_size,
            changed: [
                (stat.st_mtime, stat.st_mtime_nsec as i64),
                (stat.st_ctime, stat.st_ctime_nsec as i64),
            ],
        })
    }

    /// Whether its last change was at least `by` before `now`, which counts from 1970. A file that has changed more shortly before may
    /// change again and be told to have changed at the same time.
    pub fn is_settled(&self, now: Duration, by: Duration) -> bool {
        let (seconds, nanoseconds) = self.changed.into_iter().max().unwrap_or_default();
        let changed = u64::try_from(seconds)
            .ok()
            .zip(u32::try_from(nanoseconds).ok());
        changed.is_some_and(|(s, ns)| Duration::new(s, ns) + by <= now)
    }
}
