//! Graphs: kept here as data; the worker only gets executable graphs.
//!
//! ```text
//!   nodes added or captured ─► graph ─ instantiate ─► executable: definition ─ lower ─► worker
//!                                                        ▲ set parameters, update
//! ```
//! A graph handle names a graph of the program, or one inside it, by the path of child-graph nodes. A
//! node handle names a node of such a graph.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::{Address, ContextId, ExecId, GraphId, GraphNodeId, StreamRef};
use fermata_abi::sys::driver as sys;
use fermata_graph::update::{Reason, assign, assign_inside};
use fermata_graph::{Captures, Condition, ConditionalKind, Graph, GraphError, NodeId, NodeKind};
use parking_lot::{Mutex, MutexGuard};

use crate::handles::{self, HandleMap};
use crate::object::conditions::Conditions;
use crate::object::graph_memory::{GraphMemory, Orphans};
use crate::object::mirror::Mirror;
use crate::object::user_objects::{HeldObjects, UserObjects};
use crate::result::Result;

/// Whether any stream is being captured, or any event is recorded in a capture.
static CAPTURING: AtomicBool = AtomicBool::new(false);

/// After more changes than this since the last launch, all parameters of a graph are sent.
const MOST_CHANGED: usize = 4096;

/// All graphs.
#[derive(Debug, Default)]
pub struct Graphs {
    state: Mutex<State>,
    /// Objects of the program that graphs keep alive.
    pub objects: UserObjects,
}

/// What the lock protects.
#[derive(Debug, Default)]
pub struct State {
    /// The program's graphs.
    roots: HandleMap<GraphId, Graph>,
    /// Handles of graphs: a root and the way from it.
    graphs: HandleMap<GraphId, Name>,
    graph_handles: HandleMap<Name, GraphId>,
    nodes: HandleMap<GraphNodeId, (GraphId, NodeId)>,
    node_handles: HandleMap<(GraphId, NodeId), GraphNodeId>,
    /// What was last returned of each kernel node's parameters, and the bodies of each conditional node.
    pub views: HandleMap<GraphNodeId, View>,
    /// Executable graphs.
    pub execs: HandleMap<ExecId, Exec>,
    /// Captures in progress.
    pub captures: Captures,
    /// Graphs that were made for a capture in progress, and go with it if it fails.
    pub captured_into: HashSet<GraphId>,
    /// References of each of the program's graphs to user objects.
    held: HandleMap<GraphId, HeldObjects>,
    /// Memory of allocation nodes.
    pub memory: GraphMemory,
    /// Handles of conditional nodes.
    pub conditions: Conditions,
}

/// A parameter block and pointers to the parameters in it, or an array of handles, kept for as long as the program may read them: until the next such
/// call for the node, or the node's end.
#[derive(Debug)]
pub struct View {
    /// The parameters.
    pub block: Vec<u8>,
    /// Addresses in `block`, or handles.
    pub pointers: Vec<usize>,
}

/// What a graph or node that is gone leaves.
#[derive(Debug)]
#[must_use = "what it leaves has to be let go"]
pub struct Left {
    /// Its references to user objects.
    pub held: HeldObjects,
    /// Memory that it allocated.
    pub memory: Orphans,
}

/// A root and the way to a graph inside it, as of [`Graph::inner`].
type Name = (GraphId, Vec<NodeId>);

/// A node with its way from the root.
pub type Place = fermata_graph::update::Found;

/// Where kernels are in the worker's graph: by the way to their graph, and by node.
pub type Places = HandleMap<Vec<NodeId>, HandleMap<NodeId, Place>>;

