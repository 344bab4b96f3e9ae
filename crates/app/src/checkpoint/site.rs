//! One place where a rank's checkpoints are: its folders and the store of chunks.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use fermata_store::image::{CHUNKS, Image};
use fermata_store::{GcOptions, Store, StoreError};

use crate::checkpoint::layout::Layout;
use crate::checkpoint::record::Record;
use crate::{AppError, Config, Level, Result};

/// A place for checkpoints.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) level: Level,
    pub(crate) layout: Layout,
    pub(crate) store: Store,
}

impl Site {
    /// Opens the place below `folder`, made if absent.
    pub(crate) fn open(level: Level, folder: &Path, config: &Config, rank: u32) -> Result<Self> {
        let layout = Layout::new(folder, &config.name, rank);
        fermata_store::make_folder(&layout.rank).map_err(AppError::store("make the folder"))?;
        let store = Store::open(&layout.store, true).map_err(AppError::store("open the store"))?;
        // Another rank of this node that frees space is no reason to fail.
        let store = store.with_patience(Duration::from_secs_f64(config.deadline));
        Ok(Self {
            level,
            layout,
            store,
        })
    }

    /// Removes all but the newest `keep` checkpoints up to number `complete`, and what only they needed.
    /// Checkpoints behind `complete` may be the only ones that all ranks have, and stay.
    pub(crate) fn prune(&self, complete: u64, keep: usize) -> Result<()> {
        self.remove(&self.surplus(complete, keep)?)
    }

    /// The same for a rank's own checkpoints in a job of several ranks. Those in `held` stay: others have their
    /// parts of them at higher levels; and so do the newest `keep` that were made for such a level.
    pub(crate) fn prune_own(&self, complete: u64, keep: usize, held: &BTreeSet<u64>) -> Result<()> {
        let mut old = self.surplus(complete, keep)?;
        old.retain(|n| !held.contains(n));
        let level = |n: &u64| -> Option<u8> {
            let record = self.image(*n).and_then(|image| Record::of(&image));
            let spread = [Level::Partner, Level::Erasure].map(Level::number);
            record.ok().map(|r| r.level).filter(|l| spread.contains(l))
        };
        let all = self.layout.sequences()?;
        old.retain(|n| {
            level(n).is_none_or(|own| {
                let newer = all.iter().filter(|other| *other > n);
                newer.filter(|other| level(other) == Some(own)).count() >= keep
            })
        });
        self.remove(&old)
    }

    /// All but the newest `keep` checkpoints up to number `complete`.
    fn surplus(&self, complete: u64, keep: usize) -> Result<Vec<u64>> {
        let mut old = self.layout.sequences()?;
        old.retain(|n| *n <= complete);
        old.truncate(old.len().saturating_sub(keep));
        Ok(old)
    }

    fn remove(&self, old: &[u64]) -> Result<()> {
        for sequence in old {
            let folder = self.layout.checkpoint(*sequence);
            match fermata_store::image::rm(&folder, Some(&self.store)) {
                Ok(_) => {}
                // What is left of one that somebody has emptied is no image any more.
                Err(StoreError::NotFound { .. }) => {
                    let op = "remove what is left of";
                    match std::fs::remove_dir_all(&folder) {
                        // Another rank of the node removes the same.
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                        other => other.map_err(|source| AppError::io(op, &folder, source))?,
                    }
                }
                // Another rank frees space, and goes on doing so: these go with the next ones.
                Err(StoreError::Locked { .. }) => return Ok(()),
                Err(e) => return Err(AppError::store("remove an old checkpoint")(e)),
            }
        }
        match old.is_empty() {
            true => Ok(()),
            false => self.collect(),
        }
    }

    /// Frees what no checkpoint needs. While another rank works in the store that is left to it.
    pub(crate) fn collect(&self) -> Result<()> {
        let options = GcOptions {
            forget_missing: true,
            dry_run: false,
            folders: self.layout.neighbours()?,
        };
        let collect = || fermata_store::gc(&self.layout.rank, &self.store, &options);
        let collected = match collect() {
            // A damaged index file would keep every collection from freeing anything. Its chunks are lost already.
            Err(StoreError::Damaged { .. }) => self.store.salvage_index().and_then(|_| collect()),
            other => other,
        };
        match collected {
            Ok(_) | Err(StoreError::Locked { .. }) => Ok(()),
            Err(e) => Err(AppError::store("free the space of old checkpoints")(e)),
        }
    }

    /// Forgets what the store holds and cannot be read. While another rank works in the store that is left to it.
    pub(crate) fn salvage(&self) -> Result<()> {
        match self.store.salvage() {
            Ok(_) | Err(StoreError::Locked { .. }) => Ok(()),
            Err(e) => Err(AppError::store("look through the store after damage")(e)),
        }
    }

    /// Makes room for a checkpoint: removes what is left of one with its number.
    pub(crate) fn clear(&self, sequence: u64) -> Result<()> {
        let old = self.layout.checkpoint(sequence);
        if !old.exists() {
            return Ok(());
        }
        fermata_store::image::rm(&old, Some(&self.store))
            .map(drop)
            .or_else(|_| std::fs::remove_dir_all(&old))
            .map_err(|source| AppError::Io {
                op: "remove the damaged checkpoint",
                path: old,
                source,
            })
    }

    /// Opens a checkpoint.
    pub(crate) fn image(&self, sequence: u64) -> Result<Image> {
        // Without its table of chunks it would be a checkpoint of nothing.
        let image = Image::open(&self.layout.checkpoint(sequence));
        image
            .and_then(|image| image.check_has(CHUNKS).map(|()| image))
            .map_err(AppError::store("open a checkpoint"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_another_rank_of_the_node_has_removed_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let site = Site::open(Level::Partner, dir.path(), &Config::default(), 0).unwrap();
        let emptied = site.layout.checkpoint(7);
        std::fs::create_dir(&emptied).unwrap();
        // The other has emptied the one, and is done with the other.
        site.remove(&[7, 8]).unwrap();
        assert!(!emptied.exists());
    }
}
