//! The name of a chunk: the BLAKE3 hash of its bytes.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// BLAKE3 of a chunk's bytes as the program sees them; shown as 64 hexadecimal digits.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Serialize,
    Deserialize,
)]
#[serde(try_from = "String", into = "String")]
#[repr(transparent)]
pub struct ChunkId(pub [u8; 32]);

/// A set of chunks. Large images have many, so it has a faster hash than the standard library's.
pub type ChunkSet = HashSet<ChunkId, RandomState>;
/// Something for each chunk, as [`ChunkSet`].
pub(crate) type ChunkMap<T> = HashMap<ChunkId, T, RandomState>;

impl ChunkId {
    /// The name of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("a chunk's name is 64 hexadecimal digits")]
pub struct BadChunkId;

impl FromStr for ChunkId {
    type Err = BadChunkId;

    fn from_str(s: &str) -> Result<Self, BadChunkId> {
        blake3::Hash::from_hex(s)
            .map(|h| Self(*h.as_bytes()))
            .map_err(|_| BadChunkId)
    }
}

impl TryFrom<String> for ChunkId {
    type Error = BadChunkId;

    fn try_from(s: String) -> Result<Self, BadChunkId> {
        s.parse()
    }
}

impl From<ChunkId> for String {
    fn from(id: ChunkId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_returns() {
        let id = ChunkId::of(b"fermata");
        assert_eq!(id.to_string().parse::<ChunkId>().unwrap(), id);
        assert_eq!(id.to_string().len(), 64);
        assert!("12".parse::<ChunkId>().is_err());
    }
}
