//! Stream capture: adds work for a captured stream as nodes to the capture's graph.

use std::cell::Cell;

use fermata_abi::op::{EventId, GraphId};
use fermata_abi::sys::driver as sys;
use fermata_graph::{
    CaptureError, CaptureMode, CaptureStatus, EdgeData, Graph, NodeId, NodeKind, StreamKey, Waited,
};

use crate::link::fault;
use crate::object::graphs::{any_capture, refused};
use crate::object::session::Session;
use crate::object::stream::{self, Stream};
use crate::result::Result;
use crate::thread::gate::gettid;

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// A dependency without ports.
pub const PLAIN: EdgeData = EdgeData {
    from_port: 0,
    to_port: 0,
    kind: 0,
};

/// A dependency on the point where every block of a kernel has let the next one begin, or has ended.
const PROGRAMMATIC: EdgeData = EdgeData {
    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
    to_port: 0,
    kind: sys::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
};

fn is_kernel(graph: &Graph, node: NodeId) -> bool {
    let node = graph.node(node);
    node.is_ok_and(|it| matches!(it.kind, NodeKind::Kernel(_)))
}

/// If the stream is being captured, adds the work as a node and returns true.
///
/// # Errors
/// The capture has failed, or the work cannot be captured.
#[inline]
pub fn add(
    session: &Session,
    stream: sys::CUstream,
    kind: impl FnOnce() -> Result<NodeKind>,
) -> Result<bool> {
    add_after(session, stream, false, kind)
}

/// As [`add`]; a kernel that may begin `early` does not wait for all of the kernel in front of it (CUDA C++
/// Programming Guide, programmatic dependent launch in graphs).
#[inline]
pub fn add_after(
    session: &Session,
    stream: sys::CUstream,
    early: bool,
    kind: impl FnOnce() -> Result<NodeKind>,
) -> Result<bool> {
    if any_capture() {
        add_node(session, stream, early, kind).map(|node| node.is_some())
    } else {
        Ok(false)
    }
}

/// As [`add`], but returns the graph and the node.
pub fn add_named(
    session: &Session,
    stream: sys::CUstream,
    kind: impl FnOnce() -> Result<NodeKind>,
) -> Result<Option<(GraphId, NodeId)>> {
    if any_capture() {
        add_node(session, stream, false, kind)
    } else {
        Ok(None)
    }
}

#[cold]
fn add_node(
    session: &Session,
    stream: sys::CUstream,
    early: bool,
    kind: impl FnOnce() -> Result<NodeKind>,
) -> Result<Option<(GraphId, NodeId)>> {
    let Some(key) = captured(session, stream)? else {
        return Ok(None);
    };
    let mut kind = kind().inspect_err(|_| session.graphs.lock().captures.invalidate(key.id))?;
    // The kernel runs on the multiprocessors of the stream that was captured, wherever the graph is launched.
    if let NodeKind::Kernel(kernel) = &mut kind
        && let Some(stream) = session.streams.get(stream)?
        && stream.context.green.is_some()
    {
        kernel.context = stream.context.name();
    }
    let mut graphs = session.graphs.lock();
    let info = graphs.captures.info(key.id).map_err(CaptureError::code)?;
    let graph = graphs.graph_mut(info.graph)?;
    let after: Vec<_> = match info.dependencies[..] {
        [only] if early && is_kernel(graph, only) => vec![(only, PROGRAMMATIC)],
        ref all => all.iter().map(|node| (*node, PLAIN)).collect(),
    };
    let node = graph.add(kind, &after).map_err(refused)?;
    graphs.captures.advance(key.id, node);
    Ok(Some((info.graph, node)))
}

