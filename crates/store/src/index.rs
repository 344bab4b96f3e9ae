//! What is where: the index files of a store, in memory.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::file_key::FileVersion;
use crate::format::{IndexFile, PackId};
use crate::id::ChunkMap;
use crate::{ChunkId, Result, StoreError, direct, error, small_files, sync};

/// The longest index file that is read: 48 bytes for each of 22 million chunks.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// Packs' files that this process keeps open at most: each checkpoint makes a pack, an image can refer to many of them,
/// and a process may often have 1024 files in all.
const MOST_OPEN: usize = 256;

/// Those that are, the first opened first.
static OPEN: Mutex<VecDeque<(Weak<Pack>, bool)>> = Mutex::new(VecDeque::new());

/// A published pack.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) id: PackId,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Whether its file was there, as long as it must be, when its index was read.
    pub(crate) whole: bool,
    direct: Mutex<Option<Arc<File>>>,
    plain: Mutex<Option<Arc<File>>>,
}

impl Pack {
    fn new(id: PackId, path: PathBuf, bytes: u64) -> Self {
        let there = std::fs::symlink_metadata(&path);
        Self {
            id,
            path,
            bytes,
            whole: there.is_ok_and(|it| it.is_file() && it.len() == bytes),
            direct: Mutex::default(),
            plain: Mutex::default(),
        }
    }

    /// The pack's file, opened for direct I/O or through the page cache.
    pub(crate) fn file(self: &Arc<Self>, aligned: bool) -> Result<Arc<File>> {
        let mut slot = self.slot(aligned).lock();
        if let Some(file) = &*slot {
            return Ok(Arc::clone(file));
        }
        let opened = match aligned {
            true => direct::open_regular(&self.path, "open pack"),
            false => sync::open_checked(&self.path, OFlags::empty(), "open pack"),
        };
        let file = Arc::new(match opened {
            Err(e) if e.is_missing() => return error::damaged(&self.path, "it is missing"),
            other => other?,
        });
        *slot = Some(Arc::clone(&file));
        drop(slot);
        let mut open = OPEN.lock();
        open.push_back((Arc::downgrade(self), aligned));
        let first = (open.len() > MOST_OPEN).then(|| open.pop_front()).flatten();
        drop(open);
        if let Some((Some(pack), aligned)) = first.map(|(pack, aligned)| (pack.upgrade(), aligned))
        {
            // Who reads from it now has it open until then.
            pack.slot(aligned).lock().take();
        }
        Ok(file)
    }

    /// What its file is now.
    pub(crate) fn version(self: &Arc<Self>) -> Result<FileVersion> {
        let file = self.file(false)?;
        FileVersion::of(&file).map_err(|e| StoreError::io("stat", &self.path, 0, e))
    }

    fn slot(&self, aligned: bool) -> &Mutex<Option<Arc<File>>> {
        if aligned { &self.direct } else { &self.plain }
    }
}

/// Where a chunk lies.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) pack: Arc<Pack>,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// All published chunks of a store at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    pub(crate) chunks: ChunkMap<Location>,
    pub(crate) packs: HashMap<PackId, Arc<Pack>>,
    /// Index files that could not be read; their chunks count as missing.
    pub(crate) damage: HashMap<PackId, Unreadable>,
    /// That of the store around this one, whose chunks count as this one's (`paused`).
    pub(crate) around: Option<Arc<Index>>,
}

/// Why an index file could not be read.
#[derive(Debug, Clone)]
pub(crate) struct Unreadable {
    pub(crate) what: String,
    /// Whether it is as a newer release has written it, which can read it.
    pub(crate) newer: bool,
}

