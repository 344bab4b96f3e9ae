//! The memory of processes in the store: what images have alike is there once.
//!
//! ```text
//!  CRIU's dump   host/pages-N.img ─► chunks in the store, named by `host/chunks` as buffer N; the file goes
//!  a restore     `for_criu`: pages-N.img, all of it, or what CRIU itself reads, beside links to the dump's other files;
//!                of warm images it is there (`kept`)
//!                `chunks`: what comes on demand
//! ```
//! Parts are cut at multiples of addresses: memory that a program has not changed gives the same chunks the next time, wherever it
//! lies in the file. Parts of zeros are left out. CRIU reads plain files; where memory comes on demand it reads little of them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use fermata_control::worker::FailureKind;
use fermata_hostmem::demand::PageBytes;
use fermata_hostmem::{PageFile, Place, Settled, page_files};
use fermata_store::image::{
    BufferId, ChunkRecord, ChunkTable, ChunkTableWriter, Draft, HOST_CHUNKS, Image,
};
use fermata_store::{
    ChunkId, ChunkReader, FileVersion, PackWriter, Store, Totals, WriteOptions, is_memory,
};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use crate::failure::{OrFail as _, Result, from_store};
use crate::images::space::{self, MARGIN};
use crate::parallel::{all_at_once, cores};

