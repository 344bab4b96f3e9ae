//! Writing a damaged chunk anew, in its place: a writer that has its bytes from elsewhere mends every image that
//! refers to it. A published file is changed here only, and only to what it was.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use rustix::fs::OFlags;
use zerocopy::IntoBytes;

use crate::direct::{self, BLOCK, blocks};
use crate::format::PackHeader;
use crate::{ChunkId, Result, Store, StoreError, error, sync};

impl Store {
    /// Writes the chunk's bytes where the index says that they are; its pack gets its length and its header
    /// back if it has lost them. False if the index knows no such chunk.
    ///
    /// # Errors
    /// `Misuse` when `bytes` are not the chunk's, `Locked` while a collection runs, `Full`, `Io`.
    pub fn mend(&self, id: &ChunkId, bytes: &[u8]) -> Result<bool> {
        let _share = self.share()?;
        let index = self.refresh()?;
        let Some(at) = index.chunks.get(id) else {
            return Ok(false);
        };
        if ChunkId::of(bytes) != *id || bytes.len() != at.length as usize {
            return Err(StoreError::Misuse {
                op: "write a damaged chunk anew",
                what: format!("the bytes are not those of `{id}`"),
            });
        }
        let path = &at.pack.path;
        let padded = blocks(u64::from(at.length));
        let io = |e: std::io::Error| StoreError::io("mend", path, padded, e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // What is in the pack's place may lead elsewhere.
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(path)
            .map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return error::damaged(path, "it is not a regular file");
        }
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(io)?;
        if file.metadata().map_err(io)?.len() != at.pack.bytes {
            file.set_len(at.pack.bytes).map_err(io)?;
        }
        let mut first = vec![0; BLOCK];
        direct::read_full(&file, &mut first, 0).map_err(|e| io(e.into()))?;
        if PackHeader::check(&first, at.pack.id, path).is_err() {
            let header = PackHeader::new(at.pack.id);
            first.fill(0);
            first[..size_of::<PackHeader>()].copy_from_slice(header.as_bytes());
            direct::write_all(&file, &first, 0).map_err(|e| io(e.into()))?;
        }
        let mut content = bytes.to_vec();
        content.resize(padded as usize, 0);
        direct::write_all(&file, &content, at.offset).map_err(|e| io(e.into()))?;
        file.sync_all().map_err(io)?;
        sync::folder(&self.packs_dir())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: u8) -> Vec<u8> {
        vec![n; 5000 + usize::from(n)]
    }

    #[test]
    fn chunks_are_healed_in_packs_that_are_cut_overwritten_or_gone() {
        let harm: [fn(&std::path::Path); 3] = [
            |pack| {
                drop(
                    OpenOptions::new()
                        .write(true)
                        .open(pack)
                        .unwrap()
                        .set_len(100),
                )
            },
            |pack| std::fs::write(pack, vec![0xee; 1 << 20]).unwrap(),
            |pack| std::fs::remove_file(pack).unwrap(),
        ];
        for harm in harm {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path(), true).unwrap();
            let writer = store.begin().unwrap();
            let ids: Vec<_> = (1..4).map(|n| ChunkId::of(&chunk(n))).collect();
            for (n, id) in (1..4).zip(&ids) {
                writer.put(id, &chunk(n)).unwrap();
            }
            writer.finish().unwrap();
            let pack = store.reader().unwrap().pack_of(&ids[0]).unwrap();
            let before = std::fs::read(&pack).unwrap();
            harm(&pack);
            for (n, id) in (1..4).zip(&ids) {
                assert!(store.mend(id, &chunk(n)).unwrap());
                let mut into = chunk(0);
                into.resize(chunk(n).len(), 0);
                // A store opened anew: files that were open before may be gone.
                let store = Store::open(dir.path(), false).unwrap();
                store
                    .reader()
                    .unwrap()
                    .read_verified(id, &mut into)
                    .unwrap();
                assert_eq!(into, chunk(n));
            }
            assert_eq!(std::fs::read(&pack).unwrap(), before);
            assert!(store.mend(&ids[0], &chunk(2)).is_err());
            assert!(!store.mend(&ChunkId::of(b"none"), b"none").unwrap());
        }
    }
}
