//! The records of CRIU's files, as far as memory is concerned.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::PAGE;

/// Flags of pages, `PE_PRESENT` and `PE_LAZY`: they are in the file with pages, and a restore that brings memory on demand passes over
/// them there.
pub const IN_FILE: u32 = 1 << 2;
pub const ON_DEMAND: u32 = 1 << 1;
/// The magic numbers that begin a page map and a list of mappings.
const MAGIC: u32 = 0x5456_4319;
pub const PAGEMAP: u32 = 0x5608_4025;
pub const MM: u32 = 0x5749_2820;

/// Of a page map.
#[derive(Clone, PartialEq, Message)]
pub struct Head {
    #[prost(uint32, required, tag = "1")]
    pub pages: u32,
}

/// Pages of a page map that follow each other.
#[derive(Clone, PartialEq, Message)]
pub struct MapEntry {
    #[prost(uint64, required, tag = "1")]
    pub address: u64,
    /// Zero; releases before 4.0 had the number here.
    #[prost(uint32, required, tag = "2")]
    pub former_count: u32,
    #[prost(uint32, optional, tag = "4")]
    pub flags: Option<u32>,
    #[prost(uint64, optional, tag = "5")]
    pub count: Option<u64>,
}

impl MapEntry {
    pub fn range(&self) -> Range<u64> {
        let count = self.count.unwrap_or(self.former_count.into());
        self.address..self.address + count * PAGE
    }

    /// Its flags.
    ///
    /// # Errors
    /// Its pages are in no file.
    pub fn in_file(&self) -> io::Result<u32> {
        let flags = self.flags.unwrap_or(0);
        match flags & IN_FILE {
            0 => Err(io::Error::other("pages are in no file")),
            _ => Ok(flags),
        }
    }
}

/// The memory of a process.
#[derive(Clone, PartialEq, Message)]
pub struct Mm {
    /// The number of its program's file.
    #[prost(uint32, required, tag = "12")]
    pub program: u32,
    #[prost(message, repeated, tag = "14")]
    pub mappings: Vec<Vma>,
}

/// One of its mappings.
#[derive(Clone, PartialEq, Message)]
pub struct Vma {
    #[prost(uint64, required, tag = "1")]
    pub start: u64,
    #[prost(uint64, required, tag = "2")]
    pub end: u64,
    /// The number of its file, if it has one.
    #[prost(uint64, required, tag = "4")]
    pub file: u64,
    #[prost(uint32, required, tag = "6")]
    pub flags: u32,
    /// Bit N: advice N of `madvise` was given.
    #[prost(uint64, optional, tag = "9")]
    pub advice: Option<u64>,
}

/// The page map of the process that CRIU knows as `pid`.
pub fn map_of(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("pagemap-{pid}.img"))
}

/// The file with its mappings.
pub fn mm_of(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("mm-{pid}.img"))
}

pub fn read_memory(path: &Path) -> io::Result<Mm> {
    let records = read(path, MM)?;
    let record = records.first().ok_or(io::ErrorKind::UnexpectedEof)?;
    Mm::decode(&record[..]).map_err(io::Error::other)
}

pub fn read_map(path: &Path) -> io::Result<(Head, Vec<MapEntry>)> {
    let records = read(path, PAGEMAP)?;
    let (head, entries) = records.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = Head::decode(&head[..]).map_err(io::Error::other)?;
    let entries = entries.iter().map(|it| MapEntry::decode(&it[..]));
    let entries = entries.collect::<Result<_, _>>();
    Ok((head, entries.map_err(io::Error::other)?))
}

/// A page map of pages in file `number`, with their flags, in the order in which they are there.
pub fn encode_map(number: u32, pages: &[(Range<u64>, u32)]) -> Vec<u8> {
    let entries = pages.iter().map(|(range, flags)| MapEntry {
        address: range.start,
        former_count: 0,
        flags: Some(*flags),
        count: Some((range.end - range.start) / PAGE),
    });
    let head = Head { pages: number }.encode_to_vec();
    let records = std::iter::once(head).chain(entries.map(|it| it.encode_to_vec()));
    encode(PAGEMAP, records)
}

/// A file of these records.
pub fn encode(magic: u32, records: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = [MAGIC.to_le_bytes(), magic.to_le_bytes()].concat();
    for record in records {
        bytes.extend((record.len() as u32).to_le_bytes());
        bytes.extend(record);
    }
    bytes
}

fn read(path: &Path, magic: u32) -> io::Result<Vec<Vec<u8>>> {
    let bytes = fs::read(path)?;
    let mut rest = bytes
        .strip_prefix(&[MAGIC.to_le_bytes(), magic.to_le_bytes()].concat()[..])
        .ok_or_else(|| io::Error::other("it has another format"))?;
    let mut records = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let record = behind.get(..length).ok_or(io::ErrorKind::UnexpectedEof)?;
        records.push(record.to_vec());
        rest = &behind[length..];
    }
    match rest {
        [] => Ok(records),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A mapping of these pages, for tests.
#[cfg(test)]
pub fn vma(pages: Range<u64>, file: u64, flags: i32) -> Vma {
    Vma {
        start: pages.start * PAGE,
        end: pages.end * PAGE,
        file,
        flags: flags as u32,
        advice: None,
    }
}
