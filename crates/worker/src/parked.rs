//! Operations that wait in the worker, so that the driver never makes the decode loop wait.
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

use std::time::{Duration, Instant};

use fermata_abi::op::{Op, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_wire::Ticket;

use crate::errors::{OpError, reports, stream_changed};
use crate::lot::Lot;
use crate::serve::Server;
use crate::touches::Touches;

/// Bytes of encoded operations that may be parked: half a million launches and more.
const MOST: usize = 64 << 20;

/// An operation that waits.
pub(crate) struct Waiting {
    bytes: Vec<u8>,
    ticket: Option<Ticket>,
}

impl Server {
    /// Parks `op` if it has to wait for a stream's queue; whether that is so, or it has been answered.
    #[inline]
    pub(crate) fn holds_back(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let concerned = !self.lot.is_empty()
            || stream_changed(op, &self.site.session).is_some_and(|it| self.queues.is_deep(it));
        concerned && self.park_if_needed(op, ticket)
    }

    fn park_if_needed(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let touches = Touches::of(op, &self.site.session);
        let full = |server: &mut Self| {
            let stream = touches.stream.filter(|_| touches.adds);
            stream.is_some_and(|stream| server.is_full(stream))
        };
        if !self.lot.holds(&touches) && !full(self) {
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
        // What can be decoded can be encoded.
        let Ok(bytes) = postcard::to_stdvec(op) else {
            return false;
        };
        if let Some(tally) = &self.tally {
            tally.add("parked", Duration::ZERO);
        }
        let size = bytes.len();
        self.lot.keep(touches, size, Waiting { bytes, ticket });
        true
    }

    /// Whether a stream may hold no more, as the driver says now.
    fn is_full(&mut self, stream: StreamRef) -> bool {
        while self.queues.is_deep(stream) {
            let Some(pace) = self.queues.pace(stream) else {
                // No pace could be recorded: the context is dead, or nearly so.
                return false;
            };
            let live = &mut self.site.live;
            let asked = live
                .enter(stream.context)
                .and_then(|_| live.driver.query_event(pace));
            match asked {
                Err(error) if error.code == cu::CUDA_ERROR_NOT_READY => return true,
                // Of a failure the operation itself learns.
                _ => self.events.put(stream.context, pace),
            }
            self.queues.pass(stream);
        }
        false
    }

    /// Issues what does not have to wait any more; whether that was anything.
    pub(crate) fn unpark(&mut self) -> bool {
        if self.lot.is_empty() {
            return false;
        }
        let begun = self.tally.as_ref().map(|_| Instant::now());
        let mut progress = false;
        while self.issue_ready() {
            progress = true;
        }
        if let (Some(tally), Some(begun)) = (&self.tally, begun) {
            tally.add("unpark", begun.elapsed());
        }
        progress
    }

    /// Goes once over what is first in each stream, and what is in none.
    fn issue_ready(&mut self) -> bool {
        let mut progress = false;
        while let Some(waiting) = self.lot.take_aside() {
            progress = true;
            self.perform_parked(&waiting);
        }
        for stream in self.lot.streams() {
            while let Some(adds) = self.lot.first_ready(stream) {
                if adds && self.is_full(stream) {
                    break;
                }
                let Some(waiting) = self.lot.take_first(stream) else {
                    break;
                };
                progress = true;
                self.perform_parked(&waiting);
            }
        }
        progress
    }

    fn perform_parked(&mut self, waiting: &Waiting) {
        match postcard::from_bytes::<Op<'_>>(&waiting.bytes) {
            Ok(op) => self.perform(&op, waiting.ticket),
            // It was encoded here.
            Err(error) => self.answer(waiting.ticket, None, false, Err(error.into())),
        }
    }

    /// Records how far a stream is, where it is time to.
    pub(crate) fn keep_pace(&mut self, stream: StreamRef, weight: u64) {
        if self.queues.issue(stream, weight) {
            let event = self.record_mark(stream).ok();
            self.queues.paced(stream, event);
        }
    }

    /// Whether no more may be parked.
    pub(crate) fn is_lot_full(&self) -> bool {
        self.lot.bytes() >= MOST
    }

    /// Drops what is parked: nobody waits for it any more.
    pub(crate) fn abandon_parked(&mut self) {
        self.lot = Lot::default();
    }
}
