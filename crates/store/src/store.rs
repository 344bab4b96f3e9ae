//! A store on disk: its folders, its locks, its index.
//!
//! ```text
//!  store/version       one line, written last when a store is made
//!        lock          shared by writers, readers and drafts; alone for gc
//!        packs/        ID.pack   chunks
//!        index/        ID.idx    what ID.pack holds; a pack without one does not count
//!        images/       one line each: where an image is that refers to chunks here
//!        tmp/          what is being written
//!        ready/        packs made ready (`ready`)
//!        paused/       stores of paused sessions (`paused`)
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::image::ChunkTable;
use crate::index::{self, Index};
use crate::lock::{self, Guard, Kind, SharedLock};
use crate::{Result, StoreError, error, format, sync};

/// Where stores of paused sessions are in a store.
pub(crate) const PAUSED: &str = "paused";
const VERSION_TEXT: &str = "fermata store 1\n";
/// How long a writer or reader waits for a collection to end, unless it is told otherwise.
const SHARED_WAIT: Duration = Duration::from_secs(10);
const ALONE_WAIT: Duration = Duration::from_millis(500);

/// A store of chunks. Clones share their index; all methods may be called from several threads.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
    patience: Duration,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    index: Mutex<Arc<Index>>,
    /// The store around this one, whose chunks count as this one's (`paused`).
    around: Option<Store>,
}

impl Store {
    /// Opens the store in `dir`, making it if `create`, and removes what dead writers left behind.
    ///
    /// # Errors
    /// `NotFound` when there is none and `create` is off; `Newer` or `Damaged`.
    pub fn open(dir: &Path, create: bool) -> Result<Self> {
        match sync::read_limited(&dir.join("version"), 64) {
            Ok(text) => check_version(dir, &text)?,
            Err(e) if e.is_missing() => {
                if !create {
                    return Err(StoreError::NotFound {
                        what: "store",
                        path: dir.into(),
                    });
                }
                make(dir)?;
            }
            Err(e) => return Err(e),
        }
        let dir = std::fs::canonicalize(dir).map_err(|e| StoreError::io("resolve", dir, 0, e))?;
        let around = around(&dir).map(|it| Self::open(it, false)).transpose()?;
        let index = Mutex::new(Arc::new(Index::default()));
        let store = Self {
            inner: Arc::new(Inner { dir, index, around }),
            patience: SHARED_WAIT,
        };
        if let Some(_alone) = lock::file(&store.lock_path(), Kind::Exclusive, Duration::ZERO)? {
            // What cannot be removed does no harm; a collection says why it cannot.
            let _ = store.clean();
        }
        store.refresh()?;
        Ok(store)
    }

    /// The same store for a caller that waits so long for a collection that somebody else runs; else it is 10 s.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The store's folder, absolute.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Whether all chunks of a table are here, as far as the index knows.
    pub(crate) fn has_all(&self, table: &ChunkTable) -> Result<bool> {
        let index = self.refresh()?;
        let has = |id| index.find(id).is_some_and(|it| it.pack.whole);
        Ok(table.records().iter().all(|record| has(&record.id)))
    }

    /// The store around this one, if this is that of a paused session inside of one.
    pub(crate) fn around(&self) -> Option<&Self> {
        self.inner.around.as_ref()
    }

    /// Takes the lock of those who use chunks, also that of the store around this one.
    ///
    /// # Errors
    /// `Locked` while a collection runs, `Io`.
    pub fn share(&self) -> Result<SharedLock> {
        let of_around = |it: &Self| it.clone().with_patience(self.patience).share();
        let around = self.around().map(of_around).transpose()?;
        let own = lock::file(&self.lock_path(), Kind::Shared, self.patience)?;
        let own = own.ok_or_else(|| StoreError::Locked {
            path: self.dir().into(),
            by: "a collection of garbage is running",
        })?;
        Ok(SharedLock::of(own, around))
    }

