//! The fixed records of packs and index files. Everything is little-endian; offset tables and
//! invariants are in `docs/image-format.md`.

use std::fmt;
use std::path::Path;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::direct::{BLOCK, blocks};
use crate::error::damaged;
use crate::{ChunkId, MAX_CHUNK_BYTES, Result, StoreError};

/// First bytes of a pack.
pub(crate) const PACK_MAGIC: [u8; 8] = *b"FERMPACK";
/// First bytes of an index file.
pub(crate) const INDEX_MAGIC: [u8; 8] = *b"FERMINDX";
/// Version of packs and index files written here.
pub(crate) const STORE_VERSION: u32 = 1;

/// Name of a pack: 16 random bytes; shown as 32 hexadecimal digits.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct PackId(pub [u8; 16]);

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The used part of a pack's first block; the rest of that block is zero.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PackHeader {
    magic: [u8; 8],
    version: U32,
    block: U32,
    pack: PackId,
    checksum: [u8; 32],
}

impl PackHeader {
    const COVERED: usize = 32;

    /// The header of a new pack.
    pub fn new(pack: PackId) -> Self {
        let mut h = Self {
            magic: PACK_MAGIC,
            version: STORE_VERSION.into(),
            block: (BLOCK as u32).into(),
            pack,
            checksum: [0; 32],
        };
        h.checksum = *blake3::hash(&h.as_bytes()[..Self::COVERED]).as_bytes();
        h
    }

    /// Checks a pack's first block.
    ///
    /// # Errors
    /// `Damaged` when a bit of it is wrong or it belongs to another pack, `Newer` when the version
    /// is not known here.
    pub fn check(block: &[u8], pack: PackId, path: &Path) -> Result<()> {
        let Ok((h, rest)) = Self::ref_from_prefix(block) else {
            return damaged(path, "shorter than its header");
        };
        if h.magic != PACK_MAGIC {
            return damaged(path, "not a pack");
        }
        if h.checksum != *blake3::hash(&block[..Self::COVERED]).as_bytes() {
            return damaged(path, "wrong checksum of the header");
        }
        check_version(path, h.version.get())?;
        if h.block.get() as usize != BLOCK || h.pack != pack || rest.iter().any(|&b| b != 0) {
            return damaged(path, "the header does not belong to this file");
        }
        Ok(())
    }
}

/// Where a chunk lies in a pack.
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndexRecord {
    /// The chunk.
    pub id: ChunkId,
    /// Of its first byte in the pack; a multiple of [`BLOCK`].
    pub offset: U64,
    /// Its bytes.
    pub length: U32,
    /// Zero.
    pub flags: U32,
}

/// The header of an index file; records follow.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IndexHeader {
    magic: [u8; 8],
    version: U32,
    record_bytes: U32,
    records: U64,
    pack_bytes: U64,
    pack: PackId,
    checksum: [u8; 32],
}

const INDEX_COVERED: usize = 48;

/// An index file: what one pack holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFile {
    /// The pack.
    pub pack: PackId,
    /// The pack file's length.
    pub pack_bytes: u64,
    /// Its chunks, by ascending offset, without overlap.
    pub records: Vec<IndexRecord>,
}

