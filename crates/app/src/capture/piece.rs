//! Pieces of variables on their way to the store: blocks in a buffer, and runs of blocks on a device.

use fermata_device::ContextHandle;
use fermata_store::ChunkId;

use crate::buffer::{Buffer, PIECE};

/// A block in a buffer.
pub(crate) struct Block {
    pub(crate) block: usize,
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    /// Its digest, unless that is still to be computed.
    pub(crate) id: Option<ChunkId>,
}

/// A piece of a variable on its way to the store.
pub(crate) struct Piece {
    pub(crate) target: usize,
    pub(crate) buffer: Buffer,
    pub(crate) parts: Vec<Block>,
    /// Whether the digests were taken of the buffer's own bytes.
    pub(crate) checked: bool,
}

/// Neighbouring blocks of a variable that are copied at once; at most a piece.
pub(crate) struct Stretch {
    pub(crate) target: usize,
    pub(crate) address: u64,
    pub(crate) parts: Vec<Block>,
}

impl Stretch {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|p| p.bytes).sum()
    }

    /// Those blocks that are `wanted`, neighbours together. `first` is the number of the first block.
    pub(crate) fn of(
        target: usize,
        base: u64,
        first: usize,
        blocks: &[(u64, u64)],
        names: Option<&[ChunkId]>,
        wanted: impl Fn(&ChunkId, usize) -> bool,
    ) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (i, &(offset, bytes)) in blocks.iter().enumerate() {
            let id = names.map(|names| names[i]);
            let bytes = bytes as usize;
            if id.is_some_and(|id| !wanted(&id, bytes)) {
                continue;
            }
            let follows = |s: &&mut Self| {
                let last = s.parts.last();
                last.is_some_and(|p| p.block + 1 == first + i) && s.bytes() + bytes <= PIECE
            };
            let stretch = match all.last_mut().filter(follows) {
                Some(stretch) => stretch,
                None => {
                    all.push(Self {
                        target,
                        address: base + offset,
                        parts: Vec::new(),
                    });
                    let last = all.len() - 1;
                    &mut all[last]
                }
            };
            let at = stretch.bytes();
            stretch.parts.push(Block {
                block: first + i,
                at,
                bytes,
                id,
            });
        }
        all
    }
}

/// A GPU and what must be kept of its memory.
pub(crate) struct OnDevice {
    pub(crate) context: ContextHandle,
    pub(crate) device: u32,
    pub(crate) stretches: Vec<Stretch>,
}