/// An executable graph.
#[derive(Debug)]
pub struct Exec {
    /// The context it was made in.
    pub context: ContextId,
    /// What it does.
    pub graph: Graph,
    /// Flags it was made with.
    pub flags: u64,
    /// What the worker's executable graph lacks.
    pub stale: Stale,
    /// The kernels of [`Stale::Kernels`], each with its way from the root.
    pub changed: Vec<Place>,
    /// Where kernels are in the worker's graph; known once a kernel's parameters have changed alone.
    pub places: Option<Places>,
    /// Disabled nodes, with their way from the root.
    pub disabled: HashSet<Place>,
    /// Shared memory through which copies of ordinary memory go, by node and end.
    pub bounces: HashMap<(Vec<NodeId>, NodeId, bool), Bounce>,
    /// Its own references to user objects.
    pub held: HeldObjects,
    /// The stream of its last launch. Its launches run one after another, so that all have ended when the last has.
    pub last: Option<StreamRef>,
    /// Whether it allocates or frees memory.
    pub has_memory: bool,
    /// The graph that it was made from, if that has conditional nodes and so no other executable graph.
    pub source: Option<GraphId>,
}

impl Exec {
    /// Has `set` change the node `id` of the graph at `way`, and notes what it says has changed: kernels, or more.
    fn change(
        &mut self,
        way: &[NodeId],
        id: NodeId,
        set: impl FnOnce(&mut NodeKind) -> std::result::Result<Option<Vec<Place>>, Reason>,
    ) -> Result {
        let inner = self.graph.inner_mut(way).map_err(refused)?;
        let changed = set(inner.kind_mut(id).map_err(refused)?);
        let kernels = changed.map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
        match kernels.filter(|_| self.changed.len() < MOST_CHANGED) {
            Some(kernels) if kernels.is_empty() => {}
            Some(kernels) => {
                self.changed.extend(kernels);
                self.stale = self.stale.max(Stale::Kernels);
            }
            None => self.stale = self.stale.max(Stale::Parameters),
        }
        Ok(())
    }
}

/// A piece of shared memory and the callback that copies from or to it.
#[derive(Debug, Clone, Copy)]
pub struct Bounce {
    /// Where it is.
    pub address: Address,
    /// Bytes.
    pub size: u64,
}

/// How much of the worker's executable graph is out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stale {
    /// Nothing.
    No,
    /// Parameters of some kernels have changed.
    Kernels,
    /// Parameters have changed.
    Parameters,
    /// It must be made anew.
    Shape,
}

impl Graphs {
    /// Locks the graphs for reading and changing.
    pub fn lock(&self) -> Changing<'_> {
        Changing(self.state.lock())
    }

    /// Lets go what a graph or node has left. Called without the lock.
    pub fn let_go(&self, memory: &Mirror, left: Left) -> Result {
        self.objects.release_all(left.held);
        left.memory.let_go(memory)
    }

    /// To be called before a stream is destroyed, whose work goes on to its end: keeps what its launches use until then.
    pub fn stream_ends(&self, stream: StreamRef) -> Result {
        let mut used = Vec::new();
        for exec in self.lock().execs.values_mut() {
            if exec.last == Some(stream) {
                exec.last = None;
                self.objects.retain_all(&exec.held);
                used.push(exec.held.clone());
            }
        }
        used.into_iter()
            .try_for_each(|held| self.objects.release_after(held, Some(stream)))
    }

    /// To be called when a context ends, and its work with it: its streams cannot be waited for any more.
    pub fn context_ends(&self, context: ContextId) {
        for exec in self.lock().execs.values_mut() {
            exec.last = exec.last.filter(|stream| stream.context != context);
        }
    }
}

/// The locked graphs; when dropped, records whether anything is being captured.
pub struct Changing<'g>(MutexGuard<'g, State>);

impl std::ops::Deref for Changing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl std::ops::DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        CAPTURING.store(!self.0.captures.is_idle(), Ordering::Release);
    }
}

/// Whether a capture may be in progress, so that calls have to look.
#[inline]
pub fn any_capture() -> bool {
    CAPTURING.load(Ordering::Acquire)
}

/// A refused change as the API reports it.
pub fn refused(_: GraphError) -> u32 {
    sys::CUDA_ERROR_INVALID_VALUE
}

impl State {
    /// Adds a graph.
    pub fn create(&mut self, graph: Graph) -> GraphId {
        let handle = handles::fresh();
        self.roots.insert(handle, graph);
        self.graphs.insert(handle, (handle, Vec::new()));
        self.graph_handles.insert((handle, Vec::new()), handle);
        handle
    }

