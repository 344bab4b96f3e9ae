//! The `chunks` file: which chunk fills which part of which buffer. Offset tables and invariants are
//! in `docs/image-format.md`.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::damaged;
use crate::format::{check_version, checksum};
use crate::{ChunkId, MAX_CHUNK_BYTES, Result, StoreError, sync};

const MAGIC: [u8; 8] = *b"FERMCHNK";
const COVERED: usize = 32;
/// The longest table that is read: 56 bytes for each of 76 million chunks.
pub(crate) const MAX_TABLE_BYTES: u64 = 4 << 30;

/// In an image of several processes these bits of a buffer's number are that of the process. So each part's own tables
/// leave them 0: memory is numbered from 0, module images from 2^63.
const PROCESS_AT: u32 = 48;
const PROCESS: u64 = 0x3fff << PROCESS_AT;
/// Where all tables of an image are one, buffers with this bit are files with memory of processes.
const HOST_FILE: u64 = 1 << 62;

/// Number of a buffer in the session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u64);

impl BufferId {
    /// The file `host/pages-NUMBER.img` among all buffers of an image.
    #[must_use]
    pub fn of_host_file(number: u32) -> Self {
        Self(HOST_FILE | u64::from(number))
    }

    /// Whether it is the number of a module image, not of memory.
    pub fn is_module_image(self) -> bool {
        self.0 >= 1 << 63
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 & !u64::from(u32::MAX) == HOST_FILE {
            return write!(f, "`pages-{}.img`", self.0 & !HOST_FILE);
        }
        let (own, process) = (self.0 & !PROCESS, (self.0 & PROCESS) >> PROCESS_AT);
        match self.is_module_image() {
            false => write!(f, "{own}")?,
            true => write!(f, "{own:#x} (a module image)")?,
        }
        match process {
            0 => Ok(()),
            _ => write!(f, " of process {}", process + 1),
        }
    }
}

#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    record_bytes: U32,
    records: U64,
    content_bytes: U64,
    checksum: [u8; 32],
}

#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    buffer: U64,
    offset: U64,
    length: U32,
    flags: U32,
    id: ChunkId,
}

/// One part of a buffer and the chunk that holds its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The buffer.
    pub buffer: BufferId,
    /// Of the part's first byte in the buffer.
    pub offset: u64,
    /// The part's bytes; the chunk has as many.
    pub length: u32,
    /// The chunk.
    pub id: ChunkId,
}

/// The records of one buffer, by ascending offset.
#[derive(Debug, Clone, Copy)]
pub struct BufferChunks<'a> {
    /// The buffer.
    pub buffer: BufferId,
    /// Its parts.
    pub chunks: &'a [ChunkRecord],
}

/// A chunk table: grouped by buffer, ascending offsets without overlap in each group. Parts of a
/// buffer that no record covers are zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChunkTable {
    records: Vec<ChunkRecord>,
}

