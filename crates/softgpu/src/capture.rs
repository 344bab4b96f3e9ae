//! Stream capture: adds work for a stream to its queue, or to the graph it is being captured into.
//!
//! The rules are those of `fermata_graph::capture`; here streams, events and threads get their numbers.

use fermata_abi::op::{ContextId, EventId, GraphId, StreamId};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::sys::driver as cu;
use fermata_graph::capture::CaptureInfo;
use fermata_graph::{
    CaptureError, CaptureMode, CaptureStatus, Captures, EdgeData, Graph, NodeId, NodeKind,
    StreamKey, Waited,
};
use parking_lot::Mutex;

use crate::driver::{self, Driver};
use crate::error::{CuError, INVALID_VALUE, Result};
use crate::event::Event;
use crate::graph::GraphObject;
use crate::module::Function;
use crate::stream::{Stream, StreamKind};
use crate::work::Work;

/// The captures of this process.
static CAPTURES: Mutex<Option<Captures>> = Mutex::new(None);
/// Graphs made for captures, which go away when these fail.
static MADE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

thread_local! {
    /// What the thread has asked for with `cuThreadExchangeStreamCaptureMode`.
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// A number for the calling thread.
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

fn refused(error: CaptureError) -> CuError {
    CuError(error.code())
}

fn key(stream: &Stream) -> StreamKey {
    StreamKey {
        id: StreamId::from_raw(stream.id),
        context: ContextId::from_raw(stream.context.id),
        blocking: stream.kind != StreamKind::NonBlocking,
    }
}

/// Applies a rule, if anything has ever been captured.
fn rule<T>(
    otherwise: T,
    apply: impl FnOnce(&mut Captures) -> Result<T, CaptureError>,
) -> Result<T> {
    match &mut *CAPTURES.lock() {
        Some(captures) if !captures.is_idle() => apply(captures).map_err(refused),
        _ => Ok(otherwise),
    }
}

/// CUDA's number as a mode.
///
/// # Errors
/// It is none.
pub fn mode(number: cu::CUstreamCaptureMode) -> Result<CaptureMode> {
    match number {
        cu::CU_STREAM_CAPTURE_MODE_GLOBAL => Ok(CaptureMode::Global),
        cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => Ok(CaptureMode::ThreadLocal),
        cu::CU_STREAM_CAPTURE_MODE_RELAXED => Ok(CaptureMode::Relaxed),
        _ => Err(INVALID_VALUE),
    }
}

/// Sets the calling thread's mode and returns the one before.
pub fn exchange_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}

/// Refuses potentially unsafe calls that a capture in progress does not allow.
///
/// # Errors
/// The calling thread may not make such calls now.
pub fn forbid_unsafe() -> Result {
    rule((), |captures| captures.forbid_unsafe(thread(), MODE.get()))
}

/// Refuses what a stream that is being captured cannot do, and the legacy default stream while a stream
/// that is ordered with it is being captured.
///
/// # Errors
/// It is so; the capture is invalid now.
pub fn forbid_on(stream: &Stream) -> Result {
    rule((), |captures| {
        captures.forbid_on(StreamId::from_raw(stream.id))?;
        match stream.kind {
            StreamKind::Legacy => captures.forbid_implicit(ContextId::from_raw(stream.context.id)),
            _ => Ok(()),
        }
    })
}

/// Refuses a launch that no stream takes while it is being captured.
///
/// # Errors
/// The stream is being captured; the capture is invalid now.
pub fn forbid_launch_on(stream: &Stream) -> Result {
    let id = StreamId::from_raw(stream.id);
    let refused = rule(false, |captures| {
        let active = captures.status(id) == CaptureStatus::Active;
        captures.invalidate(id);
        Ok(active)
    })?;
    if refused { Err(INVALID_VALUE) } else { Ok(()) }
}

/// Refuses a query of an event that is recorded in a capture.
///
/// # Errors
/// It does.
pub fn forbid_captured(event: &Event) -> Result {
    rule((), |captures| {
        captures.forbid_captured(EventId::from_raw(event.handle))
    })
}

/// Whether the stream is being captured, even if that has failed.
pub fn is_capturing(stream: &Stream) -> bool {
    status(stream) != CaptureStatus::None
}

