//! Graphs and executable graphs as objects with handles, around the model of `fermata-graph`.
//!
//! A graph with the graphs inside it shares one root: a handle of an inner graph is the root and the path
//! of child nodes that leads to it.

mod condition;
mod exec;
mod held;
mod run;
mod user;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Weak};

use fermata_abi::op::ContextId;
use fermata_graph::{
    Condition as ConditionId, Conditional, ConditionalKind, Graph, GraphError, NodeId, NodeKind,
};
use parking_lot::Mutex;

pub use condition::Condition;
pub use exec::Exec;
pub use held::HeldObjects;
pub use run::Run;
pub use user::UserObject;

use crate::driver::{self, Driver};
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::handle::{self, Table, Tag};
use crate::memory::Kind;

/// A graph, or a graph inside another.
#[derive(Debug)]
pub struct GraphObject {
    /// Its handle.
    pub handle: u64,
    /// What it shares with the graphs inside it and around it.
    pub root: Arc<Root>,
    /// The child nodes that lead to it.
    pub path: Vec<NodeId>,
}

/// The outermost graph.
#[derive(Debug, Default)]
pub struct Root {
    graph: Mutex<Graph>,
    /// Handles of nodes that the program knows, by path and node.
    nodes: Mutex<HashMap<(Vec<NodeId>, NodeId), u64>>,
    /// Handles of inner graphs that the program knows, by path.
    inner: Mutex<HashMap<Vec<NodeId>, u64>>,
    /// Memory of its allocation nodes.
    memory: GraphMemory,
    /// References on user objects of it and of the graphs inside it.
    pub users: Mutex<HeldObjects>,
    /// Conditions that were made for it and for the graphs inside it.
    pub conditions: Mutex<Vec<Arc<Condition>>>,
    /// What the executable graph made from it has, if it has conditional nodes: there is one at a time.
    instance: Mutex<Weak<()>>,
    /// Parameters of kernel nodes and bodies of conditional nodes as they were shown to the program.
    shown: Mutex<HashMap<u64, ShownParams>>,
}

/// Memory of the allocation nodes of a graph; it lives as long as the graph, an executable one made
/// from it or a launch of that does.
#[derive(Debug, Default)]
struct GraphMemory(Mutex<Vec<u64>>);

/// A node of a graph.
#[derive(Debug)]
pub struct NodeRef {
    /// Its handle.
    pub handle: u64,
    /// Its graph.
    pub graph: Arc<GraphObject>,
    /// Its id there.
    pub id: NodeId,
    /// Whether a kernel's parameters were given as one block. The driver makes no such node cooperative.
    pub by_block: AtomicBool,
}

/// A parameter block and pointers into it, kept for the program to look at.
#[derive(Debug, Default)]
struct ShownParams {
    _block: Box<[u8]>,
    pointers: Box<[usize]>,
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        if let Ok(driver) = driver::running() {
            for address in self.0.get_mut().drain(..) {
                let _ = driver.memory.free(address, |_| true);
            }
        }
    }
}

/// A graph error as a result code.
pub fn code(error: &GraphError) -> CuError {
    match error {
        GraphError::MemoryNode(_) => NOT_SUPPORTED,
        _ => INVALID_VALUE,
    }
}

