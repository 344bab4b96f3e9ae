//! The stopped copy's digests, kept to be compared with what a capture behind the program gives. For tests:
//! it takes the time that a capture saves.

use crate::digest::{self, Digest};
use crate::protocol::{Piece, Source};
use crate::sink::Chunks;
use crate::{EngineError, Live};

/// What each piece of device memory was.
pub(crate) struct Reference {
    pieces: Vec<(Piece, Digest)>,
}

impl Reference {
    /// Copies and hashes all device memory, on the processor, while nothing runs.
    ///
    /// # Errors
    /// What the driver says.
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
