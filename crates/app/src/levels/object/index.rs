//! The object that says where a checkpoint's chunks are. All numbers are little-endian.
//!
//! ```text
//!  offset  bytes  what
//!       0      8  "FERMOBJ\n"
//!       8      4  version, 2
//!      12      4  number of packs
//!      16      8  bytes of the header
//!      24      8  number of places
//!      32         packs: 1 byte with the name's length, the name, 8 bytes with the pack's length
//!                 header: manifest and chunk table, as one rank sends them to another
//!                 places: 4 bytes with the pack's number, 8 with the offset in it; one for each chunk that
//!                 the table names, in the order in which it names them first
//!     end-32     32  BLAKE3 of all before
//! ```
//! A pack's name begins with the folder of the rank that put it, `rank-00003/`; in version 1 every pack was the rank's
//! own, and its name lacked the folder. There may be packs in which no chunk has its place: other ranks have some there.
//!
//! A reader must refuse any other version and any object whose BLAKE3 differs.

use fermata_store::ChunkId;
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"FERMOBJ\n";
const VERSION: u32 = 2;
/// The version in which names of packs lacked the rank's folder.
const WITHOUT_FOLDERS: u64 = 1;

/// An object with chunks, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pack {
    /// Its key below that of the job.
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// Where a chunk is: the pack's number and the offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkPlace {
    pub(super) pack: u32,
    pub(super) offset: u64,
}

/// A checkpoint in the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) header: Vec<u8>,
    pub(super) packs: Vec<Pack>,
    pub(super) places: Vec<ChunkPlace>,
}

impl Index {
    /// The object's bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.packs.len() as u32).to_le_bytes());
        out.extend((self.header.len() as u64).to_le_bytes());
        out.extend((self.places.len() as u64).to_le_bytes());
        for pack in &self.packs {
            out.push(pack.name.len() as u8);
            out.extend(pack.name.as_bytes());
            out.extend(pack.bytes.to_le_bytes());
        }
        out.extend(&self.header);
        for place in &self.places {
            out.extend(place.pack.to_le_bytes());
            out.extend(place.offset.to_le_bytes());
        }
        let hash = ChunkId::of(&out);
        out.extend(hash.0);
        out
    }

    /// What an object in the folder `own` of a rank says; `None` if it is not whole or not one of ours.
    pub(super) fn decode(bytes: &[u8], own: &str) -> Option<Self> {
        let (body, hash) = bytes.split_last_chunk::<32>()?;
        if ChunkId::of(body).0 != *hash {
            return None;
        }
        let mut rest = body.strip_prefix(MAGIC)?;
        let folder = match number::<4>(&mut rest)? {
            WITHOUT_FOLDERS => own,
            version if version == u64::from(VERSION) => "",
            _ => return None,
        };
        let packs = number::<4>(&mut rest)?;
        let header = usize::try_from(number::<8>(&mut rest)?).ok()?;
        let places = number::<8>(&mut rest)?;
        let packs = (0..packs)
            .map(|_| {
                let length = number::<1>(&mut rest)? as usize;
                let name = std::str::from_utf8(rest.split_off(..length)?).ok()?;
                Some(Pack {
                    name: format!("{folder}{name}"),
                    bytes: number::<8>(&mut rest)?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        let header = rest.split_off(..header)?.to_vec();
        let places = (0..places)
            .map(|_| {
                let pack = number::<4>(&mut rest)? as u32;
                let offset = number::<8>(&mut rest)?;
                ((pack as usize) < packs.len()).then_some(ChunkPlace { pack, offset })
            })
            .collect::<Option<Vec<_>>>()?;
        rest.is_empty().then_some(Self {
            header,
            packs,
            places,
        })
    }
}

fn number<const N: usize>(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, more) = rest.split_first_chunk::<N>()?;
    *rest = more;
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(bytes);
    Some(u64::from_le_bytes(wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(pack: &str) -> Index {
        Index {
            header: vec![7; 100],
            packs: vec![Pack {
                name: pack.into(),
                bytes: 1 << 40,
            }],
            places: vec![ChunkPlace { pack: 0, offset: 5 }; 3],
        }
    }

    fn decode(bytes: &[u8]) -> Option<Index> {
        Index::decode(bytes, "rank-00003/")
    }

    /// The same object as an earlier or later release would have written it.
    fn of_version(version: u8, index: &Index) -> Vec<u8> {
        let mut bytes = index.encode();
        bytes.truncate(bytes.len() - 32);
        bytes[8] = version;
        let hash = ChunkId::of(&bytes);
        bytes.extend(hash.0);
        bytes
    }

    #[test]
    fn packs_of_the_first_version_are_the_ranks_own() {
        let old = of_version(1, &index("p1-0"));
        assert_eq!(decode(&old), Some(index("rank-00003/p1-0")));
        assert_eq!(decode(&of_version(2, &index("p1-0"))), Some(index("p1-0")));
        assert_eq!(decode(&of_version(3, &index("p1-0"))), None);
    }

    #[test]
    fn what_is_written_is_read_and_damage_is_refused() {
        let index = index("rank-00001/p1-0");
        let bytes = index.encode();
        assert_eq!(decode(&bytes), Some(index.clone()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(decode(&damaged), None);
            assert_eq!(decode(&bytes[..at]), None);
        }
        // A place in a pack that is not there, with a right hash.
        let mut wrong = index;
        wrong.places[1].pack = 1;
        assert_eq!(decode(&wrong.encode()), None);
    }
}
