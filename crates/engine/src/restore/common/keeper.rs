//! The keeper of common device memory, as a worker sees it: who else has a block with the same content.
//!
//! ```text
//!  claim ─┬─► Yours ──► loaded, checked, mapped for reading ─► offer       (or leave: another one loads it)
//!         └─► Memory ─► mapped for reading                                 once another worker has offered it
//!  before a write: withdraw ─┬─ alone ──► the mapping may be made writable
//!                            └─ others ─► copied; then leave
//! ```
//! The keeper counts who has a block. Therefore `leave` comes after the last mapping is gone, never before.

use std::fmt;
use std::os::fd::OwnedFd;

/// The name of a block's content on one device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommonKey(pub [u8; 32]);

impl fmt::Display for CommonKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CommonKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A block that a worker wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Its content.
    pub key: CommonKey,
    /// Its bytes, as the program has asked for them.
    pub bytes: u64,
    /// The identity of its device.
    pub device: String,
}

/// What a claim comes to.
#[derive(Debug)]
pub enum Told {
    /// Another worker has this block: a descriptor of its memory, which is to be mapped for reading alone.
    Memory(CommonKey, OwnedFd),
    /// No worker has it, or is about to: this one loads it.
    Yours(CommonKey),
    /// The keeper is gone: no claim comes to anything any more.
    Gone,
}

/// See the module. One per worker; what a worker has is given up with its connection.
pub trait Keeper: Send + Sync {
    /// Asks for blocks, each with a content of its own. What comes of each is told once, by a thread of the keeper's.
    fn claim(&self, blocks: Vec<Claim>, told: Box<dyn Fn(Told) + Send + Sync>);

    /// Lets others have the memory of a block that was this worker's to load. No mapping of it is writable any more.
    fn offer(&self, key: &CommonKey, memory: OwnedFd);

    /// For each of these blocks, whether this worker alone has it. Then no other gets it any more.
    fn withdraw(&self, keys: &[CommonKey]) -> Vec<bool>;

    /// This worker has no mapping of the block any more, or does not load it.
    fn leave(&self, key: &CommonKey);
}
