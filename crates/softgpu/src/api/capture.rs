//! Exported functions for stream capture.

use std::collections::HashMap;
use std::ffi::c_uint;

use fermata_abi::sys::driver as cu;
use fermata_graph::{CaptureMode, CaptureStatus};
use parking_lot::Mutex;

use super::args::{In, Out};
use super::graph::graph;
use super::graph_params::node_ids;
use super::init::driver;
use super::to_pointer;
use crate::capture;
use crate::error::{INVALID_VALUE, Result};
use crate::graph::GraphObject;
use crate::stream::Stream;

/// Handles of dependencies and as many edge data, as shown to the program, by stream.
type Shown = HashMap<u64, (Vec<usize>, Vec<cu::CUgraphEdgeData>)>;

/// Dependencies stay valid until they are asked for again.
static SHOWN: Mutex<Option<Shown>> = Mutex::new(None);

fn status(stream: &Stream) -> Result<cu::CUstreamCaptureStatus> {
    Ok(match capture::query(stream)? {
        CaptureStatus::None => cu::CU_STREAM_CAPTURE_STATUS_NONE,
        CaptureStatus::Active => cu::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        CaptureStatus::Invalidated => cu::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    })
}

fn begin(stream: cu::CUstream, mode: cu::CUstreamCaptureMode) -> Result {
    let stream = Stream::resolve(stream)?;
    capture::begin_new(driver()?, &stream, capture::mode(mode)?)
}

/// What `cuStreamGetCaptureInfo` tells besides the status.
struct InfoOut {
    id: Out<cu::cuuint64_t>,
    graph: Out<cu::CUgraph>,
    nodes: Out<*const cu::CUgraphNode>,
    data: Out<*const cu::CUgraphEdgeData>,
    count: Out<usize>,
}

fn info(stream: cu::CUstream, out_status: Out<cu::CUstreamCaptureStatus>, out: InfoOut) -> Result {
    let stream = Stream::resolve(stream)?;
    let status = status(&stream)?;
    out_status.set(status)?;
    if status != cu::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(());
    }
    let info = capture::info(&stream)?;
    let graph = GraphObject::resolve(driver()?, info.graph.raw())?;
    out.id.set_if_wanted(info.id);
    out.graph.set_if_wanted(to_pointer(info.graph.raw()));
    out.count.set_if_wanted(info.dependencies.len());
    let driver = driver()?;
    let handles = info
        .dependencies
        .iter()
        .map(|id| graph.node_handle(driver, *id) as usize)
        .collect();
    let data = vec![cu::CUgraphEdgeData::default(); info.dependencies.len()];
    let mut shown = SHOWN.lock();
    let shown = shown.get_or_insert_default();
    shown.insert(stream.id, (handles, data));
    if let Some((handles, data)) = shown.get(&stream.id) {
        out.nodes.set_if_wanted(handles.as_ptr().cast());
        out.data.set_if_wanted(data.as_ptr());
    }
    Ok(())
}

fn update(stream: cu::CUstream, nodes: In<cu::CUgraphNode>, count: usize, flags: c_uint) -> Result {
    let stream = Stream::resolve(stream)?;
    let info = capture::info(&stream)?;
    let graph = GraphObject::resolve(driver()?, info.graph.raw())?;
    let replace = match flags {
        cu::CU_STREAM_ADD_CAPTURE_DEPENDENCIES => false,
        cu::CU_STREAM_SET_CAPTURE_DEPENDENCIES => true,
        _ => return Err(INVALID_VALUE),
    };
    capture::set_dependencies(&stream, &node_ids(&graph, &nodes.list(count)?)?, replace)
}

api! {
    fn cuStreamBeginCapture_v2(stream: cu::CUstream, mode: cu::CUstreamCaptureMode) {
        begin(stream, mode)
    }

    fn cuStreamBeginCapture(stream: cu::CUstream) {
        begin(stream, cu::CU_STREAM_CAPTURE_MODE_GLOBAL)
    }

    fn cuStreamBeginCaptureToGraph(
        stream: cu::CUstream,
        handle: cu::CUgraph,
        nodes: In<cu::CUgraphNode>,
        data: In<cu::CUgraphEdgeData>,
        count: usize,
        mode: cu::CUstreamCaptureMode,
    ) {
        let _ = data;
        let (stream, graph) = (Stream::resolve(stream)?, graph(handle)?);
        let after = node_ids(&graph, &nodes.list(count)?)?;
        capture::begin(&stream, capture::mode(mode)?, &graph, &after)
    }

    fn cuStreamEndCapture(stream: cu::CUstream, out: Out<cu::CUgraph>) {
        out.set_if_wanted(std::ptr::null_mut());
        let stream = Stream::resolve(stream)?;
        out.set_if_wanted(to_pointer(capture::end(driver()?, &stream)?.handle));
        Ok(())
    }

    fn cuStreamIsCapturing(stream: cu::CUstream, out: Out<cu::CUstreamCaptureStatus>) {
        out.set(status(&*Stream::resolve(stream)?)?)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: cu::CUstream,
        out: Out<cu::CUstreamCaptureStatus>,
        id: Out<cu::cuuint64_t>,
        graph: Out<cu::CUgraph>,
        nodes: Out<*const cu::CUgraphNode>,
        data: Out<*const cu::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        info(stream, out, InfoOut { id, graph, nodes, data, count })
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: cu::CUstream,
        out: Out<cu::CUstreamCaptureStatus>,
        id: Out<cu::cuuint64_t>,
        graph: Out<cu::CUgraph>,
        nodes: Out<*const cu::CUgraphNode>,
        count: Out<usize>,
    ) {
        info(stream, out, InfoOut { id, graph, nodes, data: Out::null(), count })
    }

    fn cuStreamGetCaptureInfo(
        stream: cu::CUstream,
        out: Out<cu::CUstreamCaptureStatus>,
        id: Out<cu::cuuint64_t>,
    ) {
        let (graph, nodes, data, count) = (Out::null(), Out::null(), Out::null(), Out::null());
        info(stream, out, InfoOut { id, graph, nodes, data, count })
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: cu::CUstream,
        nodes: In<cu::CUgraphNode>,
        data: In<cu::CUgraphEdgeData>,
        count: usize,
        flags: c_uint,
    ) {
        let _ = data;
        update(stream, nodes, count, flags)
    }

    fn cuStreamUpdateCaptureDependencies(
        stream: cu::CUstream,
        nodes: In<cu::CUgraphNode>,
        count: usize,
        flags: c_uint,
    ) {
        update(stream, nodes, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<cu::CUstreamCaptureMode>) {
        driver()?;
        mode.set(match capture::exchange_mode(capture::mode(mode.get()?)?) {
            CaptureMode::Global => cu::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => cu::CU_STREAM_CAPTURE_MODE_RELAXED,
        })
    }
}
