//! The memory of processes that CRIU reads, as files: all of it or, where memory comes on demand, what cannot come so and what processes have in
//! common.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};

use fermata_control::worker::FailureKind;
use fermata_hostmem::{InCommon, PageFile, page_files};
use fermata_store::image::{BufferId, ChunkRecord, ChunkTable, Draft, Image};
use fermata_store::{ChunkId, HostMemory, Store};
use tracing::info;

use super::stored::{buffer_of, path_of, read_all, reader_of};
use crate::criu::pstree;
use crate::failure::{OrFail as _, Result, fail, from_store};
use crate::images::space::{self, MARGIN};

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
        let files = wanted(image, table, Some(u64::MAX))?;
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
    let found = InCommon::of(host, &parents, worth_it(), content)?;
    if let Some(InCommon { bytes, .. }) = found
        && bytes > most
    {
        info!(
            bytes,
            "there is too little space for what processes have in common: each gets its own"
        );
        return Ok(None);
    }
    Ok(found)
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
