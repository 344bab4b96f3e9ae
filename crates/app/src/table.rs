//! A checkpoint's chunk table as it was, in another place.

use fermata_store::image::{CHUNKS, ChunkTable, ChunkTableWriter, Draft, Manifest};

use crate::{AppError, Result};

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
