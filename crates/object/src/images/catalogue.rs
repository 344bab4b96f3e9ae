//! The object that says what an image in a bucket is.
//!
//! ```text
//!  64 hexadecimal digits and a line feed: BLAKE3 of the rest
//!  JSON: version, manifest, packs, chunks, files
//! ```
//! A chunk is a sequence of bytes, named by its BLAKE3: one that the image's chunk tables name, or up to 4 MiB of a file. A
//! reader must refuse any other version, and an object whose hash is another.

use std::collections::HashSet;

use fermata_store::{ChunkId, MAX_CHUNK_BYTES};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Bytes before the JSON.
const HEAD: usize = 65;

/// What an image is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Catalogue {
    version: u32,
    /// The text of `manifest.json`.
    pub(super) manifest: String,
    pub(super) packs: Vec<Pack>,
    /// Each chunk once.
    pub(super) chunks: Vec<Chunk>,
    pub(super) files: Vec<File>,
}

/// An object with chunks, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pack {
    /// In the series' folder of packs.
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Chunk {
    pub(super) id: ChunkId,
    pub(super) length: u32,
    /// Number of the pack.
    pub(super) pack: u32,
    pub(super) offset: u64,
}

/// A file of the image: chunks, by their numbers, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) chunks: Vec<u32>,
}

impl Catalogue {
    pub(super) fn new(
        manifest: String,
        packs: Vec<Pack>,
        chunks: Vec<Chunk>,
        files: Vec<File>,
    ) -> Self {
        Self {
            version: VERSION,
            manifest,
            packs,
            chunks,
            files,
        }
    }

    /// The object's bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("a catalogue has only text keys");
        let mut bytes = format!("{}\n", ChunkId::of(&json)).into_bytes();
        bytes.extend(json);
        bytes
    }

    /// What an object says; `None` if it is not whole, or not one of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, json) = bytes.split_at_checked(HEAD)?;
        let hash = std::str::from_utf8(head).ok()?.strip_suffix('\n')?;
        if ChunkId::of(json).to_string() != hash {
            return None;
        }
        let found: Self = serde_json::from_slice(json).ok()?;
        let inside = |chunk: &Chunk| {
            let pack = found.packs.get(chunk.pack as usize)?;
            let end = chunk.offset.checked_add(chunk.length.into())?;
            let possible = 1..=MAX_CHUNK_BYTES;
            (possible.contains(&(chunk.length as usize)) && end <= pack.bytes).then_some(())
        };
        let mut ids = HashSet::new();
        let numbers = found.files.iter().flat_map(|file| &file.chunks);
        let right = found.version == VERSION
            && found.packs.iter().all(|it| is_pack_name(&it.name))
            && found
                .chunks
                .iter()
                .all(|it| inside(it).is_some() && ids.insert(it.id))
            && numbers
                .into_iter()
                .all(|at| (*at as usize) < found.chunks.len());
        right.then_some(found)
    }
}

/// Whether a key made of it stays in the folder of packs.
pub(super) fn is_pack_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue() -> Catalogue {
        let pack = Pack {
            name: "1-2-0".into(),
            bytes: 10,
        };
        let chunk = Chunk {
            id: ChunkId::of(b"x"),
            length: 4,
            pack: 0,
            offset: 6,
        };
        let file = File {
            path: "log".into(),
            chunks: vec![0, 0],
        };
        Catalogue::new("{}".into(), vec![pack], vec![chunk], vec![file])
    }

    #[test]
    fn what_is_written_is_read_and_damage_is_refused() {
        let bytes = catalogue().encode();
        assert_eq!(Catalogue::decode(&bytes), Some(catalogue()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Catalogue::decode(&damaged), None, "byte {at}");
            assert_eq!(Catalogue::decode(&bytes[..at]), None, "{at} bytes");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let refused = |change: fn(&mut Catalogue)| {
            let mut other = catalogue();
            change(&mut other);
            assert_eq!(Catalogue::decode(&other.encode()), None, "{other:?}");
        };
        refused(|it| it.version = 2);
        refused(|it| it.chunks[0].pack = 1);
        refused(|it| it.chunks[0].length = 0);
        refused(|it| it.chunks.push(it.chunks[0]));
        refused(|it| {
            it.packs[0].bytes = 1 << 40;
            it.chunks[0].length = 1 << 30;
        });
        refused(|it| it.chunks[0].offset = 7);
        refused(|it| it.chunks[0].offset = u64::MAX);
        refused(|it| it.files[0].chunks[0] = 1);
        refused(|it| it.packs[0].name = "../other/1".into());
        refused(|it| it.packs[0].name = String::new());
    }
}
