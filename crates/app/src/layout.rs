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
use std::io::{Read, Seek, Write};
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
    _file: File,
}

impl Lock {
    /// Locks the folder, made if absent.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join("lock");
        let io = |op| {
            let path = path.clone();
            move |source: std::io::Error| AppError::Io { op, path, source }
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
                    by: by.trim().to_owned(),
                });
            }
            Err(e) => return Err(io("lock")(e.into())),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(io("write"))?;
        Ok(Self { _file: file })
    }
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
        assert!(matches!(&e, AppError::Busy { by, .. } if *by == std::process::id().to_string()));
        drop(lock);
        Lock::take(&layout.rank).unwrap();
        for name in ["c000000000002", "c10", "cx", ".draft-c3", "c0"] {
            std::fs::create_dir(layout.rank.join(name)).unwrap();
        }
        assert_eq!(layout.sequences().unwrap(), [2, 10]);
    }
}
