//! Fills modules' variables ahead of the rest: their memory exists as soon as the modules are loaded, and nothing
//! writes it before the program runs.
//!
//! Variables are small and many, and on a device that other processes use, each wait for the device lasts until it is
//! this process's turn again.

use std::collections::HashSet;

use fermata_device::StreamHandle;
use fermata_state::Session;
use fermata_store::ChunkReader;
use fermata_store::image::ChunkTable;

use super::chunks_by_place::by_place;
use crate::protocol::{Piece, Source, variable_pieces};
use crate::{EngineError, Live};

/// Pieces that have their content, by buffer and offset.
#[derive(Default)]
pub(in crate::restore) struct Filled(HashSet<(u64, u64)>);

impl Filled {
    /// Whether this place has its content.
    pub fn has(&self, place: &(u64, u64)) -> bool {
        self.0.contains(place)
    }
}

/// Fills all variables of the session's modules through the driver's own buffers, so that nothing is allocated. If the
/// driver has moved any variable, none is filled: memory that contains its address must be refused, and only the load of
/// all content checks that.
///
/// # Errors
/// [`EngineError`]: a chunk is missing or damaged, or the driver refuses.
pub(in crate::restore) fn fill(
    session: &Session,
    live: &mut Live,
    reader: &ChunkReader,
    table: &ChunkTable,
) -> Result<Filled, EngineError> {
    if !live.moved.is_empty() {
        return Ok(Filled::default());
    }
    let chunks = by_place(table);
    let plan = variable_pieces(session)?;
    let mut bytes = Vec::new();
    for piece in &plan {
        let chunk = chunks.get(&(piece.buffer, piece.offset));
        bytes.clear();
        bytes.resize(piece.len, 0);
        if let Some((length, id)) = chunk {
            if *length as usize != piece.len {
                let what = format!("a chunk of buffer {} has another length", piece.buffer);
                return Err(EngineError::Damaged(what));
            }
            reader.read_verified(id, &mut bytes)?;
        }
        write(live, piece, &bytes)?;
    }
    let idle = live.settle().map_err(|(_, error)| error);
    idle.map_err(EngineError::driver("finish the copies to variables"))?;
    let places = plan.iter().map(|it| (it.buffer, it.offset));
    Ok(Filled(places.collect()))
}

fn write(live: &mut Live, piece: &Piece, bytes: &[u8]) -> Result<(), EngineError> {
    let Source::Device { device, address } = piece.source else {
        let what = "a variable is device memory".to_owned();
        return Err(EngineError::Internal(what));
    };
    let written = live.enter_device(device).and_then(|_| {
        live.driver
            .copy_from_slice(address.raw(), bytes, StreamHandle::LEGACY)
    });
    written.map_err(EngineError::driver(format!(
        "copy {} bytes to the variable at {address:#x}",
        piece.len
    )))
}
