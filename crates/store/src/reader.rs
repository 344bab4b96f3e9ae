//! Reading chunks, several threads at once, straight into callers' buffers.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Advice;
use rustix::io::Errno;

use crate::copies::{Copies, Taken};
use crate::direct::{self, BLOCK, blocks};
use crate::file_key::{FileKey, FileVersion};
use crate::format::PackHeader;
use crate::index::{Index, Location, Pack};
use crate::lock::SharedLock;
use crate::{ChunkId, Result, Store, StoreError, host_memory};

/// Reads chunks; see [`Store::reader`]. All methods may be called from several threads.
pub struct ChunkReader {
    store: Store,
    index: Mutex<Arc<Index>>,
    /// Copies of packs, to be read instead of them.
    copies: Option<Copies>,
    taken: Arc<Taken>,
    /// Packs of which parts of chunks may be read.
    trusted: HashSet<FileVersion>,
    /// Chunks that are read through the page cache.
    through_cache: Arc<HashSet<ChunkId>>,
    /// Whether the store is in memory itself.
    in_memory: bool,
    _lock: Option<SharedLock>,
}

/// Where a chunk's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The pack's file.
    pub key: FileKey,
    /// In the file.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// Whether that file is a copy of the pack.
    pub copied: bool,
}

impl Located {
    /// Whether `next` begins where this ends.
    #[must_use]
    pub fn is_before(&self, next: &Self) -> bool {
        self.key == next.key && self.offset + u64::from(self.length) == next.offset
    }
}

impl fmt::Debug for ChunkReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store();
        f.debug_struct("ChunkReader")
            .field("store", &store)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A reader of all chunks published so far. No collection can run until it is dropped.
    ///
    /// # Errors
    /// `Locked` while a collection runs.
    pub fn reader(&self) -> Result<ChunkReader> {
        let lock = self.share()?;
        Ok(ChunkReader::new(self.clone(), self.refresh()?, lock))
    }
}

impl ChunkReader {
    pub(crate) fn new(store: Store, index: Arc<Index>, lock: SharedLock) -> Self {
        Self {
            _lock: Some(lock),
            ..Self::under_lock(store, index)
        }
    }

    /// For a caller that holds the exclusive lock.
    pub(crate) fn under_lock(store: Store, index: Arc<Index>) -> Self {
        Self {
            in_memory: host_memory::is_memory(store.dir()),
            store,
            index: Mutex::new(index),
            copies: None,
            taken: Arc::default(),
            trusted: HashSet::new(),
            through_cache: Arc::default(),
            _lock: None,
        }
    }

    /// The same reader, which takes what it can from the copies of packs that are in `folder` (see
    /// [`crate::PackCache`]), if it is this user's own. [`Self::verify`] and [`Self::check_packs`] look at the packs
    /// all the same.
    pub fn with_copies(mut self, folder: &Path) -> Self {
        self.copies = Copies::of(folder);
        self
    }

    /// The same reader, for which the chunks that it will be asked for were found right while their packs were these versions of
    /// their files, as [`Self::pack_versions`] gives them; see [`Self::read_part`].
    pub fn trusting(mut self, packs: impl IntoIterator<Item = FileVersion>) -> Self {
        self.trusted = packs.into_iter().collect();
        self
    }

    /// The same reader, which reads these chunks through the page cache, because other processes read them at the same time: so a disk
    /// brings each of them once.
    pub fn through_cache(mut self, chunks: Arc<HashSet<ChunkId>>) -> Self {
        self.through_cache = chunks;
        self
    }

    /// Where bytes have come from so far, and will.
    pub fn taken(&self) -> Arc<Taken> {
        Arc::clone(&self.taken)
    }

    /// Whether a chunk can be had without a disk.
    pub fn is_near(&self, id: &ChunkId) -> bool {
        let copied = |copies: &Copies| {
            let at = self.find(id).ok();
            at.is_some_and(|at| copies.of_pack(&at.pack).is_some())
        };
        self.in_memory || self.copies.as_ref().is_some_and(copied)
    }

    /// Whether the store is on a disk of this machine.
    pub fn is_on_local_disk(&self) -> bool {
        // What has no device of its own is in memory or comes over the network.
        let of_device = |it: rustix::fs::Stat| rustix::fs::major(it.st_dev) != 0;
        !self.in_memory && rustix::fs::stat(self.store.dir()).is_ok_and(of_device)
    }

    /// Says that a chunk will be read soon, by [`Self::read_part`] or into a buffer that starts anywhere: a disk that has it can begin to
    /// bring it. Does not wait for it, and tells no error: it is advice.
    pub fn will_need(&self, id: &ChunkId) {
        if self.is_near(id) {
            return;
        }
        let Ok(at) = self.find(id) else { return };
        if let (Ok(file), Some(length)) = (at.pack.file(false), NonZeroU64::new(at.length.into())) {
            let _ = rustix::fs::fadvise(&*file, at.offset, Some(length), Advice::WillNeed);
        }
    }

    /// Notes that a located chunk's bytes have been taken where they lie.
    pub fn took(&self, at: &Located) {
        if at.copied {
            self.taken.note(true, u64::from(at.length));
        }
    }

