//! Reply slots: how answers come back to the thread that asked.
//!
//! ```text
//!  slot:  waiting │ done │ len │ where │ reply ...
//! ```
//! The worker writes reply, length and place, then `done` = the request's sequence number, then wakes
//! the waiter. A reply that does not fit into the slot goes to the request's overflow range in the
//! staging area, if it named one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fermata_abi::op::Reply;

use crate::WireError;
use crate::layout::{
    PEER_CLOSED, SLOT_BYTES, SLOT_DATA, SLOT_DONE, SLOT_LEN, SLOT_ROOM, SLOT_WAITING, SLOT_WHERE,
    WORKER_AT,
};
use crate::protocol::wake_sleeper;
use crate::shm::{Mapping, StagedArea};
use crate::wait::{Spin, futex_wake, wait};

/// `SLOT_WHERE`: the reply is in the slot.
const IN_SLOT: u32 = 0;
/// `SLOT_WHERE`: the reply is in the overflow range.
const IN_OVERFLOW: u32 = 1;

/// Where the answer to one request goes. Copy it, keep it as long as needed, answer once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) slot: u16,
    pub(crate) sequence: u32,
    pub(crate) overflow: u64,
    pub(crate) overflow_len: u32,
}

impl Ticket {
    /// The ticket of a request that was taken from another ring of the same program; see [`Ticket::parts`].
    pub fn from_parts((slot, sequence, overflow, overflow_len): (u16, u32, u64, u32)) -> Self {
        Self {
            slot,
            sequence,
            overflow,
            overflow_len,
        }
    }

    /// Slot, sequence number, offset and length of the overflow range.
    pub fn parts(self) -> (u16, u32, u64, u32) {
        (self.slot, self.sequence, self.overflow, self.overflow_len)
    }

    /// Its slot, for the next request.
    pub(crate) fn spare(self) -> Self {
        Self {
            overflow: 0,
            overflow_len: 0,
            ..self
        }
    }
}

/// Answers requests, from any thread of the worker.
#[derive(Debug, Clone)]
pub struct Replier {
    map: Arc<Mapping>,
}

impl Replier {
    pub(crate) fn new(map: Arc<Mapping>) -> Self {
        Self { map }
    }

    /// Whether the memory has what `ticket` names. One that came with a message has been checked.
    pub fn accepts(&self, ticket: Ticket) -> bool {
        let layout = self.map.layout();
        let end = ticket.overflow.checked_add(u64::from(ticket.overflow_len));
        u64::from(ticket.slot) < layout.slot_count
            && end.is_some_and(|end| end <= layout.staging_bytes)
    }

    /// Answers the request `ticket` stands for and wakes who waits for it.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if the reply fits neither the slot nor the overflow range: nothing has
    /// been sent, and a smaller reply may be.
    pub fn answer(&self, ticket: Ticket, reply: &Reply<'_>) -> Result<(), WireError> {
        let slot = slot_at(&self.map, ticket.slot);
        // Nearly every answer is a few bytes.
        let mut small = [0; 64];
        let (len, place) = if let Ok(bytes) = postcard::to_slice(reply, &mut small) {
            self.map.write(slot + SLOT_DATA as u64, bytes);
            (bytes.len(), IN_SLOT)
        } else {
            self.put_long(ticket, slot, reply)?
        };
        let slot = slot as usize;
        self.map
            .word32(slot + SLOT_LEN)
            .store(len as u32, Ordering::Relaxed);
        self.map
            .word32(slot + SLOT_WHERE)
            .store(place, Ordering::Relaxed);
        self.map
            .word32(slot + SLOT_DONE)
            .store(ticket.sequence, Ordering::Release);
        wake_sleeper(self.map.word32(slot + SLOT_WAITING), futex_wake);
        Ok(())
    }

    /// Tells the program that no answer will come any more; its waiting calls fail at once.
    pub fn close(&self) {
        self.map
            .word32(WORKER_AT)
            .store(PEER_CLOSED, Ordering::Release);
        for slot in 0..self.map.layout().slot_count {
            let slot = slot_at(&self.map, slot as u16) as usize;
            wake_sleeper(self.map.word32(slot + SLOT_WAITING), futex_wake);
        }
    }

