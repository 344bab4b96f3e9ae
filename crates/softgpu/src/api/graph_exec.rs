//! Exported functions for executable graphs.

use std::ffi::{c_char, c_uint, c_ulonglong};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::{NodeId, NodeKind};

use super::args::{In, Out};
use super::graph::{graph, node};
use super::graph_params as params;
use super::init::driver;
use super::{copy, to_handle, to_pointer};
use crate::capture;
use crate::context;
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::graph::{Exec, GraphObject};
use crate::stream::Stream;
use crate::work::Work;

fn exec(handle: cu::CUgraphExec) -> Result<Arc<Exec>> {
    Exec::resolve(driver()?, to_handle(handle))
}

/// Makes an executable graph; the node at fault is given where there is one.
fn instantiate(
    out: Out<cu::CUgraphExec>,
    source: &Arc<GraphObject>,
    flags: u64,
) -> Result<(), (CuError, Option<NodeId>)> {
    let plain = |error| (error, None);
    let known = cu::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        | cu::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
        | cu::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if flags & u64::from(cu::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
        return Err(plain(NOT_SUPPORTED));
    }
    if flags & !u64::from(known) != 0 || out.is_null() {
        return Err(plain(INVALID_VALUE));
    }
    let context = context::current().map_err(plain)?;
    let exec = Exec::create(driver().map_err(plain)?, &context, source, flags)?;
    out.set(to_pointer(exec.handle)).map_err(plain)
}

fn set_params(handle: cu::CUgraphExec, target: cu::CUgraphNode, kind: &NodeKind) -> Result {
    if !matches!(kind, NodeKind::ChildGraph(_)) {
        Work::check(driver()?, &context::current()?, kind)?;
    }
    exec(handle)?.set_params(&*node(target)?, kind)
}

fn set_child(handle: cu::CUgraphExec, target: cu::CUgraphNode, child: &GraphObject) -> Result {
    set_params(handle, target, &params::child_graph(child)?)?;
    exec(handle)?.hold_inside(driver()?, &*node(target)?, child)
}

fn launch(handle: cu::CUgraphExec, stream: cu::CUstream) -> Result {
    let (exec, stream) = (exec(handle)?, Stream::resolve(stream)?);
    capture::forbid_on(&stream)?;
    exec.launch(driver()?, &stream)
}

