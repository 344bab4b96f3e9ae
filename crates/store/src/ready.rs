//! Packs made ready ahead of time: files whose space is there already, so that writing a pack costs
//! neither allocation nor, in memory (tmpfs), the first touch of a page.
//!
//! ```text
//!  prepare ─► ready/ID.pack ── rename ─► tmp/ID'.pack ─► written, cut to length, published as any pack
//!                   ▲                        │
//!                   └── rename ── given up ──┘
//! ```
//! A ready file holds nothing that is read; it may be removed at any time.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};

use crate::direct::BLOCK;
use crate::format::PackId;
use crate::{Result, Store, StoreError, index, is_memory, room, sync};

/// One part of so many of the host's memory is left to programs, whatever size a file system in memory has.
const LEFT: u64 = 16;

/// Bytes of a ready file: the header's block, and 64 of the chunks that device memory is stored in. So a file that is full of those
/// is not cut when it is published, which in memory takes the longer the more processes have it mapped (decision 009).
pub const READY_BYTES: u64 = (256 << 20) + BLOCK as u64;

impl Store {
    /// Makes packs ready until at least `bytes` are; returns the bytes that are ready then. `0` only
    /// counts them.
    ///
    /// # Errors
    /// `Full` when the file system, or the host's memory, has less room, `Locked` while a collection runs; what was made ready so
    /// far stays.
    pub fn prepare(&self, bytes: u64) -> Result<u64> {
        let folder = self.ready_dir();
        sync::make_folder(&folder)?;
        let in_memory = is_memory(&folder);
        let mut ready = self.ready_bytes();
        while ready < bytes {
            // Without it the file would be taken for one that a dead writer left.
            let _lock = self.share()?;
            let id = PackId(sync::unique()?);
            // Under its final name only once its space is there.
            let temporary = index::pack_path(&self.tmp_dir(), id);
            if in_memory {
                room::check_memory("allocate", &temporary, READY_BYTES, LEFT)?;
            }
            if let Err(e) = allocate(&temporary) {
                // The first error is the one to report.
                let _ = sync::remove_file(&temporary);
                return Err(e);
            }
            sync::rename(&temporary, &index::pack_path(&folder, id))?;
            ready += READY_BYTES;
        }
        Ok(ready)
    }

    /// Bytes that are ready.
    pub fn ready_bytes(&self) -> u64 {
        let files = self.pack_files().unwrap_or_default();
        files.iter().filter(|f| f.ready).map(|f| f.bytes).sum()
    }

    /// Moves a ready file to `to`; its length, or `None` if there is none.
    pub(crate) fn take_ready(&self, to: &Path) -> Option<u64> {
        let folder = self.ready_dir();
        let candidates = index::list(&folder, "pack").ok()?;
        // Another writer may be faster with each of them.
        let taken = candidates
            .into_iter()
            .find(|id| std::fs::rename(index::pack_path(&folder, *id), to).is_ok());
        taken
            .and_then(|_| std::fs::metadata(to).ok())
            .map(|m| m.len())
    }

    /// Moves this ready file to `to`; its length, or `None` if it is gone.
    pub(crate) fn take_ready_file(&self, id: PackId, to: &Path) -> Option<u64> {
        std::fs::rename(index::pack_path(&self.ready_dir(), id), to).ok()?;
        std::fs::metadata(to).ok().map(|m| m.len())
    }

    /// Makes the file at `from`, which is as long as it was when it was taken, a ready one.
    pub(crate) fn put_ready(&self, from: &Path, id: PackId) -> bool {
        std::fs::rename(from, index::pack_path(&self.ready_dir(), id)).is_ok()
    }

    pub(crate) fn ready_dir(&self) -> PathBuf {
        self.around().unwrap_or(self).dir().join("ready")
    }
}

fn allocate(path: &Path) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let io = |op| move |e| StoreError::io(op, path, READY_BYTES, e);
    let file = rustix::fs::open(path, flags, sync::FILE_MODE).map_err(io("create pack"))?;
    rustix::fs::fchmod(&file, sync::FILE_MODE).map_err(io("protect"))?;
    rustix::fs::fallocate(File::from(file), FallocateFlags::empty(), 0, READY_BYTES)
        .map_err(io("allocate"))
}
