//! Exported functions for user objects, which graphs keep alive.

use core::ffi::{c_uint, c_void};

use fermata_abi::op::{GraphId, GraphNodeId};
use fermata_abi::sys::driver as sys;
use fermata_graph::NodeId;
use fermata_graph::update::same_way;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::object::graphs::{State, refused};
use crate::object::session::{Session, session};
use crate::object::user_objects::{HeldObjects, UserObject};
use crate::result::Result;

driver_api! {
    fn cuUserObjectCreate(
        object: Out<sys::CUuserObject>,
        data: *mut c_void,
        destroy: sys::CUhostFn,
        references: c_uint,
        flags: c_uint,
    ) {
        let destroy = destroy.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        if flags != sys::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let new = UserObject { references, destroy, data: data.expose_provenance() };
        object.set(to_pointer(session()?.graphs.objects.create(new)))
    }

    fn cuUserObjectRetain(object: sys::CUuserObject, count: c_uint) {
        session()?.graphs.objects.retain(of(object), count)
    }

    fn cuUserObjectRelease(object: sys::CUuserObject, count: c_uint) {
        session()?.graphs.objects.release(of(object), count)
    }

    fn cuGraphRetainUserObject(graph: sys::CUgraph, object: sys::CUuserObject, count: c_uint, flags: c_uint) {
        let session = session()?;
        let mut graphs = session.graphs.lock();
        let (held, way) = graphs.held_mut(of(graph))?;
        // With this flag the graph takes over references of the caller.
        if flags & sys::CU_GRAPH_USER_OBJECT_MOVE == 0 {
            session.graphs.objects.retain(of(object), count)?;
        }
        held.add(&way, of(object), count).ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuGraphReleaseUserObject(graph: sys::CUgraph, object: sys::CUuserObject, count: c_uint) {
        let session = session()?;
        {
            let mut graphs = session.graphs.lock();
            let (held, way) = graphs.held_mut(of(graph))?;
            held.subtract(&way, of(object), count).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        }
        session.graphs.objects.release(of(object), count)
    }
}

/// References for a copy of a graph to what the graph holds.
pub(super) fn copied(session: &Session, graphs: &State, graph: GraphId) -> Result<HeldObjects> {
    let held = graphs.held_by(graph)?;
    session.graphs.objects.retain_all(&held);
    Ok(held)
}

/// Gives the graph in a child-graph node the references of the graph that it was copied from, instead of those it had.
pub(super) fn adopt(session: &Session, node: GraphNodeId, child: GraphId) -> Result {
    let before = {
        let mut graphs = session.graphs.lock();
        let new = copied(session, &graphs, child)?;
        exchange(&mut graphs, node, new)?
    };
    session.graphs.objects.release_all(before);
    Ok(())
}

/// Gives the graph in a child-graph node these references, and returns those it had.
pub(super) fn exchange(
    graphs: &mut State,
    node: GraphNodeId,
    new: HeldObjects,
) -> Result<HeldObjects> {
    let (graph, id) = graphs.node(node)?;
    let (held, mut way) = graphs.held_mut(graph)?;
    way.push(id);
    Ok(held.exchange(&way, new))
}

/// Gives the graph at `way` in an executable graph the references of the graph whose parameters it has taken over, and
/// releases those it had after the last launch.
pub(super) fn adopt_in_exec(exec: sys::CUgraphExec, way: &[NodeId], from: GraphId) -> Result {
    let session = session()?;
    let (before, last) = {
        let mut graphs = session.graphs.lock();
        let target_holds = !graphs.exec(exec)?.held.is_empty();
        if !target_holds && graphs.held_by(from)?.is_empty() {
            return Ok(());
        }
        let source = graphs.graph(from)?.clone();
        let new = copied(session, &graphs, from)?;
        let exec = graphs.exec(exec)?;
        let target = exec.graph.inner(way).map_err(refused)?;
        let new = new.renamed(|path| same_way(path, &source, target));
        (exec.held.exchange(way, new), exec.last)
    };
    session.graphs.objects.release_after(before, last)
}
