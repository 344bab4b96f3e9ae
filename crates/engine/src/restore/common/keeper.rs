//! The keeper of common device memory, as a worker uses it: says whether another session has a block of the same content.
//!
//! ```text
//!  claim ─┬─► Yours ──► loaded, checked, mapped for reading ─► offer       (or leave: another one loads it)
//!         └─► Memory ─► mapped for reading                                 once another worker has offered it
//!  before a write: withdraw ─┬─ alone ──► the mapping may be made writable
//!                            └─ others ─► copied; then leave
//! ```
//! The keeper counts the sessions that have a block. Therefore `leave` must come after the last mapping is gone.

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

/// The outcome of a claim.
#[derive(Debug)]
pub enum Told {
    /// Another worker has this block: a descriptor of its memory, which must be mapped for reading alone.
    Memory(CommonKey, OwnedFd),
    /// No worker has it or loads it: this one must load it.
    Yours(CommonKey),
    /// The keeper is gone: claims have no more outcome.
    Gone,
}

/// See the module. One per worker; when its connection ends, the worker's blocks count as left.
pub trait Keeper: Send + Sync {
    /// Asks for blocks, no two with the same key. `told` is called once per block, on a thread of the keeper's.
    fn claim(&self, blocks: Vec<Claim>, told: Box<dyn Fn(Told) + Send + Sync>);

    /// Offers the memory of a block that this worker has loaded. No mapping of it may be writable any more.
    fn offer(&self, key: &CommonKey, memory: OwnedFd);

    /// For each of these blocks, whether this worker alone has it; if so, no other will get it.
    fn withdraw(&self, keys: &[CommonKey]) -> Vec<bool>;

    /// Notes that this worker has no mapping of the block any more, or does not load it.
    fn leave(&self, key: &CommonKey);
}
