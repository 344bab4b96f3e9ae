//! Memory and events that processes of a session share. Content belongs to the process that has made it.

use std::collections::BTreeMap;

use fermata_abi::op::{Address, EventId, MemoryId, Sharer};
use serde::{Deserialize, Serialize};

/// What a process shares, and what it has of others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// The process itself, once it has shared something.
    pub own: Option<Sharer>,
    /// What it shares, by the number of its content; an event has one too.
    pub shared: BTreeMap<u64, Shared>,
    /// Where its physical memory comes from that it has fetched.
    pub fetched: BTreeMap<MemoryId, Fetched>,
    /// Which events of other processes it has opened. In the records they come last, see [`crate::records`].
    #[serde(skip)]
    pub opened: BTreeMap<EventId, Fetched>,
}

impl Sharing {
    /// The number under which others may open an event, if it is shared.
    pub fn number_of(&self, event: EventId) -> Option<u64> {
        let mut shared = self.shared.iter();
        let found = shared.find(|(_, it)| **it == Shared::Event(event));
        found.map(|(number, _)| *number)
    }

    /// An event is gone, whether it was shared or opened.
    pub(crate) fn forget_event(&mut self, event: EventId) {
        self.shared.retain(|_, it| *it != Shared::Event(event));
        self.opened.remove(&event);
    }
}

/// What others may fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shared {
    /// An allocation, by its address.
    Allocation(Address),
    /// Physical memory.
    Memory(MemoryId),
    /// An event.
    Event(EventId),
}

/// Memory or an event of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// That process.
    pub sharer: Sharer,
    /// The number of its content there, or the event's.
    pub buffer: u64,
}
