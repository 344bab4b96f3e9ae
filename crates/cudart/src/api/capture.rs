//! Recording streams into graphs.
use core::ffi::{c_uint, c_ulonglong};

use fermata_abi::sys::runtime::{
    cudaGraph_t, cudaGraphEdgeData, cudaGraphNode_t, cudaStream_t, cudaStreamCaptureMode,
    cudaStreamCaptureStatus,
};

use crate::context;
use crate::error::{Error, export};

export! {
    /// Starts recording.
    fn cudaStreamBeginCapture(stream: cudaStream_t, mode: cudaStreamCaptureMode) {
        context::ready()?.cuStreamBeginCapture_v2(stream.cast(), mode)
    }

    /// Starts recording into a graph that exists.
    fn cudaStreamBeginCaptureToGraph(
        stream: cudaStream_t,
        graph: cudaGraph_t,
        dependencies: *const cudaGraphNode_t,
        edges: *const cudaGraphEdgeData,
        count: usize,
        mode: cudaStreamCaptureMode,
    ) {
        context::ready()?.cuStreamBeginCaptureToGraph(
            stream.cast(), graph.cast(), dependencies.cast(), edges.cast(), count, mode,
        )
    }

    /// Ends recording.
    fn cudaStreamEndCapture(stream: cudaStream_t, graph: *mut cudaGraph_t) {
        if graph.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamEndCapture(stream.cast(), graph.cast())
    }

    /// Whether a stream records.
    fn cudaStreamIsCapturing(stream: cudaStream_t, status: *mut cudaStreamCaptureStatus) {
        if status.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamIsCapturing(stream.cast(), status)
    }

    /// What a stream records into, and what its next node depends on.
    fn cudaStreamGetCaptureInfo(
        stream: cudaStream_t,
        status: *mut cudaStreamCaptureStatus,
        id: *mut c_ulonglong,
        graph: *mut cudaGraph_t,
        dependencies: *mut *const cudaGraphNode_t,
        edges: *mut *const cudaGraphEdgeData,
        count: *mut usize,
    ) {
        if status.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let (stream, graph, nodes) = (stream.cast(), graph.cast(), dependencies.cast());
        match calls.cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges.cast(), count) {
            Err(Error::MISSING_DRIVER_FUNCTION | Error::NOT_SUPPORTED) => {
                calls.cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count)
            }
            result => result,
        }
    }

    /// Changes what the next recorded node depends on.
    fn cudaStreamUpdateCaptureDependencies(
        stream: cudaStream_t,
        dependencies: *mut cudaGraphNode_t,
        edges: *const cudaGraphEdgeData,
        count: usize,
        flags: c_uint,
    ) {
        context::ready()?.cuStreamUpdateCaptureDependencies_v2(
            stream.cast(), dependencies.cast(), edges.cast(), count, flags,
        )
    }

    /// Exchanges the calling thread's attitude to calls that recording forbids.
    fn cudaThreadExchangeStreamCaptureMode(mode: *mut cudaStreamCaptureMode) {
        if mode.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuThreadExchangeStreamCaptureMode(mode)
    }
}