    /// Where an answer of more than a few bytes has been put, and its length.
    fn put_long(
        &self,
        ticket: Ticket,
        slot: u64,
        reply: &Reply<'_>,
    ) -> Result<(usize, u32), WireError> {
        let mut room = [0; SLOT_ROOM as usize];
        match postcard::to_slice(reply, &mut room) {
            Ok(bytes) => {
                self.map.write(slot + SLOT_DATA as u64, bytes);
                Ok((bytes.len(), IN_SLOT))
            }
            Err(_) => Ok((self.overflow(ticket, reply)?, IN_OVERFLOW)),
        }
    }

    fn overflow(&self, ticket: Ticket, reply: &Reply<'_>) -> Result<usize, WireError> {
        let encode = |source| WireError::Encode {
            what: "reply",
            source,
        };
        let bytes = postcard::to_stdvec(reply).map_err(encode)?;
        if bytes.len() as u64 > u64::from(ticket.overflow_len) {
            return Err(WireError::TooLarge {
                what: "reply",
                bytes: bytes.len() as u64,
                limit: u64::from(ticket.overflow_len).max(SLOT_ROOM),
            });
        }
        StagedArea(self.map.clone()).write(ticket.overflow, &bytes)?;
        Ok(bytes.len())
    }
}

/// Offset of a slot that exists.
fn slot_at(map: &Mapping, slot: u16) -> u64 {
    map.layout().slots + u64::from(slot) * SLOT_BYTES
}

/// Whether the answer to `ticket` is there.
pub(crate) fn is_done(map: &Mapping, ticket: Ticket) -> bool {
    let slot = slot_at(map, ticket.slot) as usize;
    map.word32(slot + SLOT_DONE).load(Ordering::Acquire) == ticket.sequence
}

/// Waits until the answer to `ticket` is there, or the worker gone; `false` if `timeout` passed first. `alive` is
/// asked now and then.
pub(crate) fn wait_done(
    map: &Mapping,
    ticket: Ticket,
    spin: &Spin,
    alive: impl Fn() -> Result<(), WireError>,
    timeout: Option<std::time::Duration>,
) -> Result<bool, WireError> {
    let word = map.word32(slot_at(map, ticket.slot) as usize + SLOT_WAITING);
    wait(spin, word, timeout, || is_done(map, ticket), alive)
}

/// Has the thread that waits for the answer to `ticket` look at it, and at its worker, now.
pub(crate) fn nudge(map: &Mapping, ticket: Ticket) {
    futex_wake(map.word32(slot_at(map, ticket.slot) as usize + SLOT_WAITING));
}

/// Copies the answer out and decodes it.
pub(crate) fn take<'b>(
    map: &Arc<Mapping>,
    ticket: Ticket,
    buffer: &'b mut Vec<u8>,
) -> Result<Reply<'b>, WireError> {
    let slot = slot_at(map, ticket.slot);
    let malformed = |why| WireError::Malformed {
        what: "reply",
        position: u64::from(ticket.slot),
        why,
    };
    let len = map.word32(slot as usize + SLOT_LEN).load(Ordering::Relaxed);
    let place = map
        .word32(slot as usize + SLOT_WHERE)
        .load(Ordering::Relaxed);
    let room = match place {
        IN_SLOT => SLOT_ROOM,
        IN_OVERFLOW => u64::from(ticket.overflow_len),
        _ => {
            return Err(malformed(
                "it is neither in the slot nor in the overflow range",
            ));
        }
    };
    if u64::from(len) > room {
        return Err(malformed("it is longer than the room for it"));
    }
    buffer.resize(len as usize, 0);
    if place == IN_SLOT {
        map.read(slot + SLOT_DATA as u64, buffer);
    } else {
        StagedArea(map.clone()).read(ticket.overflow, buffer)?;
    }
    let position = u64::from(ticket.slot);
    postcard::from_bytes(buffer).map_err(|source| WireError::Decode {
        what: "reply",
        position,
        source,
    })
}
