//! Data of paused sessions: a store of its own for each, so that it goes as a whole.
//!
//! ```text
//!  FOLDER/version packs/ index/ tmp/ ...   a store, of this session only
//!         parts/1/{state,chunks}           what the worker of its first process wrote
//!         parts/2/...                      and of each further one
//! ```
//! Where images are kept in memory, FOLDER lies in their store, below `paused/`. It takes that store's ready packs, which
//! workers have mapped and registered, and they find its packs beside the others. What an image has there already is not
//! stored once more: chunks of the store around count as its own, and a collection of garbage keeps what sessions need.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::image::{CHUNKS, ChunkTable, PARTS, STATE, table_of};
use crate::threads::{cores, side_by_side};
use crate::{
    AlignedBuf, ChunkId, ChunkReader, PackFile, PackWriter, Result, Store, StoreError, Totals,
    index, memory, store::PAUSED, sync,
};

/// The longest `state` or `chunks` file that is read.
const MAX_FILE: u64 = 4 << 30;

/// Threads that copy chunks, at most.
const THREADS: usize = 8;

/// BLAKE3 of a part's files, 64 hexadecimal digits each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartDigests {
    /// Of `state`.
    pub state: String,
    /// Of `chunks`.
    pub chunks: String,
}

/// Where the files of a session's process are, the first being 1, whose store is in `folder`.
pub fn paused_part(folder: &Path, number: usize) -> PathBuf {
    folder.join(PARTS).join(number.to_string())
}

impl Store {
    /// Where the stores of paused sessions lie that take this one's ready packs.
    pub fn paused_dir(&self) -> PathBuf {
        self.dir().join(PAUSED)
    }

    /// The chunks that sessions need whose stores lie in this one. Some are their stores' own.
    ///
    /// # Errors
    /// `Damaged`, `Newer`, `Io`: what a session needs cannot be told.
    pub(crate) fn paused_chunks(&self) -> Result<Vec<ChunkId>> {
        let mut needed = Vec::new();
        for store in folders(&self.paused_dir())? {
            for part in folders(&store.join(PARTS))? {
                match table_of(&part) {
                    // It is being made, which has failed if this is called under the lock, or removed.
                    Err(e) if e.is_missing() => {}
                    table => needed.extend(table?.records().iter().map(|it| it.id)),
                }
            }
        }
        Ok(needed)
    }

    /// The packs of paused sessions.
    pub(crate) fn paused_packs(&self) -> Vec<PackFile> {
        let stores = std::fs::read_dir(self.paused_dir()).into_iter().flatten();
        let packs = stores.flatten().map(|it| it.path().join("packs"));
        let files = packs.flat_map(|folder| {
            // One that is being made or removed has none.
            let ids = index::list(&folder, "pack").unwrap_or_default();
            let file = move |id| memory::pack_file(id, index::pack_path(&folder, id), false);
            ids.into_iter().filter_map(file)
        });
        files.collect()
    }

    /// Checks that the part in `folder` is whole: both of its files can be read, and every chunk that they name lies in
    /// this store, in a pack of the right length. The bytes of chunks are not read.
    ///
    /// # Errors
    /// `MissingChunk`, `Damaged`, `Io`.
    pub fn check_part(&self, folder: &Path) -> Result<PartDigests> {
        let (state, _) = read(folder, STATE)?;
        let (chunks, bytes) = read(folder, CHUNKS)?;
        let table = ChunkTable::decode(&bytes, &folder.join(CHUNKS))?;
        match self.first_missing(&table)? {
            Some(id) => Err(StoreError::MissingChunk {
                id,
                store: self.dir().into(),
            }),
            None => Ok(PartDigests { state, chunks }),
        }
    }

    /// Copies parts to the folders of an image in the making, and their chunks out of `entry` into this store, unless it has
    /// them. Every file, and every chunk that is copied, is held against its hash. `progress` gets the bytes done and the bytes in all.
    ///
    /// # Errors
    /// `Damaged`, `DamagedChunk`, `MissingChunk`: the entry is not as it was; `Full`, `Locked`, `Io`. This store is as it
    /// was then, or has chunks that no image refers to.
    pub fn copy_parts(
        &self,
        entry: &Self,
        parts: &[(PathBuf, PathBuf, PartDigests)],
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Totals> {
        let mut chunks = BTreeMap::new();
        for (from, to, digests) in parts {
            for (name, digest) in [(STATE, &digests.state), (CHUNKS, &digests.chunks)] {
                let (found, bytes) = read(from, name)?;
                let path = from.join(name);
                if found != *digest {
                    let what = "its hash is not the one it had when the session was paused".into();
                    return Err(StoreError::Damaged { path, what });
                }
                if name == CHUNKS {
                    let table = ChunkTable::decode(&bytes, &path)?;
                    chunks.extend(table.records().iter().map(|it| (it.id, it.length)));
                }
                sync::write_new(&to.join(name), &[&bytes], true)?;
            }
        }
        let (reader, writer) = (entry.reader()?, self.begin()?);
        let chunks: Vec<_> = chunks.into_iter().collect();
        copy(&chunks, &reader, &writer, progress)?;
        writer.finish()
    }

    /// The first chunk of a table that is not here as a whole.
    fn first_missing(&self, table: &ChunkTable) -> Result<Option<ChunkId>> {
        let index = self.refresh()?;
        let is_here = |id: &ChunkId, length: u32| index.find_whole(id, length.into()).is_some();
        let mut records = table.records().iter();
        let missing = records.find(|it| !is_here(&it.id, it.length));
        Ok(missing.map(|it| it.id))
    }
}

/// The folders in a folder; none if that is not there.
fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |e| StoreError::io("list", folder, 0, e);
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path.is_dir() {
            found.push(path);
        }
    }
    Ok(found)
}

