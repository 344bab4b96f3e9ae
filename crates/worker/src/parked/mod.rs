//! Parks operations in the worker, so that the driver never blocks the decode loop, and the device never has more work
//! than a checkpoint may wait for.
//!
//! A driver call that adds work to a full stream blocks until the stream has room. It would block the loop, and with it
//! every thread of the program, including the one whose launch would let that stream go on. So the operations of a full
//! stream are parked, in order, and operations of other streams pass them:
//!
//! ```text
//!   ring ─► execute ──┬─ stream full, or depends on a parked one ─► parked, in order
//!                     └─ else ─► driver                              │ stream has room again
//!                          ▲                                         │
//!                          └─────────────────────────────────────────┘
//! ```
//! These depend on a parked operation: work of the same stream; work of the default stream and, behind it, of the
//! context's other streams; an operation on an event, a function or a graph that the parked one changes; a launch of a graph
//! whose nodes record or wait for such an event; calls that wait for a context, or that destroy something which parked work
//! may use. A query is not parked: it is answered with "not ready".
//!
//! At most [`MOST`] bytes are parked. At the limit, nothing is taken off the ring until some have been issued.
//!
//! Before a stop ([`Hold`]) every stream counts as full. The operations parked then are part of the image (`persist`),
//! and are issued in the next attachment; so are allocations that wait for memory.

mod graphs;
mod operation;
mod persist;

use std::time::Duration;

