//! The memory of processes in the store: what images have alike is there once.
//!
//! ```text
//!  CRIU's dump   host/pages-N.img ─► chunks in the store, named by `host/chunks` as buffer N; the file goes
//!  a restore     PagesForCriu: pages-N.img, all of it, or what CRIU itself reads, beside links to the dump's other files
//!                Chunks: what comes on demand
//! ```
//! Parts are cut at multiples of addresses: memory that a program has not changed gives the same chunks the next time, wherever it
//! lies in the file. Parts of zeros are left out. CRIU reads plain files; where memory comes on demand it reads little of them.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use fermata_control::worker::FailureKind;
use fermata_hostmem::demand::{PageBytes, PageFiles};
use fermata_hostmem::{PageFile, Settled, page_files};
use fermata_store::image::{
    BufferId, ChunkRecord, ChunkTable, ChunkTableWriter, Draft, HOST_CHUNKS, Image,
};
use fermata_store::{
    ChunkId, ChunkReader, PackWriter, Store, StoreError, Totals, WriteOptions, is_memory,
};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use crate::failure::{Failure, OrFail as _, Result, fail, from_store};
use crate::helpers::modes::Memory;
use crate::images::space::{self, MARGIN};
use crate::parallel::{all_at_once, cores};

/// Longest part, in bytes: a page that has changed makes one of them new.
const PIECE: u64 = 256 << 10;
/// The most threads that hash, or read, parts.
const THREADS: usize = 8;
/// How many chunks are kept while pages come on demand.
const KEPT: usize = 256;
/// From this size on, host memory is brought on demand. Reading less than this at once is faster than setting up
/// userfaultfd.
const LARGE: u64 = 64 << 20;
/// The highest nice value (setpriority(2)); of a thread, not of its process, on Linux.
const LEAST_URGENT: i32 = 19;

/// Puts the pages of the dump in `draft` into the store, and their table into the draft; what that was, in all. Pages of processes that
/// are in `settled` come from there. The files with pages are gone then.
///
/// # Errors
/// They cannot be read, or the store is full.
pub(crate) fn store(draft: &Draft, store: &Store, settled: &[Settled]) -> Result<Totals> {
    let host = draft.host();
    let unreadable = || "cannot read the dump's pages".to_owned();
    let files = page_files(&host, PIECE).or_fail(FailureKind::Internal, unreadable)?;
    // One file goes after the other. Where there is no room for the largest twice, it goes piece by piece.
    let largest = files.iter().map(|it| it.bytes).max().unwrap_or(0);
    let scarce =
        is_memory(store.dir()) || space::check_space(store.dir(), largest + MARGIN).is_err();
    // A restore reads some of it before the program can run.
    let options = WriteOptions {
        cached: true,
        ..WriteOptions::default()
    };
    let writer = store.begin_with(options).map_err(|e| from_store(&e))?;
    let mut table = ChunkTableWriter::new();
    for file in &files {
        let path = path_of(&host, file.number);
        let put = match settled.iter().find(|it| it.number == file.number) {
            Some(settled) => put_all(file, settled, &writer, &|_| ()),
            None => put_file(&path, file, &writer, scarce),
        };
        for (offset, length, id) in put? {
            table
                .push(buffer_of(file), offset, length, id)
                .map_err(|e| from_store(&e))?;
        }
        fs::remove_file(&path).or_fail(FailureKind::User, || {
            format!("cannot remove `{}`", path.display())
        })?;
    }
    let totals = writer.finish().map_err(|e| from_store(&e))?;
    let to = draft.path().join(HOST_CHUNKS);
    table.write(&to).map_err(|e| from_store(&e))?;
    Ok(totals)
}

/// Where parts of a file are in it, their lengths and names.
type Put = Vec<(u64, u32, ChunkId)>;

/// Puts what is in CRIU's file.
fn put_file(path: &Path, file: &PageFile, writer: &PackWriter, scarce: bool) -> Result<Put> {
    let failed = || format!("cannot read `{}`", path.display());
    let from = File::options().read(true).write(true).open(path);
    let from = from.or_fail(FailureKind::Internal, failed)?;
    put_all(file, &from, writer, &|part| {
        if scarce {
            // Where that cannot be done, the disk must have room for both.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&from, hole, part.start, part.end - part.start);
        }
    })
}

