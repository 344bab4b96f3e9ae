//! Where a rank's files are.
//!
//! ```text
//!  FOLDER/NAME/                 a local device's folder, or the shared one; NAME is the job's
//!    store/                     chunks, those of all ranks that use this folder
//!    rank-00003/
//!      lock                     held by the process; holds its number
//!      c000000000012/           a checkpoint: an image of the store
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::{AppError, Result};

/// The folders of one rank in one place.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) store: PathBuf,
    pub(crate) rank: PathBuf,
}

impl Layout {
    /// The folders of `rank` of job `name` below `folder`.
    pub(crate) fn new(folder: &Path, name: &str, rank: u32) -> Self {
        let job = folder.join(name);
        Self {
            store: job.join("store"),
            rank: job.join(format!("rank-{rank:05}")),
        }
    }

    /// All folders with checkpoints, copies and parity in the same store, of whichever rank.
    pub(crate) fn neighbours(&self) -> Result<Vec<PathBuf>> {
        let Some(job) = self.store.parent() else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for folder in [job.to_path_buf(), job.join("partner"), job.join("erasure")] {
            let io = |source| AppError::Io {
                op: "list",
                path: folder.clone(),
                source,
            };
            let entries = match std::fs::read_dir(&folder) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(io)?,
            };
            for entry in entries {
                let entry = entry.map_err(io)?;
                let is_rank = entry.file_name().to_string_lossy().starts_with("rank-");
                all.extend(is_rank.then(|| entry.path()));
            }
        }
        Ok(all)
    }

    /// The name of a checkpoint's folder.
    pub(crate) fn name(sequence: u64) -> String {
        format!("c{sequence:012}")
    }

    /// The checkpoint's folder.
    pub(crate) fn checkpoint(&self, sequence: u64) -> PathBuf {
        self.rank.join(Self::name(sequence))
    }

    /// The checkpoints that are there, ascending, whether sound or not.
    pub(crate) fn sequences(&self) -> Result<Vec<u64>> {
        let io = |source| AppError::Io {
            op: "list",
            path: self.rank.clone(),
            source,
        };
        let entries = match std::fs::read_dir(&self.rank) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(io)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.map_err(io)?.file_name();
            let number = |n: &str| n.strip_prefix('c')?.parse::<u64>().ok();
            found.extend(name.to_str().and_then(number).filter(|n| *n > 0));
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// Keeps other processes out of a rank's folder; the kernel lets go of it when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Locks the folder, made if absent.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join("lock");
        let io = |op| {
            let path = path.clone();
            move |source: std::io::Error| AppError::io(op, &path, source)
        };
        std::fs::create_dir_all(folder).map_err(io("make the folder of"))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::open(&path, flags, mode).map_err(|e| io("open")(e.into()))?;
        let mut file = File::from(fd);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut by = String::new();
                // Who it is only makes the message better.
                let _ = file.read_to_string(&mut by);
                return Err(AppError::Busy {
                    folder: folder.into(),
                    by: by.lines().next().unwrap_or_default().to_owned(),
                });
            }
            Err(e) => return Err(io("lock")(e.into())),
        }
        let who = format!("{} on {}\n", std::process::id(), hostname());
        // On a full disk it cannot be said, and the job begins all the same: it may only want to recover.
        let _ = file
            .write_all(who.as_bytes())
            .and_then(|()| file.set_len(who.len() as u64));
        Ok(Self { file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the same open file: closing ours would not let go of the lock.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// This machine's name.
pub(crate) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_and_only_checkpoints_count() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), "job", 3);
        assert!(layout.sequences().unwrap().is_empty());
        let lock = Lock::take(&layout.rank).unwrap();
        let e = Lock::take(&layout.rank).unwrap_err();
        let us = format!("{} on {}", std::process::id(), hostname());
        assert!(matches!(&e, AppError::Busy { by, .. } if *by == us));
        drop(lock);
        Lock::take(&layout.rank).unwrap();
        for name in ["c000000000002", "c10", "cx", ".draft-c3", "c0"] {
            std::fs::create_dir(layout.rank.join(name)).unwrap();
        }
        assert_eq!(layout.sequences().unwrap(), [2, 10]);
    }
}
