//! The conversation between a worker and the keeper of common device memory, which is in the daemon, over a socket that the
//! daemon hands to the worker before a restore.
//!
//! ```text
//!   worker                                keeper
//!     │ Claim ─────────────────────────────► │  blocks, each with a key
//!     │ ◄─────────────── There + descriptors │  another worker has them: now, or as soon as it has offered them
//!     │ ◄────────────────────────────── Yours│  this one loads them: now, or when another one has given up
//!     │ Offer + descriptor ────────────────► │  loaded, checked, and writable nowhere
//!     │ Withdraw ──────────────────────────► │
//!     │ ◄────────────────────────── Withdrawn│  alone: it is forgotten, and no other worker gets it
//!     │ Leave ─────────────────────────────► │  the worker has no mapping of it any more, or does not load it
//!     │ Bye ───────────────────────────────► │  nothing of any block any more
//! ```
//! Without a Bye what a worker has ends with its process, whatever becomes of the connection: it may still have mappings.

use serde::{Deserialize, Serialize};

/// A block that a worker wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The name of its content on its device, 64 hexadecimal digits.
    pub key: String,
    /// Its bytes.
    pub bytes: u64,
    /// The identity of its device.
    pub device: String,
}

/// To the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToKeeper {
    /// The worker wants these.
    Claim {
        /// Each key once.
        blocks: Vec<Wanted>,
    },
    /// Others may have this one. Comes with a descriptor of its memory.
    Offer {
        /// Which.
        key: String,
    },
    /// The worker wants to write to these.
    Withdraw {
        /// Which.
        keys: Vec<String>,
    },
    /// The worker has nothing to do with this one any more.
    Leave {
        /// Which.
        key: String,
    },
    /// The worker has no mapping of any block any more, and wants none.
    Bye,
}

/// From the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromKeeper {
    /// These are there. Comes with as many descriptors.
    There {
        /// Which, in the order of the descriptors.
        keys: Vec<String>,
    },
    /// The worker loads these.
    Yours {
        /// Which.
        keys: Vec<String>,
    },
    /// Answer to Withdraw.
    Withdrawn {
        /// For each of them, whether no other worker has it, and none will get it.
        alone: Vec<bool>,
    },
}
