//! Module images in the store: a long image is saved as a buffer of the chunk table, so that all checkpoints of sessions
//! with the same libraries share its chunks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use fermata_state::{IMAGE_PADDING, ImageBytes, StoredImage};
use fermata_store::image::{BufferId, ChunkRecord, ChunkTable};
use fermata_store::{ChunkId, ChunkReader, StoreError};
use parking_lot::Mutex;

use crate::pipeline::{cores, help};
use crate::{CHUNK, EngineError};

/// The pieces of an image: offsets and lengths.
pub(crate) fn parts(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let chunk = CHUNK as usize;
    (0..bytes.div_ceil(chunk)).map(move |n| (n * chunk, chunk.min(bytes - n * chunk)))
}

/// Reads `images`, whose chunks `table` names: all of them and no others.
///
/// # Errors
/// A chunk is missing or damaged; the table does not fit.
pub(crate) fn read(
    images: &[StoredImage],
    table: &ChunkTable,
    reader: &ChunkReader,
) -> Result<Vec<ImageBytes>, EngineError> {
    let mut by_buffer: HashMap<BufferId, &[ChunkRecord]> =
        table.buffers().map(|it| (it.buffer, it.chunks)).collect();
    let mut padded = Vec::with_capacity(images.len());
    let mut chunks = Vec::new();
    for image in images {
        let records = by_buffer.remove(&BufferId(image.buffer));
        let records = records.unwrap_or_default();
        let bytes = image.bytes as usize;
        let places = records
            .iter()
            .map(|it| (it.offset as usize, it.length as usize));
        if !places.eq(parts(bytes)) {
            let why = format!("the chunks of a module image of {bytes} bytes are not all of it");
            return Err(EngineError::Damaged(why));
        }
        chunks.push(records);
        padded.push(vec![0; bytes + IMAGE_PADDING]);
    }
    if let Some(buffer) = by_buffer.keys().next() {
        let why = format!("its chunk table names the module image {buffer}, which does not exist");
        return Err(EngineError::Damaged(why));
    }
    let pieces = padded.iter_mut().zip(chunks).flat_map(|(bytes, records)| {
        let ids = records.iter().map(|it| it.id);
        let end = bytes.len() - IMAGE_PADDING;
        ids.zip(bytes[..end].chunks_mut(CHUNK as usize))
    });
    read_pieces(pieces.collect(), reader)?;
    let whole = padded.into_iter().map(ImageBytes::from_padded);
    let whole: Option<Vec<ImageBytes>> = whole.collect();
    whole.ok_or_else(|| EngineError::Internal("a module image has no end".to_owned()))
}

fn read_pieces(pieces: Vec<(ChunkId, &mut [u8])>, reader: &ChunkReader) -> Result<(), EngineError> {
    let count = pieces.len();
    let pieces: Vec<_> = pieces.into_iter().map(|it| Mutex::new(Some(it))).collect();
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None::<StoreError>));
    let work = || {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some((id, into)) = piece.lock().take() else {
                continue;
            };
            if let Err(error) = reader.read_verified(&id, into) {
                failure.lock().get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..cores().min(count) {
            // If no helper can be started, this thread does all.
            let _ = help(scope, work);
        }
        work();
    });
    match failure.into_inner() {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}