/// The key of a stream that is being captured. Work for a legacy stream that would have to be ordered
/// with a captured one is refused.
fn captured(session: &Session, stream: sys::CUstream) -> Result<Option<StreamKey>> {
    let Some(stream) = session.streams.get(stream)? else {
        let context = crate::object::context::current()?.handle;
        session
            .graphs
            .lock()
            .captures
            .forbid_implicit(context)
            .map_err(CaptureError::code)?;
        return Ok(None);
    };
    let key = key(&stream);
    match session.graphs.lock().captures.status(key.id) {
        CaptureStatus::None => Ok(None),
        CaptureStatus::Active => Ok(Some(key)),
        CaptureStatus::Invalidated => Err(sys::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    }
}

/// A stream as captures see it.
pub fn key(stream: &Stream) -> StreamKey {
    let blocking = stream.flags & sys::CU_STREAM_NON_BLOCKING == 0;
    StreamKey {
        id: stream.handle,
        context: stream.context.handle,
        blocking,
    }
}

/// Records an event in a capture; false if the stream is not being captured.
pub fn record(session: &Session, stream: sys::CUstream, event: EventId) -> Result<bool> {
    if !any_capture() {
        return Ok(false);
    }
    match session.streams.get(stream)? {
        Some(stream) => {
            let mut graphs = session.graphs.lock();
            graphs
                .captures
                .record(stream.handle, event)
                .map_err(CaptureError::code)
        }
        None => captured(session, stream).map(|_| {
            session.graphs.lock().captures.remove_event(event);
            false
        }),
    }
}

/// Makes a captured stream, or one that joins a capture by this wait, depend on an event; false if the wait is
/// an ordinary one.
pub fn wait(
    session: &Session,
    stream: sys::CUstream,
    event: EventId,
    recorded: bool,
) -> Result<bool> {
    if !any_capture() {
        return Ok(false);
    }
    let Some(stream) = session.streams.get(stream)? else {
        captured(session, stream)?;
        return Ok(false);
    };
    let mut graphs = session.graphs.lock();
    let waited = graphs
        .captures
        .wait(key(&stream), event, recorded)
        .map_err(CaptureError::code)?;
    Ok(waited == Waited::Captured)
}

/// Refuses a call on a stream that is being captured.
pub fn forbid_on(session: &Session, stream: sys::CUstream) -> Result {
    if !any_capture() {
        return Ok(());
    }
    match session.streams.get(stream)? {
        Some(stream) => session
            .graphs
            .lock()
            .captures
            .forbid_on(stream.handle)
            .map_err(CaptureError::code),
        None => captured(session, stream).map(|_| ()),
    }
}

/// Refuses a query of an event that is recorded in a capture, which fails by that (CUDA C++ Programming Guide,
/// prohibited and unhandled operations of stream capture).
pub fn forbid_event(session: &Session, event: EventId) -> Result {
    if !any_capture() {
        return Ok(());
    }
    let mut graphs = session.graphs.lock();
    let looked = graphs.captures.forbid_captured(event);
    looked.map_err(CaptureError::code)
}

/// Refuses calls that a capture in progress makes unsafe for this thread.
pub fn forbid_unsafe(session: &Session) -> Result {
    if !any_capture() {
        return Ok(());
    }
    let mut graphs = session.graphs.lock();
    graphs
        .captures
        .forbid_unsafe(thread(), MODE.get())
        .map_err(CaptureError::code)
}

/// The calling thread as captures see it.
pub fn thread() -> u64 {
    gettid() as u64
}

/// Replaces the thread's mode and returns the one before.
pub fn exchange_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}

/// A mode of the API.
pub fn mode(mode: sys::CUstreamCaptureMode) -> Result<CaptureMode> {
    match mode {
        sys::CU_STREAM_CAPTURE_MODE_GLOBAL => Ok(CaptureMode::Global),
        sys::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => Ok(CaptureMode::ThreadLocal),
        sys::CU_STREAM_CAPTURE_MODE_RELAXED => Ok(CaptureMode::Relaxed),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

/// A mode as the API numbers it.
pub fn mode_number(mode: CaptureMode) -> sys::CUstreamCaptureMode {
    match mode {
        CaptureMode::Global => sys::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CaptureMode::ThreadLocal => sys::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CaptureMode::Relaxed => sys::CU_STREAM_CAPTURE_MODE_RELAXED,
    }
}

/// Begins to capture a stream into a graph.
pub fn begin(
    session: &Session,
    stream: sys::CUstream,
    mode: CaptureMode,
    graph: Option<(GraphId, &[NodeId])>,
) -> Result {
    fault::check_current()?;
    let stream = session
        .streams
        .get(stream)?
        .filter(|_| !stream::is_legacy(stream))
        .ok_or(sys::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
    let mut graphs = session.graphs.lock();
    let (into, after) = match graph {
        Some(given) => given,
        None => (graphs.create(fermata_graph::Graph::new()), &[][..]),
    };
    let begun = graphs
        .captures
        .begin(key(&stream), mode, thread(), into, after);
    if begun.is_err() && graph.is_none() {
        let left = graphs.destroy(into)?;
        drop(graphs);
        session.graphs.let_go(&session.memory, left)?;
    } else if graph.is_none() {
        graphs.captured_into.insert(into);
    }
    begun.map(|_| ()).map_err(CaptureError::code)
}

/// Ends the capture begun in a stream and returns its graph.
pub fn end(session: &Session, stream: sys::CUstream) -> Result<GraphId> {
    let stream = session
        .streams
        .get(stream)?
        .ok_or(sys::CUDA_ERROR_ILLEGAL_STATE)?;
    let mut graphs = session.graphs.lock();
    let name = graphs
        .captures
        .graph_of(stream.handle)
        .ok_or(sys::CUDA_ERROR_ILLEGAL_STATE)?;
    let graph = graphs.graph(name)?.clone();
    let ended = graphs.captures.end(stream.handle, thread(), &graph);
    let over = graphs.captures.status(stream.handle) == CaptureStatus::None;
    let made = over && graphs.captured_into.remove(&name);
    if ended.is_err() && made {
        let left = graphs.destroy(name)?;
        drop(graphs);
        session.graphs.let_go(&session.memory, left)?;
    }
    ended.map_err(CaptureError::code)
}