/// The hash and the bytes of a file of a part.
fn read(folder: &Path, name: &str) -> Result<(String, Vec<u8>)> {
    let bytes = sync::read_limited(&folder.join(name), MAX_FILE)?;
    Ok((blake3::hash(&bytes).to_hex().to_string(), bytes))
}

fn copy(
    chunks: &[(ChunkId, u32)],
    reader: &ChunkReader,
    writer: &PackWriter,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<()> {
    let total = chunks.iter().map(|(_, length)| u64::from(*length)).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || {
        let mut buffer = AlignedBuf::new(0);
        while let Some((id, length)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let bytes = u64::from(*length);
            if !writer.put_known(id, bytes) {
                let length = *length as usize;
                if buffer.len() < length {
                    buffer = AlignedBuf::new(length.next_multiple_of(crate::BLOCK));
                }
                reader.read_verified(id, &mut buffer[..length])?;
                writer.put(id, &buffer[..length])?;
            }
            progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
        }
        Ok(())
    };
    let all = side_by_side(cores().min(THREADS), "copy", work);
    let ends = all.into_iter().map(|it| {
        let what = "a thread that copies has failed".to_owned();
        let op = "copy chunks";
        it.unwrap_or(Err(StoreError::Misuse { op, what }))
    });
    ends.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{BufferId, ChunkTableWriter};

    fn write_part(store: &Store, folder: &Path, chunks: &[&[u8]]) {
        std::fs::create_dir_all(folder).unwrap();
        let writer = store.begin().unwrap();
        let mut table = ChunkTableWriter::new();
        for (n, bytes) in chunks.iter().enumerate() {
            let id = ChunkId::of(bytes);
            writer.put(&id, bytes).unwrap();
            let at = n as u64 * 16384;
            table.push(BufferId(1), at, bytes.len() as u32, id).unwrap();
        }
        writer.finish().unwrap();
        std::fs::write(folder.join(STATE), "state").unwrap();
        std::fs::write(folder.join(CHUNKS), table.encode()).unwrap();
    }

    #[test]
    fn a_paused_session_takes_ready_packs_and_its_packs_are_found_beside_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let outer = Store::open(&dir.path().join("store"), true).unwrap();
        outer.prepare(1).unwrap();
        let before = outer.pack_files().unwrap();
        assert!(before.len() == 1 && before[0].ready);
        let inner = Store::open(&outer.paused_dir().join("x"), true).unwrap();
        assert_eq!(inner.ready_bytes(), outer.ready_bytes());
        let part = paused_part(inner.dir(), 1);
        write_part(&inner, &part, &[b"one", b"two"]);
        inner.check_part(&part).unwrap();
        let after = outer.pack_files().unwrap();
        assert!(after.len() == 1 && !after[0].ready);
        assert_eq!(after[0].key, before[0].key, "the same file");
        // Nothing of it is the outer store's.
        assert!(
            outer
                .reader()
                .unwrap()
                .locate(&ChunkId::of(b"one"))
                .is_err()
        );
        std::fs::remove_dir_all(inner.dir()).unwrap();
        assert!(outer.pack_files().unwrap().is_empty());
    }

    #[test]
    fn an_image_gets_what_the_entry_holds_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Store::open(&dir.path().join("entry"), true).unwrap();
        let store = Store::open(&dir.path().join("store"), true).unwrap();
        let (part, image) = (paused_part(entry.dir(), 1), dir.path().join("image"));
        std::fs::create_dir(&image).unwrap();
        write_part(&entry, &part, &[&[1; 70], &[2; 9000], &[1; 70]]);
        let digests = entry.check_part(&part).unwrap();
        let parts = [(part, image.clone(), digests)];
        let totals = store.copy_parts(&entry, &parts, &|_, _| {}).unwrap();
        assert_eq!((totals.chunks, totals.new_bytes), (2, 9070));
        assert_eq!(store.check_part(&image).unwrap(), parts[0].2);
        std::fs::remove_dir_all(&image).unwrap();
        std::fs::create_dir(&image).unwrap();
        std::fs::write(parts[0].0.join(STATE), "other").unwrap();
        let damaged = store.copy_parts(&entry, &parts, &|_, _| {}).unwrap_err();
        assert!(matches!(damaged, StoreError::Damaged { .. }), "{damaged}");
    }

    /// A store that has chunks `one` and `two`, which no image refers to, and a paused session's in it, which needs `two` and `three`.
    fn one_within_another(dir: &Path) -> (Store, Store, PathBuf, PartDigests) {
        let outer = Store::open(&dir.join("store"), true).unwrap();
        for bytes in [&b"one"[..], b"two"] {
            let writer = outer.begin().unwrap();
            writer.put(&ChunkId::of(bytes), bytes).unwrap();
            writer.finish().unwrap();
        }
        let inner = Store::open(&outer.paused_dir().join("x"), true).unwrap();
        let part = paused_part(inner.dir(), 1);
        write_part(&inner, &part, &[b"two", b"three"]);
        let digests = inner.check_part(&part).unwrap();
        (outer, inner, part, digests)
    }

    fn read_all(store: &Store, chunks: &[&[u8]]) {
        let reader = store.reader().unwrap();
        for bytes in chunks {
            let mut into = vec![0; bytes.len()];
            reader
                .read_verified(&ChunkId::of(bytes), &mut into)
                .unwrap();
            assert_eq!(into, *bytes);
        }
    }

    #[test]
    fn what_an_image_has_is_not_stored_once_more_and_is_kept_as_long_as_a_session_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner, _, _) = one_within_another(dir.path());
        assert_eq!(index::list(&inner.packs_dir(), "pack").unwrap().len(), 1);
        let images = dir.path().join("images");
        std::fs::create_dir(&images).unwrap();
        let gc = || crate::gc(&images, &outer, &crate::GcOptions::default());
        {
            // While it is paused or resumed nothing is collected.
            let _held = inner.share().unwrap();
            assert!(matches!(gc().unwrap_err(), StoreError::Locked { .. }));
        }
        assert_eq!(gc().unwrap().removed_chunks, 1, "`one`");
        read_all(&inner, &[b"two", b"three"]);
        // A store opened anew, as after the end of a daemon.
        let inner = Store::open(inner.dir(), false).unwrap();
        inner.check_part(&paused_part(inner.dir(), 1)).unwrap();
        read_all(&inner, &[b"two", b"three"]);
        std::fs::remove_dir_all(inner.dir()).unwrap();
        assert_eq!(gc().unwrap().removed_chunks, 1, "`two`");
    }

    #[test]
    fn nothing_is_collected_if_what_a_session_needs_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner, part, _) = one_within_another(dir.path());
        std::fs::write(part.join(CHUNKS), "damaged").unwrap();
        let refused = crate::gc(dir.path(), &outer, &crate::GcOptions::default());
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("paused/x/parts/1/chunks"), "{refused}");
        read_all(&inner, &[b"one", b"two", b"three"]);
    }

    #[test]
    fn an_image_of_a_session_gets_only_what_the_store_lacks() {
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner, part, digests) = one_within_another(dir.path());
        let image = dir.path().join("image");
        std::fs::create_dir(&image).unwrap();
        let parts = [(part, image.clone(), digests)];
        let totals = outer.copy_parts(&inner, &parts, &|_, _| {}).unwrap();
        assert_eq!((totals.chunks, totals.new_chunks), (2, 1));
        std::fs::remove_dir_all(inner.dir()).unwrap();
        outer.check_part(&image).unwrap();
        read_all(&outer, &[b"two", b"three"]);
    }

    #[test]
    fn a_chunk_whose_pack_around_is_lost_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let outer = Store::open(&dir.path().join("store"), true).unwrap();
        let writer = outer.begin().unwrap();
        writer.put(&ChunkId::of(b"two"), b"two").unwrap();
        writer.finish().unwrap();
        std::fs::remove_file(outer.pack_files().unwrap().remove(0).path).unwrap();
        let inner = Store::open(&outer.paused_dir().join("x"), true).unwrap();
        let part = paused_part(inner.dir(), 1);
        write_part(&inner, &part, &[b"two"]);
        inner.check_part(&part).unwrap();
        read_all(&inner, &[b"two"]);
    }

    #[test]
    fn a_part_whose_pack_is_cut_or_gone_is_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), true).unwrap();
        let part = paused_part(dir.path(), 1);
        write_part(&store, &part, &[&[7; 5000]]);
        let digests = store.check_part(&part).unwrap();
        assert_eq!(digests.state, blake3::hash(b"state").to_hex().as_str());
        let pack = store.pack_files().unwrap().remove(0).path;
        let file = std::fs::File::options().write(true).open(&pack).unwrap();
        file.set_len(4096).unwrap();
        let again = || Store::open(dir.path(), false).unwrap().check_part(&part);
        let cut = again().unwrap_err();
        assert!(matches!(cut, StoreError::MissingChunk { .. }), "{cut}");
        std::fs::remove_file(&pack).unwrap();
        let gone = again().unwrap_err();
        assert!(matches!(gone, StoreError::MissingChunk { .. }), "{gone}");
    }
}
