//! Putting chunks: from callers' buffers into packs, several threads at once.
//!
//! ```text
//!  put ─► known? ─ yes ─► nothing to do
//!           │ no
//!           ▼
//!        reserve a place (short lock) ─► write it (no lock) ─► finish: sync, index, rename
//!
//!  claim ─► a place in a pack that the caller has mapped ─► filled by the caller ─► settle: its chunk's name
//! ```
//! Nothing is visible before `finish`; a writer dropped without it leaves nothing behind.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::direct::{self, AlignedBuf, BLOCK, blocks};
use crate::format::{IndexFile, PackId};
use crate::index::{self, Index};
use crate::lock::SharedLock;
use crate::pack::{OpenPack, Origin, Place};
use crate::{
    ChunkId, ChunkSet, MAX_CHUNK_BYTES, Result, Store, StoreError, moments, small_files, sync,
};

/// Buffers that are not aligned are written in pieces of this many bytes.
const PIECE: usize = 1 << 20;

/// How a [`PackWriter`] writes.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Whether `finish` makes everything durable before it returns.
    pub sync: bool,
    /// A pack that has this many bytes is followed by another.
    pub pack_bytes: u64,
    /// Ready packs to be used before all others, and the only ones that [`PackWriter::claim`] uses: those
    /// that the caller has mapped. The last is used first.
    pub wanted: Vec<PackId>,
    /// Whether what is written also stays in the page cache, for somebody who reads it soon; no ready packs are taken for it, which
    /// are there for what must be fast.
    pub cached: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            sync: true,
            pack_bytes: 4 << 30,
            wanted: Vec::new(),
            cached: false,
        }
    }
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// Whether its bytes were written; false when the store had them.
    pub new: bool,
}

/// What a writer did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Chunks put.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks that the store did not have.
    pub new_chunks: u64,
    /// Their bytes.
    pub new_bytes: u64,
}

#[derive(Default)]
struct State {
    new: ChunkSet,
    packs: Vec<OpenPack>,
    wanted: Vec<PackId>,
    /// Places whose bytes turned out not to be needed.
    free: Vec<Place>,
    totals: Totals,
}

/// Writes chunks; see [`Store::begin`]. `put` may be called from several threads.
pub struct PackWriter {
    store: Store,
    index: Arc<Index>,
    options: WriteOptions,
    state: Mutex<State>,
    spare: Mutex<Vec<AlignedBuf>>,
    failed: AtomicBool,
    _lock: Option<SharedLock>,
}

impl Store {
    /// Starts writing with [`WriteOptions::default`].
    ///
    /// # Errors
    /// `Locked` while a collection runs.
    pub fn begin(&self) -> Result<PackWriter> {
        self.begin_with(WriteOptions::default())
    }

    /// Starts writing.
    ///
    /// # Errors
    /// `Locked` while a collection runs.
    pub fn begin_with(&self, options: WriteOptions) -> Result<PackWriter> {
        let lock = self.share()?;
        Ok(PackWriter::new(
            self.clone(),
            self.refresh()?,
            lock,
            options,
        ))
    }
}

impl PackWriter {
    pub(crate) fn new(
        store: Store,
        index: Arc<Index>,
        lock: SharedLock,
        options: WriteOptions,
    ) -> Self {
        let mut writer = Self::under_lock(store, options);
        writer.index = index;
        writer._lock = Some(lock);
        writer
    }

    /// For a caller that holds the exclusive lock; writes every chunk, known or not.
    pub(crate) fn under_lock(store: Store, mut options: WriteOptions) -> Self {
        let state = State {
            wanted: std::mem::take(&mut options.wanted),
            ..State::default()
        };
        Self {
            store,
            index: Arc::default(),
            options,
            state: Mutex::new(state),
            spare: Mutex::default(),
            failed: AtomicBool::new(false),
            _lock: None,
        }
    }