api! {
    fn cuGraphInstantiateWithFlags(out: Out<cu::CUgraphExec>, handle: cu::CUgraph, flags: c_ulonglong) {
        instantiate(out, &graph(handle)?, flags).map_err(|(error, _)| error)
    }

    fn cuGraphInstantiate_v2 | fn cuGraphInstantiate(
        out: Out<cu::CUgraphExec>,
        handle: cu::CUgraph,
        error_node: Out<cu::CUgraphNode>,
        log: Out<c_char>,
        log_bytes: usize,
    ) {
        let graph = graph(handle)?;
        error_node.set_if_wanted(std::ptr::null_mut());
        instantiate(out, &graph, 0).map_err(|(error, culprit)| {
            if let (Some(id), Ok(driver)) = (culprit, driver()) {
                error_node.set_if_wanted(to_pointer(graph.node_handle(driver, id)));
            }
            // The log is a courtesy: a buffer without room gets none.
            let _ = log.set_text(&error.to_string(), i32::try_from(log_bytes).unwrap_or(i32::MAX));
            error
        })
    }

    fn cuGraphInstantiateWithParams(
        out: Out<cu::CUgraphExec>,
        handle: cu::CUgraph,
        params: Out<cu::CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) {
        let mut answer = params.get()?;
        let graph = graph(handle)?;
        let made = instantiate(out, &graph, answer.flags);
        (answer.result_out, answer.hErrNode_out) = match &made {
            Ok(()) => (cu::CUDA_GRAPH_INSTANTIATE_SUCCESS, std::ptr::null_mut()),
            Err(_) if graph.has_unused_condition() => {
                let unused = cu::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
                (unused, std::ptr::null_mut())
            }
            Err((_, Some(id))) => {
                let culprit = to_pointer(graph.node_handle(driver()?, *id));
                (cu::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED, culprit)
            }
            Err(_) => (cu::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE, std::ptr::null_mut()),
        };
        params.set(answer)?;
        made.map_err(|(error, _)| error)
    }

    fn cuGraphExecGetFlags(handle: cu::CUgraphExec, flags: Out<cu::cuuint64_t>) {
        flags.set(exec(handle)?.flags)
    }

    fn cuGraphExecDestroy(handle: cu::CUgraphExec) {
        driver()?.execs().remove(to_handle(handle)).map(drop).ok_or(INVALID_HANDLE)
    }

    /// There is nothing to upload.
    fn cuGraphUpload(handle: cu::CUgraphExec, stream: cu::CUstream) {
        exec(handle)?;
        capture::forbid_on(&*Stream::resolve(stream)?)
    }

    fn cuGraphLaunch(handle: cu::CUgraphExec, stream: cu::CUstream) {
        launch(handle, stream)
    }

    fn cuGraphExecUpdate_v2(
        handle: cu::CUgraphExec,
        source: cu::CUgraph,
        info: Out<cu::CUgraphExecUpdateResultInfo>,
    ) {
        let (exec, graph) = (exec(handle)?, graph(source)?);
        let (mut answer, result) = update(&exec, &graph)?;
        if result.is_ok() {
            answer.result = cu::CU_GRAPH_EXEC_UPDATE_SUCCESS;
        }
        info.set(answer)?;
        result
    }

    fn cuGraphExecUpdate(
        handle: cu::CUgraphExec,
        source: cu::CUgraph,
        error_node: Out<cu::CUgraphNode>,
        why: Out<cu::CUgraphExecUpdateResult>,
    ) {
        let (exec, graph) = (exec(handle)?, graph(source)?);
        let (answer, result) = update(&exec, &graph)?;
        error_node.set_if_wanted(answer.errorNode);
        why.set_if_wanted(answer.result);
        result
    }

    fn cuGraphNodeSetEnabled(handle: cu::CUgraphExec, target: cu::CUgraphNode, enabled: c_uint) {
        exec(handle)?.set_enabled(&*node(target)?, enabled != 0)
    }

    fn cuGraphNodeGetEnabled(handle: cu::CUgraphExec, target: cu::CUgraphNode, enabled: Out<c_uint>) {
        enabled.set(c_uint::from(exec(handle)?.is_enabled(&*node(target)?)?))
    }

    fn cuGraphExecNodeSetParams(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        params: Out<cu::CUgraphNodeParams>,
    ) {
        match params::child_of(params)? {
            Some(child) => set_child(handle, target, &child),
            None => set_params(handle, target, &params::generic(params, None)?),
        }
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        kernel: In<cu::CUDA_KERNEL_NODE_PARAMS_v2>,
    ) {
        set_params(handle, target, &params::kernel(&kernel.get()?)?)
    }

    fn cuGraphExecKernelNodeSetParams(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        kernel: In<cu::CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        set_params(handle, target, &params::kernel_v1(&kernel.get()?)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        copy_params: In<cu::CUDA_MEMCPY3D>,
        context: cu::CUcontext,
    ) {
        let _ = context;
        set_params(handle, target, &NodeKind::Memcpy(copy::from_3d(&copy_params.get()?)?))
    }

    fn cuGraphExecMemsetNodeSetParams(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        memset: In<cu::CUDA_MEMSET_NODE_PARAMS>,
        context: cu::CUcontext,
    ) {
        let _ = context;
        set_params(handle, target, &params::memset(&memset.get()?))
    }

    fn cuGraphExecHostNodeSetParams(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        host: In<cu::CUDA_HOST_NODE_PARAMS>,
    ) {
        let host = host.get()?;
        set_params(handle, target, &params::host(host.fn_, host.userData)?)
    }

    fn cuGraphExecChildGraphNodeSetParams(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        child: cu::CUgraph,
    ) {
        set_child(handle, target, &*graph(child)?)
    }

    fn cuGraphExecEventRecordNodeSetEvent(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        event: cu::CUevent,
    ) {
        set_params(handle, target, &NodeKind::EventRecord(params::event_exists(event)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        event: cu::CUevent,
    ) {
        set_params(handle, target, &NodeKind::EventWait(params::event_exists(event)?))
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        handle: cu::CUgraphExec,
        target: cu::CUgraphNode,
        ops: In<cu::CUDA_BATCH_MEM_OP_NODE_PARAMS>,
    ) {
        let ops = ops.get()?;
        set_params(handle, target, &params::mem_ops(ops.count, ops.paramArray)?)
    }
}

/// Updates an executable graph and tells where that failed.
fn update(
    exec: &Exec,
    graph: &Arc<GraphObject>,
) -> Result<(cu::CUgraphExecUpdateResultInfo, Result)> {
    let driver = driver()?;
    let mut answer = cu::CUgraphExecUpdateResultInfo::default();
    let Err(error) = exec.update(driver, graph) else {
        return Ok((answer, Ok(())));
    };
    let shown = |id: Option<NodeId>| match id {
        Some(id) => to_pointer(graph.node_handle(driver, id)),
        None => std::ptr::null_mut(),
    };
    answer.result = error.reason.cuda_result();
    (answer.errorNode, answer.errorFromNode) = (shown(error.node), shown(error.from));
    Ok((
        answer,
        Err(CuError(cu::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)),
    ))
}
