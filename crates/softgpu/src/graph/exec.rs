//! Executable graphs: a copy of a graph, checked, with node parameters that can be changed.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use fermata_graph::{Conditional, Graph, KernelNode, NodeId, NodeKind, Place as CopyPlace, update};
use parking_lot::Mutex;

use super::{Condition, GraphObject, HeldObjects, NodeRef, Root, Run, code};
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::handle::{self, Table, Tag};
use crate::module::Function;
use crate::stream::{Point, Stream};
use crate::work::{Branches, Work};

/// A node of an executable graph: the child nodes that lead to its graph, and its id there.
type Place = (Vec<NodeId>, NodeId);

/// An executable graph.
#[derive(Debug)]
pub struct Exec {
    /// Its handle.
    pub handle: u64,
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`
    pub flags: u64,
    state: Mutex<State>,
    /// The last launch: launches of one executable graph run one after another.
    last: Mutex<Option<Point>>,
    /// Says that it lives to the graph it was made from.
    instance: Arc<()>,
    /// The graph this was made from; its nodes name the nodes here. Keeps its memory.
    root: Arc<Root>,
}

#[derive(Debug)]
struct State {
    graph: Graph,
    disabled: HashSet<Place>,
    /// References on user objects; its launches hold them, too.
    held: Arc<HeldObjects>,
    /// Conditions of the graph whose parameters it has.
    conditions: Vec<Arc<Condition>>,
}

impl Driver {
    /// Executable graphs.
    pub fn execs(&self) -> &'static Table<Exec> {
        static ALL: LazyLock<Table<Exec>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Exec {
    /// Checks a graph and makes an executable copy of it.
    ///
    /// # Errors
    /// Its edges form a cycle or a node cannot run; with the node at fault, if there is one.
    pub fn create(
        driver: &Driver,
        context: &Arc<Context>,
        source: &GraphObject,
        flags: u64,
    ) -> Result<Arc<Self>, (CuError, Option<NodeId>)> {
        let graph = source
            .with(|graph| Ok(graph.clone()))
            .map_err(|error| (error, None))?;
        check(driver, context, &graph)?;
        let is_conditional = graph.has_conditionals();
        let mut instance = source.root.instance.lock();
        if source.has_unused_condition() || graph.check_bodies().is_err() {
            return Err((INVALID_VALUE, None));
        }
        if is_conditional && instance.upgrade().is_some() {
            return Err((NOT_SUPPORTED, None));
        }
        let exec = Arc::new(Self {
            handle: handle::fresh(Tag::Exec),
            flags,
            state: Mutex::new(State {
                graph,
                disabled: HashSet::new(),
                held: Arc::new(source.held(driver)),
                conditions: source.root.conditions.lock().clone(),
            }),
            last: Mutex::default(),
            instance: Arc::default(),
            root: Arc::clone(&source.root),
        });
        driver.execs().insert(exec.handle, Arc::clone(&exec));
        if is_conditional {
            *instance = Arc::downgrade(&exec.instance);
        }
        Ok(exec)
    }

    /// The executable graph behind a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn resolve(driver: &Driver, handle: u64) -> Result<Arc<Self>> {
        driver.execs().get(handle).ok_or(INVALID_HANDLE)
    }

    /// Puts a run of the graph into a stream.
    ///
    /// # Errors
    /// A node cannot run any more, or the context is dead.
    pub fn launch(&self, driver: &Driver, stream: &Arc<Stream>) -> Result {
        let state = self.state.lock();
        let mut steps = Vec::new();
        let made = state.collect(
            driver,
            &stream.context,
            &state.graph,
            &mut Vec::new(),
            &mut steps,
        );
        let held = Arc::clone(&state.held);
        let conditions = state.conditions.clone();
        drop(state);
        let run = Arc::new(Run::new(&self.root, held, conditions, steps));
        let mut last = self.last.lock();
        let before = last.iter().cloned().collect();
        let submitted =
            made.and_then(|()| stream.submit_after(Work::Graph(Arc::clone(&run)), before));
        *last = Some(submitted.inspect_err(|_| run.abandon())?);
        Ok(())
    }

    /// Sets a node's parameters. `node` is one of the graph this was made from.
    ///
    /// # Errors
    /// There is no such node here, or its parameters cannot become these.
    pub fn set_params(&self, node: &NodeRef, kind: &NodeKind) -> Result {
        self.owns(node)?;
        let mut state = self.state.lock();
        let graph = state
            .graph
            .inner_mut(&node.graph.path)
            .map_err(|error| code(&error))?;
        let slot = graph.kind_mut(node.id).map_err(|error| code(&error))?;
        update::assign(&[], node.id, slot, kind).map_err(|_| INVALID_VALUE)?;
        Ok(())
    }

    /// Refuses nodes of other graphs.
    fn owns(&self, node: &NodeRef) -> Result {
        if Arc::ptr_eq(&self.root, &node.graph.root) {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }

    /// What a node does here.
    ///
    /// # Errors
    /// There is no such node here.
    pub fn kind(&self, node: &NodeRef) -> Result<NodeKind> {
        self.owns(node)?;
        let state = self.state.lock();
        let graph = state
            .graph
            .inner(&node.graph.path)
            .map_err(|error| code(&error))?;
        graph
            .node(node.id)
            .map(|node| node.kind.clone())
            .map_err(|error| code(&error))
    }

    /// Gives the graph inside `node` the references of the graph whose parameters it has taken over, instead of those it had.
    ///
    /// # Errors
    /// There is no such graph here.
    pub fn hold_inside(&self, driver: &Driver, node: &NodeRef, source: &GraphObject) -> Result {
        let held = source.held(driver);
        let from = source.with(|graph| Ok(graph.clone()))?;
        let way = [&node.graph.path[..], &[node.id]].concat();
        let mut state = self.state.lock();
        let target = state.graph.inner(&way).map_err(|error| code(&error))?;
        let held = held.renamed(|path| update::same_way(path, &from, target));
        let mut all = state.held.copied(driver, &[]);
        let inside = all.exchange(&way, held);
        let before = std::mem::replace(&mut state.held, Arc::new(all));
        drop(state);
        // This may call the program, so it happens without the lock.
        drop((inside, before));
        Ok(())
    }

    /// Takes over the parameters of another graph of the same shape, and its references instead of those it had.
    ///
    /// # Errors
    /// It is of another shape, or a parameter cannot change.
    pub fn update(&self, driver: &Driver, new: &GraphObject) -> Result<(), update::UpdateError> {
        let held = new.held(driver);
        let conditions = new.root.conditions.lock().clone();
        let topology = update::UpdateError {
            reason: update::Reason::Topology,
            node: None,
            from: None,
        };
        let new = new.with(|graph| Ok(graph.clone())).map_err(|_| topology)?;
        let mut state = self.state.lock();
        let updated = update::updated(&state.graph, &new)?;
        let held = held.renamed(|path| update::same_way(path, &new, &updated));
        state.graph = updated;
        state.conditions = conditions;
        let before = std::mem::replace(&mut state.held, Arc::new(held));
        drop(state);
        // As in `hold_inside`.
        drop(before);
        Ok(())
    }

    /// Makes a node run or not.
    ///
    /// # Errors
    /// There is no such node here, or it is of a kind that always runs.
    pub fn set_enabled(&self, node: &NodeRef, enabled: bool) -> Result {
        if !matches!(
            self.kind(node)?,
            NodeKind::Kernel(_) | NodeKind::Memcpy(_) | NodeKind::Memset(_)
        ) {
            return Err(INVALID_VALUE);
        }
        let place = (node.graph.path.clone(), node.id);
        let mut state = self.state.lock();
        if enabled {
            state.disabled.remove(&place);
        } else {
            state.disabled.insert(place);
        }
        Ok(())
    }

    /// Whether a node runs.
    ///
    /// # Errors
    /// There is no such node here, or it is of a kind that always runs.
    pub fn is_enabled(&self, node: &NodeRef) -> Result<bool> {
        if !matches!(
            self.kind(node)?,
            NodeKind::Kernel(_) | NodeKind::Memcpy(_) | NodeKind::Memset(_)
        ) {
            return Err(INVALID_VALUE);
        }
        Ok(!self
            .state
            .lock()
            .disabled
            .contains(&(node.graph.path.clone(), node.id)))
    }
}

impl State {
    /// The graph's work in order, graphs inside it in place.
    fn collect(
        &self,
        driver: &Driver,
        context: &Arc<Context>,
        graph: &Graph,
        path: &mut Vec<NodeId>,
        steps: &mut Vec<Work>,
    ) -> Result {
        for id in graph.order().map_err(|error| code(&error))? {
            let kind = &graph.node(id).map_err(|error| code(&error))?.kind;
            if self.disabled.contains(&(path.clone(), id)) {
                continue;
            }
            match kind {
                NodeKind::ChildGraph(child) => {
                    path.push(id);
                    self.collect(driver, context, child, path, steps)?;
                    path.pop();
                }
                NodeKind::Conditional(node) => {
                    let branches = self.branches(driver, context, node, (id, path))?;
                    steps.push(Work::Conditional(branches));
                }
                kind => steps.push(Work::build(driver, context, kind)?),
            }
        }
        Ok(())
    }

    /// The work of a conditional node's bodies.
    fn branches(
        &self,
        driver: &Driver,
        context: &Arc<Context>,
        node: &Conditional,
        (id, path): (NodeId, &mut Vec<NodeId>),
    ) -> Result<Branches> {
        let mut bodies = Vec::with_capacity(node.bodies.len());
        for (number, body) in (0..).map(NodeId).zip(&node.bodies) {
            let mut steps = Vec::new();
            path.extend([id, number]);
            self.collect(driver, context, body, path, &mut steps)?;
            path.truncate(path.len() - 2);
            bodies.push(steps);
        }
        Ok(Branches {
            condition: Condition::resolve(node.condition.0).ok_or(INVALID_VALUE)?,
            kind: node.kind,
            bodies,
        })
    }
}

/// Whether every node could run.
fn check(
    driver: &Driver,
    context: &Arc<Context>,
    graph: &Graph,
) -> Result<(), (CuError, Option<NodeId>)> {
    for id in graph.order().map_err(|error| (code(&error), None))? {
        let node = graph.node(id).map_err(|error| (code(&error), None))?;
        match &node.kind {
            NodeKind::ChildGraph(child) => {
                check(driver, context, child).map_err(|(e, _)| (e, Some(id)))?
            }
            NodeKind::Conditional(conditional) => {
                for body in &conditional.bodies {
                    let checked = check(driver, context, body);
                    let checked = checked.and_then(|()| check_body(driver, conditional, body));
                    checked.map_err(|(error, _)| (error, Some(id)))?;
                }
            }
            kind => Work::check(driver, context, kind).map_err(|error| (error, Some(id)))?,
        }
    }
    Ok(())
}

/// Whether a body has only what it may have: kernels of the node's context, and copies of memory that the device reaches.
fn check_body(
    driver: &Driver,
    node: &Conditional,
    body: &Graph,
) -> Result<(), (CuError, Option<NodeId>)> {
    let reached = |end: &fermata_graph::CopyEnd| match end.place {
        CopyPlace::Array => false,
        _ => driver.memory.find(end.address).is_some(),
    };
    let of_node = |kernel: &KernelNode| {
        let function = Function::resolve(driver, kernel.function.raw());
        function.is_ok_and(|it| it.module.context.handle == node.context.raw())
    };
    for (id, inner) in body.nodes() {
        let fits = match &inner.kind {
            NodeKind::Kernel(kernel) => of_node(kernel),
            NodeKind::Memcpy(copy) => reached(&copy.src) && reached(&copy.dst),
            NodeKind::ChildGraph(child) => check_body(driver, node, child).is_ok(),
            _ => true,
        };
        if !fits {
            return Err((INVALID_VALUE, Some(id)));
        }
    }
    Ok(())
}