impl IndexFile {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut header = IndexHeader {
            magic: INDEX_MAGIC,
            version: STORE_VERSION.into(),
            record_bytes: (size_of::<IndexRecord>() as u32).into(),
            records: (self.records.len() as u64).into(),
            pack_bytes: self.pack_bytes.into(),
            pack: self.pack,
            checksum: [0; 32],
        };
        header.checksum = checksum(&header.as_bytes()[..INDEX_COVERED], self.records.as_bytes());
        [header.as_bytes(), self.records.as_bytes()].concat()
    }

    /// Reads the bytes of the file at `path` (which is only named in errors).
    ///
    /// # Errors
    /// `Damaged` when a bit is wrong or an invariant of the format does not hold; `Newer`.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let Ok((h, rest)) = IndexHeader::ref_from_prefix(bytes) else {
            return damaged(path, "shorter than its header");
        };
        if h.magic != INDEX_MAGIC {
            return damaged(path, "not an index file");
        }
        if h.checksum != checksum(&bytes[..INDEX_COVERED], rest) {
            return damaged(path, "wrong checksum");
        }
        check_version(path, h.version.get())?;
        let records = match <[IndexRecord]>::ref_from_bytes(rest) {
            Ok(r) if r.len() as u64 == h.records.get() => r,
            _ => return damaged(path, "the number of records is wrong"),
        };
        if h.record_bytes.get() as usize != size_of::<IndexRecord>() {
            return damaged(path, "records of an unknown size");
        }
        let mut end = BLOCK as u64;
        for r in records {
            let (offset, length) = (r.offset.get(), u64::from(r.length.get()));
            let sound = offset >= end
                && offset % BLOCK as u64 == 0
                && (1..=MAX_CHUNK_BYTES as u64).contains(&length)
                && r.flags.get() == 0
                && offset
                    .checked_add(blocks(length))
                    .is_some_and(|e| e <= h.pack_bytes.get());
            if !sound {
                return damaged(
                    path,
                    &format!("the record of chunk `{}` is impossible", r.id),
                );
            }
            end = offset + blocks(length);
        }
        Ok(Self {
            pack: h.pack,
            pack_bytes: h.pack_bytes.get(),
            records: records.to_vec(),
        })
    }
}

/// BLAKE3 of a header's covered part and the records.
pub(crate) fn checksum(header: &[u8], records: &[u8]) -> [u8; 32] {
    let mut h = blake3::Hasher::new();
    h.update(header).update(records);
    *h.finalize().as_bytes()
}

/// Refuses versions that are not known here.
pub(crate) fn check_version(path: &Path, found: u32) -> Result<()> {
    match found {
        STORE_VERSION => Ok(()),
        0 => damaged(path, "version 0 does not exist"),
        _ => Err(StoreError::Newer {
            path: path.into(),
            found,
            known: STORE_VERSION,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> IndexFile {
        let record = |n: u8, offset: u64, length: u32| IndexRecord {
            id: ChunkId([n; 32]),
            offset: offset.into(),
            length: length.into(),
            flags: 0.into(),
        };
        IndexFile {
            pack: PackId([7; 16]),
            pack_bytes: 5 * 4096,
            records: vec![record(1, 4096, 5000), record(2, 3 * 4096, 8192)],
        }
    }

    #[test]
    fn index_returns_and_every_bit_counts() {
        let index = sample();
        let bytes = index.encode();
        assert_eq!(bytes.len(), 80 + 2 * 48);
        assert_eq!(IndexFile::decode(&bytes, Path::new("x")).unwrap(), index);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                IndexFile::decode(&bad, Path::new("x")).is_err(),
                "bit {bit}"
            );
        }
        for len in 0..bytes.len() {
            assert!(
                IndexFile::decode(&bytes[..len], Path::new("x")).is_err(),
                "length {len}"
            );
        }
    }

    #[test]
    fn impossible_records_are_refused() {
        for change in [
            (|i: &mut IndexFile| i.records[1].offset = 4096.into()) as fn(&mut IndexFile),
            |i| i.records[0].offset = 0.into(),
            |i| i.records[0].offset = 4097.into(),
            |i| i.records[1].length = 8193.into(),
            |i| i.records[1].length = 0.into(),
            |i| i.records[1].flags = 1.into(),
            |i| i.records[1].offset = (u64::MAX - 4095).into(),
        ] {
            let mut index = sample();
            change(&mut index);
            let e = IndexFile::decode(&index.encode(), Path::new("x")).unwrap_err();
            assert!(e.to_string().contains("impossible"), "{e}");
        }
    }

    #[test]
    fn a_newer_pack_is_named_as_such() {
        let mut h = PackHeader::new(PackId([1; 16]));
        h.version = 2.into();
        h.checksum = *blake3::hash(&h.as_bytes()[..32]).as_bytes();
        let e = PackHeader::check(h.as_bytes(), PackId([1; 16]), Path::new("p")).unwrap_err();
        assert!(matches!(
            e,
            StoreError::Newer {
                found: 2,
                known: 1,
                ..
            }
        ));
    }
}
