//! What CRIU reads of the processes' memory, kept as files in the daemon's folder for images that are warm: a restore makes links to it,
//! and need not find, read and check it first. At most [`MOST_BYTES`], the newest images first, and each for [`USED_FOR`], as what is known of
//! their packs is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fermata_store::Store;
use fermata_store::image::{ChunkTable, Image, Manifest};
use parking_lot::Mutex;

use super::for_criu::PagesForCriu;
use crate::failure::Result;
use crate::images::known::USED_FOR;

/// Bytes of all that is kept; images that would take more of it alone are not kept.
const MOST_BYTES: u64 = 512 << 20;
/// The folder in the daemon's.
const FOLDER: &str = "pages";

/// See the module.
pub struct KeptPages {
    folder: PathBuf,
    /// The newest last.
    all: Mutex<Vec<Kept>>,
    next: AtomicU64,
}

struct Kept {
    image: PathBuf,
    manifest: Manifest,
    since: Instant,
    pages: Arc<PagesForCriu>,
}

impl Kept {
    fn is_of(&self, image: &Image) -> bool {
        self.image == image.dir() && self.manifest == *image.manifest()
    }
}

impl KeptPages {
    /// Of the daemon whose folder is `runtime`; what an earlier one has left there is removed.
    pub fn new(runtime: &Path) -> Self {
        let kept = Self {
            folder: runtime.join(FOLDER),
            all: Mutex::default(),
            next: AtomicU64::new(0),
        };
        kept.clear();
        kept
    }

    /// What is kept of an image. Images that are no more, or have been kept for too long, are forgotten.
    pub fn of(&self, image: &Image) -> Option<Arc<PagesForCriu>> {
        let mut all = self.all.lock();
        all.retain(|it| it.image.exists() && it.since.elapsed() < USED_FOR);
        let found = all.iter().find(|it| it.is_of(image));
        found.map(|it| it.pages.clone())
    }

    /// Keeps it, unless that is done or it takes too much. `table` and `store` are those of the image's processes.
    ///
    /// # Errors
    /// A chunk is damaged, or there is no room.
    pub fn keep(&self, image: &Image, table: &ChunkTable, store: &Store) -> Result<()> {
        if self.of(image).is_some() {
            return Ok(());
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let own = self.folder.join(number.to_string());
        let Some(pages) = PagesForCriu::kept(image, table, store, own, MOST_BYTES)? else {
            return Ok(());
        };
        let mut all = self.all.lock();
        all.retain(|it| it.image != image.dir());
        all.push(Kept {
            image: image.dir().to_owned(),
            manifest: image.manifest().clone(),
            since: Instant::now(),
            pages: Arc::new(pages),
        });
        while all.iter().map(|it| it.pages.bytes()).sum::<u64>() > MOST_BYTES {
            all.remove(0);
        }
        Ok(())
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        self.all.lock().clear();
        // It is not there if nothing was kept.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
