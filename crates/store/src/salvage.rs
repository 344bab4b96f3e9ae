//! What to do once a store has turned out to be damaged: chunks that cannot be read any more are forgotten, so
//! that a writer that has their bytes again stores them anew instead of referring to them.
//!
//! ```text
//!  pack with damage ─► its whole chunks ─► new pack, published ─► index file removed ─► pack removed
//!  damaged index file ──────────────────────────────────────────► index file removed ─► pack removed
//! ```

use std::collections::HashMap;

use crate::direct::AlignedBuf;
use crate::format::PackId;
use crate::index::{self, Index, Location};
use crate::{ChunkId, ChunkReader, PackWriter, Result, Store, WriteOptions, sync};

impl Store {
    /// Reads every chunk, and forgets those that are damaged; the others of their packs move to new ones. Packs of
    /// damaged index files are forgotten as by [`Self::salvage_index`].
    /// Images that refer to what is forgotten are as damaged as before. Returns how many chunks are forgotten, of those
    /// that the index knew.
    ///
    /// # Errors
    /// `Locked` while a draft, writer or reader is at work; `Full` when chunks cannot be moved; `Io` when a chunk
    /// cannot be read for another reason than damage. Nothing is forgotten then.
    pub fn salvage(&self) -> Result<u64> {
        let _alone = self.alone()?;
        let index = self.refresh()?;
        let reader = ChunkReader::under_lock(self.clone(), index.clone());
        let mut lost: HashMap<_, u64> = HashMap::new();
        let mut scratch = Vec::new();
        let mut whole: Vec<(ChunkId, Location)> = Vec::new();
        for (id, at) in &index.chunks {
            match reader.verify(id, &mut scratch) {
                Ok(_) => whole.push((*id, at.clone())),
                Err(e) if e.is_loss() => *lost.entry(at.pack.id).or_default() += 1,
                // What cannot be read now, for want of memory or of files that may be open, is not lost.
                Err(e) => return Err(e),
            }
        }
        if lost.is_empty() {
            self.remove_packs(&nameless(&index))?;
            return Ok(0);
        }
        whole.retain(|(_, at)| lost.contains_key(&at.pack.id));
        whole.sort_by_key(|(_, at)| (at.pack.id, at.offset));
        let writer = PackWriter::under_lock(self.clone(), WriteOptions::default());
        let mut buffer = AlignedBuf::new(0);
        for (id, at) in &whole {
            let length = at.length as usize;
            if buffer.len() < length {
                buffer = AlignedBuf::new(length);
            }
            reader.read_verified(id, &mut buffer[..length])?;
            writer.put(id, &buffer[..length])?;
        }
        writer.finish()?;
        let packs = lost.keys().copied();
        self.remove_packs(&packs.chain(nameless(&index)).collect::<Vec<_>>())?;
        Ok(lost.values().sum())
    }

    /// Forgets packs whose index files are damaged: without an index their chunks cannot be found, and a collection
    /// would remove nothing at all. Those whose index files a newer release has written stay. Returns how many packs are
    /// forgotten.
    ///
    /// # Errors
    /// `Locked` while a draft, writer or reader is at work; `Io`.
    pub fn salvage_index(&self) -> Result<usize> {
        let _alone = self.alone()?;
        let index = self.refresh()?;
        let packs = nameless(&index);
        self.remove_packs(&packs)?;
        Ok(packs.len())
    }

    /// Removes packs, each after its index file. Only under the exclusive lock.
    fn remove_packs(&self, packs: &[PackId]) -> Result<()> {
        if packs.is_empty() {
            return Ok(());
        }
        for pack in packs {
            sync::remove_file(&index::index_path(&self.index_dir(), *pack))?;
        }
        sync::folder(&self.index_dir())?;
        for pack in packs {
            sync::remove_file(&index::pack_path(&self.packs_dir(), *pack))?;
        }
        sync::folder(&self.packs_dir())?;
        self.refresh()?;
        Ok(())
    }
}