/// Puts a file's parts, and calls `done` with each; in order.
fn put_all(
    file: &PageFile,
    from: &dyn PageBytes,
    writer: &PackWriter,
    done: &(impl Fn(&Range<u64>) + Sync),
) -> Result<Put> {
    let failed = || format!("cannot read the pages of `pages-{}.img`", file.number);
    let next = AtomicUsize::new(0);
    let work = |thread| {
        give_way(thread);
        let (mut put, mut bytes) = (Vec::new(), Vec::new());
        while let Some(part) = file.parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes.resize((part.end - part.start) as usize, 0);
            let read = from.read_at(&mut bytes, part.start);
            read.or_fail(FailureKind::Internal, failed)?;
            if bytes.iter().any(|byte| *byte != 0) {
                let id = ChunkId::of(&bytes);
                writer.put(&id, &bytes).map_err(|e| from_store(&e))?;
                put.push((part.start, bytes.len() as u32, id));
            }
            done(part);
        }
        Ok(put)
    };
    let parts = all_at_once(threads(), "store", stopping(&next, work))?;
    let mut parts: Vec<_> = parts.into_iter().flatten().collect();
    parts.sort_unstable_by_key(|it| it.0);
    Ok(parts)
}

/// Leaves the processors to the program, which runs again: all threads but the first, which is to come to an end also where the
/// program takes all of them.
fn give_way(thread: usize) {
    if thread > 0 {
        // Where that is not permitted, the program shares.
        let _ = rustix::process::setpriority_process(None, LEAST_URGENT);
    }
}

/// Files with pages for CRIU; removed when this is dropped.
pub(crate) enum PagesForCriu {
    /// All pages, in a folder like that of an image: they may be large.
    All(Draft),
    /// Those that it reads where others come on demand, in the folder that it works in.
    Few(Vec<PathBuf>),
}

impl PagesForCriu {
    /// All pages of an image, as files in a folder below `folder`. `None` if the image has them as files itself.
    ///
    /// # Errors
    /// A chunk is damaged, or the disk is full.
    pub(crate) fn all(image: &Image, store: &Store, folder: &Path) -> Result<Option<Self>> {
        let Some(files) = wanted(image, false)? else {
            return Ok(None);
        };
        let chunks = files.iter().flat_map(|it| &it.chunks);
        let bytes: u64 = chunks.map(|it| u64::from(it.length)).sum();
        space::check_space(folder, bytes + MARGIN)?;
        let draft = Draft::scratch(store, folder).map_err(|e| from_store(&e))?;
        write(&files, store, &draft.host(), &mut |_| ())?;
        Ok(Some(Self::All(draft)))
    }

    /// The pages of an image that CRIU reads while it restores, others coming on demand, as files in `work`. `None` as above.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn few(image: &Image, store: &Store, work: &Path) -> Result<Option<Self>> {
        let Some(files) = wanted(image, true)? else {
            return Ok(None);
        };
        let mut made = Self::Few(Vec::new());
        write(&files, store, work, &mut |path| match &mut made {
            Self::Few(paths) => paths.push(path),
            Self::All(_) => {}
        })?;
        Ok(Some(made))
    }

    /// Makes links to them in `work`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn link(&self, work: &Path) -> io::Result<()> {
        let Self::All(draft) = self else {
            return Ok(());
        };
        for entry in fs::read_dir(draft.host())? {
            let entry = entry?;
            symlink(entry.path(), work.join(entry.file_name()))?;
        }
        Ok(())
    }
}

