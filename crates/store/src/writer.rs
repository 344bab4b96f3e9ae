//! Putting chunks: from callers' buffers into packs, several threads at once.
//!
//! ```text
//!  put ─► known? ─ yes ─► nothing to do
//!           │ no
//!           ▼
//!        reserve a place (short lock) ─► write it (no lock) ─► finish: sync, index, rename
//! ```
//! Nothing is visible before `finish`; a writer dropped without it leaves nothing behind.

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::direct::{self, AlignedBuf, BLOCK, blocks};
use crate::format::{IndexFile, IndexRecord, PackHeader, PackId};
use crate::index::{self, Index};
use crate::lock::Guard;
use crate::{ChunkId, MAX_CHUNK_BYTES, Result, Store, StoreError, sync};

/// Buffers that are not aligned are written in pieces of this many bytes.
const PIECE: usize = 1 << 20;
/// Space is asked of the file system in steps of this many bytes.
const STEP: u64 = 256 << 20;
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// How a [`PackWriter`] writes.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Whether `finish` makes everything durable before it returns.
    pub sync: bool,
    /// A pack that has this many bytes is followed by another.
    pub pack_bytes: u64,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            sync: true,
            pack_bytes: 4 << 30,
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

struct OpenPack {
    id: PackId,
    path: PathBuf,
    file: Arc<File>,
    next: u64,
    allocated: u64,
    /// Bytes after which another pack follows.
    limit: u64,
    records: Vec<IndexRecord>,
}

#[derive(Default)]
struct State {
    new: HashSet<ChunkId>,
    packs: Vec<OpenPack>,
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
    _lock: Option<Guard>,
}

impl PackWriter {
    pub(crate) fn new(store: Store, index: Arc<Index>, lock: Guard, options: WriteOptions) -> Self {
        let mut writer = Self::under_lock(store, options);
        writer.index = index;
        writer._lock = Some(lock);
        writer
    }

