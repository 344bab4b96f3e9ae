//! The memory of processes in the store: what images have alike is there once.
//!
//! ```text
//!  CRIU's dump   host/pages-N.img ─► chunks in the store, named by `host/chunks` as buffer N; the file goes
//!  a restore     PagesForCriu: pages-N.img, all of it, or what CRIU itself reads, beside links to the dump's other files;
//!                of warm images it is there (`kept`)
//!                `chunks`: what comes on demand
//! ```
//! Parts are cut at multiples of addresses: memory that a program has not changed gives the same chunks the next time, wherever it
//! lies in the file. Parts of zeros are left out. CRIU reads plain files; where memory comes on demand it reads little of them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use fermata_control::worker::FailureKind;
use fermata_hostmem::demand::PageBytes;
use fermata_hostmem::{InCommon, PageFile, Place, Settled, page_files};
use fermata_store::image::{
    BufferId, ChunkRecord, ChunkTable, ChunkTableWriter, Draft, HOST_CHUNKS, Image,
};
use fermata_store::{
    ChunkId, ChunkReader, FileVersion, HostMemory, PackWriter, Store, Totals, WriteOptions,
    is_memory,
};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use crate::criu::pstree;
use crate::failure::{OrFail as _, Result, fail, from_store};
use crate::images::space::{self, MARGIN};
use crate::parallel::{all_at_once, cores};

/// Longest part, in bytes: a page that has changed makes one of them new.
const PIECE: u64 = 256 << 10;
/// The most threads that hash, or read, parts.
const THREADS: usize = 8;
/// From this size on, host memory is brought on demand. Reading less than this at once is faster than setting up
/// userfaultfd.
const LARGE: u64 = 64 << 20;
/// Memory that processes have in common is in common after a restore, too, if they would take so much more otherwise, and so large a part of what is
/// available: a restore takes longer then, since CRIU reads it for each of them (decision 059).
const WORTH: u64 = if cfg!(debug_assertions) {
    64 << 20
} else {
    256 << 20
};
const PART: u64 = 16;
/// At most this part of what a folder has room for is filled with it.
const SHARE: u64 = 2;
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

/// Files with pages for CRIU; removed when this is dropped.
pub(crate) enum PagesForCriu {
    /// All pages, in a folder like that of an image: they may be large.
    All(Draft),
    /// Those that it reads where others come on demand, in the folder that it works in; page maps for them may lie beside them.
    Few(Vec<PathBuf>),
    /// The same in a folder of their own, and how many bytes.
    Kept(PathBuf, u64),
}

impl PagesForCriu {
    /// All pages of an image, of whose memory this is the table, as files in a folder below `folder`.
    ///
    /// # Errors
    /// A chunk is damaged, or the disk is full.
    pub(crate) fn all(
        image: &Image,
        table: &ChunkTable,
        store: &Store,
        folder: &Path,
    ) -> Result<Self> {
        let files = wanted(image, table, None)?;
        space::check_space(folder, table.content_bytes() + MARGIN)?;
        let draft = Draft::scratch(store, folder).map_err(|e| from_store(&e))?;
        files.write(store, &draft.host())?;
        Ok(Self::All(draft))
    }

    /// The pages that CRIU reads while it restores, others coming on demand, as files in `work`.
    ///
    /// # Errors
    /// As above; files that have been made go with the folder.
    pub(crate) fn few(
        image: &Image,
        table: &ChunkTable,
        store: &Store,
        work: &Path,
    ) -> Result<Self> {
        let room = space::free_bytes(work).map_or(u64::MAX, |free| free / SHARE);
        let files = wanted(image, table, Some(room))?;
        files.write(store, work).map(Self::Few)
    }

    /// The same in `folder`, a new one, for restores that make links to them; none if they are more than `most` bytes.
    ///
    /// # Errors
    /// As above, or the folder cannot be made; it is gone then.
    pub(crate) fn kept(
        image: &Image,
        table: &ChunkTable,
        store: &Store,
        folder: PathBuf,
        most: u64,
    ) -> Result<Option<Self>> {
        let files = wanted(image, table, Some(most))?;
        let chunks = files.files.iter().flat_map(|it| &it.chunks);
        let bytes = chunks.map(|it| u64::from(it.length)).sum();
        if bytes > most {
            return Ok(None);
        }
        fs::create_dir_all(&folder).or_fail(FailureKind::User, || {
            format!("cannot make `{}`", folder.display())
        })?;
        let kept = Self::Kept(folder.clone(), bytes);
        files.write(store, &folder).map(|_| Some(kept))
    }

    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Kept(_, bytes) => *bytes,
            Self::All(_) | Self::Few(_) => 0,
        }
    }

    /// Makes links to them in `work`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn link(&self, work: &Path) -> io::Result<()> {
        let folder = match self {
            Self::All(draft) => draft.host(),
            Self::Few(_) => return Ok(()),
            Self::Kept(folder, _) => folder.clone(),
        };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let link = work.join(entry.file_name());
            // The dump's page map, where there is another one.
            match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => symlink(entry.path(), link)?,
            }
        }
        Ok(())
    }
}