    /// Takes the lock of those who remove chunks.
    pub(crate) fn alone(&self) -> Result<Guard> {
        lock::file(&self.lock_path(), Kind::Exclusive, ALONE_WAIT)?.ok_or_else(|| {
            StoreError::Locked {
                path: self.dir().into(),
                by: "a checkpoint, restore or verification is running",
            }
        })
    }

    /// The newest index.
    pub(crate) fn refresh(&self) -> Result<Arc<Index>> {
        let around = self.around().map(Self::refresh).transpose()?;
        let mut index = self.inner.index.lock();
        *index = Index::refresh(&index, &self.index_dir(), &self.packs_dir())?;
        let is_known = |it: &Arc<Index>| {
            index
                .around
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, it))
        };
        if let Some(newer) = around.filter(|it| !is_known(it)) {
            Arc::make_mut(&mut *index).around = Some(newer);
        }
        Ok(index.clone())
    }

    /// Removes what interrupted writers left: temporary files, and packs that had their name before
    /// their index got its own. Such a pack's index is still among the temporary files; a pack whose
    /// index was lost otherwise stays, for images may need it. Only under the exclusive lock.
    pub(crate) fn clean(&self) -> Result<u64> {
        let mut removed = 0;
        let tmp = self.tmp_dir();
        let indexed = index::list(&self.index_dir(), "idx")?;
        for id in index::list(&tmp, "idx")? {
            let pack = index::pack_path(&self.packs_dir(), id);
            if indexed.binary_search(&id).is_err() && pack.exists() {
                removed += std::fs::metadata(&pack).map_or(0, |m| m.len());
                sync::remove_file(&pack)?;
            }
        }
        for entry in std::fs::read_dir(&tmp).map_err(|e| StoreError::io("list", &tmp, 0, e))? {
            let entry = entry.map_err(|e| StoreError::io("list", &tmp, 0, e))?;
            removed += entry.metadata().map_or(0, |m| m.len());
            sync::remove_file(&entry.path())?;
        }
        Ok(removed)
    }

    pub(crate) fn packs_dir(&self) -> PathBuf {
        self.dir().join("packs")
    }

    pub(crate) fn index_dir(&self) -> PathBuf {
        self.dir().join("index")
    }

    pub(crate) fn images_dir(&self) -> PathBuf {
        self.dir().join("images")
    }

    pub(crate) fn tmp_dir(&self) -> PathBuf {
        self.dir().join("tmp")
    }

    fn lock_path(&self) -> PathBuf {
        self.dir().join("lock")
    }
}

/// The folder of the store around that in `dir`, if that is a paused session's inside of one.
fn around(dir: &Path) -> Option<&Path> {
    let folder = dir.parent()?;
    let around = folder.parent()?;
    (folder.file_name()? == PAUSED && around.join("version").exists()).then_some(around)
}

fn make(dir: &Path) -> Result<()> {
    for folder in ["", "packs", "index", "images", "tmp"] {
        sync::make_folder(&dir.join(folder))?;
    }
    let unique = format::PackId(sync::unique()?);
    let temporary = dir.join("tmp").join(format!("version-{unique}"));
    sync::write_new(&temporary, &[VERSION_TEXT.as_bytes()], true)?;
    let version = dir.join("version");
    match sync::rename(&temporary, &version) {
        // Somebody else was faster and has taken our temporary file for a dead writer's.
        Err(StoreError::Io { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound && version.exists() => {}
        other => other?,
    }
    sync::folder(dir)
}

fn check_version(dir: &Path, text: &[u8]) -> Result<()> {
    if text == VERSION_TEXT.as_bytes() {
        return Ok(());
    }
    let path = dir.join("version");
    let number = std::str::from_utf8(text).ok().and_then(|t| {
        t.strip_prefix("fermata store ")?
            .strip_suffix('\n')?
            .parse()
            .ok()
    });
    match number {
        Some(found) if found > 1 => Err(StoreError::Newer {
            path,
            found,
            known: 1,
        }),
        _ => error::damaged(&path, "not the version line of a store"),
    }
}
