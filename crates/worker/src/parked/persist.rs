//! Saves the parked operations in the session, and parks them again in the next attachment, in this worker or another.

use fermata_abi::op::Op;
use fermata_state::Queued;
use fermata_wire::{Ticket, WireError};

use super::Parked;
use crate::lot::Lot;
use crate::server::Server;

impl Server {
    /// Parks the operations again that were parked when the program was detached.
    ///
    /// # Errors
    /// An operation's ticket is not one of the program's ring; all operations then stay in the session.
    pub(crate) fn requeue(&mut self) -> Result<(), WireError> {
        let queued = &self.site.session.queued;
        let mut tickets = queued.iter().filter_map(ticket);
        if !tickets.all(|ticket| self.replier.accepts(ticket)) {
            return Err(WireError::Malformed {
                what: "queued operation",
                position: 0,
                why: "its answer goes where the ring has no place",
            });
        }
        for it in std::mem::take(&mut self.site.session.queued) {
            // The operation was encoded by this process, or checked when the session was read.
            if let Ok(op) = postcard::from_bytes::<Op<'_>>(&it.operation) {
                self.expect_events(&op);
                let touches = self.touches_of(&op);
                let ticket = ticket(&it);
                let bytes = it.operation.into_vec();
                self.lot
                    .keep(touches, bytes.len(), Parked { bytes, ticket });
            }
        }
        Ok(())
    }

    /// Moves the parked operations into the session.
    pub(crate) fn keep_queue(&mut self) {
        let queued = self.lot.take_all().into_iter().map(|it| Queued {
            operation: it.bytes.into(),
            answer: it.ticket.map(Ticket::parts),
        });
        self.site.session.queued = queued.collect();
    }

    /// Drops the parked operations of a program that has ended.
    pub(crate) fn abandon_parked(&mut self) {
        self.lot = Lot::default();
    }
}

fn ticket(queued: &Queued) -> Option<Ticket> {
    queued.answer.map(Ticket::from_parts)
}