impl Drop for PagesForCriu {
    fn drop(&mut self) {
        match self {
            Self::All(_) => {}
            Self::Few(paths) => {
                for path in paths {
                    // The folder goes with the session, and may be gone.
                    let _ = fs::remove_file(path);
                }
            }
            Self::Kept(folder, _) => {
                // A daemon that ends removes it with all others.
                let _ = fs::remove_dir_all(folder);
            }
        }
    }
}

/// What CRIU reads.
struct Wanted {
    files: Vec<WantedFile>,
    in_common: Option<InCommon<ChunkId>>,
}

/// A file with pages, and what of it is to be there.
struct WantedFile {
    number: u32,
    bytes: u64,
    chunks: Vec<ChunkRecord>,
}

/// The files of an image, with all that its table has of them or, if the rest is brought on demand, what CRIU reads, with up to so many bytes
/// that processes have in common.
fn wanted(image: &Image, table: &ChunkTable, on_demand: Option<u64>) -> Result<Wanted> {
    let host = image.host();
    let bad = || format!("the page maps of `{}` cannot be read", host.display());
    // Parts as long as their mappings: the writer may have cut them shorter than this release does.
    let files = page_files(&host, u64::MAX).or_fail(FailureKind::Damaged, bad)?;
    check(table, &files)?;
    let in_common = on_demand.map(|most| in_common(&host, table, most));
    let in_common = in_common.transpose().or_fail(FailureKind::Damaged, bad)?;
    let in_common = in_common.flatten();
    let is_replaced = |file: &PageFile| {
        let replaced = in_common.as_ref().map(|it| &it.replaced);
        replaced.is_some_and(|it| it.contains(&file.number))
    };
    let files = files.iter().filter(|it| !is_replaced(it)).map(|file| {
        let chunks = chunks_of(table, file.number).iter();
        let read = |it: &&ChunkRecord| on_demand.is_none() || is_in(&file.at_once, it.offset);
        WantedFile {
            number: file.number,
            bytes: file.bytes,
            chunks: chunks.filter(read).copied().collect(),
        }
    });
    let mut files: Vec<_> = files.collect();
    files.extend(in_common.as_ref().map(file_in_common));
    Ok(Wanted { files, in_common })
}

fn file_in_common(in_common: &InCommon<ChunkId>) -> WantedFile {
    let record = |(range, id): &(Range<u64>, ChunkId)| ChunkRecord {
        buffer: BufferId(in_common.number.into()),
        offset: range.start,
        length: (range.end - range.start) as u32,
        id: *id,
    };
    WantedFile {
        number: in_common.number,
        bytes: in_common.bytes,
        chunks: in_common.content.iter().map(record).collect(),
    }
}

/// What the processes of the dump in `host` have in common, if that is worth it, and at most so many bytes.
fn in_common(host: &Path, table: &ChunkTable, most: u64) -> io::Result<Option<InCommon<ChunkId>>> {
    let parents = pstree::parents(host)?;
    if parents.len() < 2 {
        return Ok(None);
    }
    let content = |number| {
        let chunks = chunks_of(table, number).iter();
        let placed = chunks.map(|it| (it.offset..it.offset + u64::from(it.length), it.id));
        placed.collect()
    };
    let found = InCommon::of(host, &parents, content)?;
    Ok(found.filter(|it| it.saved >= worth_it() && it.bytes <= most))
}

/// From how many bytes on that is worth it.
fn worth_it() -> u64 {
    // Tests do not depend on their machine.
    let available = HostMemory::now().filter(|_| !cfg!(debug_assertions));
    WORTH.max(available.map_or(0, |it| it.available / PART))
}

/// What a table has of file `number`.
fn chunks_of(table: &ChunkTable, number: u32) -> &[ChunkRecord] {
    let buffer = BufferId(number.into());
    let found = table.buffers().find(|it| it.buffer == buffer);
    found.map_or(&[][..], |it| it.chunks)
}

impl Wanted {
    /// Writes files into `folder`; the paths of those with pages.
    fn write(&self, store: &Store, folder: &Path) -> Result<Vec<PathBuf>> {
        let failed = || format!("cannot write to `{}`", folder.display());
        let (reader, mut paths) = (reader_of(store)?, Vec::new());
        for file in &self.files {
            let path = path_of(folder, file.number);
            let to = File::create_new(&path).or_fail(FailureKind::User, failed)?;
            paths.push(path);
            to.set_len(file.bytes).or_fail(FailureKind::User, failed)?;
            read_all(&file.chunks, &reader, &|record, bytes| {
                let written = to.write_all_at(bytes, record.offset);
                written.or_fail(FailureKind::User, failed)
            })?;
        }
        if let Some(in_common) = &self.in_common {
            let written = in_common.write(folder);
            written.or_fail(FailureKind::User, failed)?;
        }
        Ok(paths)
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

fn reader_of(store: &Store) -> Result<ChunkReader> {
    store.reader().map_err(|e| from_store(&e))
}

fn path_of(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("pages-{number}.img"))
}
