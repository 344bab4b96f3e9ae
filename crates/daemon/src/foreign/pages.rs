//! The memory of a foreign program in the store: what images have alike is there once.
//!
//! ```text
//!  CRIU's dump: host/pages-N.img ─► chunks in the store, named by the image's chunk table as buffer N; the file goes
//!  a restore:   a folder among the images, with links to its other files ◄─ pages-N.img, put together again
//! ```
//! CRIU reads plain files, and the driver needs all memory before the program runs, so nothing could come on demand anyway. Parts
//! are cut at multiples of addresses: memory that a program has not changed gives the same chunks the next time, wherever it lies in
//! the file. Parts of zeros are left out.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use fermata_control::worker::FailureKind;
use fermata_hostmem::{PageFile, page_files};
use fermata_store::image::{BufferId, ChunkRecord, ChunkTable, ChunkTableWriter, Draft, Image};
use fermata_store::{ChunkId, ChunkReader, PackWriter, Store, Totals};
use rustix::fs::FallocateFlags;

use crate::failure::{Failure, OrFail as _, Result, fail, from_store};
use crate::images::space::{self, MARGIN};
use crate::parallel::{all_at_once, cores};

/// Longest part, in bytes: a page that has changed makes one of them new.
const PIECE: u64 = 256 << 10;
/// The most threads that hash, or read, parts.
const THREADS: usize = 8;

/// Puts the pages of a dump into the store and its table into `draft`; what that was, in all. The files with the pages are gone then.
///
/// # Errors
/// They cannot be read, or the store is full.
pub(super) fn store(draft: &Draft, store: &Store) -> Result<Totals> {
    let host = draft.host();
    let unreadable = || "cannot read the dump's pages".to_owned();
    let files = page_files(&host, PIECE).or_fail(FailureKind::Internal, unreadable)?;
    // One file goes after the other. Where the disk has no room for the largest twice, it goes piece by piece.
    let largest = files.iter().map(|it| it.bytes).max().unwrap_or(0);
    let scarce = space::check_space(store.dir(), largest + MARGIN).is_err();
    let writer = store.begin().map_err(|e| from_store(&e))?;
    let mut table = ChunkTableWriter::new();
    for file in &files {
        let path = path_of(&host, file.number);
        for (offset, length, id) in put_all(&path, file, &writer, scarce)? {
            table
                .push(buffer_of(file), offset, length, id)
                .map_err(|e| from_store(&e))?;
        }
        fs::remove_file(&path).or_fail(FailureKind::User, || {
            format!("cannot remove `{}`", path.display())
        })?;
    }
    let totals = writer.finish().map_err(|e| from_store(&e))?;
    let to = draft.path().join(fermata_store::image::CHUNKS);
    table.write(&to).map_err(|e| from_store(&e))?;
    Ok(totals)
}

/// Puts a file's parts; their offsets, lengths and names, in order.
fn put_all(
    path: &Path,
    file: &PageFile,
    writer: &PackWriter,
    scarce: bool,
) -> Result<Vec<(u64, u32, ChunkId)>> {
    let failed = || format!("cannot read `{}`", path.display());
    let from = File::options().read(true).write(true).open(path);
    let from = from.or_fail(FailureKind::Internal, failed)?;
    let next = AtomicUsize::new(0);
    let work = |_| {
        let (mut done, mut bytes) = (Vec::new(), Vec::new());
        while let Some(part) = file.parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes.resize((part.end - part.start) as usize, 0);
            let read = from.read_exact_at(&mut bytes, part.start);
            read.or_fail(FailureKind::Internal, failed)?;
            if bytes.iter().any(|byte| *byte != 0) {
                let id = ChunkId::of(&bytes);
                writer.put(&id, &bytes).map_err(|e| from_store(&e))?;
                done.push((part.start, bytes.len() as u32, id));
            }
            if !scarce {
                continue;
            }
            // Where that cannot be done, the disk must have room for both.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&from, hole, part.start, part.end - part.start);
        }
        Ok(done)
    };
    let parts = all_at_once(threads(), "store", stopping(&next, work))?;
    let mut parts: Vec<_> = parts.into_iter().flatten().collect();
    parts.sort_unstable_by_key(|it| it.0);
    Ok(parts)
}

/// A folder with all files of an image's dump, as CRIU reads them; removed when it is dropped.
pub(crate) struct Whole(Draft);

impl Whole {
    /// That of an image, below `folder`; `None` if the image's own folder is one.
    ///
    /// # Errors
    /// A chunk is damaged, or the disk is full.
    pub(crate) fn of(image: &Image, store: &Store, folder: &Path) -> Result<Option<Self>> {
        let table = image.chunk_table().map_err(|e| from_store(&e))?;
        if table.records().is_empty() {
            return Ok(None);
        }
        let host = image.host();
        let bad = || format!("the page maps of `{}` cannot be read", host.display());
        let files = page_files(&host, PIECE).or_fail(FailureKind::Damaged, bad)?;
        check(&table, &files)?;
        space::check_space(folder, table.content_bytes() + MARGIN)?;
        let draft = Draft::scratch(store, folder).map_err(|e| from_store(&e))?;
        let whole = Self(draft);
        let failed = || format!("cannot write to `{}`", whole.folder().display());
        whole.link(&host).or_fail(FailureKind::User, failed)?;
        let reader = store.reader().map_err(|e| from_store(&e))?;
        for file in &files {
            let to = File::create_new(path_of(&whole.folder(), file.number));
            let to = to.or_fail(FailureKind::User, failed)?;
            to.set_len(file.bytes).or_fail(FailureKind::User, failed)?;
            let chunks = table.buffers().find(|it| it.buffer == buffer_of(file));
            let chunks = chunks.map_or(&[][..], |it| it.chunks);
            bring_all(chunks, &reader, &to, &failed)?;
        }
        Ok(Some(whole))
    }

    /// The folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.0.host()
    }

    fn link(&self, host: &Path) -> io::Result<()> {
        for entry in fs::read_dir(host)? {
            let entry = entry?;
            symlink(entry.path(), self.folder().join(entry.file_name()))?;
        }
        Ok(())
    }
}

/// Under which number a chunk table has the content of a file with pages.
fn buffer_of(file: &PageFile) -> BufferId {
    BufferId(file.number.into())
}

/// Whether every chunk lies in a file with pages.
fn check(table: &ChunkTable, files: &[PageFile]) -> Result<()> {
    let fits = |record: &ChunkRecord| {
        let end = record.offset.checked_add(record.length.into());
        let file = files.iter().find(|it| buffer_of(it) == record.buffer);
        file.zip(end).is_some_and(|(file, end)| end <= file.bytes)
    };
    match table.records().iter().all(fits) {
        true => Ok(()),
        false => {
            let message = "the image's chunk table does not fit its page maps";
            Err(fail(FailureKind::Damaged, message))
        }
    }
}

fn bring_all(
    chunks: &[ChunkRecord],
    reader: &ChunkReader,
    to: &File,
    failed: &(impl Fn() -> String + Sync),
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = |_| {
        let mut bytes = Vec::new();
        while let Some(record) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes.resize(record.length as usize, 0);
            let read = reader.read_verified(&record.id, &mut bytes);
            read.map_err(|e| from_store(&e))?;
            let written = to.write_all_at(&bytes, record.offset);
            written.or_fail(FailureKind::User, failed)?;
        }
        Ok::<(), Failure>(())
    };
    all_at_once(threads(), "pages", stopping(&next, work)).map(drop)
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