impl Driver {
    /// Graphs.
    pub fn graphs(&self) -> &'static Table<GraphObject> {
        static ALL: LazyLock<Table<GraphObject>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Driver {
    /// Nodes of graphs.
    pub fn nodes(&self) -> &'static Table<NodeRef> {
        static ALL: LazyLock<Table<NodeRef>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl GraphObject {
    /// Makes `graph` known to the program.
    pub fn create(driver: &Driver, graph: Graph) -> Arc<Self> {
        let mut root = Root::default();
        *root.graph.get_mut() = graph;
        Self::publish(driver, Arc::new(root), Vec::new())
    }

    fn publish(driver: &Driver, root: Arc<Root>, path: Vec<NodeId>) -> Arc<Self> {
        let object = Arc::new(Self {
            handle: handle::fresh(Tag::Graph),
            root,
            path,
        });
        driver.graphs().insert(object.handle, Arc::clone(&object));
        object
    }

    /// The graph behind a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn resolve(driver: &Driver, handle: u64) -> Result<Arc<Self>> {
        driver.graphs().get(handle).ok_or(INVALID_HANDLE)
    }

    /// Looks at the graph.
    ///
    /// # Errors
    /// What `look` says, or the graph's child node is gone.
    pub fn with<T>(&self, look: impl FnOnce(&Graph) -> Result<T, GraphError>) -> Result<T> {
        let root = self.root.graph.lock();
        root.inner(&self.path)
            .and_then(look)
            .map_err(|error| code(&error))
    }

    /// Changes the graph.
    ///
    /// # Errors
    /// What `change` says, or the graph's child node is gone.
    pub fn with_mut<T>(
        &self,
        change: impl FnOnce(&mut Graph) -> Result<T, GraphError>,
    ) -> Result<T> {
        let mut root = self.root.graph.lock();
        root.inner_mut(&self.path)
            .and_then(change)
            .map_err(|error| code(&error))
    }

    /// The handle of a node.
    pub fn node_handle(self: &Arc<Self>, driver: &Driver, id: NodeId) -> u64 {
        let mut nodes = self.root.nodes.lock();
        *nodes.entry((self.path.clone(), id)).or_insert_with(|| {
            let handle = handle::fresh(Tag::Node);
            driver.nodes().insert(
                handle,
                Arc::new(NodeRef {
                    handle,
                    graph: Arc::clone(self),
                    id,
                    by_block: AtomicBool::new(false),
                }),
            );
            handle
        })
    }

    /// The graph inside, at the end of a way from here.
    ///
    /// # Errors
    /// There is none.
    pub fn child(&self, driver: &Driver, way: &[NodeId]) -> Result<Arc<Self>> {
        let path = [&self.path[..], way].concat();
        self.with(|graph| graph.inner(way).map(drop))?;
        let mut inner = self.root.inner.lock();
        if let Some(known) = inner
            .get(&path)
            .and_then(|handle| driver.graphs().get(*handle))
        {
            return Ok(known);
        }
        let child = Self::publish(driver, Arc::clone(&self.root), path.clone());
        inner.insert(path, child.handle);
        Ok(child)
    }

    /// References for a copy of the graph to what it holds.
    pub fn held(&self, driver: &Driver) -> HeldObjects {
        self.root.users.lock().copied(driver, &self.path)
    }

    /// Gives the graph at `way` from here these references, and releases those that it had.
    pub fn hold_inside(&self, way: &[NodeId], new: HeldObjects) {
        let way = [&self.path[..], way].concat();
        let before = self.root.users.lock().exchange(&way, new);
        // This may call the program, so it happens without the lock.
        drop(before);
    }

    /// Removes a node and its handle from the graph.
    ///
    /// # Errors
    /// It is a memory node, which stays as long as its graph.
    pub fn remove_node(&self, driver: &Driver, node: &NodeRef) -> Result {
        self.with_mut(|graph| {
            if graph.node(node.id)?.kind.is_memory() {
                return Err(GraphError::MemoryNode("taken apart"));
            }
            graph.remove(node.id).map(drop)
        })?;
        self.hold_inside(&[node.id], HeldObjects::default());
        self.root.nodes.lock().remove(&(self.path.clone(), node.id));
        driver.nodes().remove(node.handle);
        Ok(())
    }

    /// Removes the graph's handles. Executable graphs made from it stay.
    ///
    /// # Errors
    /// It is inside another graph, which owns it.
    pub fn destroy(&self, driver: &Driver) -> Result {
        if !self.path.is_empty() {
            return Err(INVALID_VALUE);
        }
        driver.graphs().remove(self.handle);
        for (_, handle) in self.root.nodes.lock().drain() {
            driver.nodes().remove(handle);
        }
        for (_, handle) in self.root.inner.lock().drain() {
            driver.graphs().remove(handle);
        }
        self.hold_inside(&[], HeldObjects::default());
        Ok(())
    }

    /// Allocates the memory of an allocation node that is going to be made.
    ///
    /// # Errors
    /// No such device, or not enough memory.
    pub fn allocate(&self, driver: &Driver, device: i32, bytes: u64) -> Result<u64> {
        let device = driver.device(device)?;
        device.count_allocation()?;
        let address = driver.memory.allocate(device, 0, bytes, Kind::Graph)?;
        self.root.memory.0.lock().push(address);
        Ok(address)
    }

    /// Addresses of the parameters of a kernel node, valid until they are asked for again or the graph
    /// goes away.
    pub fn show_params(&self, node: u64, block: &[u8], offsets: &[usize]) -> *mut *mut c_void {
        let mut block: Box<[u8]> = block.into();
        let base = block.as_mut_ptr();
        let pointers = offsets
            .iter()
            .map(|offset| base.wrapping_add(*offset).expose_provenance())
            .collect();
        let mut shown = self.root.shown.lock();
        let entry = shown.entry(node).or_default();
        *entry = ShownParams {
            _block: block,
            pointers,
        };
        entry.pointers.as_mut_ptr().cast()
    }
}

impl GraphObject {
    /// A conditional node with empty bodies that a condition of this graph decides.
    ///
    /// # Errors
    /// There is no such condition, it decides a node already, or is of another context.
    pub fn conditional(
        &self,
        handle: u64,
        wanted: (ConditionalKind, u32),
        context: u64,
    ) -> Result<NodeKind> {
        let conditions = self.root.conditions.lock();
        let found = conditions.iter().find(|it| it.handle == handle);
        let found = found.ok_or(INVALID_VALUE)?;
        let other = context != 0 && context != found.context;
        let condition = ConditionId(handle);
        if other || self.root.graph.lock().has_condition(condition) {
            return Err(INVALID_VALUE);
        }
        let context = ContextId::from_raw(found.context);
        Conditional::empty(condition, found.default, context, wanted).ok_or(INVALID_VALUE)
    }

