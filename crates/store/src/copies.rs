//! Reading from copies of packs in memory, beside the packs themselves.
//!
//! A copy is used when it is as long as its pack. One whose bytes turn out to be wrong is removed, and the pack is read:
//! nothing that is wrong here is an image's damage.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::file_key::FileKey;
use crate::format::PackId;
use crate::index::Pack;
use crate::{cache, sync};

/// Files that are open at most: see `index`.
const MOST_OPEN: usize = 128;

/// Where bytes have come from.
#[derive(Debug, Default)]
pub struct Taken {
    copies: AtomicU64,
    disk: AtomicU64,
}

impl Taken {
    /// Bytes out of copies of packs.
    pub fn from_copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    /// Bytes read from packs on a disk.
    pub fn from_disk(&self) -> u64 {
        self.disk.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, copied: bool, bytes: u64) {
        let counter = if copied { &self.copies } else { &self.disk };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// An open copy.
#[derive(Debug)]
pub(crate) struct Copied {
    pub file: File,
    pub key: FileKey,
}

/// The copies in a folder.
#[derive(Debug)]
pub(crate) struct Copies {
    folder: PathBuf,
    /// Those that have been looked for, and found.
    known: Mutex<HashMap<PackId, Option<Arc<Copied>>>>,
}

impl Copies {
    /// Those in `folder`; `None` where others could have put them there.
    pub fn of(folder: &Path) -> Option<Self> {
        cache::own(folder).then(|| Self {
            folder: folder.to_owned(),
            known: Mutex::default(),
        })
    }

    /// The copy of a pack, if there is one.
    pub fn of_pack(&self, pack: &Pack) -> Option<Arc<Copied>> {
        let mut known = self.known.lock();
        if let Some(copy) = known.get(&pack.id) {
            return copy.clone();
        }
        let open = known.values().flatten().count();
        let copy = match open < MOST_OPEN {
            true => self.open(pack).map(Arc::new),
            false => None,
        };
        known.insert(pack.id, copy.clone());
        copy
    }

    /// The copy of this pack is not used any more, by anybody.
    pub fn discard(&self, pack: PackId) {
        self.known.lock().insert(pack, None);
        // One that stays is found to be wrong again.
        let _ = sync::remove_file(&cache::path(&self.folder, pack, "pack"));
    }

    fn open(&self, pack: &Pack) -> Option<Copied> {
        let file = File::open(cache::path(&self.folder, pack.id, "pack")).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let whole = u64::try_from(stat.st_size).is_ok_and(|bytes| bytes == pack.bytes);
        whole.then(|| Copied {
            key: FileKey::of(&stat),
            file,
        })
    }
}
