//! Exported functions that create, change and query graphs.

use core::ffi::c_uint;

use fermata_abi::op::{GraphId, GraphNodeId};
use fermata_abi::sys::driver as sys;
use fermata_graph::{Edge, EdgeData, Graph, NodeId};

use super::user_object::copied;
use crate::args::{In, Name, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::object::context::current;
use crate::object::graphs::{State, refused};
use crate::object::session::session;
use crate::result::Result;
use crate::work::capture::PLAIN;

driver_api! {
    fn cuGraphCreate(graph: Out<sys::CUgraph>, flags: c_uint) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        graph.set(to_pointer(session()?.graphs.lock().create(Graph::new())))
    }

    fn cuGraphDestroy(graph: sys::CUgraph) {
        let session = session()?;
        let left = session.graphs.lock().destroy(of(graph))?;
        session.graphs.let_go(&session.memory, left)
    }

    fn cuGraphClone(clone: Out<sys::CUgraph>, graph: sys::CUgraph) {
        let session = session()?;
        let mut graphs = session.graphs.lock();
        let copy = graphs.graph(of(graph))?.clone();
        if copy.has_conditionals() {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let held = copied(session, &graphs, of(graph))?;
        let copy = graphs.create(copy);
        *graphs.held_mut(copy)?.0 = held;
        clone.set(to_pointer(copy))
    }

    fn cuGraphNodeFindInClone(node: Out<sys::CUgraphNode>, original: sys::CUgraphNode, clone: sys::CUgraph) {
        let mut graphs = session()?.graphs.lock();
        let (_, id) = graphs.node(of(original))?;
        graphs.graph(of(clone))?.node(id).map_err(refused)?;
        node.set(to_pointer(graphs.node_handle(of(clone), id)))
    }

    fn cuGraphDestroyNode(node: sys::CUgraphNode) {
        let session = session()?;
        let left = session.graphs.lock().remove_node(of(node))?;
        session.graphs.let_go(&session.memory, left)
    }

    fn cuGraphNodeGetType(node: sys::CUgraphNode, kind: Out<sys::CUgraphNodeType>) {
        kind.set(session()?.graphs.lock().kind(of(node))?.cuda_type())
    }

    fn cuGraphChildGraphNodeGetGraph(node: sys::CUgraphNode, graph: Out<sys::CUgraph>) {
        graph.set(to_pointer(session()?.graphs.lock().inner_handle(of(node))?))
    }

    fn cuGraphGetNodes(graph: sys::CUgraph, nodes: Out<sys::CUgraphNode>, count: Out<usize>) {
        let mut graphs = session()?.graphs.lock();
        let all: Vec<NodeId> = graphs.graph(of(graph))?.nodes().map(|(id, _)| id).collect();
        list(&mut graphs, of(graph), &all, nodes, count)
    }

    fn cuGraphGetRootNodes(graph: sys::CUgraph, nodes: Out<sys::CUgraphNode>, count: Out<usize>) {
        let mut graphs = session()?.graphs.lock();
        let roots: Vec<NodeId> = graphs.graph(of(graph))?.roots().collect();
        list(&mut graphs, of(graph), &roots, nodes, count)
    }

    fn cuGraphGetEdges(
        graph: sys::CUgraph,
        from: Out<sys::CUgraphNode>,
        to: Out<sys::CUgraphNode>,
        count: Out<usize>,
    ) {
        list_edges(graph, from, to, Out::null(), count)
    }

    fn cuGraphGetEdges_v2(
        graph: sys::CUgraph,
        from: Out<sys::CUgraphNode>,
        to: Out<sys::CUgraphNode>,
        data: Out<sys::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        list_edges(graph, from, to, data, count)
    }

    fn cuGraphNodeGetDependencies(node: sys::CUgraphNode, nodes: Out<sys::CUgraphNode>, count: Out<usize>) {
        list_neighbours(node, false, nodes, Out::null(), count)
    }

    fn cuGraphNodeGetDependencies_v2(
        node: sys::CUgraphNode,
        nodes: Out<sys::CUgraphNode>,
        data: Out<sys::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        list_neighbours(node, false, nodes, data, count)
    }

    fn cuGraphNodeGetDependentNodes(node: sys::CUgraphNode, nodes: Out<sys::CUgraphNode>, count: Out<usize>) {
        list_neighbours(node, true, nodes, Out::null(), count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        node: sys::CUgraphNode,
        nodes: Out<sys::CUgraphNode>,
        data: Out<sys::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        list_neighbours(node, true, nodes, data, count)
    }

    fn cuGraphAddDependencies(
        graph: sys::CUgraph,
        from: In<sys::CUgraphNode>,
        to: In<sys::CUgraphNode>,
        count: usize,
    ) {
        let mut graphs = session()?.graphs.lock();
        let edges = edges(&graphs, graph, from, to, In::null(), count)?;
        graphs.graph_mut(of(graph))?.add_edges(&edges).map_err(refused)
    }

    fn cuGraphAddDependencies_v2(
        graph: sys::CUgraph,
        from: In<sys::CUgraphNode>,
        to: In<sys::CUgraphNode>,
        data: In<sys::CUgraphEdgeData>,
        count: usize,
    ) {
        let mut graphs = session()?.graphs.lock();
        let edges = edges(&graphs, graph, from, to, data, count)?;
        graphs.graph_mut(of(graph))?.add_edges(&edges).map_err(refused)
    }

    fn cuGraphRemoveDependencies(
        graph: sys::CUgraph,
        from: In<sys::CUgraphNode>,
        to: In<sys::CUgraphNode>,
        count: usize,
    ) {
        let mut graphs = session()?.graphs.lock();
        let edges = edges(&graphs, graph, from, to, In::null(), count)?;
        graphs.graph_mut(of(graph))?.remove_edges(&edges).map_err(refused)
    }

    fn cuGraphRemoveDependencies_v2(
        graph: sys::CUgraph,
        from: In<sys::CUgraphNode>,
        to: In<sys::CUgraphNode>,
        data: In<sys::CUgraphEdgeData>,
        count: usize,
    ) {
        let mut graphs = session()?.graphs.lock();
        let edges = edges(&graphs, graph, from, to, data, count)?;
        graphs.graph_mut(of(graph))?.remove_edges(&edges).map_err(refused)
    }

    fn cuGraphConditionalHandleCreate(
        handle: Out<sys::CUgraphConditionalHandle>,
        graph: sys::CUgraph,
        context: sys::CUcontext,
        default: c_uint,
        flags: c_uint,
    ) {
        if handle.is_null() || flags & !sys::CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let session = session()?;
        let context = match context.is_null() {
            true => current()?,
            false => session.contexts.get(context)?,
        };
        let default = (flags != 0).then_some(default);
        handle.set(session.graphs.lock().add_condition(of(graph), context.handle, default)?.0)
    }

    fn cuGraphDebugDotPrint(graph: sys::CUgraph, path: Name, flags: c_uint) {
        let verbose = flags & sys::CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE != 0;
        let drawing = fermata_graph::dot::print(session()?.graphs.lock().graph(of(graph))?, verbose);
        std::fs::write(path.text()?, drawing).map_err(|_| sys::CUDA_ERROR_OPERATING_SYSTEM)
    }
}

/// Node handles of the API as nodes of `graph`.
pub(super) fn ids(
    graphs: &State,
    graph: GraphId,
    nodes: &[sys::CUgraphNode],
) -> Result<Vec<NodeId>> {
    let id = |node: &sys::CUgraphNode| match graphs.node(of(*node))? {
        (home, id) if home == graph => Ok(id),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    };
    nodes.iter().map(id).collect()
}

fn edges(
    graphs: &State,
    graph: sys::CUgraph,
    from: In<sys::CUgraphNode>,
    to: In<sys::CUgraphNode>,
    data: In<sys::CUgraphEdgeData>,
    count: usize,
) -> Result<Vec<Edge>> {
    let (from, to) = (from.list(count)?, to.list(count)?);
    let data = data.list_if_any(count)?;
    let (from, to) = (ids(graphs, of(graph), &from)?, ids(graphs, of(graph), &to)?);
    let data = data.iter().map(edge_data).chain(std::iter::repeat(PLAIN));
    Ok(from
        .into_iter()
        .zip(to)
        .zip(data)
        .map(|((from, to), data)| Edge { from, to, data })
        .collect())
}

pub(super) fn edge_data(data: &sys::CUgraphEdgeData) -> EdgeData {
    EdgeData {
        from_port: data.from_port,
        to_port: data.to_port,
        kind: data.type_,
    }
}

fn to_edge_data(data: EdgeData) -> sys::CUgraphEdgeData {
    sys::CUgraphEdgeData {
        from_port: data.from_port,
        to_port: data.to_port,
        type_: data.kind,
        reserved: [0; 5],
    }
}

/// Writes as many handles as there is room for; without a list, only their number.
fn list(
    graphs: &mut State,
    graph: GraphId,
    ids: &[NodeId],
    nodes: Out<sys::CUgraphNode>,
    count: Out<usize>,
) -> Result {
    let room = count.get()?;
    if nodes.is_null() {
        return count.set(ids.len());
    }
    for n in 0..room {
        let handle = ids
            .get(n)
            .map_or(GraphNodeId::NULL, |id| graphs.node_handle(graph, *id));
        nodes.set_at(n, to_pointer(handle))?;
    }
    count.set(room.min(ids.len()))
}

fn list_edges(
    graph: sys::CUgraph,
    from: Out<sys::CUgraphNode>,
    to: Out<sys::CUgraphNode>,
    data: Out<sys::CUgraphEdgeData>,
    count: Out<usize>,
) -> Result {
    let mut graphs = session()?.graphs.lock();
    let edges: Vec<Edge> = graphs.graph(of(graph))?.edges().collect();
    let room = count.get()?;
    if from.is_null() || to.is_null() {
        return count.set(edges.len());
    }
    for (n, edge) in edges.iter().take(room).enumerate() {
        from.set_at(n, to_pointer(graphs.node_handle(of(graph), edge.from)))?;
        to.set_at(n, to_pointer(graphs.node_handle(of(graph), edge.to)))?;
        if !data.is_null() {
            data.set_at(n, to_edge_data(edge.data))?;
        }
    }
    count.set(room.min(edges.len()))
}

fn list_neighbours(
    node: sys::CUgraphNode,
    dependents: bool,
    nodes: Out<sys::CUgraphNode>,
    data: Out<sys::CUgraphEdgeData>,
    count: Out<usize>,
) -> Result {
    let mut graphs = session()?.graphs.lock();
    let (home, id) = graphs.node(of(node))?;
    let graph = graphs.graph(home)?;
    let found = match dependents {
        true => graph.dependents(id),
        false => graph.node(id).map_err(refused)?.dependencies.clone(),
    };
    let ids: Vec<NodeId> = found.iter().map(|(id, _)| *id).collect();
    let room = if nodes.is_null() { 0 } else { count.get()? };
    list(&mut graphs, home, &ids, nodes, count)?;
    if !data.is_null() {
        for (n, (_, edge)) in found.iter().take(room).enumerate() {
            data.set_at(n, to_edge_data(*edge))?;
        }
    }
    Ok(())
}