    /// The handles of a conditional node's bodies, in an array that stays as long as the graph.
    ///
    /// # Errors
    /// There is no such node.
    pub fn show_bodies(self: &Arc<Self>, driver: &Driver, node: NodeId) -> Result<*mut c_void> {
        let kind = self.with(|graph| graph.node(node).map(|it| it.kind.clone()))?;
        let inside = 0..kind.graphs().len();
        let handles = inside.map(|index| self.child(driver, &kind.way_inside(node, index)));
        let handles = handles.map(|it| it.map(|it| it.handle as usize));
        let mut shown = self.root.shown.lock();
        let entry = shown.entry(self.node_handle(driver, node)).or_default();
        entry.pointers = handles.collect::<Result<_>>()?;
        Ok(entry.pointers.as_mut_ptr().cast())
    }

    /// Whether it has a condition that decides no node. Of a graph inside another one, its conditions are the other one's.
    pub fn has_unused_condition(&self) -> bool {
        let conditions = self.root.conditions.lock();
        let graph = self.root.graph.lock();
        let mut handles = conditions.iter().map(|it| ConditionId(it.handle));
        self.path.is_empty() && handles.any(|it| !graph.has_condition(it))
    }
}

impl NodeRef {
    /// The node behind a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn resolve(driver: &Driver, handle: u64) -> Result<Arc<Self>> {
        driver.nodes().get(handle).ok_or(INVALID_HANDLE)
    }

    /// What it does.
    ///
    /// # Errors
    /// It has been taken out of its graph.
    pub fn kind(&self) -> Result<NodeKind> {
        self.graph
            .with(|graph| graph.node(self.id).map(|node| node.kind.clone()))
    }
}
