//! One place where a rank's checkpoints are: its folders and the store of chunks.

use std::path::Path;

use fermata_store::image::Image;
use fermata_store::{GcOptions, Store, StoreError};

use crate::layout::Layout;
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
        std::fs::create_dir_all(&layout.rank).map_err(|source| AppError::Io {
            op: "make the folder",
            path: layout.rank.clone(),
            source,
        })?;
        let store = Store::open(&layout.store, true).map_err(AppError::store("open the store"))?;
        Ok(Self {
            level,
            layout,
            store,
        })
    }

    /// Removes all but the newest `keep` checkpoints up to number `complete`, and what only they needed.
    /// Checkpoints behind `complete` may be the only ones that all ranks have, and stay.
    pub(crate) fn prune(&self, complete: u64, keep: usize) -> Result<()> {
        let mut old = self.layout.sequences()?;
        old.retain(|n| *n <= complete);
        let surplus = old.len().saturating_sub(keep);
        for sequence in &old[..surplus] {
            match fermata_store::image::rm(&self.layout.checkpoint(*sequence), Some(&self.store)) {
                // What is left of one that somebody has emptied is no image any more.
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                // Another rank frees space, and goes on doing so: these go with the next ones.
                Err(StoreError::Locked { .. }) => return Ok(()),
                Err(e) => return Err(AppError::store("remove an old checkpoint")(e)),
            }
        }
        if surplus > 0 {
            self.collect()?;
        }
        Ok(())
    }

    /// Frees what no checkpoint needs. While another rank works in the store that is left to it.
    pub(crate) fn collect(&self) -> Result<()> {
        let options = GcOptions {
            forget_missing: true,
            dry_run: false,
        };
        match fermata_store::gc(&self.layout.rank, &self.store, &options) {
            Ok(_) | Err(StoreError::Locked { .. }) => Ok(()),
            Err(e) => Err(AppError::store("free the space of old checkpoints")(e)),
        }
    }

    /// Makes room for a checkpoint: removes what is left of one with its number.
    pub(crate) fn clear(&self, sequence: u64) -> Result<()> {
        let old = self.layout.checkpoint(sequence);
        if !old.exists() {
            return Ok(());
        }
        fermata_store::image::rm(&old, Some(&self.store))
            .or_else(|_| std::fs::remove_dir_all(&old))
            .map_err(|source| AppError::Io {
                op: "remove the damaged checkpoint",
                path: old,
                source,
            })
    }

    /// Opens a checkpoint.
    pub(crate) fn image(&self, sequence: u64) -> Result<Image> {
        Image::open(&self.layout.checkpoint(sequence)).map_err(AppError::store("open a checkpoint"))
    }
}
