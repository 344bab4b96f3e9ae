//! What to do once a store has turned out to be damaged: chunks that cannot be read any more are forgotten, so
//! that a writer that has their bytes again stores them anew instead of referring to them.
//!
//! ```text
//!  pack with damage ─► its whole chunks ─► new pack, published ─► index file removed ─► pack removed
//! ```

use std::collections::HashMap;

use crate::direct::AlignedBuf;
use crate::index::{self, Location};
use crate::{ChunkId, ChunkReader, PackWriter, Result, Store, WriteOptions, sync};

impl Store {
    /// Reads every chunk, and forgets those that are damaged; the others of their packs move to new ones.
    /// Images that refer to what is forgotten are as damaged as before. Returns how many chunks are forgotten.
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
        for pack in lost.keys() {
            sync::remove_file(&index::index_path(&self.index_dir(), *pack))?;
        }
        sync::folder(&self.index_dir())?;
        for pack in lost.keys() {
            let path = index::pack_path(&self.packs_dir(), *pack);
            if path.exists() {
                sync::remove_file(&path)?;
            }
        }
        sync::folder(&self.packs_dir())?;
        self.refresh()?;
        Ok(lost.values().sum())
    }
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
}