    /// The graph behind a handle.
    pub fn graph(&self, handle: GraphId) -> Result<&Graph> {
        find(&self.roots, &self.graphs, handle)
    }

    /// The graph behind a handle, to be changed.
    pub fn graph_mut(&mut self, handle: GraphId) -> Result<&mut Graph> {
        let (root, path) = self
            .graphs
            .get(&handle)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let root = self
            .roots
            .get_mut(root)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        root.inner_mut(path).map_err(refused)
    }

    /// Forgets a graph, its nodes and the graphs inside it. What it leaves is for [`Graphs::let_go`].
    pub fn destroy(&mut self, handle: GraphId) -> Result<Left> {
        if !matches!(self.graphs.get(&handle), Some((root, _)) if *root == handle) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let graph = self.roots.remove(&handle).unwrap_or_default();
        self.forget_inside(handle, &[]);
        self.conditions.forget(handle);
        Ok(Left {
            held: self.held.remove(&handle).unwrap_or_default(),
            memory: self.orphans(&NodeKind::ChildGraph(Box::new(graph))),
        })
    }

    /// Forgets the handles of the graph at `way` from a root, of all inside it, and of their nodes.
    fn forget_inside(&mut self, root: GraphId, way: &[NodeId]) {
        let inside: HashSet<GraphId> = self
            .graphs
            .iter()
            .filter(|(_, name)| name.0 == root && name.1.starts_with(way))
            .map(|(graph, _)| *graph)
            .collect();
        self.graphs.retain(|graph, _| !inside.contains(graph));
        self.graph_handles
            .retain(|_, graph| !inside.contains(graph));
        self.node_handles
            .retain(|(graph, _), _| !inside.contains(graph));
        let views = &mut self.views;
        self.nodes.retain(|node, (graph, _)| {
            let goes = inside.contains(graph);
            if goes {
                views.remove(node);
            }
            !goes
        });
    }

    /// Memory that only what is `gone` allocated.
    fn orphans(&mut self, gone: &NodeKind) -> Orphans {
        let execs = self.execs.values().map(|exec| &exec.graph);
        self.memory.orphans(gone, self.roots.values().chain(execs))
    }

    /// Takes an executable graph out, with the memory that only it allocated.
    pub fn remove_exec(&mut self, exec: ExecId) -> Result<(Exec, Orphans)> {
        let exec = self.execs.remove(&exec);
        let mut exec = exec.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let gone = NodeKind::ChildGraph(Box::new(std::mem::take(&mut exec.graph)));
        let orphans = self.orphans(&gone);
        Ok((exec, orphans))
    }

    /// An executable graph, which `refresh` has first brought up to date, is launched in a stream.
    pub fn launched(
        &mut self,
        exec: sys::CUgraphExec,
        stream: StreamRef,
        refresh: impl FnOnce(&mut Exec) -> Result,
    ) -> Result {
        let exec = self.execs.get_mut(&handles::of(exec));
        let exec = exec.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        refresh(exec)?;
        exec.last = Some(stream);
        if exec.has_memory {
            self.memory.launched(&exec.graph);
        }
        Ok(())
    }

    /// The references to user objects of a graph, and the way to it from its root.
    pub fn held_mut(&mut self, graph: GraphId) -> Result<(&mut HeldObjects, Vec<NodeId>)> {
        self.graph(graph)?;
        let (root, path) = self
            .graphs
            .get(&graph)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        Ok((self.held.entry(*root).or_default(), path.clone()))
    }

    /// The references that a copy of a graph has to hold, as well.
    pub fn held_by(&self, graph: GraphId) -> Result<HeldObjects> {
        let (root, path) = self
            .graphs
            .get(&graph)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let held = self.held.get(root).map(|held| held.inside(path));
        Ok(held.unwrap_or_default())
    }

    /// The handle of a node.
    pub fn node_handle(&mut self, graph: GraphId, node: NodeId) -> GraphNodeId {
        let handle = *self
            .node_handles
            .entry((graph, node))
            .or_insert_with(handles::fresh);
        self.nodes.insert(handle, (graph, node));
        handle
    }

