//! A checkpoint's chunk table: which chunks it names, and the same table written in another place.

use std::collections::HashSet;

use fermata_store::image::{CHUNKS, ChunkTable, ChunkTableWriter, Draft, Manifest};

use crate::{AppError, Result};

/// Where in the table each chunk comes first.
pub(crate) fn once(table: &ChunkTable) -> Vec<usize> {
    let mut seen = HashSet::new();
    let records = table.records().iter().enumerate();
    records
        .filter(|(_, r)| seen.insert(r.id))
        .map(|(i, _)| i)
        .collect()
}

/// The table, to be written once more; `op` is what that is done for.
pub(crate) fn again(table: &ChunkTable, op: &'static str) -> Result<ChunkTableWriter> {
    let mut copy = ChunkTableWriter::new();
    for r in table.records() {
        copy.push(r.buffer, r.offset, r.length, r.id)
            .map_err(AppError::store(op))?;
    }
    Ok(copy)
}

/// Gives a draft the table and its name; all its chunks are published.
pub(crate) fn commit(
    draft: Draft,
    table: &ChunkTable,
    manifest: Manifest,
    op: &'static str,
) -> Result<()> {
    let failed = AppError::store(op);
    again(table, op)?
        .write(&draft.path().join(CHUNKS))
        .map_err(&failed)?;
    draft.commit(manifest).map(drop).map_err(&failed)
}