    /// For a caller that holds the exclusive lock; writes every chunk, known or not.
    pub(crate) fn under_lock(store: Store, options: WriteOptions) -> Self {
        Self {
            store,
            index: Arc::default(),
            options,
            state: Mutex::default(),
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
        if bytes.is_empty() || bytes.len() > MAX_CHUNK_BYTES {
            let what = format!(
                "it has {} bytes; 1 to {MAX_CHUNK_BYTES} can be",
                bytes.len()
            );
            return Err(StoreError::Misuse {
                op: "store a chunk",
                what,
            });
        }
        let place = self.reserve(id, bytes.len() as u64);
        let result = place.and_then(|place| match place {
            None => Ok(Put { new: false }),
            Some((file, offset)) => self
                .write(&file, bytes, offset)
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
            let mut state = self.state.lock();
            state.totals.chunks += 1;
            state.totals.bytes += length;
        }
        known
    }

    /// Whether the store, or what was put here before, has this chunk.
    pub fn has(&self, id: &ChunkId, length: u64) -> bool {
        let stored = self.index.chunks.get(id);
        stored.is_some_and(|l| u64::from(l.length) == length) || self.state.lock().new.contains(id)
    }

    /// Forgets chunks put here that nobody will refer to, and gives their space back where the file system
    /// can. For callers that put content which has been superseded before [`PackWriter::finish`].
    pub fn keep_only(&self, wanted: &HashSet<ChunkId>) {
        let mut state = self.state.lock();
        let State {
            new, packs, totals, ..
        } = &mut *state;
        for pack in packs {
            pack.records.retain(|record| {
                let keep = wanted.contains(&record.id);
                if !keep {
                    let (offset, length) = (record.offset.get(), u64::from(record.length.get()));
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    // Space that cannot be given back now is, when garbage is collected.
                    let _ = rustix::fs::fallocate(&*pack.file, flags, offset, blocks(length));
                    new.remove(&record.id);
                    totals.new_chunks -= 1;
                    totals.new_bytes -= length;
                }
                keep
            });
        }
    }

    /// What has been put so far.
    pub fn totals(&self) -> Totals {
        self.state.lock().totals
    }

    /// Publishes what was put: data is synced, then the index, and only then both get their names.
    ///
    /// # Errors
    /// Any error leaves the store as it was, or with chunks nobody refers to, which a collection
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
        for pack in &state.packs {
            let io = |op| move |e: Errno| StoreError::io(op, &pack.path, 0, e);
            rustix::fs::ftruncate(&*pack.file, pack.next).map_err(io("cut"))?;
            if sync {
                rustix::fs::fsync(&*pack.file).map_err(io("sync"))?;
            }
            let index = IndexFile {
                pack: pack.id,
                pack_bytes: pack.next,
                records: pack.records.clone(),
            };
            let path = index::index_path(&self.store.tmp_dir(), pack.id);
            sync::write_new(&path, &[&index.encode()], sync)?;
        }
        let (packs, index) = (self.store.packs_dir(), self.store.index_dir());
        for pack in &state.packs {
            sync::rename(&pack.path, &index::pack_path(&packs, pack.id))?;
        }
        if sync && !state.packs.is_empty() {
            sync::folder(&packs)?;
        }
        for pack in &state.packs {
            let from = index::index_path(&self.store.tmp_dir(), pack.id);
            sync::rename(&from, &index::index_path(&index, pack.id))?;
        }
        if sync && !state.packs.is_empty() {
            sync::folder(&index)?;
        }
        state.packs.clear();
        let totals = state.totals;
        drop(state);
        self.store.refresh()?;
        Ok(totals)
    }

    /// A place for a chunk of this length, or `None` if the store or this writer has the chunk.
    fn reserve(&self, id: &ChunkId, length: u64) -> Result<Option<(Arc<File>, u64)>> {
        let known = self.index.chunks.get(id);
        if let Some(l) = known.filter(|l| u64::from(l.length) != length) {
            let what = format!(
                "`{id}` has {length} bytes here and {} in the store",
                l.length
            );
            return Err(StoreError::Misuse {
                op: "store a chunk",
                what,
            });
        }
        let mut state = self.state.lock();
        state.totals.chunks += 1;
        state.totals.bytes += length;
        if known.is_some() || !state.new.insert(*id) {
            return Ok(None);
        }
        let full = |p: &OpenPack| p.next + blocks(length) > p.limit;
        if state.packs.last().is_none_or(full) {
            let pack = self.open_pack()?;
            state.packs.push(pack);
        }
        let pack = state.packs.last_mut().expect("a pack was just opened");
        let offset = pack.next;
        allocate(pack, offset + blocks(length))?;
        pack.next = offset + blocks(length);
        pack.records.push(IndexRecord {
            id: *id,
            offset: offset.into(),
            length: (length as u32).into(),
            flags: 0.into(),
        });
        let file = pack.file.clone();
        state.totals.new_chunks += 1;
        state.totals.new_bytes += length;
        Ok(Some((file, offset)))
    }

    fn open_pack(&self) -> Result<OpenPack> {
        let id = PackId(sync::unique()?);
        let path = index::pack_path(&self.store.tmp_dir(), id);
        let ready = self.store.take_ready(&path);
        let flags = match ready {
            Some(_) => OFlags::WRONLY,
            None => OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        };
        let file = Arc::new(direct::open(&path, flags, "create pack")?);
        let tmpfs = rustix::fs::fstatfs(&*file).is_ok_and(|s| s.f_type == TMPFS_MAGIC);
        let mut pack = OpenPack {
            id,
            path,
            file,
            next: BLOCK as u64,
            allocated: if tmpfs { u64::MAX } else { ready.unwrap_or(0) },
            limit: ready.unwrap_or(self.options.pack_bytes),
            records: Vec::new(),
        };
        let written = allocate(&mut pack, BLOCK as u64).and_then(|()| {
            let mut block = AlignedBuf::new(BLOCK);
            let header = PackHeader::new(id);
            block[..size_of::<PackHeader>()].copy_from_slice(header.as_bytes());
            direct::write_all(&*pack.file, &block, 0)
                .map_err(|e| StoreError::io("write", &pack.path, BLOCK as u64, e))
        });
        match written {
            Ok(()) => Ok(pack),
            Err(e) => {
                // The first error is the one to report.
                let _ = sync::remove_file(&pack.path);
                Err(e)
            }
        }
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
            // What cannot be removed now is removed by the next `Store::open` or collection.
            let _ = sync::remove_file(&pack.path);
            let _ = sync::remove_file(&index::index_path(&self.store.tmp_dir(), pack.id));
        }
    }
}

/// Makes sure that the file system has room for the pack up to `end`.
fn allocate(pack: &mut OpenPack, end: u64) -> Result<()> {
    if end <= pack.allocated {
        return Ok(());
    }
    let have = pack.allocated;
    let fallocate = |to: u64| {
        rustix::fs::fallocate(&*pack.file, FallocateFlags::empty(), have, to - have).map(|()| to)
    };
    let got = fallocate(end.next_multiple_of(STEP)).or_else(|e| match e {
        Errno::NOSPC | Errno::DQUOT => fallocate(end),
        e => Err(e),
    });
    pack.allocated = match got {
        Ok(to) => to,
        // Without this service a full disk shows at the write.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => u64::MAX,
        Err(e) => return Err(StoreError::io("allocate", &pack.path, end - have, e)),
    };
    Ok(())
}
