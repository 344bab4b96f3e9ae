//! Memory that processes of a session share. Its content belongs to the process that has made it.

use std::collections::BTreeMap;

use fermata_abi::op::{Address, MemoryId, Sharer};
use serde::{Deserialize, Serialize};

/// What a process shares, and what it has of others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// The process itself, once it has shared something.
    pub own: Option<Sharer>,
    /// What it shares, by the number of its content.
    pub shared: BTreeMap<u64, Shared>,
    /// Where its physical memory comes from that it has fetched.
    pub fetched: BTreeMap<MemoryId, Fetched>,
}

/// Memory that others may fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shared {
    /// An allocation, by its address.
    Allocation(Address),
    /// Physical memory.
    Memory(MemoryId),
}

/// Memory of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// That process.
    pub sharer: Sharer,
    /// The number of its content there.
    pub buffer: u64,
}