impl Index {
    /// Where a chunk lies: here, or, unless its pack here is whole, in the store around this one.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<&Location> {
        let own = self.chunks.get(id);
        let around = || self.around.as_ref()?.find(id);
        match own {
            Some(at) if at.pack.whole => own,
            _ => around().filter(|at| at.pack.whole).or(own),
        }
    }

    /// Where a chunk of this length lies in a pack that is as long as it must be.
    pub(crate) fn find_whole(&self, id: &ChunkId, length: u64) -> Option<&Location> {
        self.find(id)
            .filter(|at| at.pack.whole && u64::from(at.length) == length)
    }

    /// Enters what an index file says.
    pub(crate) fn add(&mut self, file: &IndexFile, packs: &Path) {
        let path = pack_path(packs, file.pack);
        let pack = Arc::new(Pack::new(file.pack, path, file.pack_bytes));
        for r in &file.records {
            let known = self.chunks.get(&r.id);
            if !pack.whole && known.is_some_and(|it| it.pack.whole) {
                // It was stored anew because this pack has been lost.
                continue;
            }
            let (offset, length) = (r.offset.get(), r.length.get());
            self.chunks.insert(
                r.id,
                Location {
                    pack: pack.clone(),
                    offset,
                    length,
                },
            );
        }
        self.packs.insert(file.pack, pack);
    }

    /// Brings `old` up to date with the folders; the same when nothing has changed.
    pub(crate) fn refresh(old: &Arc<Self>, index: &Path, packs: &Path) -> Result<Arc<Self>> {
        let present = match list(index, "idx") {
            Err(e) if e.is_missing() => return error::damaged(index, "the folder is missing"),
            other => other?,
        };
        let known = |id: &PackId| old.packs.contains_key(id) || old.damage.contains_key(id);
        let gone =
            present.iter().filter(|id| known(id)).count() < old.packs.len() + old.damage.len();
        let mut missing = present;
        missing.retain(|id| gone || !known(id));
        if missing.is_empty() && !gone {
            return Ok(old.clone());
        }
        let mut new = if gone {
            Self::default()
        } else {
            (**old).clone()
        };
        let files = small_files::of_each(missing.iter().collect(), |id| read(*id, index));
        for (id, file) in missing.iter().zip(files) {
            match file {
                Ok(f) if f.pack == *id => new.add(&f, packs),
                Ok(f) => {
                    let path = index_path(index, *id);
                    let what = format!("`{}` is the index of pack `{}`", path.display(), f.pack);
                    new.damage.insert(*id, Unreadable { what, newer: false });
                }
                // Collected meanwhile.
                Err(e) if e.is_missing() => {}
                Err(e @ (StoreError::Damaged { .. } | StoreError::Newer { .. })) => {
                    let newer = matches!(e, StoreError::Newer { .. });
                    let what = e.to_string();
                    new.damage.insert(*id, Unreadable { what, newer });
                }
                Err(e) => return Err(e),
            }
        }
        Ok(Arc::new(new))
    }
}

/// Reads the index file of a pack.
fn read(pack: PackId, folder: &Path) -> Result<IndexFile> {
    let path = index_path(folder, pack);
    let bytes = sync::read_limited(&path, MAX_INDEX_BYTES)?;
    IndexFile::decode(&bytes, &path)
}

/// Path of a pack.
pub(crate) fn pack_path(packs: &Path, id: PackId) -> PathBuf {
    packs.join(format!("{id}.pack"))
}

/// Path of an index file.
pub(crate) fn index_path(index: &Path, id: PackId) -> PathBuf {
    index.join(format!("{id}.idx"))
}

/// The packs named by the files with this extension in a folder.
pub(crate) fn list(folder: &Path, extension: &str) -> Result<Vec<PackId>> {
    let entries = std::fs::read_dir(folder).map_err(|e| StoreError::io("list", folder, 0, e))?;
    let mut ids = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| StoreError::io("list", folder, 0, e))?;
        let name = entry.file_name();
        let id = name
            .to_str()
            .and_then(|n| n.strip_suffix(extension)?.strip_suffix('.'));
        ids.extend(id.and_then(parse));
    }
    ids.sort();
    Ok(ids)
}

fn parse(text: &str) -> Option<PackId> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut id = [0; 16];
    for (i, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(PackId(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, WriteOptions};

    #[test]
    fn of_many_index_files_each_is_read_and_a_damaged_one_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), true).expect("a store");
        let options = WriteOptions {
            pack_bytes: 1,
            ..WriteOptions::default()
        };
        let writer = store.begin_with(options).expect("a writer");
        let packs = 200;
        let contents = |n: usize| n.to_le_bytes();
        for n in 0..packs {
            let bytes = contents(n);
            writer.put(&ChunkId::of(&bytes), &bytes).expect("put");
        }
        writer.finish().expect("written");

        let whole = store.refresh().expect("an index");
        assert_eq!(whole.packs.len(), packs);
        let lost = ChunkId::of(&contents(packs / 2));
        let pack = whole.find(&lost).expect("known").pack.id;
        let file = index_path(&store.index_dir(), pack);
        let mut bytes = std::fs::read(&file).expect("its index");
        *bytes.last_mut().expect("a record") ^= 1;
        std::fs::write(&file, bytes).expect("damaged");

        let again = Store::open(folder.path(), false).expect("the store");
        let index = again.refresh().expect("an index");
        assert_eq!(index.damage.keys().collect::<Vec<_>>(), [&pack]);
        for n in 0..packs {
            let id = ChunkId::of(&contents(n));
            let found = index.find(&id).map(|at| (at.length, at.pack.id));
            let known = whole.find(&id).map(|at| (at.length, at.pack.id));
            assert_eq!(found, known.filter(|_| id != lost));
        }
    }
}
