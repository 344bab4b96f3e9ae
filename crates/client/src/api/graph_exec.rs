//! Exported functions for executable graphs.

use core::ffi::{c_char, c_uint, c_ulonglong};

use fermata_abi::op::{GraphId, GraphNodeId, Op};
use fermata_abi::sys::driver as sys;
use fermata_graph::{KernelNode, NodeKind};

use super::graph_node::host_node;
use super::graph_params::{copy_node, kernel_node, memset_node};
use super::user_object::{adopt_in_exec, copied, exchange};
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link;
use crate::link::fault;
use crate::object::context::current;
use crate::object::graphs::{Exec, Stale, State};
use crate::object::session::{Session, session};
use crate::object::user_objects::HeldObjects;
use crate::result::Result;
use crate::work::capture;
use crate::work::lower;

driver_api! {
    fn cuGraphInstantiate(
        exec: Out<sys::CUgraphExec>,
        graph: sys::CUgraph,
        error: Out<sys::CUgraphNode>,
        _log: Out<c_char>,
        _size: usize,
    ) {
        error.set_if_wanted(core::ptr::null_mut());
        exec.set(instantiate(graph, 0)?)
    }

    fn cuGraphInstantiate_v2(
        exec: Out<sys::CUgraphExec>,
        graph: sys::CUgraph,
        error: Out<sys::CUgraphNode>,
        _log: Out<c_char>,
        _size: usize,
    ) {
        error.set_if_wanted(core::ptr::null_mut());
        exec.set(instantiate(graph, 0)?)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<sys::CUgraphExec>, graph: sys::CUgraph, flags: c_ulonglong) {
        exec.set(instantiate(graph, flags)?)
    }

    fn cuGraphInstantiateWithParams(
        exec: Out<sys::CUgraphExec>,
        graph: sys::CUgraph,
        params: Out<sys::CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) {
        let flags = params.get()?.flags;
        let made = instantiate(graph, flags);
        let result = match made {
            _ if session()?.graphs.lock().has_unused_condition(of(graph))? => {
                sys::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED
            }
            Ok(_) => sys::CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(sys::CUDA_ERROR_NOT_SUPPORTED) => sys::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
            Err(_) => sys::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        params.update(|it| {
            it.hErrNode_out = core::ptr::null_mut();
            it.result_out = result;
        })?;
        exec.set(made?)
    }

    fn cuGraphExecDestroy(exec: sys::CUgraphExec) {
        let session = session()?;
        let (gone, memory) = session.graphs.lock().remove_exec(of(exec))?;
        let destroyed = lower::destroy(session, of(exec), &gone);
        session.graphs.objects.release_after(gone.held, gone.last)?;
        memory.let_go(&session.memory)?;
        destroyed
    }

    fn cuGraphExecGetFlags(exec: sys::CUgraphExec, flags: Out<sys::cuuint64_t>) {
        flags.set(session()?.graphs.lock().exec(exec)?.flags)
    }

    fn cuGraphLaunch(exec: sys::CUgraphExec, stream: sys::CUstream) {
        let session = session()?;
        if capture_launch(session, exec, stream)? {
            return Ok(());
        }
        let stream = session.streams.resolve(stream)?;
        let refresh = |it: &mut Exec| lower::refresh(session, of(exec), it);
        session.graphs.lock().launched(exec, stream, refresh)?;
        session.managed.before_work(stream)?;
        link::post(&Op::GraphLaunch { exec: of(exec), stream })
    }

    fn cuGraphUpload(exec: sys::CUgraphExec, stream: sys::CUstream) {
        fault::check_current()?;
        let session = session()?;
        session.streams.resolve(stream)?;
        lower::refresh(session, of(exec), session.graphs.lock().exec(exec)?)
    }

    fn cuGraphExecUpdate(
        exec: sys::CUgraphExec,
        graph: sys::CUgraph,
        error: Out<sys::CUgraphNode>,
        result: Out<sys::CUgraphExecUpdateResult>,
    ) {
        let info = update(exec, graph)?;
        if info.result == sys::CU_GRAPH_EXEC_UPDATE_SUCCESS {
            adopt_in_exec(exec, &[], of(graph))?;
        }
        error.set_if_wanted(info.errorNode);
        result.set_if_wanted(info.result);
        verdict(&info)
    }

    fn cuGraphExecUpdate_v2(
        exec: sys::CUgraphExec,
        graph: sys::CUgraph,
        result: Out<sys::CUgraphExecUpdateResultInfo>,
    ) {
        let info = update(exec, graph)?;
        if info.result == sys::CU_GRAPH_EXEC_UPDATE_SUCCESS {
            adopt_in_exec(exec, &[], of(graph))?;
        }
        result.set_if_wanted(info);
        verdict(&info)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: In<sys::CUDA_KERNEL_NODE_PARAMS>,
    ) {
        set_kernel(exec, node, kernel_node(&params.get()?)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        copy: In<sys::CUDA_MEMCPY3D>,
        context: sys::CUcontext,
    ) {
        let copy = NodeKind::Memcpy(copy_node(&copy.get()?, context)?);
        session()?.graphs.lock().set_exec(exec, of(node), &copy)
    }

    fn cuGraphExecMemsetNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: In<sys::CUDA_MEMSET_NODE_PARAMS>,
        _context: sys::CUcontext,
    ) {
        let fill = NodeKind::Memset(memset_node(&params.get()?)?);
        session()?.graphs.lock().set_exec(exec, of(node), &fill)
    }

    fn cuGraphExecHostNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: In<sys::CUDA_HOST_NODE_PARAMS>,
    ) {
        let call = NodeKind::Host(host_node(&params.get()?)?);
        session()?.graphs.lock().set_exec(exec, of(node), &call)
    }

    fn cuGraphExecChildGraphNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        child: sys::CUgraph,
    ) {
        set_kernels(exec, |graphs| graphs.set_exec_child(exec, of(node), of(child)))?;
        adopt_child(exec, of(node), of(child))
    }

    fn cuGraphExecEventRecordNodeSetEvent(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        event: sys::CUevent,
    ) {
        let session = session()?;
        let event = NodeKind::EventRecord(session.events.get_for_graph(event)?);
        session.graphs.lock().set_exec(exec, of(node), &event)
    }

    fn cuGraphExecEventWaitNodeSetEvent(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        event: sys::CUevent,
    ) {
        let session = session()?;
        let event = NodeKind::EventWait(session.events.get_for_graph(event)?);
        session.graphs.lock().set_exec(exec, of(node), &event)
    }

    fn cuGraphNodeSetEnabled(exec: sys::CUgraphExec, node: sys::CUgraphNode, enabled: c_uint) {
        let mut graphs = session()?.graphs.lock();
        let switchable = matches!(graphs.kind(of(node))?, NodeKind::Kernel(_) | NodeKind::Memset(_) | NodeKind::Memcpy(_));
        if !switchable {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let path = graphs.path(of(node))?;
        let exec = graphs.exec(exec)?;
        let changed = if enabled == 0 { exec.disabled.insert(path) } else { exec.disabled.remove(&path) };
        if changed {
            exec.stale = Stale::Shape;
        }
        Ok(())
    }

    fn cuGraphNodeGetEnabled(exec: sys::CUgraphExec, node: sys::CUgraphNode, enabled: Out<c_uint>) {
        let mut graphs = session()?.graphs.lock();
        let path = graphs.path(of(node))?;
        enabled.set(c_uint::from(!graphs.exec(exec)?.disabled.contains(&path)))
    }
}