    /// The graph and node behind a handle.
    pub fn node(&self, handle: GraphNodeId) -> Result<(GraphId, NodeId)> {
        self.nodes
            .get(&handle)
            .copied()
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// What a node does.
    pub fn kind(&self, handle: GraphNodeId) -> Result<&NodeKind> {
        let (graph, node) = self.node(handle)?;
        self.graph(graph)?
            .node(node)
            .map(|node| &node.kind)
            .map_err(refused)
    }

    /// Sets a node's parameters.
    pub fn set_kind(&mut self, handle: GraphNodeId, kind: NodeKind) -> Result {
        let (graph, node) = self.node(handle)?;
        self.graph_mut(graph)?.set(node, kind).map_err(refused)
    }

    /// Removes a node from its graph. What it leaves is for [`Graphs::let_go`].
    pub fn remove_node(&mut self, handle: GraphNodeId) -> Result<Left> {
        let (graph, node) = self.node(handle)?;
        let removed = self.graph_mut(graph)?.remove(node).map_err(refused)?;
        let (held, mut way) = self.held_mut(graph)?;
        way.push(node);
        let held = held.exchange(&way, HeldObjects::default());
        // It looks at all handles; only such a node has any inside.
        if !removed.kind.graphs().is_empty() {
            let root = self.graphs.get(&graph).map_or(graph, |(root, _)| *root);
            self.forget_inside(root, &way);
        }
        self.nodes.remove(&handle);
        self.views.remove(&handle);
        self.node_handles.remove(&(graph, node));
        let memory = self.orphans(&removed.kind);
        Ok(Left { held, memory })
    }

    /// The handle of the graph inside a child-graph node.
    pub fn inner_handle(&mut self, node: GraphNodeId) -> Result<GraphId> {
        let NodeKind::ChildGraph(_) = self.kind(node)? else {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        };
        let (graph, id) = self.node(node)?;
        let (root, path) = self.name(graph)?;
        let name = (*root, [path, &[id][..]].concat());
        Ok(self.name_handle(name))
    }

    /// The root of a graph and the way to it.
    fn name(&self, graph: GraphId) -> Result<&Name> {
        let name = self.graphs.get(&graph);
        name.ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// The handle of a graph inside a root.
    fn name_handle(&mut self, name: Name) -> GraphId {
        let handle = *self
            .graph_handles
            .entry(name.clone())
            .or_insert_with(handles::fresh);
        self.graphs.insert(handle, name);
        handle
    }

    /// Whether a graph may be made executable: one with conditional nodes has one executable graph at a time.
    pub fn check_instance(&self, graph: GraphId) -> Result {
        self.graph(graph)?.check_bodies().map_err(refused)?;
        let instances = self.execs.values();
        let other = instances.map(|it| it.source).any(|it| it == Some(graph));
        match (other, self.has_unused_condition(graph)?) {
            (_, true) => Err(sys::CUDA_ERROR_INVALID_VALUE),
            (true, _) => Err(sys::CUDA_ERROR_NOT_SUPPORTED),
            _ => Ok(()),
        }
    }

    /// Whether a graph has a condition that decides no node.
    pub fn has_unused_condition(&self, graph: GraphId) -> Result<bool> {
        Ok(self.conditions.is_unused(graph, self.graph(graph)?))
    }

    /// Makes a condition for a graph, which kernels of `context` set.
    pub fn add_condition(
        &mut self,
        graph: GraphId,
        context: ContextId,
        default: Option<u32>,
    ) -> Result<Condition> {
        let root = self.name(graph)?.0;
        Ok(self.conditions.add(root, context, default))
    }

    /// A conditional node for a graph, as of [`Conditions::node`].
    pub fn conditional(
        &self,
        graph: GraphId,
        condition: Condition,
        wanted: (ConditionalKind, u32),
        context: Option<ContextId>,
    ) -> Result<NodeKind> {
        let root = self.name(graph)?.0;
        let whole = (root, self.graph(root)?);
        self.conditions.node(whole, condition, wanted, context)
    }

    /// The handles of a conditional node's bodies, in an array that stays as long as the node.
    pub fn bodies(&mut self, node: GraphNodeId) -> Result<*mut sys::CUgraph> {
        let (graph, id) = self.node(node)?;
        let kind = self.kind(node)?;
        let inside = 0..kind.graphs().len();
        let ways: Vec<_> = inside.map(|index| kind.way_inside(id, index)).collect();
        let (root, path) = self.name(graph)?.clone();
        let name = |way: &Vec<NodeId>| (root, [&path[..], way].concat());
        let handles = ways.iter().map(|way| self.name_handle(name(way)).raw());
        let mut view = View {
            block: Vec::new(),
            pointers: handles.map(|it| it as usize).collect(),
        };
        let first = view.pointers.as_mut_ptr().cast();
        self.views.insert(node, view);
        Ok(first)
    }

    /// The way from the root to a node's graph, and the node.
    pub fn path(&self, node: GraphNodeId) -> Result<(Vec<NodeId>, NodeId)> {
        let (graph, id) = self.node(node)?;
        let (_, path) = self
            .graphs
            .get(&graph)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        Ok((path.clone(), id))
    }

    /// The executable graph behind a handle.
    pub fn exec(&mut self, exec: sys::CUgraphExec) -> Result<&mut Exec> {
        self.execs
            .get_mut(&handles::of(exec))
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// Sets the parameters of a node of an executable graph.
    pub fn set_exec(
        &mut self,
        exec: sys::CUgraphExec,
        node: GraphNodeId,
        kind: &NodeKind,
    ) -> Result {
        let (path, id) = self.path(node)?;
        let set = |node: &mut NodeKind| assign(&path, id, node, kind);
        self.exec(exec)?.change(&path, id, set)
    }

    /// Sets the graph inside a node of an executable graph.
    pub fn set_exec_child(
        &mut self,
        exec: sys::CUgraphExec,
        node: GraphNodeId,
        child: GraphId,
    ) -> Result {
        let (path, id) = self.path(node)?;
        let child = find(&self.roots, &self.graphs, child)?;
        let exec = self.execs.get_mut(&handles::of(exec));
        let exec = exec.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        exec.change(&path, id, |node| match node {
            NodeKind::ChildGraph(inside) => assign_inside(&path, id, inside, child),
            _ => Err(Reason::Kind),
        })
    }
}

/// The graph behind a handle.
fn find<'s>(
    roots: &'s HandleMap<GraphId, Graph>,
    graphs: &HandleMap<GraphId, Name>,
    handle: GraphId,
) -> Result<&'s Graph> {
    let (root, path) = graphs.get(&handle).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
    let root = roots.get(root).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
    root.inner(path).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle of a node in `graph`, of which a view is kept.
    fn viewed(graphs: &mut State, graph: GraphId) -> GraphNodeId {
        let nodes = graphs.graph(graph).unwrap().nodes();
        let id = nodes.last().unwrap().0;
        let node = graphs.node_handle(graph, id);
        let (block, pointers) = (vec![0], vec![0]);
        graphs.views.insert(node, View { block, pointers });
        node
    }

    #[test]
    fn views_go_with_their_nodes() {
        let (mut graphs, mut inner, mut outer) = (State::default(), Graph::new(), Graph::new());
        inner.add(NodeKind::Empty, &[]).unwrap();
        let child = NodeKind::ChildGraph(Box::new(inner));
        outer.add(NodeKind::Empty, &[]).unwrap();
        let outer = graphs.create(outer);
        viewed(&mut graphs, outer);
        graphs.graph_mut(outer).unwrap().add(child, &[]).unwrap();
        let node = viewed(&mut graphs, outer);
        let inner = graphs.inner_handle(node).unwrap();
        viewed(&mut graphs, inner);
        assert_eq!(graphs.views.len(), 3);
        let _ = graphs.remove_node(node).unwrap();
        assert_eq!((graphs.views.len(), graphs.nodes.len()), (1, 1));
        assert!(graphs.graph(inner).is_err());
        let _ = graphs.destroy(outer).unwrap();
        assert!(graphs.views.is_empty() && graphs.nodes.is_empty());
    }
}
