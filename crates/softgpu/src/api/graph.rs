//! Exported functions that create, clone and print graphs, and change and query their edges.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::{ConditionalKind, Edge, EdgeData, NodeId, NodeKind, dot};

use super::args::{In, Name, Out};
use super::graph_params::{child_graph, child_of, generic, node_ids};
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, Result};
use crate::graph::{Condition, GraphObject, NodeRef, UserObject};
use crate::work::Work;

/// The graph behind a handle.
pub fn graph(handle: cu::CUgraph) -> Result<Arc<GraphObject>> {
    GraphObject::resolve(driver()?, to_handle(handle))
}

/// The node behind a handle.
pub fn node(handle: cu::CUgraphNode) -> Result<Arc<NodeRef>> {
    NodeRef::resolve(driver()?, to_handle(handle))
}

fn edge_data(data: cu::CUgraphEdgeData) -> EdgeData {
    EdgeData {
        from_port: data.from_port,
        to_port: data.to_port,
        kind: data.type_,
    }
}

fn to_c(data: EdgeData) -> cu::CUgraphEdgeData {
    cu::CUgraphEdgeData {
        from_port: data.from_port,
        to_port: data.to_port,
        type_: data.kind,
        ..Default::default()
    }
}

/// Dependencies as the program lists them; without data, they are full ones.
pub fn dependencies(
    graph: &GraphObject,
    nodes: In<cu::CUgraphNode>,
    data: In<cu::CUgraphEdgeData>,
    count: usize,
) -> Result<Vec<(NodeId, EdgeData)>> {
    let ids = node_ids(graph, &nodes.list(count)?)?;
    let data = match data.is_null() {
        true => vec![EdgeData::default(); count],
        false => data.list(count)?.into_iter().map(edge_data).collect(),
    };
    Ok(ids.into_iter().zip(data).collect())
}

fn edges(
    graph: &GraphObject,
    from: In<cu::CUgraphNode>,
    to: In<cu::CUgraphNode>,
    data: In<cu::CUgraphEdgeData>,
    count: usize,
) -> Result<Vec<Edge>> {
    let to = node_ids(graph, &to.list(count)?)?;
    let from = dependencies(graph, from, data, count)?;
    Ok(from
        .into_iter()
        .zip(to)
        .map(|((from, data), to)| Edge { from, to, data })
        .collect())
}

/// Answers a query for a list: its length, or its elements as far as there is room, what is left of the
/// room set to null.
fn list(nodes: Out<cu::CUgraphNode>, count: Out<usize>, found: &[u64]) -> Result {
    if nodes.is_null() {
        return count.set(found.len());
    }
    let room = count.get()?;
    for index in 0..room {
        nodes.set_at(index, to_pointer(found.get(index).copied().unwrap_or(0)))?;
    }
    count.set(found.len().min(room))
}

/// Answers a query for nodes with the data of their edges.
fn list_with_data(
    graph: &Arc<GraphObject>,
    nodes: Out<cu::CUgraphNode>,
    data: Out<cu::CUgraphEdgeData>,
    count: Out<usize>,
    found: &[(NodeId, EdgeData)],
) -> Result {
    let driver = driver()?;
    let plain = found.iter().all(|(_, data)| *data == EdgeData::default());
    if data.is_null() && !nodes.is_null() && !plain {
        return Err(crate::error::CuError(cu::CUDA_ERROR_LOSSY_QUERY));
    }
    let room = if nodes.is_null() || data.is_null() {
        0
    } else {
        count.get()?
    };
    for (index, (_, edge)) in found.iter().take(room).enumerate() {
        data.set_at(index, to_c(*edge))?;
    }
    let handles: Vec<u64> = found
        .iter()
        .map(|(id, _)| graph.node_handle(driver, *id))
        .collect();
    list(nodes, count, &handles)
}

fn list_edges(
    handle: cu::CUgraph,
    from: Out<cu::CUgraphNode>,
    to: Out<cu::CUgraphNode>,
    data: Out<cu::CUgraphEdgeData>,
    count: Out<usize>,
) -> Result {
    let graph = graph(handle)?;
    let edges: Vec<Edge> = graph.with(|graph| Ok(graph.edges().collect()))?;
    if from.is_null() != to.is_null() {
        return Err(INVALID_VALUE);
    }
    let starts: Vec<_> = edges.iter().map(|edge| (edge.from, edge.data)).collect();
    let ends: Vec<_> = edges
        .iter()
        .map(|edge| (edge.to, EdgeData::default()))
        .collect();
    let mut room = if from.is_null() { 0 } else { count.get()? };
    list_with_data(&graph, from, data, count, &starts)?;
    if !to.is_null() {
        list_with_data(&graph, to, Out::null(), Out::from(&mut room), &ends)?;
    }
    Ok(())
}

