//! Access sets: predicts which memory an operation reads and writes, before it runs.
//!
//! ```text
//!  copy, fill, wait, write ─────────────────────────────► exactly these bytes          (transfer)
//!  launch ── function ── text of its module ── analysis ─► these words of its block    (kernel, text)
//!                   └─── no text: signature, every word ─► these words, incomplete     (kernel, signature)
//!  graph launch ── its nodes, joined once ──────────────► all of the above             (graph)
//!                                    words ── live memory of the session? (places) ──► Around(address)
//!                                      └── pointers copied there, if the kernel may load any (tables) ──► Around(pointer)
//! ```
//! A set may name memory that the operation does not touch. If the set is complete, the operation touches nothing else.
//! (PhoenixOS, section 4.1, speculates from arguments; here a kernel's text is used if there is one.)

mod graph;
mod kernel;
mod places;
mod predictor;
mod signature;
mod tables;
mod transfer;

use fermata_abi::op::{Address, ArrayId};

pub(crate) use graph::kernels_of;
pub use places::Places;
pub use predictor::{Doubt, Predictor};

/// A range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// First byte.
    pub start: Address,
    /// Bytes.
    pub len: u64,
}

/// One thing an operation touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// These bytes and no others.
    Exactly(Range),
    /// The whole allocation, mapping, host region or variable that contains the address.
    Around(Address),
    /// A CUDA array.
    Array(ArrayId),
}

/// What an operation touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessSet {
    /// Read.
    pub reads: Vec<Target>,
    /// Written.
    pub writes: Vec<Target>,
    /// Nothing else is touched. If false, the operation may touch more (stored pointers, opaque code, no text), and
    /// validation has to find out.
    pub complete: bool,
}

impl Default for AccessSet {
    fn default() -> Self {
        Self::nothing()
    }
}

impl AccessSet {
    /// The set of an operation that touches no memory.
    pub fn nothing() -> Self {
        Self {
            reads: Vec::new(),
            writes: Vec::new(),
            complete: true,
        }
    }

    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    fn add(&mut self, target: Target, read: bool, write: bool) {
        if read && !self.reads.contains(&target) {
            self.reads.push(target);
        }
        if write && !self.writes.contains(&target) {
            self.writes.push(target);
        }
    }
}
