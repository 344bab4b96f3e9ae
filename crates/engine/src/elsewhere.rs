//! What other workers of a session store for the same image.

use std::fmt::Debug;

use fermata_store::ChunkId;

/// Says which worker stores a chunk that several have: it is copied and written once. What it says stays so during one attempt at an
/// image. That all chunks are there in the end is checked by whoever makes the image of the workers' parts.
pub trait Elsewhere: Debug + Send + Sync {
    /// Whether this worker is to store the chunk; if it is nobody's yet, it is this worker's from now on.
    fn is_mine(&self, id: &ChunkId) -> bool;

    /// Whether another worker stores the chunk.
    fn is_of_another(&self, id: &ChunkId) -> bool;
}