impl Drop for PagesForCriu {
    fn drop(&mut self) {
        if let Self::Few(paths) = self {
            for path in paths {
                // The folder goes with the session, and may be gone.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// A file with pages, and what of it is to be there.
struct Wanted {
    file: PageFile,
    chunks: Vec<ChunkRecord>,
}

/// What an image has in its store, all of it or, for a `lazy` restore, what CRIU reads; `None` if it is in files.
fn wanted(image: &Image, lazy: bool) -> Result<Option<Vec<Wanted>>> {
    let Some(table) = image.host_table().map_err(|e| from_store(&e))? else {
        return Ok(None);
    };
    let host = image.host();
    let bad = || format!("the page maps of `{}` cannot be read", host.display());
    // Parts as long as their mappings: the writer may have cut them shorter than this release does.
    let files = page_files(&host, u64::MAX).or_fail(FailureKind::Damaged, bad)?;
    check(&table, &files)?;
    let wanted = files.into_iter().map(|file| {
        let chunks = table.buffers().find(|it| it.buffer == buffer_of(&file));
        let chunks = chunks.map_or(&[][..], |it| it.chunks);
        let read = |it: &&ChunkRecord| !lazy || is_in(&file.at_once, it.offset);
        let chunks = chunks.iter().filter(read).copied().collect();
        Wanted { file, chunks }
    });
    Ok(Some(wanted.collect()))
}

/// Writes files into `folder`, of which `made` is told first.
fn write(
    files: &[Wanted],
    store: &Store,
    folder: &Path,
    made: &mut dyn FnMut(PathBuf),
) -> Result<()> {
    let failed = || format!("cannot write to `{}`", folder.display());
    let reader = store.reader().map_err(|e| from_store(&e))?;
    for Wanted { file, chunks } in files {
        let path = path_of(folder, file.number);
        let to = File::create_new(&path).or_fail(FailureKind::User, failed)?;
        made(path);
        to.set_len(file.bytes).or_fail(FailureKind::User, failed)?;
        let chunks: Vec<_> = chunks.iter().collect();
        read_all(&chunks, &reader, &|record, bytes| {
            let written = to.write_all_at(bytes, record.offset);
            written.or_fail(FailureKind::User, failed)
        })?;
    }
    Ok(())
}

/// Reads all chunks of an image's host memory, which stay in the page cache then.
///
/// # Errors
/// One is damaged.
pub(crate) fn warm(image: &Image, store: &Store) -> Result<()> {
    let Some(table) = image.host_table().map_err(|e| from_store(&e))? else {
        return Ok(());
    };
    let reader = store.reader().map_err(|e| from_store(&e))?;
    let all: Vec<&ChunkRecord> = table.records().iter().collect();
    read_all(&all, &reader, &|_, _| Ok(()))
}

/// Whether an image has so much host memory that it is brought on demand.
pub(crate) fn is_large(image: &Image) -> bool {
    let files = page_files(&image.host(), u64::MAX).unwrap_or_default();
    files.iter().map(|it| it.bytes).sum::<u64>() >= LARGE
}

/// Under which number a chunk table has the content of a file with pages.
fn buffer_of(file: &PageFile) -> BufferId {
    BufferId(file.number.into())
}

/// Whether `offset` is in one of these ranges, which ascend.
fn is_in(ranges: &[Range<u64>], offset: u64) -> bool {
    let behind = ranges.partition_point(|it| it.end <= offset);
    ranges.get(behind).is_some_and(|it| it.contains(&offset))
}

/// Whether every chunk lies in a file with pages, and in one of its parts: a part is read at once as a whole, or not.
fn check(table: &ChunkTable, files: &[PageFile]) -> Result<()> {
    let fits = |record: &ChunkRecord| {
        let file = files.iter().find(|it| buffer_of(it) == record.buffer)?;
        let end = record.offset.checked_add(record.length.into())?;
        let at = file.parts.partition_point(|it| it.end <= record.offset);
        let part = file.parts.get(at)?;
        (part.start <= record.offset && end <= part.end).then_some(())
    };
    match table.records().iter().all(|it| fits(it).is_some()) {
        true => Ok(()),
        false => {
            let message = "the image's table of host memory does not fit its page maps";
            Err(fail(FailureKind::Damaged, message))
        }
    }
}

/// Reads and checks these chunks, with several threads, and hands them to `take`.
fn read_all(
    chunks: &[&ChunkRecord],
    reader: &ChunkReader,
    take: &(impl Fn(&ChunkRecord, &[u8]) -> Result<()> + Sync),
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = |_| {
        let mut bytes = Vec::new();
        while let Some(record) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes.resize(record.length as usize, 0);
            let read = reader.read_verified(&record.id, &mut bytes);
            read.map_err(|e| from_store(&e))?;
            take(record, &bytes)?;
        }
        Ok::<(), Failure>(())
    };
    let threads = threads().into_iter().take(chunks.len()).collect();
    all_at_once(threads, "pages", stopping(&next, work)).map(drop)
}

/// As many as there are processors, at most [`THREADS`].
fn threads() -> Vec<usize> {
    (0..cores().min(THREADS)).collect()
}

/// `work`, whose failure lets all others find nothing more to do.
fn stopping<T>(
    next: &AtomicUsize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> impl Fn(usize) -> Result<T> + Sync {
    move |thread| {
        work(thread).inspect_err(|_| {
            next.store(usize::MAX / 2, Ordering::Relaxed);
        })
    }
}

fn path_of(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("pages-{number}.img"))
}

/// The pages of an image whose memory is in the store, for those that come on demand.
pub struct Chunks {
    memory: Memory,
    opened: OnceLock<(Arc<ChunkReader>, Arc<ChunkTable>)>,
    kept: Arc<Mutex<Kept>>,
}

impl Chunks {
    /// Those of `memory`; nothing is read before a file is opened.
    pub fn of(memory: &Memory) -> Self {
        Self {
            memory: memory.clone(),
            opened: OnceLock::new(),
            kept: Arc::default(),
        }
    }

    /// The store and the table. No collection can run until this, and the files that were opened, are dropped.
    fn opened(&self) -> io::Result<&(Arc<ChunkReader>, Arc<ChunkTable>)> {
        if self.opened.get().is_none() {
            let opened = self.open_store().map_err(io::Error::other)?;
            // Only one thread brings pages.
            let _ = self.opened.set(opened);
        }
        self.opened.get().ok_or_else(|| io::ErrorKind::Other.into())
    }

    fn open_store(&self) -> std::result::Result<(Arc<ChunkReader>, Arc<ChunkTable>), StoreError> {
        let Memory {
            image,
            store,
            copies,
        } = &self.memory;
        let table = Image::open(image)?.host_table()?.unwrap_or_default();
        let reader = Store::open(store, false)?.reader()?;
        let reader = match copies {
            Some(folder) => reader.with_copies(folder),
            None => reader,
        };
        Ok((Arc::new(reader), Arc::new(table)))
    }
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = &self.memory;
        f.debug_struct("Chunks")
            .field("memory", memory)
            .finish_non_exhaustive()
    }
}

impl PageFiles for Chunks {
    fn open(&self, number: u32) -> io::Result<Arc<dyn PageBytes>> {
        let (reader, table) = self.opened()?;
        let all = table.records();
        let is_of = |it: &ChunkRecord| it.buffer == BufferId(number.into());
        // The records of one buffer follow each other.
        let first = all.iter().position(is_of).unwrap_or(all.len());
        let count = all[first..].iter().take_while(|it| is_of(it)).count();
        Ok(Arc::new(ChunkFile {
            reader: Arc::clone(reader),
            table: Arc::clone(table),
            records: first..first + count,
            kept: Arc::clone(&self.kept),
        }))
    }
}

/// A file with pages, whose content is in chunks.
struct ChunkFile {
    reader: Arc<ChunkReader>,
    table: Arc<ChunkTable>,
    /// Which of the table's.
    records: Range<usize>,
    /// Of all files of the image.
    kept: Arc<Mutex<Kept>>,
}

/// Chunks of which parts were read, and which had the content that they must have: the program is likely to need other parts of them
/// next.
#[derive(Default)]
struct Kept {
    bytes: HashMap<ChunkId, Vec<u8>>,
    /// The oldest first.
    order: VecDeque<ChunkId>,
}

impl Kept {
    /// The bytes of a chunk.
    fn of(
        &mut self,
        record: &ChunkRecord,
        reader: &ChunkReader,
    ) -> std::result::Result<&[u8], StoreError> {
        if !self.bytes.contains_key(&record.id) {
            let oldest = match self.order.len() < KEPT {
                true => None,
                false => self.order.pop_front(),
            };
            let oldest = oldest.and_then(|id| self.bytes.remove(&id));
            let mut bytes = oldest.unwrap_or_default();
            bytes.resize(record.length as usize, 0);
            reader.read_verified(&record.id, &mut bytes)?;
            self.bytes.insert(record.id, bytes);
            self.order.push_back(record.id);
        }
        Ok(self.bytes.get(&record.id).map_or(&[], Vec::as_slice))
    }
}

impl std::fmt::Debug for ChunkFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let records = &self.records;
        f.debug_struct("ChunkFile")
            .field("records", records)
            .finish_non_exhaustive()
    }
}