/// Gives a kernel of an executable graph other parameters; its attributes are those that the node has in the graph's definition.
pub(super) fn set_kernel(
    exec: sys::CUgraphExec,
    node: sys::CUgraphNode,
    new: KernelNode,
) -> Result {
    set_kernels(exec, |graphs| {
        let NodeKind::Kernel(defined) = graphs.kind(of(node))? else {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        };
        let attributes = defined.attributes.clone();
        let new = NodeKind::Kernel(KernelNode { attributes, ..new });
        graphs.set_exec(exec, of(node), &new)
    })
}

/// Has `set` change kernels of an executable graph, and tells the worker of them if they are enough.
fn set_kernels(exec: sys::CUgraphExec, set: impl FnOnce(&mut State) -> Result) -> Result {
    let mut graphs = session()?.graphs.lock();
    set(&mut graphs)?;
    lower::kernels_changed(of(exec), graphs.exec(exec)?)
}

/// If the stream is being captured, adds the launch as a child graph, which holds what the executable graph holds, and
/// returns true.
fn capture_launch(
    session: &Session,
    exec: sys::CUgraphExec,
    stream: sys::CUstream,
) -> Result<bool> {
    let mut held = HeldObjects::default();
    let child = || {
        let mut graphs = session.graphs.lock();
        let exec = graphs.exec(exec)?;
        if exec.graph.has_conditionals() {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        held = exec.held.clone();
        Ok(NodeKind::ChildGraph(Box::new(exec.graph.clone())))
    };
    let Some((graph, node)) = capture::add_named(session, stream, child)? else {
        return Ok(false);
    };
    session.graphs.objects.retain_all(&held);
    let mut graphs = session.graphs.lock();
    let node = graphs.node_handle(graph, node);
    // A new node held nothing.
    exchange(&mut graphs, node, held).map(|_| true)
}

/// [`adopt_in_exec`] for the graph in a child-graph node.
pub(super) fn adopt_child(exec: sys::CUgraphExec, node: GraphNodeId, child: GraphId) -> Result {
    let (mut way, id) = session()?.graphs.lock().path(node)?;
    way.push(id);
    adopt_in_exec(exec, &way, child)
}

fn instantiate(graph: sys::CUgraph, flags: u64) -> Result<sys::CUgraphExec> {
    let session = session()?;
    let context = current()?;
    let source = of(graph);
    let graph = {
        let graphs = session.graphs.lock();
        graphs.check_instance(source)?;
        graphs.graph(source)?.clone()
    };
    graph.order().map_err(crate::object::graphs::refused)?;
    let (handle, mut exec) = lower::create(session, &context, graph, flags)?;
    exec.source = exec.graph.has_conditionals().then_some(source);
    let mut graphs = session.graphs.lock();
    exec.held = copied(session, &graphs, source)?;
    graphs.execs.insert(handle, exec);
    Ok(to_pointer(handle))
}

fn update(exec: sys::CUgraphExec, graph: sys::CUgraph) -> Result<sys::CUgraphExecUpdateResultInfo> {
    let mut graphs = session()?.graphs.lock();
    let new = graphs.graph(of(graph))?.clone();
    let changing = graphs.exec(exec)?;
    match fermata_graph::update::updated(&changing.graph, &new) {
        Ok(updated) => {
            changing.graph = updated;
            changing.stale = changing.stale.max(Stale::Parameters);
            Ok(sys::CUgraphExecUpdateResultInfo {
                result: sys::CU_GRAPH_EXEC_UPDATE_SUCCESS,
                errorNode: core::ptr::null_mut(),
                errorFromNode: core::ptr::null_mut(),
            })
        }
        Err(error) => {
            let mut handle = |node: Option<_>| {
                node.map_or(GraphNodeId::NULL, |node| {
                    graphs.node_handle(of(graph), node)
                })
            };
            let (node, from) = (handle(error.node), handle(error.from));
            Ok(sys::CUgraphExecUpdateResultInfo {
                result: error.reason.cuda_result(),
                errorNode: to_pointer(node),
                errorFromNode: to_pointer(from),
            })
        }
    }
}

fn verdict(info: &sys::CUgraphExecUpdateResultInfo) -> Result {
    match info.result {
        sys::CU_GRAPH_EXEC_UPDATE_SUCCESS => Ok(()),
        _ => Err(sys::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
    }
}