/// How the stream stands.
pub fn status(stream: &Stream) -> CaptureStatus {
    CAPTURES
        .lock()
        .as_ref()
        .map_or(CaptureStatus::None, |captures| {
            captures.status(StreamId::from_raw(stream.id))
        })
}

/// How the stream stands, for the program.
///
/// # Errors
/// It is the legacy default stream, and a stream that is ordered with it is being captured; that capture stays valid.
pub fn query(stream: &Stream) -> Result<CaptureStatus> {
    let context = ContextId::from_raw(stream.context.id);
    if stream.kind == StreamKind::Legacy
        && rule(false, |captures| Ok(captures.is_implicit(context)))?
    {
        return Err(refused(CaptureError::Implicit));
    }
    Ok(status(stream))
}

/// The capture that the stream takes part in.
///
/// # Errors
/// It has failed, or there is none.
pub fn info(stream: &Stream) -> Result<CaptureInfo> {
    let captures = CAPTURES.lock();
    let captures = captures
        .as_ref()
        .ok_or(refused(CaptureError::NotCapturing))?;
    captures
        .info(StreamId::from_raw(stream.id))
        .map_err(refused)
}

/// Begins to capture a stream into a new graph.
///
/// # Errors
/// The stream cannot be captured, or is already.
pub fn begin_new(driver: &Driver, stream: &Stream, mode: CaptureMode) -> Result {
    let graph = GraphObject::create(driver, Graph::new());
    if let Err(error) = begin(stream, mode, &graph, &[]) {
        graph.destroy(driver)?;
        return Err(error);
    }
    MADE.lock().insert(graph.handle);
    Ok(())
}

/// Begins to capture a stream into a graph.
///
/// # Errors
/// The stream cannot be captured, or is already.
pub fn begin(stream: &Stream, mode: CaptureMode, graph: &GraphObject, after: &[NodeId]) -> Result {
    if stream.kind == StreamKind::Legacy {
        return Err(refused(CaptureError::Unsupported));
    }
    let mut captures = CAPTURES.lock();
    let captures = captures.get_or_insert_default();
    captures
        .begin(
            key(stream),
            mode,
            thread(),
            GraphId::from_raw(graph.handle),
            after,
        )
        .map(drop)
        .map_err(refused)
}

/// Ends the capture begun in a stream and gives the graph captured into.
///
/// # Errors
/// The stream is not one in which a capture was begun by this thread, or the capture has failed; a graph
/// that was made for it is gone then.
pub fn end(driver: &Driver, stream: &Stream) -> Result<Arc<GraphObject>> {
    let mut all = CAPTURES.lock();
    let captures = all.as_mut().ok_or(refused(CaptureError::NotCapturing))?;
    let handle = captures
        .graph_of(StreamId::from_raw(stream.id))
        .ok_or(refused(CaptureError::NotCapturing))?;
    let object = driver.graphs().get(handle.raw()).ok_or(INVALID_VALUE)?;
    let graph = object.with(|graph| Ok(graph.clone()))?;
    let ended = captures.end(StreamId::from_raw(stream.id), thread(), &graph);
    if matches!(
        ended,
        Err(CaptureError::Unmatched | CaptureError::WrongThread)
    ) {
        return ended.map(|_| object).map_err(refused);
    }
    let made = MADE.lock().remove(&handle.raw());
    // The end of a graph may call the program, so it happens without the lock.
    drop(all);
    if ended.is_err() && made {
        object.destroy(driver)?;
    }
    ended.map(|_| object).map_err(refused)
}

/// Changes what the stream's next node depends on.
///
/// # Errors
/// It is not being captured.
pub fn set_dependencies(stream: &Stream, nodes: &[NodeId], replace: bool) -> Result {
    let mut captures = CAPTURES.lock();
    let captures = captures
        .as_mut()
        .ok_or(refused(CaptureError::NotCapturing))?;
    captures
        .set_dependencies(StreamId::from_raw(stream.id), nodes, replace)
        .map_err(refused)
}

