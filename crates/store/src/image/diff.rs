//! What differs between two images, by content names alone: no chunk is read.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Image;
use super::manifest::{STATE, in_part};
use super::table::{BufferId, ChunkRecord, ChunkTable};
use crate::Result;

/// What happened to a buffer from the first image to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferChange {
    /// Only the second image has it.
    Added,
    /// Only the first image has it.
    Removed,
    /// Both have it with different content.
    Changed,
}

/// A buffer that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BufferDiff {
    /// The buffer.
    pub buffer: BufferId,
    /// In what way.
    pub change: BufferChange,
    /// Its parts that differ.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What happened to a file from the first image to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChange {
    /// Only the second image has it.
    Added,
    /// Only the first image has it.
    Removed,
    /// Both have it with different content.
    Changed,
}

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDiff {
    /// Path inside the images.
    pub path: String,
    /// In what way.
    pub change: FileChange,
    /// Its length in the first image.
    pub before: u64,
    /// Its length in the second image.
    pub after: u64,
}

/// What differs between two images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Buffers in both together.
    pub buffers_total: u64,
    /// Parts in both together, those at the same place counted once.
    pub chunks_total: u64,
    /// Their bytes.
    pub bytes_total: u64,
    /// Parts that differ.
    pub chunks_differing: u64,
    /// Their bytes.
    pub bytes_differing: u64,
    /// Buffers that differ, by number.
    pub buffers: Vec<BufferDiff>,
    /// Files that differ, by path; the chunk tables themselves are left out.
    pub files: Vec<FileDiff>,
}

impl Diff {
    /// Whether both images have the same content.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.files.is_empty()
    }
}

/// Compares two images.
///
/// # Errors
/// `Damaged` when a table of chunks, or a session's objects, are not those that the manifest describes, or an image holds
/// a file that its manifest does not list; `Newer`, `Io`.
pub fn diff(first: &Image, second: &Image) -> Result<Diff> {
    for image in [first, second] {
        image.check_listed()?;
        for part in image.manifest().part_folders() {
            let state = in_part(part, STATE);
            if image.manifest().file(&state).is_some() {
                image.read_file(&state)?;
            }
        }
    }
    let mut diff = Diff::default();
    compare_buffers(&first.chunk_table()?, &second.chunk_table()?, &mut diff);
    compare_files(first, second, &mut diff);
    Ok(diff)
}

type Parts<'a> = BTreeMap<u64, &'a ChunkRecord>;

fn by_buffer(table: &ChunkTable) -> BTreeMap<BufferId, Parts<'_>> {
    table
        .buffers()
        .map(|b| (b.buffer, b.chunks.iter().map(|c| (c.offset, c)).collect()))
        .collect()
}

fn compare_buffers(first: &ChunkTable, second: &ChunkTable, diff: &mut Diff) {
    let (first, second) = (by_buffer(first), by_buffer(second));
    let all: BTreeMap<_, ()> = first
        .keys()
        .chain(second.keys())
        .map(|k| (*k, ()))
        .collect();
    let none = Parts::new();
    for buffer in all.into_keys() {
        let (a, b) = (first.get(&buffer), second.get(&buffer));
        let change = match (a, b) {
            (None, _) => BufferChange::Added,
            (_, None) => BufferChange::Removed,
            _ => BufferChange::Changed,
        };
        let (a, b) = (a.unwrap_or(&none), b.unwrap_or(&none));
        let mut found = BufferDiff {
            buffer,
            change,
            chunks: 0,
            bytes: 0,
        };
        let offsets: BTreeMap<_, ()> = a.keys().chain(b.keys()).map(|k| (*k, ())).collect();
        for offset in offsets.keys() {
            let (x, y) = (a.get(offset), b.get(offset));
            let bytes = x.map_or(0, |c| c.length).max(y.map_or(0, |c| c.length));
            diff.chunks_total += 1;
            diff.bytes_total += u64::from(bytes);
            if x.map(|c| (c.id, c.length)) != y.map(|c| (c.id, c.length)) {
                found.chunks += 1;
                found.bytes += u64::from(bytes);
            }
        }
        diff.buffers_total += 1;
        diff.chunks_differing += found.chunks;
        diff.bytes_differing += found.bytes;
        if found.chunks > 0 {
            diff.buffers.push(found);
        }
    }
}

fn compare_files(first: &Image, second: &Image, diff: &mut Diff) {
    let files = |image: &Image| -> BTreeMap<String, (u64, String)> {
        let files = image.manifest().files.iter();
        files
            .map(|f| (f.path.clone(), (f.length, f.blake3.clone())))
            .collect()
    };
    let (a, b) = (files(first), files(second));
    let paths: BTreeMap<_, ()> = a.keys().chain(b.keys()).map(|k| (k.clone(), ())).collect();
    let tables = first.manifest().tables().chain(second.manifest().tables());
    let tables: BTreeSet<String> = tables.collect();
    for path in paths.into_keys().filter(|it| !tables.contains(it)) {
        let (x, y) = (a.get(&path), b.get(&path));
        let change = match (x, y) {
            (None, _) => FileChange::Added,
            (_, None) => FileChange::Removed,
            _ if x != y => FileChange::Changed,
            _ => continue,
        };
        let (before, after) = (x.map_or(0, |f| f.0), y.map_or(0, |f| f.0));
        diff.files.push(FileDiff {
            path,
            change,
            before,
            after,
        });
    }
}
