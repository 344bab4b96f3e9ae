//! Operations that wait in the worker, so that the driver never makes the decode loop wait, and the device never has
//! more work than a checkpoint may wait for.
//!
//! A call of the driver that adds work to a stream whose queue is full waits until there is room. The loop
//! would wait with it, and with the loop every thread of the program: also the one whose launch would let that
//! stream go on. So the operations of a full stream wait here, in order, and the others pass them:
//!
//! ```text
//!   ring ─► execute ──┬─ stream full, or behind what is parked ─► parked, in order
//!                     └─ else ─► driver                              │ stream has room again
//!                          ▲                                         │
//!                          └─────────────────────────────────────────┘
//! ```
//! What is behind what is parked: work of the same stream; the default stream's and, behind it, that of the
//! context's other streams; whatever touches an event, a function or a graph that a parked operation changes;
//! calls that wait for a context, or that give something up which parked work may use. A query is not parked:
//! its answer is that the work is not done.
//!
//! At most [`MOST`] bytes are parked. When there are more, nothing is taken off the ring until some have gone.
//!
//! While a stop is coming ([`Hold`]) every stream counts as full: what is parked then is part of the image
//! (`persist`), and goes on with the next attachment.

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

/// Bytes of encoded operations that may be parked: half a million launches and more.
const MOST: usize = 64 << 20;

impl Server {
    /// Parks `op` if it has to wait for a stream's queue; whether that is so, or it has been answered.
    #[inline]
    pub(crate) fn holds_back(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let concerned = !self.lot.is_empty()
            || self.hold != Hold::Off
            || stream_changed(op, &self.site.session)
                .is_some_and(|it| !self.queues.fits(it, Work::of(op)));
        concerned && self.park_if_needed(op, ticket)
    }

    fn park_if_needed(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        // What is parked stays where it is when the program stops.
        if matches!(op, Op::Drain) && self.hold.is_whole() {
            return false;
        }
        let touches = Touches::of(op, &self.site.session);
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
        // What can be decoded can be encoded.
        let Ok(bytes) = postcard::to_stdvec(op) else {
            return false;
        };
        if let Some(tally) = &self.tally {
            tally.add("parked", Duration::ZERO);
        }
        let size = bytes.len();
        self.lot.keep(touches, size, Parked { bytes, ticket });
        true
    }

    /// Parks an allocation until what is freed by operations that are parked now is free; false if there is none.
    pub(crate) fn park_until_freed(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let scope = Scope::Frees;
        let touches = Touches {
            scope,
            ..Touches::of(op, &self.site.session)
        };
        self.lot.frees() && self.park(op, ticket, touches)
    }

    /// Whether an operation adds to a stream that gets nothing for now.
    fn is_full_for(&mut self, touches: &Touches) -> bool {
        let stream = touches.stream.filter(|_| touches.adds);
        stream.is_some_and(|stream| self.hold.holds(stream) || self.is_full(stream, touches.work))
    }

    /// Whether a stream may not get this work now, as the driver says.
    fn is_full(&mut self, stream: StreamRef, work: Work) -> bool {
        while !self.queues.fits(stream, work) {
            if !self.pass_pace(stream) {
                // Without a pace the context is dead, or nearly so, or one is due soon.
                return self.queues.pace(stream).is_some();
            }
        }
        false
    }

    /// Looks at the oldest pace of a stream; whether there is one, and it has completed.
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
            // Of a failure the operation itself learns.
            _ => self.events.put(stream.context, pace),
        }
        self.queues.pass(stream);
        true
    }

    /// Issues what does not have to wait any more; whether that was anything.
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

    /// Goes once over what is first in each stream, and what is in none.
    fn issue_ready(&mut self) -> bool {
        let mut progress = false;
        // One that is parked again, for it still finds no memory, waits for the next round.
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
            // It was encoded here, or checked when the session was read.
            Err(error) => self.answer(parked.ticket, None, false, Err(error.into())),
        }
    }

    /// Records how far a stream is, where it is time to, and that its step is done.
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