impl ChunkTable {
    /// Reads the bytes of a table; `path` is only named in errors.
    ///
    /// # Errors
    /// `Damaged` when a bit is wrong or an invariant of the format does not hold; `Newer`.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let Ok((h, rest)) = Header::ref_from_prefix(bytes) else {
            return damaged(path, "shorter than its header");
        };
        if h.magic != MAGIC {
            return damaged(path, "not a chunk table");
        }
        if h.checksum != checksum(&bytes[..COVERED], rest) {
            return damaged(path, "wrong checksum");
        }
        check_version(path, h.version.get())?;
        let raw = match <[RawRecord]>::ref_from_bytes(rest) {
            Ok(r) if r.len() as u64 == h.records.get() => r,
            _ => return damaged(path, "the number of records is wrong"),
        };
        if h.record_bytes.get() as usize != size_of::<RawRecord>() {
            return damaged(path, "records of an unknown size");
        }
        let mut writer = ChunkTableWriter::default();
        writer.records.reserve_exact(raw.len());
        for r in raw {
            let pushed = writer.push(
                BufferId(r.buffer.get()),
                r.offset.get(),
                r.length.get(),
                r.id,
            );
            if let Err(StoreError::Misuse { what, .. }) = pushed {
                return damaged(path, &what);
            }
            if r.flags.get() != 0 {
                return damaged(path, "a record has unknown flags");
            }
        }
        if writer.content_bytes != h.content_bytes.get() {
            return damaged(path, "the records do not add up to the content's length");
        }
        Ok(writer.into_table())
    }

    /// Reads the table in the file `path`.
    ///
    /// # Errors
    /// As [`Self::decode`], and `Io`.
    pub fn read(path: &Path) -> Result<Self> {
        Self::decode(&sync::read_limited(path, MAX_TABLE_BYTES)?, path)
    }

    /// All records.
    pub fn records(&self) -> &[ChunkRecord] {
        &self.records
    }

    /// The records, buffer by buffer.
    pub fn buffers(&self) -> impl Iterator<Item = BufferChunks<'_>> {
        self.records
            .chunk_by(|a, b| a.buffer == b.buffer)
            .map(|chunks| BufferChunks {
                buffer: chunks[0].buffer,
                chunks,
            })
    }

    /// One table of several processes' tables. In numbers of buffers bits 48 to 61 are that of the process, from 0.
    ///
    /// # Errors
    /// The number of a process one of whose buffers has such a bit set already, or for which there are no such bits.
    pub(super) fn merge(processes: Vec<Self>) -> std::result::Result<Self, usize> {
        let mut records = Vec::new();
        for (number, table) in processes.into_iter().enumerate() {
            let process = (number as u64) << PROCESS_AT;
            let mut own = table.records.iter().map(|it| it.buffer.0);
            if process & !PROCESS != 0 || own.any(|buffer| buffer & (PROCESS | HOST_FILE) != 0) {
                return Err(number);
            }
            records.extend(table.records.into_iter().map(|record| ChunkRecord {
                buffer: BufferId(record.buffer.0 | process),
                ..record
            }));
        }
        Ok(Self { records })
    }

    /// The same table and, behind it, that of files with memory of processes, numbered as in their names.
    ///
    /// # Errors
    /// A number may be that of something else.
    pub(super) fn with_host(mut self, files: Self) -> std::result::Result<Self, ()> {
        if files.records.is_empty() {
            return Ok(self);
        }
        if self.records.iter().any(|it| it.buffer.0 & HOST_FILE != 0) {
            return Err(());
        }
        for record in files.records {
            let number = u32::try_from(record.buffer.0).map_err(|_| ())?;
            self.records.push(ChunkRecord {
                buffer: BufferId::of_host_file(number),
                ..record
            });
        }
        Ok(self)
    }

    /// Two tables: that of the module images, and that of the others.
    pub fn split_images(self) -> (Self, Self) {
        let is_image = |it: &ChunkRecord| it.buffer.is_module_image();
        let (images, others) = self.records.into_iter().partition(is_image);
        (Self { records: images }, Self { records: others })
    }

    /// Bytes of all parts together.
    pub fn content_bytes(&self) -> u64 {
        self.records.iter().map(|r| u64::from(r.length)).sum()
    }
}

/// Collects records for a chunk table.
#[derive(Debug, Default)]
pub struct ChunkTableWriter {
    records: Vec<ChunkRecord>,
    closed: HashSet<BufferId>,
    content_bytes: u64,
}

impl ChunkTableWriter {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part of a buffer. All parts of a buffer must follow each other, by ascending offset.
    ///
    /// # Errors
    /// `Misuse` when the order is another, parts overlap, or the length cannot be a chunk's.
    pub fn push(&mut self, buffer: BufferId, offset: u64, length: u32, id: ChunkId) -> Result<()> {
        let misuse = |what: String| {
            Err(StoreError::Misuse {
                op: "add to a chunk table",
                what,
            })
        };
        if length == 0 || length as usize > MAX_CHUNK_BYTES {
            return misuse(format!("a part of buffer {buffer} has {length} bytes"));
        }
        if offset.checked_add(u64::from(length)).is_none() {
            return misuse(format!(
                "a part of buffer {buffer} ends beyond all addresses"
            ));
        }
        match self.records.last() {
            Some(last)
                if last.buffer == buffer && offset < last.offset + u64::from(last.length) =>
            {
                return misuse(format!(
                    "parts of buffer {buffer} overlap at offset {offset}"
                ));
            }
            Some(last) if last.buffer != buffer => {
                self.closed.insert(last.buffer);
                if self.closed.contains(&buffer) {
                    return misuse(format!("the parts of buffer {buffer} are not together"));
                }
            }
            _ => {}
        }
        self.content_bytes = self.content_bytes.saturating_add(u64::from(length));
        self.records.push(ChunkRecord {
            buffer,
            offset,
            length,
            id,
        });
        Ok(())
    }

    /// The table as it is now.
    pub fn into_table(self) -> ChunkTable {
        ChunkTable {
            records: self.records,
        }
    }

