//! Where work for a stream goes: into its queue, or into the graph it is being captured into.
use std::sync::Arc;

use fermata_graph::NodeKind;

use crate::event::Event;
use crate::driver;
use crate::error::Result;
use crate::stream::Stream;
use crate::work::Work;

/// Refuses calls that a capture in progress does not allow.
///
/// # Errors
/// The calling thread may not make such calls now.
pub fn forbid_unsafe() -> Result {
    Ok(())
}

/// Submits a node's work.
///
/// # Errors
/// What it names does not exist or does not fit, or the context is dead.
pub fn submit(stream: &Arc<Stream>, kind: NodeKind) -> Result {
    stream.context.check()?;
    let work = Work::build(driver::get()?, &stream.context, &kind)?;
    stream.submit(work).map(drop)
}

/// Whether the stream is being captured.
pub fn is_capturing(_stream: &Stream) -> bool {
    false
}

/// Refuses what a stream that is being captured cannot do.
///
/// # Errors
/// It is being captured.
pub fn forbid_on(_stream: &Stream) -> Result {
    Ok(())
}

/// Refuses work whose order with a captured stream could not be kept.
///
/// # Errors
/// There is such a stream.
pub fn forbid_implicit(_stream: &Stream) -> Result {
    Ok(())
}

/// Refuses to look at an event that stands for a place in a graph.
///
/// # Errors
/// It does.
pub fn forbid_captured(_event: &Event) -> Result {
    Ok(())
}

/// A stream that is being captured goes away.
pub fn abandon(_stream: &Stream) {}

/// Records an event.
///
/// # Errors
/// The context is dead.
pub fn record_event(stream: &Arc<Stream>, event: &Event, _flags: u32) -> Result {
    stream.submit(Work::Record(event.begin())).map(drop)
}

/// Makes a stream wait for an event.
///
/// # Errors
/// The context is dead.
pub fn wait_event(stream: &Arc<Stream>, event: &Event, _flags: u32) -> Result {
    match event.mark() {
        Some(mark) => stream.submit(Work::Wait(mark)).map(drop),
        None => Ok(()),
    }
}