fn list_neighbours(
    handle: cu::CUgraphNode,
    nodes: Out<cu::CUgraphNode>,
    data: Out<cu::CUgraphEdgeData>,
    count: Out<usize>,
    dependents: bool,
) -> Result {
    let node = node(handle)?;
    let found = node.graph.with(|graph| {
        let own = graph.node(node.id)?;
        Ok(if dependents {
            graph.dependents(node.id)
        } else {
            own.dependencies.clone()
        })
    })?;
    list_with_data(&node.graph, nodes, data, count, &found)
}

fn add_edges(
    handle: cu::CUgraph,
    from: In<cu::CUgraphNode>,
    to: In<cu::CUgraphNode>,
    data: In<cu::CUgraphEdgeData>,
    count: usize,
) -> Result {
    let graph = graph(handle)?;
    let edges = edges(&graph, from, to, data, count)?;
    graph.with_mut(|graph| graph.add_edges(&edges))
}

fn remove_edges(
    handle: cu::CUgraph,
    from: In<cu::CUgraphNode>,
    to: In<cu::CUgraphNode>,
    data: In<cu::CUgraphEdgeData>,
    count: usize,
) -> Result {
    let graph = graph(handle)?;
    let edges = edges(&graph, from, to, data, count)?;
    graph.with_mut(|graph| graph.remove_edges(&edges))
}

fn add_node(
    out: Out<cu::CUgraphNode>,
    handle: cu::CUgraph,
    nodes: In<cu::CUgraphNode>,
    data: In<cu::CUgraphEdgeData>,
    count: usize,
    params: Out<cu::CUgraphNodeParams>,
) -> Result {
    let graph = graph(handle)?;
    let after = dependencies(&graph, nodes, data, count)?;
    if let Some(child) = child_of(params)? {
        return add_child(out, &graph, &after, &child);
    }
    if params.get()?.type_ == cu::CU_GRAPH_NODE_TYPE_CONDITIONAL {
        return add_conditional(out, &graph, &after, params);
    }
    let kind = generic(params, Some(&graph))?;
    add(out, &graph, &after, kind).map(drop)
}

/// Adds a conditional node and tells the program where its bodies are.
fn add_conditional(
    out: Out<cu::CUgraphNode>,
    graph: &Arc<GraphObject>,
    after: &[(NodeId, EdgeData)],
    params: Out<cu::CUgraphNodeParams>,
) -> Result {
    let mut all = params.get()?;
    // SAFETY: the type says which member of the union the program has filled in.
    let given = unsafe { &mut all.__bindgen_anon_1.conditional };
    let kind = ConditionalKind::of_cuda(given.type_).ok_or(INVALID_VALUE)?;
    let wanted = (kind, given.size);
    let node = graph.conditional(given.handle, wanted, to_handle(given.ctx))?;
    let id = add(out, graph, after, node)?;
    given.phGraph_out = graph.show_bodies(driver()?, id)?.cast();
    params.set(all)
}

/// Adds a node that runs a copy of another graph, with references to what that holds.
pub fn add_child(
    out: Out<cu::CUgraphNode>,
    graph: &Arc<GraphObject>,
    after: &[(NodeId, EdgeData)],
    child: &GraphObject,
) -> Result {
    let held = child.held(driver()?);
    let id = add(out, graph, after, child_graph(child)?)?;
    graph.hold_inside(&[id], held);
    Ok(())
}

/// Checks a node and adds it to a graph.
pub fn add(
    out: Out<cu::CUgraphNode>,
    graph: &Arc<GraphObject>,
    after: &[(NodeId, EdgeData)],
    kind: NodeKind,
) -> Result<NodeId> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    if !matches!(kind, NodeKind::ChildGraph(_) | NodeKind::Conditional(_)) {
        let context = context::current_any()?;
        if matches!(
            kind,
            NodeKind::Kernel(_) | NodeKind::Memcpy(_) | NodeKind::Memset(_)
        ) {
            context.check()?;
        }
        Work::check(driver()?, &context, &kind)?;
    }
    let id = graph.with_mut(|graph| graph.add(kind, after))?;
    out.set(to_pointer(graph.node_handle(driver()?, id)))?;
    Ok(id)
}