    /// A chunk's length in bytes.
    ///
    /// # Errors
    /// `MissingChunk`, or `Damaged` when the chunk may be in a pack whose index is damaged.
    pub fn length(&self, id: &ChunkId) -> Result<usize> {
        Ok(self.find(id)?.length as usize)
    }

    /// Reads a chunk into a buffer of exactly its length. The content is not checked: see
    /// [`Self::read_verified`]. Buffers that start at a multiple of [`BLOCK`] are read into without
    /// a copy.
    ///
    /// # Errors
    /// `MissingChunk`, `Misuse` for a buffer of another length, `DamagedChunk` when the pack is cut.
    pub fn read(&self, id: &ChunkId, into: &mut [u8]) -> Result<()> {
        let at = self.find(id)?;
        check_buffer(id, &at, into)?;
        if self.read_copy(&at, into) {
            self.taken.note(true, into.len() as u64);
            return Ok(());
        }
        self.read_pack(id, &at, into)
    }

    /// As [`Self::read`], and checks that the bytes have the chunk's hash. A copy whose bytes have not is removed,
    /// and the pack is read.
    ///
    /// # Errors
    /// As [`Self::read`], and `DamagedChunk` when the hash is another.
    pub fn read_verified(&self, id: &ChunkId, into: &mut [u8]) -> Result<()> {
        let at = self.find(id)?;
        check_buffer(id, &at, into)?;
        if self.read_copy(&at, into) {
            if ChunkId::of(into) == *id {
                self.taken.note(true, into.len() as u64);
                return Ok(());
            }
            if let Some(copies) = &self.copies {
                copies.discard(at.pack.id);
            }
        }
        self.read_pack(id, &at, into)?;
        match ChunkId::of(into) == *id {
            true => Ok(()),
            false => Err(damaged(id, &at, "its bytes have another hash")),
        }
    }

    /// Reads a part of a chunk, from its byte `from` on, from a pack that is trusted and has not changed since. False, with nothing
    /// read, if there is none: the whole chunk must be read and checked then.
    ///
    /// # Errors
    /// `MissingChunk`, `Misuse` if the chunk ends before the part, `DamagedChunk` when the pack is cut.
    pub fn read_part(&self, id: &ChunkId, from: u64, into: &mut [u8]) -> Result<bool> {
        if self.trusted.is_empty() {
            return Ok(false);
        }
        let at = self.find(id)?;
        let end = from.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > u64::from(at.length)) {
            let what = format!("`{id}` has {} bytes", at.length);
            let op = "read a part of a chunk";
            return Err(StoreError::Misuse { op, what });
        }
        if !self.trusted.contains(&at.pack.version()?) {
            return Ok(false);
        }
        match read_at(&at, into, at.offset + from, false)? {
            true => Err(damaged(id, &at, "its pack has been cut")),
            false => Ok(true),
        }
    }

    /// The versions of the files of the packs that hold these chunks, each once, in the order of the packs' names.
    ///
    /// # Errors
    /// `MissingChunk`, or a pack cannot be opened.
    pub fn pack_versions<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a ChunkId>,
    ) -> Result<Vec<FileVersion>> {
        let mut packs = BTreeMap::new();
        for id in ids {
            let at = self.find(id)?;
            packs.entry(at.pack.id).or_insert(at.pack);
        }
        packs.values().map(|pack| pack.version()).collect()
    }

    /// Reads from the copy of the chunk's pack; false if there is none, or it cannot be read.
    fn read_copy(&self, at: &Location, into: &mut [u8]) -> bool {
        let copies = self.copies.as_ref();
        let copy = copies.and_then(|copies| copies.of_pack(&at.pack));
        copy.is_some_and(|copy| {
            direct::read_full(&copy.file, into, at.offset).is_ok_and(|got| got == into.len())
        })
    }

    fn read_pack(&self, id: &ChunkId, at: &Location, into: &mut [u8]) -> Result<()> {
        let bytes = into.len();
        let cached = self.through_cache.contains(id);
        if cached {
            // Of a whole chunk that it is told of, the kernel asks the disk at once.
            self.will_need(id);
        }
        let whole = if direct::is_aligned(into) && !cached {
            bytes / BLOCK * BLOCK
        } else {
            0
        };
        let (front, rest) = into.split_at_mut(whole);
        let short = read_at(at, front, at.offset, true)?
            || read_at(at, rest, at.offset + whole as u64, false)?;
        if short {
            return Err(damaged(id, at, "its pack has been cut"));
        }
        if !self.in_memory {
            self.taken.note(false, bytes as u64);
        }
        Ok(())
    }

    /// Checks a chunk on disk, the fill of its last block included; returns its length.
    /// `scratch` grows as needed and can be used for the next chunk.
    ///
    /// # Errors
    /// `MissingChunk` or `DamagedChunk`.
    pub fn verify(&self, id: &ChunkId, scratch: &mut Vec<u8>) -> Result<usize> {
        let at = self.find(id)?;
        let length = at.length as usize;
        let padded = blocks(length as u64) as usize;
        if scratch.len() < padded + BLOCK {
            scratch.resize(padded + BLOCK, 0);
        }
        let start = scratch.as_ptr().align_offset(BLOCK);
        let bytes = &mut scratch[start..start + padded];
        if read_at(&at, bytes, at.offset, true)? {
            return Err(damaged(id, &at, "its pack has been cut"));
        }
        if ChunkId::of(&bytes[..length]) != *id {
            return Err(damaged(id, &at, "its bytes have another hash"));
        }
        if bytes[length..].iter().any(|&b| b != 0) {
            return Err(damaged(id, &at, "the fill of its last block is not zero"));
        }
        Ok(length)
    }

    /// Where a chunk's bytes are, for a caller that has its pack mapped. Their hash is not checked.
    ///
    /// # Errors
    /// `MissingChunk`, or `DamagedChunk` when the pack is cut.
    pub fn locate(&self, id: &ChunkId) -> Result<Located> {
        let at = self.find(id)?;
        let copies = self.copies.as_ref();
        if let Some(copy) = copies.and_then(|copies| copies.of_pack(&at.pack)) {
            return Ok(Located {
                key: copy.key,
                offset: at.offset,
                length: at.length,
                copied: true,
            });
        }
        let file = at.pack.file(false)?;
        let stat =
            rustix::fs::fstat(&*file).map_err(|e| StoreError::io("stat", &at.pack.path, 0, e))?;
        if u64::try_from(stat.st_size).unwrap_or(0) < at.offset + u64::from(at.length) {
            return Err(damaged(id, &at, "its pack has been cut"));
        }
        Ok(Located {
            key: FileKey::of(&stat),
            offset: at.offset,
            length: at.length,
            copied: false,
        })
    }

    /// The pack that holds a chunk.
    pub fn pack_of(&self, id: &ChunkId) -> Option<std::path::PathBuf> {
        self.find(id).ok().map(|at| at.pack.path.clone())
    }

    /// Checks the first blocks and the lengths of the packs that hold these chunks; each pack is
    /// named once. Chunks that are missing are skipped.
    pub fn check_packs<'a>(&self, ids: impl IntoIterator<Item = &'a ChunkId>) -> Vec<StoreError> {
        let mut packs = BTreeMap::new();
        for at in ids.into_iter().filter_map(|id| self.find(id).ok()) {
            packs.entry(at.pack.id).or_insert(at.pack);
        }
        packs
            .values()
            .filter_map(|pack| check_pack(pack).err())
            .collect()
    }

    /// The store that is read.
    pub fn store(&self) -> &Path {
        self.store.dir()
    }

    fn find(&self, id: &ChunkId) -> Result<Location> {
        let index = self.index.lock().clone();
        if let Some(at) = index.find(id) {
            return Ok(at.clone());
        }
        let newer = self.store.refresh()?;
        *self.index.lock() = newer.clone();
        if let Some(at) = newer.find(id) {
            return Ok(at.clone());
        }
        if let Some((pack, why)) = newer.damage.iter().next() {
            let path = crate::index::index_path(&self.store.index_dir(), *pack);
            return Err(StoreError::Damaged {
                path,
                what: why.what.clone(),
            });
        }
        Err(StoreError::MissingChunk {
            id: *id,
            store: self.store.dir().into(),
        })
    }
}

