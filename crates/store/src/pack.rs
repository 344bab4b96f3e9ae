//! A pack while it is written, and places in it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use zerocopy::IntoBytes;

use crate::direct::{self, AlignedBuf, BLOCK, blocks};
use crate::file_key::FileKey;
use crate::format::{IndexRecord, PackHeader, PackId};
use crate::{ChunkId, ChunkSet, Result, Store, StoreError, host_memory, index, room, sync};

/// Space is asked of the file system in steps of this many bytes. Few in this crate's tests, of which one makes 200 packs.
const STEP: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// A pack in memory leaves one part of so many of the host's memory.
const LEFT: u64 = 64;
/// Bytes by which it grows before it is asked again how much memory there is.
const MEMORY_STEP: u64 = 64 << 20;

/// Bytes of a pack that one chunk is for; no other chunk gets them while the writer lives.
#[derive(Debug, Clone)]
pub struct Place {
    pub(crate) file: Arc<File>,
    pub(crate) pack: PackId,
    /// The pack's file.
    pub key: FileKey,
    /// Where in the file.
    pub offset: u64,
    /// Bytes of the chunk.
    pub length: u32,
}

pub(crate) struct OpenPack {
    pub id: PackId,
    pub path: PathBuf,
    pub file: Arc<File>,
    pub key: FileKey,
    pub next: u64,
    /// Bytes after which another pack follows.
    pub limit: u64,
    /// Longest file that this process may write; beyond it the kernel would end the process.
    most: u64,
    /// Whether it is one of those a caller asked for.
    pub wanted: bool,
    allocated: u64,
    /// Up to where the host has memory for it; all of it where it takes none, or has it already.
    memory: u64,
    /// Length of the ready file that it was; 0 if it was none, or is one no more.
    ready: u64,
    records: Vec<IndexRecord>,
}

/// Where a pack comes from that is not among the wanted ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// There is none then.
    Wanted,
    /// Another ready one, or a new one.
    Any,
    /// A new one.
    New,
}

