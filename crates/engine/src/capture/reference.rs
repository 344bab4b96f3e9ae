//! For tests: digests of a copy that is made in the stop, to be compared with the image of a capture. Taking them costs
//! the stop that a capture avoids.

use crate::digest::{self, Digest};
use crate::protocol::{Piece, Source};
use crate::sink::Chunks;
use crate::{EngineError, Live};

/// The digest of each piece of device memory in the stop.
pub(crate) struct Reference {
    pieces: Vec<(Piece, Digest)>,
}

impl Reference {
    /// Copies all device memory and hashes it on the processor, while the devices are idle.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn take(live: &mut Live, plan: &[Piece]) -> Result<Self, EngineError> {
        let digests = digest::by_copy(live, plan)?;
        let on_device = |piece: &Piece| matches!(piece.source, Source::Device { .. });
        let pieces = plan.iter().copied().zip(digests);
        Ok(Self {
            pieces: pieces.filter(|(piece, _)| on_device(piece)).collect(),
        })
    }

    /// Compares block by block.
    ///
    /// # Errors
    /// The first block that differs.
    pub(crate) fn compare(&self, chunks: &Chunks) -> Result<(), EngineError> {
        for (piece, digest) in &self.pieces {
            let found = match chunks.get(&(piece.buffer, piece.offset)) {
                Some((_, id)) => Digest::Id(*id),
                None => Digest::Zero,
            };
            if found != *digest {
                return Err(EngineError::Internal(format!(
                    "buffer {} at offset {} differs from the stopped copy",
                    piece.buffer, piece.offset
                )));
            }
        }
        Ok(())
    }
}
