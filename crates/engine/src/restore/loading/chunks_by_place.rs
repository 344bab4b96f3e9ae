//! An image's chunks by where their content belongs.

use std::collections::HashMap;

use fermata_store::ChunkId;
use fermata_store::image::ChunkTable;

/// Chunks by buffer and offset, each with its length.
pub(super) type ChunksByPlace = HashMap<(u64, u64), (u32, ChunkId)>;

/// The chunks of an image.
pub(super) fn by_place(table: &ChunkTable) -> ChunksByPlace {
    let records = table.records().iter();
    records
        .map(|it| ((it.buffer.0, it.offset), (it.length, it.id)))
        .collect()
}
