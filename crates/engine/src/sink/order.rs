//! The input of a sink, [`Order`], and its output, [`Chunks`].

use std::collections::BTreeMap;

use fermata_store::ChunkId;

use crate::digest::Digest;
use crate::protocol::Piece;
use crate::seal::Seal;

/// The chunks of an image: by buffer number and offset, each with its length. What is missing is zero.
pub(crate) type Chunks = BTreeMap<(u64, u64), (u32, ChunkId)>;

/// A piece to be saved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    /// Where it belongs and where its bytes are.
    pub piece: Piece,
    /// The digest of its bytes, if known.
    pub digest: Digest,
    /// By which its copy may be checked instead ([`super::Sink::seal`]).
    pub seal: Option<Seal>,
}

impl Order {
    /// A piece without a seal.
    pub fn new(piece: Piece, digest: Digest) -> Self {
        Self {
            piece,
            digest,
            seal: None,
        }
    }
}