impl PageBytes for ChunkFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let records = &self.table.records()[self.records.clone()];
        let end_of = |it: &ChunkRecord| it.offset + u64::from(it.length);
        let first = records.partition_point(|it| end_of(it) <= offset);
        let (end, mut rest, mut at) = (offset + bytes.len() as u64, bytes, offset);
        for record in records[first..].iter().take_while(|it| it.offset < end) {
            let part = record.offset.max(offset)..end_of(record).min(end);
            let (zeros, behind) = rest.split_at_mut((part.start - at) as usize);
            zeros.fill(0);
            let (into, behind) = behind.split_at_mut((part.end - part.start) as usize);
            let read = self.read(record, part.start - record.offset, into);
            read.map_err(io::Error::other)?;
            (rest, at) = (behind, part.end);
        }
        rest.fill(0);
        Ok(())
    }
}

impl ChunkFile {
    /// Reads from a chunk, from its byte `from` on. All of it is read and checked.
    fn read(
        &self,
        record: &ChunkRecord,
        from: u64,
        into: &mut [u8],
    ) -> std::result::Result<(), StoreError> {
        if into.len() == record.length as usize {
            return self.reader.read_verified(&record.id, into);
        }
        let mut kept = self.kept.lock();
        let bytes = kept.of(record, &self.reader)?;
        into.copy_from_slice(&bytes[from as usize..][..into.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const PAGE: usize = 4096;

    /// Bytes of page `number`, of which every third is zero.
    fn page(number: usize) -> Vec<u8> {
        let byte = |at: usize| (number * 31 + at / 64) as u8 | 1;
        match number % 3 {
            0 => vec![0; PAGE],
            _ => (0..PAGE).map(byte).collect(),
        }
    }

    /// A store with 40 pages of a file in chunks of four pages, some of which are left out, and that file.
    fn stored(folder: &Path) -> (Store, ChunkFile, Vec<u8>) {
        let store = Store::open(&folder.join("store"), true).expect("a store");
        let writer = store.begin().expect("begun");
        let (mut table, mut whole) = (ChunkTableWriter::new(), Vec::new());
        for chunk in 0..10 {
            let bytes = match chunk % 4 {
                3 => vec![0; 4 * PAGE],
                _ => (4 * chunk..4 * chunk + 4).flat_map(page).collect(),
            };
            whole.extend(&bytes);
            if chunk % 4 < 3 {
                let id = ChunkId::of(&bytes);
                writer.put(&id, &bytes).expect("put");
                let offset = (chunk * 4 * PAGE) as u64;
                let pushed = table.push(BufferId(5), offset, 4 * PAGE as u32, id);
                pushed.expect("pushed");
            }
        }
        writer.finish().expect("finished");
        let table = table.into_table();
        let file = ChunkFile {
            reader: Arc::new(store.reader().expect("a reader")),
            records: 0..table.records().len(),
            table: Arc::new(table),
            kept: Arc::default(),
        };
        (store, file, whole)
    }

    #[test]
    fn every_range_is_as_it_was_and_what_no_chunk_has_is_zero() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_store, file, whole) = stored(folder.path());
        for from in 0..40 {
            for count in [1, 2, 5, 16, 40] {
                let range = from * PAGE..((from + count) * PAGE).min(whole.len());
                let mut bytes = vec![7; range.len()];
                file.read_at(&mut bytes, range.start as u64).expect("read");
                assert!(bytes == whole[range], "{count} pages from {from}");
            }
        }
    }

    #[test]
    fn a_page_of_a_damaged_chunk_is_never_had() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_store, file, whole) = stored(folder.path());
        let id = file.table.records()[1].id;
        let (pack, at) = (
            file.reader.pack_of(&id).expect("a pack"),
            file.reader.locate(&id).expect("a place"),
        );
        let pack = File::options().write(true).open(pack).expect("opened");
        // In the chunk's last page.
        let (byte, place) = (4 * PAGE - 9, at.offset + 4 * PAGE as u64 - 9);
        let right = whole[4 * PAGE + byte];
        pack.write_all_at(&[right ^ 1], place).expect("written");
        let mut one = vec![0; PAGE];
        let read = file.read_at(&mut one, 4 * PAGE as u64);
        read.expect_err("its first page is not checked alone");
        file.read_at(&mut one, 8 * PAGE as u64).expect("the next");
        assert!(one == whole[8 * PAGE..9 * PAGE]);
        pack.write_all_at(&[right], place).expect("written");
        let read = file.read_at(&mut one, 4 * PAGE as u64);
        read.expect("what was damaged is read again");
        assert!(one == whole[4 * PAGE..5 * PAGE]);
    }
}
