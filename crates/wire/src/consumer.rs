//! The worker's end of the ring: one decode loop.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fermata_abi::op::Op;

use crate::barrier::Heavy;
use crate::callbacks::CallbackCount;
use crate::layout::{
    ALIGN, BARRIER_AT, DOORBELL_AT, HEAD_AT, MESSAGE_HEADER, PEER_ATTACHED, PEER_CLOSED,
    PROGRAM_AT, SPACE_AT, TAIL_AT, WORKER_AT,
};
use crate::message::{Header, KIND_OP, KIND_PAD};
use crate::protocol::wake_sleeper;
use crate::reply::Replier;
use crate::shm::Mapping;
use crate::side::Side;
use crate::wait::{Spin, futex_wake, program_alive, wait_with};
use crate::{StagedArea, Ticket, WireError};

/// Bytes of a cache line.
const LINE: u64 = 64;

/// What [`Consumer::next`] found.
#[derive(Debug)]
pub enum Event<'a> {
    /// An operation, in the order of issue.
    Message(Message<'a>),
    /// The timeout passed, or [`Kicker::kick`] was called.
    Idle,
    /// The program has closed its end and everything it sent has been taken.
    Closed,
}

/// An operation and where its answer goes.
#[derive(Debug)]
pub struct Message<'a> {
    /// The operation. It borrows the consumer's private copy of the message.
    pub op: Op<'a>,
    /// `None` if no answer is wanted.
    pub ticket: Option<Ticket>,
}

/// Takes operations out of the ring.
#[derive(Debug)]
pub struct Consumer {
    map: Arc<Mapping>,
    side: Arc<Side>,
    kicked: Arc<AtomicBool>,
    tail: u64,
    /// The write position as it was seen last: while there is more up to it, its line is left to the producer.
    seen: u64,
    number: u64,
    buffer: Vec<u8>,
    spin: Spin,
    barrier: Heavy,
}

impl Consumer {
    /// Attaches to a memory file made by [`crate::create`].
    ///
    /// # Errors
    /// The memory is not usable, or a worker has read from it before.
    pub fn open(memory: BorrowedFd<'_>, side: Arc<Side>) -> Result<Self, WireError> {
        Self::with(Arc::new(Mapping::open(memory)?), side)
    }

    /// Attaches to a memory file that was attached to before and has been made new by [`crate::renew`]; `area`
    /// is its staging area as it was kept from then.
    ///
    /// # Errors
    /// As [`Consumer::open`].
    pub fn again(area: &StagedArea, side: Arc<Side>) -> Result<Self, WireError> {
        Self::with(area.0.clone(), side)
    }

    fn with(map: Arc<Mapping>, side: Arc<Side>) -> Result<Self, WireError> {
        if map.word64(TAIL_AT).load(Ordering::Acquire) != 0 {
            return Err(WireError::Layout("another worker has used it"));
        }
        let barrier = Heavy::offer(map.word32(BARRIER_AT));
        map.word32(WORKER_AT)
            .store(PEER_ATTACHED, Ordering::Release);
        Ok(Self {
            barrier,
            map,
            side,
            kicked: Arc::default(),
            tail: 0,
            seen: 0,
            number: 0,
            buffer: Vec::new(),
            spin: Spin::new(),
        })
    }

    /// What answers; clones of it may go to other threads.
    pub fn replier(&self) -> Replier {
        Replier::new(self.map.clone())
    }

    /// What interrupts [`Consumer::next`] from other threads.
    pub fn kicker(&self) -> Kicker {
        Kicker {
            map: self.map.clone(),
            kicked: self.kicked.clone(),
        }
    }

    /// Which host callbacks the program has run.
    pub fn callbacks(&self) -> CallbackCount {
        CallbackCount::new(self.map.clone())
    }

    /// The staging area.
    pub fn staging(&self) -> StagedArea {
        StagedArea(self.map.clone())
    }