/// The packs of which no release can tell what they hold.
fn nameless(index: &Index) -> Vec<PackId> {
    let damaged = index.damage.iter().filter(|(_, why)| !why.newer);
    damaged.map(|(pack, _)| *pack).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: u8) -> Vec<u8> {
        vec![n; 20_000]
    }

    #[test]
    fn what_is_whole_stays_and_what_is_not_is_stored_anew() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), true).unwrap();
        let ids: Vec<_> = (0..4).map(|n| ChunkId::of(&chunk(n))).collect();
        let put = |chunks: std::ops::Range<u8>| {
            let writer = store.begin().unwrap();
            for n in chunks {
                writer.put(&ids[usize::from(n)], &chunk(n)).unwrap();
            }
            writer.finish().unwrap().new_chunks
        };
        assert_eq!(put(0..4), 4);
        assert_eq!(store.salvage().unwrap(), 0);
        let pack = store.reader().unwrap().pack_of(&ids[0]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&pack).unwrap();
        file.set_len(60_000).unwrap();
        // The pack's first block, and two chunks, are whole.
        assert_eq!(put(0..4), 0, "they still count as known");
        assert_eq!(store.salvage().unwrap(), 2);
        assert!(!pack.exists());
        assert_eq!(put(0..4), 2);
        let reader = store.reader().unwrap();
        for (n, id) in (0..4).zip(&ids) {
            let mut into = chunk(9);
            reader.read_verified(id, &mut into).unwrap();
            assert_eq!(into, chunk(n));
        }
        std::fs::remove_file(reader.pack_of(&ids[3]).unwrap()).unwrap();
        drop(reader);
        let store = Store::open(dir.path(), false).unwrap();
        assert_eq!(store.salvage().unwrap(), 2);
    }

    #[test]
    fn a_damaged_index_file_does_not_keep_space_from_being_freed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, images) = (dir.path().join("store"), dir.path().join("images"));
        let store = Store::open(&path, true).unwrap();
        let ids: Vec<_> = (0..3).map(|n| ChunkId::of(&chunk(n))).collect();
        for (n, id) in (0..3).zip(&ids) {
            let writer = store.begin().unwrap();
            writer.put(id, &chunk(n)).unwrap();
            writer.finish().unwrap();
        }
        let reader = store.reader().unwrap();
        let packs: Vec<_> = ids.iter().map(|id| reader.pack_of(id).unwrap()).collect();
        drop(reader);
        let index_of = |pack: &std::path::Path| {
            let name = pack.file_stem().unwrap().to_str().unwrap();
            path.join("index").join(format!("{name}.idx"))
        };
        std::fs::write(index_of(&packs[0]), "not an index").unwrap();
        // As a newer release writes it.
        let newer = index_of(&packs[1]);
        let mut bytes = std::fs::read(&newer).unwrap();
        bytes[8] = 2;
        let sum = crate::format::checksum(&bytes[..48], &bytes[80..]);
        bytes[48..80].copy_from_slice(&sum);
        std::fs::write(&newer, bytes).unwrap();

        let store = Store::open(&path, false).unwrap();
        assert!(crate::gc(&images, &store, &crate::GcOptions::default()).is_err());
        assert_eq!(store.salvage_index().unwrap(), 1);
        assert_eq!(store.salvage_index().unwrap(), 0);
        assert!(!packs[0].exists() && packs[1].exists() && newer.exists());
        let refused = crate::gc(&images, &store, &crate::GcOptions::default());
        assert!(refused.is_err(), "the newer release may need that pack");
        std::fs::remove_file(&newer).unwrap();
        let report = crate::gc(&images, &store, &crate::GcOptions::default()).unwrap();
        assert_eq!(report.removed_packs, 1);
        assert!(!packs[2].exists());
        // What was lost is not taken for known.
        let writer = store.begin().unwrap();
        assert!(writer.put(&ids[0], &chunk(0)).unwrap().new);
        writer.finish().unwrap();
        // Looking through the whole store forgets such a pack, too.
        let pack = store.reader().unwrap().pack_of(&ids[0]).unwrap();
        std::fs::write(index_of(&pack), "not an index").unwrap();
        let store = Store::open(&path, false).unwrap();
        assert_eq!(store.salvage().unwrap(), 0);
        assert!(!pack.exists() && !index_of(&pack).exists());
    }
}
