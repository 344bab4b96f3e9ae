//! The input of a sink, [`Order`], and its output, [`Chunks`].

use std::collections::BTreeMap;

use fermata_store::ChunkId;

use crate::digest::Digest;
use crate::protocol::Piece;

/// The chunks of an image: by buffer number and offset, each with its length. What is missing is zero.
pub(crate) type Chunks = BTreeMap<(u64, u64), (u32, ChunkId)>;

/// A piece to be saved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    /// Where it belongs and where its bytes are.
    pub piece: Piece,
    /// The digest of its bytes, if known.
    pub digest: Digest,
}
