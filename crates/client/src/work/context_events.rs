//! Events for all work of a context: recorded behind it, and waited for by it.
//!
//! ```text
//!   record:  each stream ── own event ──► stream for this call ── the event      wait:  the event ──► each stream
//!                                                                                            └──► gate ──► later streams
//! ```
//! The worker sees streams and events as of any other call, so nothing here has to be restored in a way of its own.

use fermata_abi::op::{EventId, Op, StreamRef};
use fermata_abi::sys::driver as sys;
use fermata_graph::CaptureError;

use crate::link::fault;
use crate::object::context::Context;
use crate::object::event::Event;
use crate::object::graphs::any_capture;
use crate::object::session::Session;
use crate::object::stream::Aside;
use crate::result::Result;

/// Records an event behind all work that the context has been given: for a primary context, that of its green contexts, too.
pub fn record(session: &Session, context: &Context, event: sys::CUevent) -> Result {
    let event = session.events.get(event)?;
    if event.context.handle != context.handle {
        return Err(sys::CUDA_ERROR_INVALID_HANDLE);
    }
    forbid_captures(session, context)?;
    fault::check(context.handle)?;
    session.streams.with_those_of(context, |streams| {
        let behind = Aside::create(context)?;
        for stream in streams {
            behind.wait_for(context, stream)?;
        }
        event.note_recorded();
        event.send(&Op::EventRecord {
            event: event.handle,
            stream: behind.reference(),
            flags: 0,
        })?;
        behind.destroy()
    })
}

/// Makes all later work of the context wait for an event: for a primary context, that of its green contexts, too.
pub fn wait(session: &Session, context: &Context, event: sys::CUevent) -> Result {
    let event = session.events.get(event)?;
    forbid_captures(session, context)?;
    forbid_captured(session, event.handle)?;
    fault::check(context.handle)?;
    session.streams.with_those_of(context, |streams| {
        // A stream that another thread creates meanwhile becomes known after this, and then waits for the gate.
        let make = || Ok(Aside::create(context)?.reference());
        let gate = context.gate(make)?;
        let mut all = streams.into_iter().chain([gate]);
        all.try_for_each(|stream| wait_in(&event, stream))
    })
}

fn wait_in(event: &Event, stream: StreamRef) -> Result {
    event.send(&Op::StreamWait {
        stream,
        event: event.handle,
        flags: 0,
    })
}

/// Refuses a context of which streams are being captured; their captures fail by that.
fn forbid_captures(session: &Session, context: &Context) -> Result {
    if !any_capture() {
        return Ok(());
    }
    // Not under their lock, which threads may ask for that have the graphs'.
    let streams = session.streams.with_those_of(context, |streams| streams);
    let mut graphs = session.graphs.lock();
    let forbid = |stream: &StreamRef| graphs.captures.forbid_on(stream.stream);
    let all: Vec<_> = streams.iter().map(forbid).collect();
    let first = all.into_iter().find_map(|it| it.err());
    first.map_or(Ok(()), |error: CaptureError| Err(error.code()))
}

/// Refuses an event that is recorded in a capture, which fails by that.
fn forbid_captured(session: &Session, event: EventId) -> Result {
    if !any_capture() {
        return Ok(());
    }
    let mut graphs = session.graphs.lock();
    if !graphs.captures.is_captured(event) {
        return Ok(());
    }
    graphs.captures.invalidate_event(event);
    Err(sys::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}
