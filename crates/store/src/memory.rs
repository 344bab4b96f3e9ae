//! Stores that lie in memory (tmpfs, ramfs, hugetlbfs), whose packs can be mapped and used as they are.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use crate::file_key::FileKey;
use crate::format::PackId;
use crate::image::ChunkTable;
use crate::index::Pack;
use crate::{ChunkId, Result, Store, StoreError, index};

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

/// The pack at `path`, if it is there.
pub(crate) fn pack_file(id: PackId, path: PathBuf, ready: bool) -> Option<PackFile> {
    let stat = rustix::fs::stat(&path).ok()?;
    Some(PackFile {
        id,
        key: FileKey::of(&stat),
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        path,
        ready,
    })
}

impl Store {
    /// The packs that hold the chunks of a table, those first of which most is needed for their length. Chunks that
    /// are missing, and packs that are not whole, are skipped.
    ///
    /// # Errors
    /// `Io`.
    pub fn packs_of(&self, table: &ChunkTable) -> Result<Vec<PackFile>> {
        let index = self.refresh()?;
        let mut needed: HashMap<PackId, (u64, &Arc<Pack>)> = HashMap::new();
        let ids: HashSet<ChunkId> = table.records().iter().map(|it| it.id).collect();
        for at in ids.iter().filter_map(|id| index.find(id)) {
            let known = needed.entry(at.pack.id).or_insert((0, &at.pack));
            known.0 += u64::from(at.length);
        }
        let mut packs: Vec<_> = needed.into_values().collect();
        // In thousandths; by name where that is the same.
        let share = |needed: u64, pack: &Pack| needed.saturating_mul(1000) / pack.bytes.max(1);
        packs.sort_by_key(|(needed, pack)| (Reverse(share(*needed, pack)), pack.id));
        let whole = |(_, pack): (u64, &Arc<Pack>)| {
            let file = pack_file(pack.id, pack.path.clone(), false);
            file.filter(|it| it.bytes == pack.bytes)
        };
        Ok(packs.into_iter().filter_map(whole).collect())
    }

    /// All packs, the ready ones first, with those of paused sessions that have their stores in this one.
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
                files.extend(pack_file(id, index::pack_path(&folder, id), ready));
            }
        }
        files.extend(self.paused_packs());
        Ok(files)
    }
}
