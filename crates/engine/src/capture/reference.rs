//! The stopped copy's digests, kept to be compared with what a capture behind the program gives. For tests:
//! it takes the time that a capture saves.

use std::collections::BTreeMap;

use fermata_store::ChunkId;

use crate::protocol::{Piece, Source};
use crate::sink::Chunks;
use crate::{EngineError, Live};

/// By buffer and offset; what is missing is zero.
pub(crate) struct Reference {
    chunks: BTreeMap<(u64, u64), ChunkId>,
    taken: Vec<(u64, u64)>,
}

impl Reference {
    /// Copies and hashes all device memory, on the processor, while nothing runs.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn take(live: &mut Live, plan: &[Piece]) -> Result<Self, EngineError> {
        let mut reference = Self {
            chunks: BTreeMap::new(),
            taken: Vec::new(),
        };
        live.prepare_staging()
            .map_err(EngineError::driver("make staging buffers"))?;
        for piece in plan {
            let Source::Device { device, address } = piece.source else {
                continue;
            };
            let buffer = live.staging.as_ref().and_then(|pool| pool.try_take());
            let busy = || EngineError::Internal("no buffer for the reference".to_owned());
            let buffer = buffer.ok_or_else(busy)?;
            let copied = live.enter_device(device).and_then(|_| {
                let stream = fermata_device::StreamHandle::LEGACY;
                let bytes = piece.len as u64;
                live.driver.copy(buffer.address(), address, bytes, stream)?;
                live.driver.synchronize_context()
            });
            copied.map_err(EngineError::driver("copy the reference"))?;
            let bytes = &buffer[..piece.len];
            let place = (piece.buffer, piece.offset);
            reference.taken.push(place);
            if bytes.iter().any(|byte| *byte != 0) {
                reference.chunks.insert(place, ChunkId::of(bytes));
            }
        }
        live.forget_current();
        Ok(reference)
    }

    /// Compares block by block.
    ///
    /// # Errors
    /// The first block that differs.
    pub(crate) fn compare(&self, chunks: &Chunks) -> Result<(), EngineError> {
        for place in &self.taken {
            let (ours, theirs) = (chunks.get(place).map(|(_, id)| id), self.chunks.get(place));
            if ours != theirs {
                let (buffer, offset) = place;
                return Err(EngineError::Internal(format!(
                    "buffer {buffer} at offset {offset} differs from the stopped copy"
                )));
            }
        }
        Ok(())
    }
}
