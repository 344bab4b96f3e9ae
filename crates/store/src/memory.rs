//! Stores that lie in memory (tmpfs, ramfs, hugetlbfs), whose packs can be mapped and used as they are.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::format::PackId;
use crate::pack::FileKey;
use crate::{Result, Store, StoreError, index};

const FILE_SYSTEMS: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// A pack's file, ready or published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackFile {
    /// Its name.
    pub id: PackId,
    /// Where it is.
    pub path: PathBuf,
    /// Which file that is.
    pub key: FileKey,
    /// Its bytes.
    pub bytes: u64,
    /// Whether it is space set aside; else it holds chunks and never changes.
    pub ready: bool,
}

/// Whether the file's bytes are in memory.
pub(crate) fn holds(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|s| FILE_SYSTEMS.contains(&s.f_type))
}

/// Whether what is written below `folder`, or where that will be made, is in memory.
pub fn is_memory(folder: &Path) -> bool {
    let there = folder.ancestors().find(|it| it.exists());
    there
        .and_then(|it| rustix::fs::statfs(it).ok())
        .is_some_and(|s| FILE_SYSTEMS.contains(&s.f_type))
}

impl Store {
    /// All packs, the ready ones first.
    ///
    /// # Errors
    /// `Io`. A pack that goes meanwhile is left out.
    pub fn pack_files(&self) -> Result<Vec<PackFile>> {
        let mut files = Vec::new();
        for (folder, ready) in [(self.ready_dir(), true), (self.packs_dir(), false)] {
            let ids = match index::list(&folder, "pack") {
                Err(StoreError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    continue;
                }
                other => other?,
            };
            for id in ids {
                let path = index::pack_path(&folder, id);
                let Ok(stat) = rustix::fs::stat(&path) else {
                    continue;
                };
                let bytes = u64::try_from(stat.st_size).unwrap_or(0);
                files.push(PackFile {
                    id,
                    path,
                    key: FileKey::of(&stat),
                    bytes,
                    ready,
                });
            }
        }
        Ok(files)
    }
}