fn check_buffer(id: &ChunkId, at: &Location, into: &[u8]) -> Result<()> {
    if into.len() == at.length as usize {
        return Ok(());
    }
    let what = format!("`{id}` has {} bytes, the buffer {}", at.length, into.len());
    Err(StoreError::Misuse {
        op: "read a chunk",
        what,
    })
}

fn check_pack(pack: &Arc<Pack>) -> Result<()> {
    let file = pack.file(false)?;
    let io = |e: std::io::Error| StoreError::io("read", &pack.path, 0, e);
    let length = file.metadata().map_err(io)?.len();
    if length != pack.bytes {
        let what = format!("{length} bytes instead of {}", pack.bytes);
        return Err(StoreError::Damaged {
            path: pack.path.clone(),
            what,
        });
    }
    let mut block = vec![0; BLOCK];
    let got = direct::read_full(&*file, &mut block, 0).map_err(|e| io(e.into()))?;
    PackHeader::check(&block[..got], pack.id, &pack.path)
}

/// Reads; true when the file ends too early.
fn read_at(at: &Location, into: &mut [u8], offset: u64, aligned: bool) -> Result<bool> {
    if into.is_empty() {
        return Ok(false);
    }
    let wanted = into.len();
    let got = match direct::read_full(&*at.pack.file(aligned)?, into, offset) {
        // Some memory of drivers can be written by the processor only, not by the disk.
        Err(Errno::FAULT) if aligned => direct::read_full(&*at.pack.file(false)?, into, offset),
        other => other,
    };
    let got = got.map_err(|e| StoreError::io("read", &at.pack.path, 0, e))?;
    Ok(got < wanted)
}

fn damaged(id: &ChunkId, at: &Location, what: &str) -> StoreError {
    let pack = at.pack.path.clone();
    StoreError::DamagedChunk {
        id: *id,
        pack,
        offset: at.offset,
        what: what.into(),
    }
}