    /// Stores a chunk unless the store has it. `id` must be the BLAKE3 of `bytes`, which is not
    /// checked here. Buffers that start at a multiple of [`BLOCK`] go to the disk without a copy.
    ///
    /// # Errors
    /// `Full` when the disk is full, `Io`, `Misuse` for a length of zero or above
    /// [`MAX_CHUNK_BYTES`]. After an error the writer can only be dropped, which leaves the store
    /// as it was.
    pub fn put(&self, id: &ChunkId, bytes: &[u8]) -> Result<Put> {
        check_length(bytes.len() as u64)?;
        let place = self.reserve(id, bytes.len() as u64);
        let result = place.and_then(|place| match place {
            None => Ok(Put { new: false }),
            Some(place) => self
                .write(&place.file, bytes, place.offset)
                .map(|()| Put { new: true })
                .map_err(|e| self.failure("write", blocks(bytes.len() as u64), e)),
        });
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Whether the store, or what was put here before, has this chunk already; if so it counts as put. For
    /// callers that know a chunk's id before they have its bytes at hand.
    pub fn put_known(&self, id: &ChunkId, length: u64) -> bool {
        let known = self.has(id, length);
        if known {
            self.state.lock().count(length);
        }
        known
    }

    /// Whether the store, or what was put here before, has this chunk.
    pub fn has(&self, id: &ChunkId, length: u64) -> bool {
        // Of a pack that has been lost nothing is there: a new image must not refer to it.
        self.index.find_whole(id, length).is_some() || self.state.lock().new.contains(id)
    }

    /// Forgets chunks put here that no image will refer to, and gives their space back where the file system
    /// can. For callers that put content which has been superseded before [`PackWriter::finish`].
    pub fn keep_only(&self, wanted: &ChunkSet) {
        let mut state = self.state.lock();
        let State {
            new, packs, totals, ..
        } = &mut *state;
        for pack in packs {
            for (id, length) in pack.keep_only(wanted) {
                new.remove(&id);
                totals.new_chunks -= 1;
                totals.new_bytes -= length;
            }
        }
    }

    /// A place of `length` bytes in one of the wanted packs, which the caller fills before it calls
    /// [`Self::settle`] or [`Self::waive`]; `None` if there is no room in them. The fill behind it is zero.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn claim(&self, length: u64) -> Result<Option<Place>> {
        check_length(length)?;
        let mut state = self.state.lock();
        let State {
            packs,
            wanted,
            free,
            ..
        } = &mut *state;
        let usable = |p: &&mut OpenPack| p.wanted && p.fits(length);
        let place = match free.iter().position(|p| u64::from(p.length) == length) {
            Some(at) => free.swap_remove(at),
            None => {
                if packs.last_mut().filter(usable).is_none() {
                    packs.extend(OpenPack::open(&self.store, wanted, Origin::Wanted, 0)?);
                }
                match packs.last_mut().filter(usable) {
                    Some(pack) => pack.place(length)?,
                    None => return Ok(None),
                }
            }
        };
        drop(state);
        self.clear_fill(&place)
            .map_err(|e| self.failure("write", BLOCK as u64, e))?;
        Ok(Some(place))
    }

    /// Fills a place that the caller cannot reach by a mapping.
    ///
    /// # Errors
    /// `Io`, `Full`; `Misuse` for bytes of another length.
    pub fn fill(&self, place: &Place, bytes: &[u8]) -> Result<()> {
        if bytes.len() != place.length as usize {
            let what = format!("the place has {} bytes, not {}", place.length, bytes.len());
            return Err(StoreError::Misuse {
                op: "fill a place",
                what,
            });
        }
        self.write(&place.file, bytes, place.offset)
            .map_err(|e| self.failure("write", blocks(bytes.len() as u64), e))
    }

    /// The place holds the chunk `id`. The answer tells whether it is new; if not, the place is used for
    /// something else.
    ///
    /// # Errors
    /// `Misuse` if the store has a chunk of that name and another length.
    pub fn settle(&self, place: &Place, id: &ChunkId) -> Result<Put> {
        let length = u64::from(place.length);
        self.check_known(id, length)?;
        if self.put_known(id, length) {
            self.waive(place);
            return Ok(Put { new: false });
        }
        let mut state = self.state.lock();
        state.count(length);
        let new = state.new.insert(*id);
        if new {
            state.record(place, id);
        } else {
            state.free.push(place.clone());
        }
        Ok(Put { new })
    }

    /// The place is not needed.
    pub fn waive(&self, place: &Place) {
        self.state.lock().free.push(place.clone());
    }

    /// Makes the fill behind a place's chunk zero; what the place was before is not known.
    fn clear_fill(&self, place: &Place) -> Result<(), Errno> {
        let length = u64::from(place.length);
        if length.is_multiple_of(BLOCK as u64) {
            return Ok(());
        }
        let last = place.offset + blocks(length) - BLOCK as u64;
        direct::write_all(&*place.file, &AlignedBuf::new(BLOCK), last)
    }

    /// What has been put so far.
    pub fn totals(&self) -> Totals {
        self.state.lock().totals
    }

    /// Publishes what was put: data is synced, then the index, and only then both get their names.
    ///
    /// # Errors
    /// Any error leaves the store as it was, or with chunks that no image refers to, which a collection
    /// removes.
    pub fn finish(self) -> Result<Totals> {
        if self.failed.load(Ordering::Relaxed) {
            let what = "an earlier write of it has failed".into();
            return Err(StoreError::Misuse {
                op: "finish a pack",
                what,
            });
        }
        let mut state = self.state.lock();
        let sync = self.options.sync;
        let store = &self.store;
        state.packs.retain(|pack| {
            let used = !pack.is_empty();
            if !used {
                pack.discard(store);
            }
            used
        });
        let ended = small_files::of_each(state.packs.iter_mut().collect(), |it| self.end(it));
        ended.into_iter().collect::<Result<()>>()?;
        let (packs, index) = (self.store.packs_dir(), self.store.index_dir());
        for pack in &state.packs {
            sync::rename(&pack.path, &index::pack_path(&packs, pack.id))?;
        }
        if sync && !state.packs.is_empty() {
            sync::folder(&packs)?;
        }
        if !state.packs.is_empty() {
            moments::pass("packs");
        }
        for pack in &state.packs {
            let from = index::index_path(&self.store.tmp_dir(), pack.id);
            sync::rename(&from, &index::index_path(&index, pack.id))?;
        }
        if sync && !state.packs.is_empty() {
            sync::folder(&index)?;
        }
        state.packs.clear();
        Ok(state.totals)
    }