    /// The next operation, after at most `timeout`.
    ///
    /// # Errors
    /// [`WireError::PeerGone`] if the program has died; [`WireError::Malformed`] or
    /// [`WireError::Decode`] if it wrote nonsense. Either way the ring is of no more use.
    pub fn next(&mut self, timeout: Duration) -> Result<Event<'_>, WireError> {
        loop {
            if self.seen == self.tail {
                let head = self.head();
                if head == self.tail {
                    if !self.sleep(timeout)? {
                        return Ok(Event::Idle);
                    }
                    if self.head() == self.tail {
                        return Ok(self.nothing_left());
                    }
                    continue;
                }
                self.check_head(head)?;
                self.seen = head;
            }
            let at = self.tail & (self.map.layout().ring_bytes - 1);
            if self.seen.wrapping_sub(self.tail) > LINE - at % LINE {
                // What reaches into a second line comes together with the first.
                self.map.prefetch(self.map.layout().ring + at + LINE);
            }
            let to_end = self.map.layout().ring_bytes - at;
            if to_end < MESSAGE_HEADER {
                self.advance(to_end)?;
                continue;
            }
            let header = self.header(at)?;
            let (position, span) = (self.tail, header.span());
            if header.kind == KIND_PAD {
                if span != to_end {
                    return Err(self.malformed("its padding does not end with the ring"));
                }
                self.advance(span)?;
                continue;
            }
            if span > to_end {
                return Err(self.malformed("it reaches over the end of the ring"));
            }
            self.buffer.resize(header.len as usize, 0);
            self.map.read(
                self.map.layout().ring + at + MESSAGE_HEADER,
                &mut self.buffer,
            );
            self.advance(span)?;
            self.number += 1;
            let decode = |source| WireError::Decode {
                what: "message",
                position,
                source,
            };
            let op = postcard::from_bytes(&self.buffer).map_err(decode)?;
            return Ok(Event::Message(Message {
                op,
                ticket: header.ticket(),
            }));
        }
    }

    /// Whether the program is still there, for a consumer that takes nothing at the moment.
    ///
    /// # Errors
    /// [`WireError::PeerGone`] if it is not.
    pub fn check_program(&self) -> Result<(), WireError> {
        program_alive(&self.map, &*self.side)
    }

    /// What tells those who have no consumer at hand whether the program has died.
    pub fn presence(&self) -> Presence {
        Presence {
            map: self.map.clone(),
            side: self.side.clone(),
        }
    }

    /// Whether the program has said that nothing more will come, or has never been there: then it did not end
    /// in the middle of something.
    pub fn has_left(&self) -> bool {
        self.map.word32(PROGRAM_AT).load(Ordering::Acquire) != PEER_ATTACHED
    }

    fn head(&self) -> u64 {
        self.map.word64(HEAD_AT).load(Ordering::Acquire)
    }

    /// Sleeps until there is something to look at; `false` if the timeout passed.
    fn sleep(&self, timeout: Duration) -> Result<bool, WireError> {
        let closed = || self.map.word32(PROGRAM_AT).load(Ordering::Acquire) == PEER_CLOSED;
        let ready = || self.head() != self.tail || self.kicked.load(Ordering::Acquire) || closed();
        let doorbell = self.map.word32(DOORBELL_AT);
        // Where the barrier fails for once, the sleep is none: its condition is looked at again at once.
        let ready_or_unsure = || ready() || !self.barrier.execute() || ready();
        let alive = || program_alive(&self.map, &*self.side);
        wait_with(
            &self.spin,
            doorbell,
            Some(timeout),
            ready,
            ready_or_unsure,
            alive,
        )
    }

    fn nothing_left(&self) -> Event<'static> {
        if self.kicked.swap(false, Ordering::AcqRel) {
            Event::Idle
        } else {
            Event::Closed
        }
    }

    fn check_head(&self, head: u64) -> Result<(), WireError> {
        let layout = self.map.layout();
        if !head.wrapping_sub(self.tail).is_multiple_of(ALIGN) {
            return Err(self.malformed("the write position is not aligned"));
        }
        if head.wrapping_sub(self.tail) > layout.ring_bytes {
            return Err(self.malformed("the write position is ahead by more than the ring"));
        }
        Ok(())
    }

    fn header(&self, at: u64) -> Result<Header, WireError> {
        let layout = self.map.layout();
        let mut raw = [0; MESSAGE_HEADER as usize];
        self.map.read(layout.ring + at, &mut raw);
        let header = Header::decode(&raw);
        if header.kind != KIND_OP && header.kind != KIND_PAD {
            return Err(self.malformed("its kind is unknown"));
        }
        if header.number != self.number {
            return Err(self.malformed("its number is not the next"));
        }
        if header.kind == KIND_OP && header.span() > layout.longest_message() {
            return Err(self.malformed("it is longer than a message may be"));
        }
        let Some(ticket) = header.ticket() else {
            return Ok(header);
        };
        let staged = ticket.overflow.checked_add(u64::from(ticket.overflow_len));
        if u64::from(ticket.slot) >= layout.slot_count {
            return Err(self.malformed("its reply slot does not exist"));
        }
        if staged.is_none_or(|end| end > layout.staging_bytes) {
            return Err(self.malformed("its overflow range is outside the staging area"));
        }
        Ok(header)
    }

    /// Gives `bytes` of the ring back to the producers.
    fn advance(&mut self, bytes: u64) -> Result<(), WireError> {
        if bytes > self.seen.wrapping_sub(self.tail) {
            return Err(self.malformed("it is longer than what has been written"));
        }
        self.tail += bytes;
        self.map.word64(TAIL_AT).store(self.tail, Ordering::Release);
        wake_sleeper(self.map.word32(SPACE_AT), futex_wake);
        Ok(())
    }

    fn malformed(&self, why: &'static str) -> WireError {
        WireError::Malformed {
            what: "message",
            position: self.tail,
            why,
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.replier().close();
        wake_sleeper(self.map.word32(SPACE_AT), futex_wake);
    }
}

/// Tells how it is with the program.
#[derive(Debug, Clone)]
pub struct Presence {
    map: Arc<Mapping>,
    side: Arc<Side>,
}

impl Presence {
    /// Whether the program has said that it is there. One that comes back after a stop does so once it has everything
    /// that it shares with the worker.
    pub fn has_come(&self) -> bool {
        self.map.word32(PROGRAM_AT).load(Ordering::Acquire) == PEER_ATTACHED
    }

    /// Whether the program has died. One that has let go of its ring in good order has not: it may want to find done
    /// what it has asked for.
    pub fn has_died(&self) -> bool {
        let attached = self.map.word32(PROGRAM_AT).load(Ordering::Acquire) == PEER_ATTACHED;
        attached && program_alive(&self.map, &*self.side).is_err()
    }
}

/// Interrupts [`Consumer::next`], so that its thread looks at other things.
#[derive(Debug, Clone)]
pub struct Kicker {
    map: Arc<Mapping>,
    kicked: Arc<AtomicBool>,
}

impl Kicker {
    /// Makes the present or the next wait in [`Consumer::next`] return [`Event::Idle`] at once.
    pub fn kick(&self) {
        self.kicked.store(true, Ordering::Release);
        wake_sleeper(self.map.word32(DOORBELL_AT), futex_wake);
    }
}