use fermata_abi::op::{Op, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_wire::Ticket;

pub(crate) use operation::{Hold, Parked};

use crate::errors::{OpError, reports, stream_changed};
use crate::queues::Work;
use crate::server::Server;
use crate::touches::{Scope, Touches};
use crate::waiting::{Then, Waiting};

/// The most bytes of encoded operations that may be parked: more than half a million launches.
const MOST: usize = 64 << 20;

impl Server {
    /// Parks `op` if it has to wait for a stream's queue. True if it has been parked, or answered.
    #[inline]
    pub(crate) fn holds_back(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let concerned = !self.lot.is_empty()
            || self.hold != Hold::Off
            || stream_changed(op, &self.site.session)
                .is_some_and(|it| !self.queues.fits(it, Work::of(op)));
        concerned && self.park_if_needed(op, ticket)
    }

    fn park_if_needed(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        if self.hold != Hold::Off {
            self.note_message(op);
        }
        // Parked operations stay parked when the program stops.
        if matches!(op, Op::Drain) && self.hold.is_whole() {
            return false;
        }
        let touches = self.touches_of(op);
        if !self.lot.holds(&touches) && !self.is_full_for(&touches) {
            return false;
        }
        if matches!(
            op,
            Op::StreamQuery { .. } | Op::EventQuery { .. } | Op::EventElapsed { .. }
        ) {
            let text = "what it asks for has not been issued to the device yet";
            let error = OpError::new(cu::CUDA_ERROR_NOT_READY, text);
            self.answer(ticket, None, reports(op), Err(error));
            return true;
        }
        self.park(op, ticket, touches)
    }

    /// Parks an operation; false if it cannot be.
    fn park(&mut self, op: &Op<'_>, ticket: Option<Ticket>, touches: Touches) -> bool {
        // An operation that was decoded can be encoded.
        let Ok(bytes) = postcard::to_stdvec(op) else {
            return false;
        };
        self.expect_events(op);
        if let Some(tally) = &self.tally {
            tally.add("parked", Duration::ZERO);
        }
        let size = bytes.len();
        self.lot.keep(touches, size, Parked { bytes, ticket });
        true
    }

    /// Parks an allocation behind the parked operations that free memory; false if there are none.
    pub(crate) fn park_until_freed(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let scope = Scope::Frees;
        let touches = Touches {
            scope,
            ..Touches::of(op, &self.site.session)
        };
        self.lot.frees() && self.park(op, ticket, touches)
    }

    /// Parks the allocations that wait for memory, before a stop: a capture may have set that memory aside until after the
    /// stop, which would wait for them.
    pub(crate) fn park_allocations(&mut self) {
        let allocates = |it: &mut Waiting| matches!(it.then, Then::Allocate { .. });
        let waiting: Vec<_> = self.waiting.extract_if(.., allocates).collect();
        for it in waiting {
            if let Then::Allocate { context, size } = it.then {
                let op = Op::MemAlloc { context, size };
                let touches = Touches::of(&op, &self.site.session);
                self.park(&op, it.ticket, touches);
            }
        }
    }

    /// Whether an operation adds work to a stream that is full or held.
    fn is_full_for(&mut self, touches: &Touches) -> bool {
        let stream = touches.stream.filter(|_| touches.adds);
        stream.is_some_and(|stream| self.hold.holds(stream) || self.is_full(stream, touches.work))
    }

    /// Whether a stream is too full for this work, after a look at its events.
    fn is_full(&mut self, stream: StreamRef, work: Work) -> bool {
        while !self.queues.fits(stream, work) {
            if !self.pass_pace(stream) {
                // Without a pace the context is dead or dying, or a pace is due soon.
                return self.queues.pace(stream).is_some();
            }
        }
        false
    }

    /// Queries the oldest pace of a stream; true if there is one that has completed.
    pub(crate) fn pass_pace(&mut self, stream: StreamRef) -> bool {
        let Some(pace) = self.queues.pace(stream) else {
            return false;
        };
        let live = &mut self.site.live;
        let asked = live
            .enter(stream.context)
            .and_then(|_| live.driver.query_event(pace));
        match asked {
            Err(error) if error.code == cu::CUDA_ERROR_NOT_READY => {
                self.queues.waits(stream);
                return false;
            }
            // The operation itself reports a failure.
            _ => self.events.put(stream.context, pace),
        }
        self.queues.pass(stream);
        true
    }

    /// Issues the parked operations that are ready; true if there were any.
    pub(crate) fn unpark(&mut self) -> bool {
        if self.lot.is_empty() || self.hold.is_whole() || !self.has_come() {
            return false;
        }
        let begun = self.clock();
        let mut progress = false;
        while self.issue_ready() {
            progress = true;
        }
        self.count("unpark", begun);
        progress
    }

    /// Goes once over the first operation of each stream, and those without a stream.
    fn issue_ready(&mut self) -> bool {
        let mut progress = false;
        // An allocation that still finds no memory is parked again, and waits for the next round.
        for _ in 0..self.lot.aside() {
            let Some(parked) = self.lot.take_aside() else {
                break;
            };
            progress = true;
            self.issue(&parked);
        }
        for stream in self.lot.streams() {
            while let Some(touches) = self.lot.first_ready(stream) {
                if self.is_full_for(&touches) {
                    break;
                }
                let Some(parked) = self.lot.take_first(stream) else {
                    break;
                };
                progress = true;
                self.issue(&parked);
            }
        }
        progress
    }

    fn issue(&mut self, parked: &Parked) {
        match postcard::from_bytes::<Op<'_>>(&parked.bytes) {
            Ok(op) => self.perform(&op, parked.ticket),
            // Cannot happen: the operation was encoded here, or checked when the session was read.
            Err(error) => self.answer(parked.ticket, None, false, Err(error.into())),
        }
    }

    /// Counts work issued to a stream, and records a pace if one is due.
    pub(crate) fn keep_pace(&mut self, stream: StreamRef, weight: u64) {
        self.note_meeting(stream);
        if self.queues.issue(stream, weight, self.work) {
            let event = self.record_mark(stream).ok();
            self.queues.paced(stream, event);
        }
        for (context, event) in self.queues.take_spent() {
            self.events.put(context, event);
        }
    }

    /// Whether no more may be parked.
    pub(crate) fn is_lot_full(&self) -> bool {
        self.lot.bytes() >= MOST
    }
}