    /// Ends a pack's file, and writes its index among the temporary files.
    fn end(&self, pack: &mut OpenPack) -> Result<()> {
        pack.cut()?;
        let sync = self.options.sync;
        if sync {
            rustix::fs::fsync(&*pack.file).map_err(|e| StoreError::io("sync", &pack.path, 0, e))?;
        }
        let index = IndexFile {
            pack: pack.id,
            pack_bytes: pack.next,
            records: pack.records(),
        };
        let path = index::index_path(&self.store.tmp_dir(), pack.id);
        sync::write_new(&path, &[&index.encode()], sync)
    }

    fn check_known(&self, id: &ChunkId, length: u64) -> Result<()> {
        let known = self.index.find(id);
        match known.filter(|l| u64::from(l.length) != length) {
            None => Ok(()),
            Some(l) => {
                let what = format!(
                    "`{id}` has {length} bytes here and {} in the store",
                    l.length
                );
                Err(StoreError::Misuse {
                    op: "store a chunk",
                    what,
                })
            }
        }
    }

    /// A place for a chunk of this length, or `None` if the store or this writer has the chunk.
    fn reserve(&self, id: &ChunkId, length: u64) -> Result<Option<Place>> {
        self.check_known(id, length)?;
        if self.put_known(id, length) {
            return Ok(None);
        }
        let mut state = self.state.lock();
        state.count(length);
        if !state.new.insert(*id) {
            return Ok(None);
        }
        let State { packs, wanted, .. } = &mut *state;
        if packs.last().is_none_or(|p| !p.fits(length)) {
            let origin = match self.options.cached {
                true => Origin::New,
                false => Origin::Any,
            };
            let bytes = self.options.pack_bytes;
            packs.extend(OpenPack::open(&self.store, wanted, origin, bytes)?);
            if let Some(pack) = packs.last().filter(|_| self.options.cached) {
                direct::through_cache(&*pack.file);
            }
        }
        let pack = packs.last_mut().expect("a pack was just opened");
        let place = pack.place(length)?;
        state.record(&place, id);
        Ok(Some(place))
    }

    /// Writes a chunk and fills its last block with zeros.
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        let mut whole = if direct::is_aligned(bytes) {
            bytes.len() / BLOCK * BLOCK
        } else {
            0
        };
        match direct::write_all(file, &bytes[..whole], offset) {
            // Some memory of drivers can be read by the processor only, not by the disk.
            Err(Errno::FAULT) => whole = 0,
            other => other?,
        }
        let mut offset = offset + whole as u64;
        let rest = &bytes[whole..];
        if rest.is_empty() {
            return Ok(());
        }
        let mut piece = self
            .spare
            .lock()
            .pop()
            .unwrap_or_else(|| AlignedBuf::new(PIECE));
        for part in rest.chunks(PIECE) {
            let padded = part.len().next_multiple_of(BLOCK);
            piece[..part.len()].copy_from_slice(part);
            piece[part.len()..padded].fill(0);
            direct::write_all(file, &piece[..padded], offset)?;
            offset += padded as u64;
        }
        self.spare.lock().push(piece);
        Ok(())
    }

    fn failure(&self, op: &'static str, needed: u64, e: Errno) -> StoreError {
        StoreError::io(op, &self.store.tmp_dir(), needed, e)
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        for pack in &self.state.get_mut().packs {
            pack.discard(&self.store);
            // As there: the next `Store::open` or collection removes it.
            let _ = take_back(&self.store, pack.id);
        }
    }
}

/// Removes what a pack has got from a `finish` that has failed: perhaps its name, and an index without one. The index
/// goes last: as long as it is among the temporary files, [`Store::clean`] knows that no image needs the pack.
fn take_back(store: &Store, pack: PackId) -> Result<()> {
    let published = index::index_path(&store.index_dir(), pack);
    match std::fs::symlink_metadata(published) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        // Its index has its name, too, or may have it.
        _ => return Ok(()),
    }
    sync::remove_file(&index::pack_path(&store.packs_dir(), pack))?;
    sync::remove_file(&index::index_path(&store.tmp_dir(), pack))
}

impl State {
    fn count(&mut self, length: u64) {
        self.totals.chunks += 1;
        self.totals.bytes += length;
    }

    fn record(&mut self, place: &Place, id: &ChunkId) {
        if let Some(pack) = self.packs.iter_mut().find(|p| p.id == place.pack) {
            pack.record(place, id);
        }
        self.totals.new_chunks += 1;
        self.totals.new_bytes += u64::from(place.length);
    }
}

fn check_length(length: u64) -> Result<()> {
    if (1..=MAX_CHUNK_BYTES as u64).contains(&length) {
        return Ok(());
    }
    Err(StoreError::Misuse {
        op: "store a chunk",
        what: format!("it has {length} bytes; 1 to {MAX_CHUNK_BYTES} can be"),
    })
}
