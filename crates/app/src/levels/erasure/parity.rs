//! What a parity image's manifest says about its group.

use fermata_store::StoreError;
use fermata_store::image::Image;
use serde::{Deserialize, Serialize};

use super::group::Stripes;
use crate::checkpoint::stream::Header;
use crate::{AppError, Result};

/// The manifest's key under which it is kept.
pub(super) const KEY: &str = "erasure";

/// A member's checkpoint as a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stream {
    /// Its bytes.
    pub(super) bytes: u64,
    /// The bytes of its header.
    pub(super) header: u64,
}

/// A group's parity. Fields may be added; readers ignore those they do not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Parity {
    /// Number of the checkpoint.
    pub(super) sequence: u64,
    /// The run that made the checkpoint; 0 in what older releases wrote.
    #[serde(default)]
    pub(super) run: u64,
    /// What the streams begin with.
    #[serde(default)]
    pub(super) header: Header,
    /// Ranks, in the order of the geometry.
    pub(super) members: Vec<u32>,
    /// How many of them may be lost.
    pub(super) losses: u32,
    /// Bytes of a block.
    pub(super) block: u64,
    /// Each member's checkpoint.
    pub(super) streams: Vec<Stream>,
}

impl Parity {
    /// What an image says.
    pub(super) fn of(image: &Image) -> Result<Self> {
        let value = image.manifest().extra.get(KEY).cloned();
        value
            .and_then(|value| serde_json::from_value(value).ok())
            .filter(Self::makes_sense)
            .ok_or_else(|| AppError::Store {
                op: "read the parity of a checkpoint",
                source: StoreError::Damaged {
                    path: image.dir().into(),
                    what: "it does not describe its group".into(),
                },
            })
    }

    /// As text, to be sent to other ranks.
    pub(super) fn encode(&self) -> Vec<u8> {
        // A record of numbers always has a text.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What another rank has sent.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(Self::makes_sense)
    }

    fn makes_sense(&self) -> bool {
        let mut members = self.members.clone();
        members.sort_unstable();
        members.dedup();
        let losses = self.losses as usize;
        members.len() == self.members.len()
            && self.streams.len() == members.len()
            && (1..members.len()).contains(&losses)
            && self.stripes() == Stripes::new(members.len(), losses, self.longest())
    }

    /// The geometry.
    pub(super) fn stripes(&self) -> Stripes {
        Stripes {
            members: self.members.len(),
            losses: self.losses as usize,
            block: self.block,
        }
    }

    /// Bytes of the longest stream.
    pub(super) fn longest(&self) -> u64 {
        self.streams.iter().map(|s| s.bytes).max().unwrap_or(0)
    }

    /// A member's block in a stripe of a window; see [`Stripes::given`].
    pub(super) fn given(&self, window: u64, stripe: usize, member: usize) -> (u64, usize) {
        let length = self.streams[member].bytes;
        self.stripes().given(window, stripe, member, length)
    }
}