impl OpenPack {
    /// Opens one: of the `wanted` ready files, the first that is still there; else as `origin` says, a new one with room for `bytes`.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn open(
        store: &Store,
        wanted: &mut Vec<PackId>,
        origin: Origin,
        bytes: u64,
    ) -> Result<Option<Self>> {
        let id = PackId(sync::unique()?);
        let path = index::pack_path(&store.tmp_dir(), id);
        let mut ready = None;
        while ready.is_none()
            && let Some(next) = wanted.pop()
        {
            ready = store.take_ready_file(next, &path);
        }
        let is_wanted = ready.is_some();
        let ready = match origin {
            Origin::Wanted if !is_wanted => return Ok(None),
            Origin::Any => ready.or_else(|| store.take_ready(&path)),
            Origin::Wanted | Origin::New => ready,
        };
        let flags = match ready {
            Some(_) => OFlags::WRONLY,
            None => OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        };
        let file = Arc::new(direct::open(&path, flags, "create pack")?);
        let stat = rustix::fs::fstat(&*file).map_err(|e| StoreError::io("stat", &path, 0, e))?;
        let in_memory = host_memory::holds(&*file);
        let allocated = match in_memory {
            true => u64::MAX,
            false => ready.unwrap_or(0),
        };
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let mut pack = Self {
            id,
            path,
            file,
            key: FileKey::of(&stat),
            next: BLOCK as u64,
            limit: ready.unwrap_or(bytes).min(most),
            most,
            wanted: is_wanted,
            allocated,
            memory: match in_memory && ready.is_none() {
                true => 0,
                false => u64::MAX,
            },
            ready: ready.unwrap_or(0),
            records: Vec::new(),
        };
        match pack.write_header() {
            Ok(()) => Ok(Some(pack)),
            Err(e) => {
                // The first error is the one to report.
                let _ = sync::remove_file(&pack.path);
                Err(e)
            }
        }
    }

    fn write_header(&mut self) -> Result<()> {
        self.allocate(BLOCK as u64)?;
        let mut block = AlignedBuf::new(BLOCK);
        let header = PackHeader::new(self.id);
        block[..size_of::<PackHeader>()].copy_from_slice(header.as_bytes());
        direct::write_all(&*self.file, &block, 0)
            .map_err(|e| StoreError::io("write", &self.path, BLOCK as u64, e))
    }

    /// Whether a chunk of this length fits.
    pub fn fits(&self, length: u64) -> bool {
        self.next + blocks(length) <= self.limit
    }

    /// The next place, for a chunk that fits, or is longer than any pack.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn place(&mut self, length: u64) -> Result<Place> {
        let offset = self.next;
        self.check_memory(offset + blocks(length))?;
        self.allocate(offset + blocks(length))?;
        self.next = offset + blocks(length);
        Ok(Place {
            file: Arc::clone(&self.file),
            pack: self.id,
            key: self.key,
            offset,
            length: length as u32,
        })
    }

    /// Refuses to grow to `end` bytes where the host's memory would not last.
    fn check_memory(&mut self, end: u64) -> Result<()> {
        if end <= self.memory {
            return Ok(());
        }
        let to = end + MEMORY_STEP;
        room::check_memory("write", &self.path, to - self.memory, LEFT)?;
        self.memory = to;
        Ok(())
    }

    /// Says that the place holds the chunk.
    pub fn record(&mut self, place: &Place, id: &ChunkId) {
        self.records.push(IndexRecord {
            id: *id,
            offset: place.offset.into(),
            length: place.length.into(),
            flags: 0.into(),
        });
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Forgets all chunks but those, and gives their space back where the file system can; the answer is
    /// what is gone. The file is no ready one any more then, for what a device has been told of its pages
    /// does not hold.
    pub fn keep_only(&mut self, wanted: &ChunkSet) -> Vec<(ChunkId, u64)> {
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.records)
            .into_iter()
            .partition(|record| wanted.contains(&record.id));
        self.records = kept;
        let gone = gone.into_iter().map(|record| {
            let (offset, length) = (record.offset.get(), u64::from(record.length.get()));
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            self.ready = 0;
            // Space that cannot be given back now is, when garbage is collected.
            let _ = rustix::fs::fallocate(&*self.file, flags, offset, blocks(length));
            (record.id, length)
        });
        gone.collect()
    }

    /// What it holds, by offset.
    pub fn records(&mut self) -> Vec<IndexRecord> {
        self.records.sort_by_key(|r| r.offset.get());
        self.records.clone()
    }

    /// Ends the file behind the last place.
    ///
    /// # Errors
    /// `Io`.
    pub fn cut(&mut self) -> Result<()> {
        self.ready = 0;
        rustix::fs::ftruncate(&*self.file, self.next)
            .map_err(|e| StoreError::io("cut", &self.path, 0, e))
    }

    /// Gives the file up: a whole ready file is one again, others go.
    pub fn discard(&self, store: &Store) {
        if self.ready > 0 && store.put_ready(&self.path, self.id) {
            return;
        }
        // What cannot be removed now is removed by the next `Store::open` or collection.
        let _ = sync::remove_file(&self.path);
    }

    /// Makes sure that the file system has room for the pack up to `end`.
    fn allocate(&mut self, end: u64) -> Result<()> {
        if end > self.most {
            return Err(StoreError::io("write", &self.path, end, Errno::FBIG));
        }
        if end <= self.allocated {
            return Ok(());
        }
        let have = self.allocated;
        let fallocate = |to: u64| {
            rustix::fs::fallocate(&*self.file, FallocateFlags::empty(), have, to - have)
                .map(|()| to)
        };
        let got = fallocate(end.next_multiple_of(STEP).min(self.most)).or_else(|e| match e {
            Errno::NOSPC | Errno::DQUOT => fallocate(end),
            e => Err(e),
        });
        self.allocated = match got {
            Ok(to) => to,
            // Without this service a full disk shows at the write.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => u64::MAX,
            Err(e) => return Err(StoreError::io("allocate", &self.path, end - have, e)),
        };
        Ok(())
    }
}