/// Longest part, in bytes: a page that has changed makes one of them new.
const PIECE: u64 = 256 << 10;
/// The most threads that hash, or read, parts.
const THREADS: usize = 8;
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
pub(crate) fn store(draft: &Draft, settled: &[Settled]) -> Result<Totals> {
    let (host, store) = (draft.host(), draft.store());
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
    let (mut table, mut bytes, known) = (ChunkTableWriter::new(), 0, Mutex::default());
    for file in &files {
        let path = path_of(&host, file.number);
        let put = match settled.iter().find(|it| it.number == file.number) {
            Some(settled) => put_settled(file, settled, &writer, &known),
            None => put_file(&path, file, &writer, scarce),
        };
        for (offset, length, id) in put? {
            bytes += u64::from(length);
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
    // What processes have in common was put once, and is of each of them.
    Ok(Totals { bytes, ..totals })
}

/// Where parts of a file are in it, their lengths and names.
type Put = Vec<(u64, u32, ChunkId)>;

/// Puts what is in CRIU's file.
fn put_file(path: &Path, file: &PageFile, writer: &PackWriter, scarce: bool) -> Result<Put> {
    let failed = || format!("cannot read `{}`", path.display());
    let from = File::options().read(true).write(true).open(path);
    let from = from.or_fail(FailureKind::Internal, failed)?;
    put_all(file, &|part, bytes| {
        let put = put_part(file, &from, part, bytes, writer)?;
        if scarce {
            // Where that cannot be done, the disk must have room for both.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&from, hole, part.start, part.end - part.start);
        }
        Ok(put)
    })
}

/// The names of parts, by their places in copies and their lengths; none of zeros.
type KnownParts = Mutex<HashMap<(Place, u64), Option<ChunkId>>>;

/// Puts what is in copies. What several processes have in the same place of one is read and put once.
fn put_settled(
    file: &PageFile,
    settled: &Settled,
    writer: &PackWriter,
    known: &KnownParts,
) -> Result<Put> {
    put_all(file, &|part, bytes| {
        let key = settled.place(part).map(|it| (it, part.end - part.start));
        let found = key.and_then(|key| known.lock().get(&key).copied());
        if let Some(id) = found {
            return Ok(id);
        }
        let id = put_part(file, settled, part, bytes, writer)?;
        known.lock().extend(key.map(|key| (key, id)));
        Ok(id)
    })
}

/// Has each of a file's parts put by `one`, which gives its name; in order.
fn put_all(
    file: &PageFile,
    one: &(impl Fn(&Range<u64>, &mut Vec<u8>) -> Result<Option<ChunkId>> + Sync),
) -> Result<Put> {
    let mut put = several(file.parts.len(), "store", &give_way, &|number, bytes| {
        let part = &file.parts[number];
        let id = one(part, bytes)?;
        Ok(id.map(|id| (part.start, (part.end - part.start) as u32, id)))
    })?;
    put.sort_unstable_by_key(|it| it.0);
    Ok(put)
}

/// Puts one part; its name, or none if it is zeros.
fn put_part(
    file: &PageFile,
    from: &dyn PageBytes,
    part: &Range<u64>,
    bytes: &mut Vec<u8>,
    writer: &PackWriter,
) -> Result<Option<ChunkId>> {
    bytes.resize((part.end - part.start) as usize, 0);
    let read = from.read_at(bytes, part.start);
    read.or_fail(FailureKind::Internal, || {
        format!("cannot read the pages of `pages-{}.img`", file.number)
    })?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let id = ChunkId::of(bytes);
    writer.put(&id, bytes).map_err(|e| from_store(&e))?;
    Ok(Some(id))
}

/// Leaves the processors to the program, which runs again: all threads but the first, which is to come to an end also where the
/// program takes all of them.
fn give_way(thread: usize) {
    if thread > 0 {
        // Where that is not permitted, the program shares.
        let _ = rustix::process::setpriority_process(None, LEAST_URGENT);
    }
}

/// Reads and checks all chunks of an image's host memory, which stay in the page cache then. Returns the packs that hold them,
/// or none if one has changed meanwhile.
///
/// # Errors
/// One is damaged.
pub(crate) fn warm(table: &ChunkTable, store: &Store) -> Result<Vec<FileVersion>> {
    let reader = reader_of(store)?;
    let versions = || {
        let ids = table.records().iter().map(|it| &it.id);
        reader.pack_versions(ids).map_err(|e| from_store(&e))
    };
    let before = versions()?;
    read_all(table.records(), &reader, &|_, _| Ok(()))?;
    match versions()? == before {
        true => Ok(before),
        false => Ok(Vec::new()),
    }
}

/// Whether an image has so much host memory that it is brought on demand.
pub(crate) fn is_large(image: &Image) -> bool {
    let files = page_files(&image.host(), u64::MAX).unwrap_or_default();
    files.iter().map(|it| it.bytes).sum::<u64>() >= LARGE
}

/// Under which number a chunk table has the content of a file with pages.
pub(super) fn buffer_of(file: &PageFile) -> BufferId {
    BufferId(file.number.into())
}

/// Reads and checks these chunks, with several threads, and hands them to `take`.
pub(super) fn read_all(
    chunks: &[ChunkRecord],
    reader: &ChunkReader,
    take: &(impl Fn(&ChunkRecord, &[u8]) -> Result<()> + Sync),
) -> Result<()> {
    let read = |number: usize, bytes: &mut Vec<u8>| {
        let record = &chunks[number];
        bytes.resize(record.length as usize, 0);
        let read = reader.read_verified(&record.id, bytes);
        read.map_err(|e| from_store(&e))?;
        take(record, bytes).map(|()| None::<()>)
    };
    several(chunks.len(), "pages", &|_| (), &read).map(drop)
}

/// Has several threads, each of which calls `begin` first, do `one` for each number below `count`, with a buffer of the thread; what
/// that gave, in any order. After a failure nothing more is begun.
fn several<T: Send>(
    count: usize,
    what: &str,
    begin: &(impl Fn(usize) + Sync),
    one: &(impl Fn(usize, &mut Vec<u8>) -> Result<Option<T>> + Sync),
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let work = |thread| {
        begin(thread);
        let (mut all, mut bytes) = (Vec::new(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(all);
            }
            let done = one(number, &mut bytes);
            all.extend(done.inspect_err(|_| next.store(count, Ordering::Relaxed))?);
        }
    };
    let threads = 0..cores().min(THREADS).min(count);
    let all = all_at_once(threads.collect(), what, work)?;
    Ok(all.into_iter().flatten().collect())
}

pub(super) fn reader_of(store: &Store) -> Result<ChunkReader> {
    store.reader().map_err(|e| from_store(&e))
}

pub(super) fn path_of(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("pages-{number}.img"))
}