    /// The bytes of the `chunks` file.
    pub fn encode(&self) -> Vec<u8> {
        let raw: Vec<RawRecord> = self
            .records
            .iter()
            .map(|r| RawRecord {
                buffer: r.buffer.0.into(),
                offset: r.offset.into(),
                length: r.length.into(),
                flags: 0.into(),
                id: r.id,
            })
            .collect();
        let mut header = Header {
            magic: MAGIC,
            version: crate::format::STORE_VERSION.into(),
            record_bytes: (size_of::<RawRecord>() as u32).into(),
            records: (raw.len() as u64).into(),
            content_bytes: self.content_bytes.into(),
            checksum: [0; 32],
        };
        header.checksum = checksum(&header.as_bytes()[..COVERED], raw.as_bytes());
        [header.as_bytes(), raw.as_bytes()].concat()
    }

    /// Writes the file at `path`, which must not exist; `Draft::commit` syncs it.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn write(&self, path: &Path) -> Result<()> {
        sync::write_new(path, &[&self.encode()], false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ChunkTableWriter {
        let mut w = ChunkTableWriter::new();
        w.push(BufferId(9), 0, 4096, ChunkId([1; 32])).unwrap();
        w.push(BufferId(9), 8192, 10, ChunkId([2; 32])).unwrap();
        w.push(BufferId(3), 0, 7, ChunkId([1; 32])).unwrap();
        w
    }

    #[test]
    fn table_returns_and_every_bit_counts() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), 64 + 3 * 56);
        let table = ChunkTable::decode(&bytes, Path::new("x")).unwrap();
        assert_eq!(table, sample().into_table());
        assert_eq!(table.content_bytes(), 4113);
        let groups: Vec<_> = table
            .buffers()
            .map(|b| (b.buffer.0, b.chunks.len()))
            .collect();
        assert_eq!(groups, [(9, 2), (3, 1)]);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                ChunkTable::decode(&bad, Path::new("x")).is_err(),
                "bit {bit}"
            );
        }
    }

    fn table(buffers: &[u64]) -> ChunkTable {
        let mut w = ChunkTableWriter::new();
        for buffer in buffers {
            w.push(BufferId(*buffer), 0, 7, ChunkId([1; 32])).unwrap();
        }
        w.into_table()
    }

    /// Module images that have the same number in every process, as those of a library that all of them use have.
    #[test]
    fn buffers_and_module_images_of_several_processes_are_kept_apart() {
        let own = [
            3,
            1 << 63,
            (1 << 63) + 3,
            !(PROCESS | HOST_FILE),
            PROCESS_AT.into(),
        ];
        let merged = ChunkTable::merge(vec![table(&own); 3]).unwrap();
        let all: HashSet<u64> = merged.records().iter().map(|r| r.buffer.0).collect();
        assert_eq!(all.len(), 3 * own.len(), "{all:x?}");
        assert_eq!(
            merged.records()[own.len()].buffer.to_string(),
            "3 of process 2"
        );
        let (images, others) = merged.clone().split_images();
        assert_eq!((images.records().len(), others.records().len()), (9, 6));
        // It can be written as a table of its own.
        let mut again = ChunkTableWriter::new();
        for r in merged.records() {
            again.push(r.buffer, r.offset, r.length, r.id).unwrap();
        }
        assert_eq!(
            ChunkTable::decode(&again.encode(), Path::new("x")).unwrap(),
            merged
        );
    }

    #[test]
    fn a_buffer_that_could_be_anothers_of_another_process_is_refused() {
        for wrong in [1 << 48, 1 << 62, 1 << 63 | 1 << 50] {
            let tables = vec![table(&[1]), table(&[wrong])];
            assert_eq!(ChunkTable::merge(tables), Err(1), "{wrong:x}");
            let tables = vec![table(&[wrong]), table(&[1])];
            assert_eq!(ChunkTable::merge(tables), Err(0), "{wrong:x}");
        }
        assert_eq!(ChunkTable::merge(vec![table(&[]); 0x4001]), Err(0x4000));
    }

    #[test]
    fn order_is_kept() {
        let id = ChunkId([0; 32]);
        assert!(sample().push(BufferId(9), 9000, 1, id).is_err());
        assert!(sample().push(BufferId(3), 6, 1, id).is_err());
        assert!(sample().push(BufferId(4), 0, 0, id).is_err());
        assert!(sample().push(BufferId(4), u64::MAX, 1, id).is_err());
        assert!(sample().push(BufferId(3), 7, 1, id).is_ok());
    }
}