/// A stream goes away, and with it a capture that was begun in it and the graph that was made for that.
pub fn abandon(driver: &Driver, stream: &Stream) {
    let id = StreamId::from_raw(stream.id);
    let made = CAPTURES.lock().as_mut().and_then(|captures| {
        let graph = captures.graph_of(id)?.raw();
        captures.remove_stream(id);
        // A capture that was begun in another stream goes on.
        let over = captures.graph_of(id).is_none();
        (over && MADE.lock().remove(&graph)).then_some(graph)
    });
    if let Some(graph) = made.and_then(|graph| driver.graphs().get(graph)) {
        // No graph inside another is made for a capture.
        let _ = graph.destroy(driver);
    }
}

/// An event goes away.
pub fn forget_event(event: u64) {
    if let Some(captures) = &mut *CAPTURES.lock() {
        captures.remove_event(EventId::from_raw(event));
    }
}

/// Notes in which green context a kernel runs that is launched in a stream.
fn place(driver: &Driver, stream: &Stream, kind: &mut NodeKind) -> Result {
    if let (Some(green), NodeKind::Kernel(node)) = (&stream.green, kind) {
        let function = Function::resolve(driver, node.function.raw())?;
        if function.module.context.id == stream.context.id {
            node.context = ContextId::from_raw(green.converted);
        }
    }
    Ok(())
}

/// Submits a node's work.
///
/// # Errors
/// What it names does not exist or does not fit, the context is dead, or a capture does not allow it.
pub fn submit(stream: &Arc<Stream>, mut kind: NodeKind) -> Result {
    stream.context.check()?;
    let driver = driver::get()?;
    place(driver, stream, &mut kind)?;
    if is_capturing(stream) {
        Work::check(driver, &stream.context, &kind)?;
        return add_node(driver, stream, kind);
    }
    forbid_on(stream)?;
    stream
        .submit(Work::build(driver, &stream.context, &kind)?)
        .map(drop)
}

/// Adds a node to the graph that a stream is captured into.
fn add_node(driver: &Driver, stream: &Stream, kind: NodeKind) -> Result {
    let info = info(stream)?;
    let graph = GraphObject::resolve(driver, info.graph.raw())?;
    let after: Vec<_> = info
        .dependencies
        .iter()
        .map(|node| (*node, EdgeData::default()))
        .collect();
    let node = graph.with_mut(|graph| graph.add(kind, &after))?;
    if let Some(captures) = &mut *CAPTURES.lock() {
        captures.advance(StreamId::from_raw(stream.id), node);
    }
    Ok(())
}

/// Records an event: in the queue, or as a place in the graph.
///
/// # Errors
/// The context is dead, or the stream's capture has failed.
pub fn record_event(stream: &Arc<Stream>, event: &Event, flags: u32) -> Result {
    if flags & cu::CU_EVENT_RECORD_EXTERNAL != 0 && is_capturing(stream) {
        return add_node(
            driver::get()?,
            stream,
            NodeKind::EventRecord(EventId::from_raw(event.handle)),
        );
    }
    if rule(false, |captures| {
        captures.record(
            StreamId::from_raw(stream.id),
            EventId::from_raw(event.handle),
        )
    })? {
        return Ok(());
    }
    forbid_on(stream)?;
    // A stream that waited for the recording before it is queued would wait for ever.
    let make = || Work::Record(event.begin());
    stream.submit_made(Vec::new(), make).map(drop)
}

/// Makes a stream wait for an event: in the queue, or by taking part in the event's capture.
///
/// # Errors
/// The context is dead, or captures and other work would be mixed.
pub fn wait_event(stream: &Arc<Stream>, event: &Event, flags: u32) -> Result {
    if flags & cu::CU_EVENT_WAIT_EXTERNAL != 0 && is_capturing(stream) {
        return add_node(
            driver::get()?,
            stream,
            NodeKind::EventWait(EventId::from_raw(event.handle)),
        );
    }
    let recorded = event.mark().is_some();
    let waited = rule(Waited::Outside, |captures| {
        if stream.kind == StreamKind::Legacy
            && captures.is_captured(EventId::from_raw(event.handle))
        {
            captures.invalidate_event(EventId::from_raw(event.handle));
            return Err(CaptureError::Implicit);
        }
        captures.wait(key(stream), EventId::from_raw(event.handle), recorded)
    })?;
    if waited == Waited::Captured {
        return Ok(());
    }
    forbid_on(stream)?;
    match event.mark() {
        Some(mark) => stream.submit(Work::Wait(mark)).map(drop),
        None => Ok(()),
    }
}