api! {
    fn cuGraphCreate(out: Out<cu::CUgraph>, flags: c_uint) {
        if flags != 0 || out.is_null() {
            return Err(INVALID_VALUE);
        }
        out.set(to_pointer(GraphObject::create(driver()?, fermata_graph::Graph::new()).handle))
    }

    fn cuGraphDestroy(handle: cu::CUgraph) {
        graph(handle)?.destroy(driver()?)
    }

    fn cuGraphClone(out: Out<cu::CUgraph>, original: cu::CUgraph) {
        let (driver, original) = (driver()?, graph(original)?);
        let copy = original.with(|graph| Ok(graph.clone()))?;
        if copy.has_memory_nodes() || copy.has_conditionals() {
            return Err(NOT_SUPPORTED);
        }
        let clone = GraphObject::create(driver, copy);
        clone.hold_inside(&[], original.held(driver));
        out.set(to_pointer(clone.handle))
    }

    fn cuGraphNodeFindInClone(out: Out<cu::CUgraphNode>, original: cu::CUgraphNode, clone: cu::CUgraph) {
        let (original, clone) = (node(original)?, graph(clone)?);
        clone.with(|graph| graph.node(original.id).map(drop))?;
        out.set(to_pointer(clone.node_handle(driver()?, original.id)))
    }

    fn cuGraphNodeGetType(handle: cu::CUgraphNode, kind: Out<cu::CUgraphNodeType>) {
        kind.set(node(handle)?.kind()?.cuda_type())
    }

    fn cuGraphGetNodes(handle: cu::CUgraph, nodes: Out<cu::CUgraphNode>, count: Out<usize>) {
        let graph = graph(handle)?;
        let ids: Vec<NodeId> = graph.with(|graph| Ok(graph.nodes().map(|(id, _)| id).collect()))?;
        let driver = driver()?;
        let handles: Vec<u64> = ids.into_iter().map(|id| graph.node_handle(driver, id)).collect();
        list(nodes, count, &handles)
    }

    fn cuGraphGetRootNodes(handle: cu::CUgraph, nodes: Out<cu::CUgraphNode>, count: Out<usize>) {
        let graph = graph(handle)?;
        let ids: Vec<NodeId> = graph.with(|graph| Ok(graph.roots().collect()))?;
        let driver = driver()?;
        let handles: Vec<u64> = ids.into_iter().map(|id| graph.node_handle(driver, id)).collect();
        list(nodes, count, &handles)
    }

    fn cuGraphGetEdges(
        handle: cu::CUgraph,
        from: Out<cu::CUgraphNode>,
        to: Out<cu::CUgraphNode>,
        count: Out<usize>,
    ) {
        list_edges(handle, from, to, Out::null(), count)
    }

    fn cuGraphGetEdges_v2(
        handle: cu::CUgraph,
        from: Out<cu::CUgraphNode>,
        to: Out<cu::CUgraphNode>,
        data: Out<cu::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        list_edges(handle, from, to, data, count)
    }

    fn cuGraphNodeGetDependencies(
        handle: cu::CUgraphNode,
        nodes: Out<cu::CUgraphNode>,
        count: Out<usize>,
    ) {
        list_neighbours(handle, nodes, Out::null(), count, false)
    }

    fn cuGraphNodeGetDependencies_v2(
        handle: cu::CUgraphNode,
        nodes: Out<cu::CUgraphNode>,
        data: Out<cu::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        list_neighbours(handle, nodes, data, count, false)
    }

    fn cuGraphNodeGetDependentNodes(
        handle: cu::CUgraphNode,
        nodes: Out<cu::CUgraphNode>,
        count: Out<usize>,
    ) {
        list_neighbours(handle, nodes, Out::null(), count, true)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        handle: cu::CUgraphNode,
        nodes: Out<cu::CUgraphNode>,
        data: Out<cu::CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        list_neighbours(handle, nodes, data, count, true)
    }

    fn cuGraphAddDependencies(
        handle: cu::CUgraph,
        from: In<cu::CUgraphNode>,
        to: In<cu::CUgraphNode>,
        count: usize,
    ) {
        add_edges(handle, from, to, In::null(), count)
    }

    fn cuGraphAddDependencies_v2(
        handle: cu::CUgraph,
        from: In<cu::CUgraphNode>,
        to: In<cu::CUgraphNode>,
        data: In<cu::CUgraphEdgeData>,
        count: usize,
    ) {
        add_edges(handle, from, to, data, count)
    }

    fn cuGraphRemoveDependencies(
        handle: cu::CUgraph,
        from: In<cu::CUgraphNode>,
        to: In<cu::CUgraphNode>,
        count: usize,
    ) {
        remove_edges(handle, from, to, In::null(), count)
    }

    fn cuGraphRemoveDependencies_v2(
        handle: cu::CUgraph,
        from: In<cu::CUgraphNode>,
        to: In<cu::CUgraphNode>,
        data: In<cu::CUgraphEdgeData>,
        count: usize,
    ) {
        remove_edges(handle, from, to, data, count)
    }

    fn cuGraphAddNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        nodes: In<cu::CUgraphNode>,
        count: usize,
        params: Out<cu::CUgraphNodeParams>,
    ) {
        add_node(out, handle, nodes, In::null(), count, params)
    }

    fn cuGraphAddNode_v2(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        nodes: In<cu::CUgraphNode>,
        data: In<cu::CUgraphEdgeData>,
        count: usize,
        params: Out<cu::CUgraphNodeParams>,
    ) {
        add_node(out, handle, nodes, data, count, params)
    }

    fn cuGraphNodeSetParams(handle: cu::CUgraphNode, params: Out<cu::CUgraphNodeParams>) {
        let node = node(handle)?;
        let kind = generic(params, None)?;
        let driver = driver()?;
        let held = child_of(params)?.map(|child| child.held(driver));
        node.graph.with_mut(|graph| graph.set(node.id, kind))?;
        if let Some(held) = held {
            node.graph.hold_inside(&[node.id], held);
        }
        Ok(())
    }

    fn cuGraphDestroyNode(handle: cu::CUgraphNode) {
        let node = node(handle)?;
        node.graph.remove_node(driver()?, &node)
    }

    fn cuGraphConditionalHandleCreate(
        out: Out<cu::CUgraphConditionalHandle>,
        handle: cu::CUgraph,
        context: cu::CUcontext,
        default: c_uint,
        flags: c_uint,
    ) {
        let graph = graph(handle)?;
        if out.is_null() || flags & !cu::CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            return Err(INVALID_VALUE);
        }
        let context = match context.is_null() {
            true => context::current()?,
            false => driver()?.contexts().get(to_handle(context)).ok_or(INVALID_VALUE)?,
        };
        let default = (flags != 0).then_some(default);
        let made = Condition::create(context.handle, default);
        out.set(made.handle)?;
        graph.root.conditions.lock().push(made);
        Ok(())
    }

    fn cuGraphDebugDotPrint(handle: cu::CUgraph, path: Name, flags: c_uint) {
        let text = graph(handle)?.with(|graph| Ok(dot::print(graph, flags != 0)))?;
        std::fs::write(path.text()?, text).map_err(|_| OPERATING_SYSTEM)
    }

    fn cuUserObjectCreate(
        out: Out<cu::CUuserObject>,
        data: Out<c_void>,
        destroy: cu::CUhostFn,
        count: c_uint,
        flags: c_uint,
    ) {
        if flags != cu::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || out.is_null() {
            return Err(INVALID_VALUE);
        }
        let data = data.as_ptr().expose_provenance() as u64;
        out.set(to_pointer(UserObject::create(driver()?, destroy.ok_or(INVALID_VALUE)?, data, count)?))
    }

    fn cuUserObjectRetain(object: cu::CUuserObject, count: c_uint) {
        UserObject::retain(driver()?, to_handle(object), count)
    }

    fn cuUserObjectRelease(object: cu::CUuserObject, count: c_uint) {
        UserObject::release(driver()?, to_handle(object), count)
    }

    fn cuGraphRetainUserObject(
        handle: cu::CUgraph,
        object: cu::CUuserObject,
        count: c_uint,
        flags: c_uint,
    ) {
        let graph = graph(handle)?;
        if flags & !cu::CU_GRAPH_USER_OBJECT_MOVE != 0 || count == 0 {
            return Err(INVALID_VALUE);
        }
        if flags & cu::CU_GRAPH_USER_OBJECT_MOVE == 0 {
            UserObject::retain(driver()?, to_handle(object), count)?;
        } else {
            driver()?.user_objects().get(to_handle(object)).ok_or(INVALID_HANDLE)?;
        }
        graph.root.users.lock().add(&graph.path, to_handle(object), count)
    }

    fn cuGraphReleaseUserObject(handle: cu::CUgraph, object: cu::CUuserObject, count: c_uint) {
        let graph = graph(handle)?;
        graph.root.users.lock().subtract(&graph.path, to_handle(object), count)?;
        UserObject::release(driver()?, to_handle(object), count)
    }
}
