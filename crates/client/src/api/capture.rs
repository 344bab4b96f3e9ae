//! Exported functions for stream capture.

use core::ffi::c_uint;

use fermata_abi::sys::driver as sys;
use fermata_graph::{CaptureError, CaptureStatus, NodeId};

use super::graph::ids;
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link::fault;
use crate::object::session::session;
use crate::result::Result;
use crate::work::capture::{begin, end, exchange_mode, mode, mode_number};

driver_api! {
    fn cuStreamBeginCapture(stream: sys::CUstream) {
        begin(session()?, stream, fermata_graph::CaptureMode::Global, None)
    }

    fn cuStreamBeginCapture_v2(stream: sys::CUstream, kind: sys::CUstreamCaptureMode) {
        begin(session()?, stream, mode(kind)?, None)
    }

    fn cuStreamBeginCaptureToGraph(
        stream: sys::CUstream,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        _data: In<sys::CUgraphEdgeData>,
        count: usize,
        kind: sys::CUstreamCaptureMode,
    ) {
        let session = session()?;
        let after: Vec<NodeId> = ids(&session.graphs.lock(), of(graph), &after.list(count)?)?;
        session.graphs.lock().graph(of(graph))?;
        begin(session, stream, mode(kind)?, Some((of(graph), &after)))
    }

    fn cuStreamEndCapture(stream: sys::CUstream, graph: Out<sys::CUgraph>) {
        fault::check_current()?;
        graph.set(core::ptr::null_mut())?;
        graph.set(to_pointer(end(session()?, stream)?))
    }

    fn cuStreamIsCapturing(stream: sys::CUstream, status: Out<sys::CUstreamCaptureStatus>) {
        status.set(status_of(stream)?)
    }

    fn cuStreamGetCaptureInfo(
        stream: sys::CUstream,
        status: Out<sys::CUstreamCaptureStatus>,
        id: Out<sys::cuuint64_t>,
    ) {
        let none = (Out::null(), Out::null(), Out::null());
        info(stream, status, id, Out::null(), none)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: sys::CUstream,
        status: Out<sys::CUstreamCaptureStatus>,
        id: Out<sys::cuuint64_t>,
        graph: Out<sys::CUgraph>,
        after: Out<*const sys::CUgraphNode>,
        count: Out<usize>,
    ) {
        info(stream, status, id, graph, (after, Out::null(), count))
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: sys::CUstream,
        status: Out<sys::CUstreamCaptureStatus>,
        id: Out<sys::cuuint64_t>,
        graph: Out<sys::CUgraph>,
        after: Out<*const sys::CUgraphNode>,
        edges: Out<*const sys::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        edges.set_if_wanted(core::ptr::null());
        info(stream, status, id, graph, (after, edges, count))
    }

    fn cuStreamUpdateCaptureDependencies(
        stream: sys::CUstream,
        nodes: Out<sys::CUgraphNode>,
        count: usize,
        flags: c_uint,
    ) {
        update(stream, &nodes.list(count)?, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: sys::CUstream,
        nodes: Out<sys::CUgraphNode>,
        _edges: In<sys::CUgraphEdgeData>,
        count: usize,
        flags: c_uint,
    ) {
        update(stream, &nodes.list(count)?, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(kind: Out<sys::CUstreamCaptureMode>) {
        let before = exchange_mode(mode(kind.get()?)?);
        kind.set(mode_number(before))
    }
}

fn status_of(stream: sys::CUstream) -> Result<sys::CUstreamCaptureStatus> {
    fault::check_current()?;
    let session = session()?;
    let status = match session.streams.get(stream)? {
        Some(stream) => session.graphs.lock().captures.status(stream.handle),
        None => {
            let context = crate::object::context::current().map(|it| it.handle);
            let captures = &session.graphs.lock().captures;
            // The capture of a stream that would have to be ordered with this one stays valid.
            if context.is_ok_and(|context| captures.is_implicit(context)) {
                return Err(CaptureError::Implicit.code());
            }
            CaptureStatus::None
        }
    };
    Ok(match status {
        CaptureStatus::None => sys::CU_STREAM_CAPTURE_STATUS_NONE,
        CaptureStatus::Active => sys::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        CaptureStatus::Invalidated => sys::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    })
}

/// Where the nodes that a capture depends on, the edges from them and their number are returned.
type ListOut = (
    Out<*const sys::CUgraphNode>,
    Out<*const sys::CUgraphEdgeData>,
    Out<usize>,
);

fn info(
    stream: sys::CUstream,
    status: Out<sys::CUstreamCaptureStatus>,
    id: Out<sys::cuuint64_t>,
    graph: Out<sys::CUgraph>,
    (after, edges, count): ListOut,
) -> Result {
    fault::check_current()?;
    let session = session()?;
    let now = status_of(stream)?;
    status.set(now)?;
    if now != sys::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(());
    }
    let stream = session
        .streams
        .get(stream)?
        .ok_or(sys::CUDA_ERROR_INVALID_HANDLE)?;
    let mut graphs = session.graphs.lock();
    let found = graphs
        .captures
        .info(stream.handle)
        .map_err(CaptureError::code)?;
    let nodes: Vec<usize> = found
        .dependencies
        .iter()
        .map(|node| graphs.node_handle(found.graph, *node).raw() as usize)
        .collect();
    let listed = &mut *stream.listed.lock();
    listed.edges = vec![Default::default(); nodes.len()];
    listed.nodes = nodes;
    id.set_if_wanted(found.id);
    graph.set_if_wanted(to_pointer(found.graph));
    count.set_if_wanted(listed.nodes.len());
    after.set_if_wanted(listed.nodes.as_ptr().cast());
    edges.set_if_wanted(listed.edges.as_ptr().cast());
    Ok(())
}

fn update(stream: sys::CUstream, nodes: &[sys::CUgraphNode], flags: c_uint) -> Result {
    let session = session()?;
    let replace = match flags {
        sys::CU_STREAM_ADD_CAPTURE_DEPENDENCIES => false,
        sys::CU_STREAM_SET_CAPTURE_DEPENDENCIES => true,
        _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
    };
    let stream = session
        .streams
        .get(stream)?
        .ok_or(sys::CUDA_ERROR_ILLEGAL_STATE)?
        .handle;
    let mut graphs = session.graphs.lock();
    let graph = graphs
        .captures
        .graph_of(stream)
        .ok_or(sys::CUDA_ERROR_ILLEGAL_STATE)?;
    let nodes = ids(&graphs, graph, nodes)?;
    graphs
        .captures
        .set_dependencies(stream, &nodes, replace)
        .map_err(CaptureError::code)
}
