//! Builds and updates the driver's executable graphs from graphs as data.

use std::borrow::Cow;

use fermata_abi::op::{ContextId, EventId, ExecId};
use fermata_abi::sys::driver as cu;
use fermata_device::{
    BatchOp, ContextHandle, CopyBox, CopySide, DriverError, Endpoint, ExecHandle, FunctionHandle,
    GraphHandle, Grid, KernelLaunch, NodeHandle, NodeSpec,
};
use fermata_graph::condition::{Translations, translated};
use fermata_graph::update::KernelChange;
use fermata_graph::{CopyEnd, EdgeData, Graph, KernelNode, MemOp, MemOpKind, NodeId, NodeKind};

use super::attributes::of_node;
use super::templates::{MadeNode, Nodes, Template, is_kept, node_at};
use crate::Live;

/// A function and a parameter block that replace those of a kernel node.
pub(crate) struct Instead {
    pub function: FunctionHandle,
    pub params: Vec<u8>,
}

/// The replacement of a kernel node, if it has one.
pub(crate) type Replacements<'a> = &'a dyn Fn(&KernelNode) -> Option<Instead>;

const PLAIN: Replacements<'static> = &|_: &KernelNode| None;

/// How a graph is built in the driver.
#[derive(Clone, Copy)]
struct Build<'a> {
    replacements: Replacements<'a>,
    /// Whether nodes of child graphs will be addressed.
    names_inside: bool,
    /// The driver's handles of conditions.
    conditions: &'a Translations,
}

/// A graph of the driver.
struct Built {
    graph: GraphHandle,
    nodes: Nodes,
    conditions: Translations,
}

pub(super) fn refuse(code: cu::CUresult, why: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError {
        call: "cuGraphInstantiate",
        code,
        name: why.into(),
    }
}

fn size_of(node: &KernelNode) -> Grid {
    Grid {
        grid: node.grid,
        block: node.block,
        shared: node.shared_bytes,
    }
}

fn batch(op: &MemOp) -> BatchOp {
    let MemOp {
        kind,
        address,
        value,
        flags,
        wide,
    } = *op;
    match kind {
        MemOpKind::Wait => BatchOp::Wait {
            address,
            value,
            flags,
            wide,
        },
        MemOpKind::Write => BatchOp::Write {
            address,
            value,
            flags,
            wide,
        },
        MemOpKind::Barrier => BatchOp::Barrier { flags },
    }
}

impl Live {
    /// Makes the program's executable graph `exec` of a graph, in `context`.
    ///
    /// # Errors
    /// An unknown handle in the graph, a node kind that is not supported, or what the driver says.
    pub fn instantiate(
        &mut self,
        exec: ExecId,
        context: ContextId,
        graph: &Graph,
        flags: u64,
    ) -> Result<(), DriverError> {
        let entered = self.enter(context)?.handle;
        let is_kept = is_kept(graph);
        let built = self.build(entered, graph, PLAIN, is_kept)?;
        let made = self.driver.instantiate(built.graph, flags);
        match (&made, is_kept) {
            (Ok(_), true) => {
                let template = Template {
                    graph: built.graph,
                    nodes: built.nodes,
                    conditions: built.conditions,
                    is_plain: true,
                };
                self.drop_template(exec);
                self.templates.insert(exec, template);
            }
            _ => self.driver.destroy_graph(built.graph)?,
        }
        self.executables.insert(exec, (made?, context));
        self.revise(exec);
        Ok(())
    }

    /// Gives an executable graph the parameters of `graph`.
    ///
    /// # Errors
    /// As [`Live::instantiate`]; `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE` if the shapes differ.
    pub fn update(&mut self, exec: ExecId, graph: &Graph) -> Result<(), DriverError> {
        let updated = self.update_whole(exec, graph, PLAIN);
        if let Some(template) = self.templates.get_mut(&exec) {
            template.is_plain = updated.is_ok();
        }
        self.revise(exec);
        updated
    }

    /// Applies `changes` to an executable graph; the result is `graph`.
    ///
    /// # Errors
    /// As [`Live::update`].
    pub fn change_kernels(
        &mut self,
        exec: ExecId,
        graph: &Graph,
        changes: &[KernelChange<'_>],
    ) -> Result<(), DriverError> {
        // A change that a single node refuses may be possible for the whole graph.
        if let Ok(true) = self.set_kernels(exec, changes) {
            self.revise(exec);
            return Ok(());
        }
        if graph.has_conditionals() && self.replace_each(exec, graph, PLAIN).is_ok() {
            self.revise(exec);
            return Ok(());
        }
        self.update(exec, graph)
    }

    /// Gives single kernels of an executable graph other parameters; false if the whole must be updated.
    fn set_kernels(
        &mut self,
        exec: ExecId,
        changes: &[KernelChange<'_>],
    ) -> Result<bool, DriverError> {
        let Some((handle, context)) = self.executables.get(&exec).copied() else {
            return Ok(false);
        };
        self.enter(context)?;
        let template = self.templates.get(&exec).filter(|it| it.is_plain);
        let Some(template) = template else {
            return Ok(false);
        };
        for change in changes {
            let Some(node) = node_at(&template.nodes, &change.path, change.node) else {
                return Ok(false);
            };
            let place = (handle, node);
            self.set_kernel(place, &change.kernel, None, &template.conditions)?;
        }
        Ok(true)
    }

    /// Gives a kernel of an executable graph what it has in a graph, or what replaces that.
    fn set_kernel(
        &self,
        (exec, node): (ExecHandle, NodeHandle),
        kernel: &KernelNode,
        instead: Option<&Instead>,
        conditions: &Translations,
    ) -> Result<(), DriverError> {
        let (function, params) = self.run_by(kernel, instead)?;
        let launch = KernelLaunch {
            function,
            size: size_of(kernel),
            params: &translated(params, conditions),
            attributes: &[],
        };
        let green = self.green_of(kernel);
        self.driver.set_exec_kernel(exec, node, &launch, green)
    }

    /// The function and the parameter block that a kernel node runs.
    fn run_by<'k>(
        &self,
        kernel: &'k KernelNode,
        instead: Option<&'k Instead>,
    ) -> Result<(FunctionHandle, &'k [u8]), DriverError> {
        let own = self.function_of(kernel)?;
        Ok(match instead {
            Some(other) => (other.function, &other.params),
            None => (own, &kernel.params),
        })
    }

    /// The green context of a kernel in a graph, if it is in one.
    fn green_of(&self, kernel: &KernelNode) -> Option<ContextHandle> {
        self.greens.get(&kernel.context).map(|it| it.converted)
    }

    /// Gives the graph a new revision number. No two states have the same number, also if a handle is used again.
    fn revise(&mut self, exec: ExecId) {
        self.last_revision += 1;
        self.revisions.insert(exec, self.last_revision);
    }

    /// Gives an executable graph the parameters of `graph`, with the kernels of `replacements`, for later launches.
    /// Launches under way are not affected (CUDA programming guide, updating instantiated graphs).
    ///
    /// # Errors
    /// As [`Live::update`]; the graph may then be partly changed.
    pub(crate) fn replace_kernels(
        &mut self,
        exec: ExecId,
        graph: &Graph,
        replacements: Replacements<'_>,
    ) -> Result<(), DriverError> {
        if let Some(template) = self.templates.get_mut(&exec) {
            template.is_plain = false;
        }
        match graph.has_conditionals() {
            true => self.replace_each(exec, graph, replacements),
            false => self.update_whole(exec, graph, replacements),
        }
    }

    /// Gives each kernel of an executable graph its replacement, or what it has in `graph`, by itself.
    fn replace_each(
        &mut self,
        exec: ExecId,
        graph: &Graph,
        replacements: Replacements<'_>,
    ) -> Result<(), DriverError> {
        let code = cu::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        let unnamed = || refuse(code, "the nodes of the graph are not known");
        let (handle, context) = *self.executables.get(&exec).ok_or_else(unnamed)?;
        self.enter(context)?;
        let template = self.templates.get(&exec).ok_or_else(unnamed)?;
        let mut places = Vec::new();
        graph.kernel_places(&mut Vec::new(), &mut places);
        let mut all_own = true;
        for (path, id, kernel) in places {
            let node = node_at(&template.nodes, &path, id).ok_or_else(unnamed)?;
            let instead = replacements(kernel);
            all_own &= instead.is_none();
            let place = (handle, node);
            self.set_kernel(place, kernel, instead.as_ref(), &template.conditions)?;
        }
        if let Some(template) = self.templates.get_mut(&exec) {
            template.is_plain = all_own;
        }
        Ok(())
    }

    fn update_whole(
        &mut self,
        exec: ExecId,
        graph: &Graph,
        replacements: Replacements<'_>,
    ) -> Result<(), DriverError> {
        let (handle, context) = *self.executables.get(&exec).ok_or_else(|| {
            refuse(
                cu::CUDA_ERROR_INVALID_VALUE,
                "there is no such executable graph",
            )
        })?;
        if graph.has_conditionals() {
            // The graph that it would be updated from has conditions of its own.
            let code = cu::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
            return Err(refuse(code, "graphs with conditional nodes are made anew"));
        }
        let entered = self.enter(context)?.handle;
        let built = self.build(entered, graph, replacements, false)?.graph;
        let updated = self.driver.update_exec(handle, built);
        self.driver.destroy_graph(built)?;
        updated
    }

    /// Removes an executable graph that is about to be destroyed, with all that is known of it.
    pub fn take_executable(&mut self, exec: ExecId) -> Option<(ExecHandle, ContextId)> {
        self.revisions.remove(&exec);
        self.drop_template(exec);
        self.executables.remove(&exec)
    }

    fn drop_template(&mut self, exec: ExecId) {
        if let Some(template) = self.templates.remove(&exec) {
            // A failure means that it went with its context.
            let _ = self.driver.destroy_graph(template.graph);
        }
    }

    /// A number that changes whenever the program makes or updates an executable graph.
    pub fn graph_revision(&self, exec: ExecId) -> u64 {
        self.revisions.get(&exec).copied().unwrap_or_default()
    }

    fn build(
        &self,
        context: ContextHandle,
        graph: &Graph,
        replacements: Replacements<'_>,
        names_inside: bool,
    ) -> Result<Built, DriverError> {
        let (graph, (nodes, conditions)) = self.filled(|built| {
            let conditions = self.conditions_of(built, graph)?;
            let how = Build {
                replacements,
                names_inside,
                conditions: &conditions,
            };
            let nodes = self.fill(built, context, graph, how, 0)?;
            Ok((nodes, conditions))
        })?;
        Ok(Built {
            graph,
            nodes,
            conditions,
        })
    }

    /// Makes a graph and has `fill` fill it; without a graph being left if that fails.
    fn filled<T>(
        &self,
        fill: impl FnOnce(GraphHandle) -> Result<T, DriverError>,
    ) -> Result<(GraphHandle, T), DriverError> {
        let built = self.driver.create_graph()?;
        match fill(built) {
            Ok(made) => Ok((built, made)),
            Err(error) => {
                self.driver.destroy_graph(built)?;
                Err(error)
            }
        }
    }

    /// Adds all nodes of `graph` to `built`, an empty graph.
    fn fill(
        &self,
        built: GraphHandle,
        context: ContextHandle,
        graph: &Graph,
        how: Build<'_>,
        depth: u32,
    ) -> Result<Nodes, DriverError> {
        if depth > 16 {
            return Err(refuse(
                cu::CUDA_ERROR_NOT_SUPPORTED,
                "graphs nested more than 16 deep",
            ));
        }
        let order = graph
            .order()
            .map_err(|error| refuse(cu::CUDA_ERROR_INVALID_VALUE, error.to_string()))?;
        let mut nodes = Nodes::new();
        for id in order {
            let node = graph
                .node(id)
                .map_err(|error| refuse(cu::CUDA_ERROR_INVALID_VALUE, error.to_string()))?;
            let given = node.dependencies.iter();
            let (plain, special): (Vec<_>, Vec<_>) = given
                .filter_map(|(from, data)| Some((nodes.get(from)?.handle, *data)))
                .partition(|(_, data)| *data == EdgeData::default());
            let after: Vec<_> = plain.iter().map(|(from, _)| *from).collect();
            let made = self.add(built, &after, &node.kind, context, how, depth)?;
            for (from, data) in special {
                let data = [data.from_port, data.to_port, data.kind];
                let edge = (from, made.handle);
                // For a driver that does not support such an edge: an edge that waits for all of the node.
                self.driver
                    .add_edge(built, edge, data)
                    .or_else(|_| self.driver.add_edge(built, edge, [0; 3]))?;
            }
            nodes.insert(id, made);
        }
        Ok(nodes)
    }

    fn add(
        &self,
        graph: GraphHandle,
        after: &[fermata_device::NodeHandle],
        kind: &NodeKind,
        context: ContextHandle,
        how: Build<'_>,
        depth: u32,
    ) -> Result<MadeNode, DriverError> {
        let context_of = |handle: ContextId| match handle {
            ContextId::NULL => Ok(context),
            other => self.context_of_node(other),
        };
        let event_of = |handle: &EventId| {
            let found = self.events.get(handle).map(|(event, _)| *event);
            found.ok_or_else(|| {
                refuse(
                    cu::CUDA_ERROR_INVALID_HANDLE,
                    format!("there is no event {handle:#x}"),
                )
            })
        };
        let mut inside = Nodes::new();
        let handle = match kind {
            NodeKind::Kernel(node) => {
                let attributes = of_node(node);
                let instead = (how.replacements)(node);
                let (function, params) = self.run_by(node, instead.as_ref())?;
                let launch = KernelLaunch {
                    function,
                    size: size_of(node),
                    params: &translated(params, how.conditions),
                    attributes: &attributes,
                };
                let (spec, context) = match self.green_of(node) {
                    Some(green) => (NodeSpec::KernelIn(launch), green),
                    None => (NodeSpec::Kernel(launch), context_of(node.context)?),
                };
                self.driver.add_node(graph, after, &spec, context)
            }
            NodeKind::Memcpy(copy) => {
                let (to, from) = (self.side(&copy.dst)?, self.side(&copy.src)?);
                let context = context_of(copy.dst.context)?;
                let (width, height, depth) = (copy.width_bytes, copy.height, copy.depth);
                let copy = CopyBox {
                    to,
                    from,
                    width,
                    height,
                    depth,
                };
                self.driver
                    .add_node(graph, after, &NodeSpec::Copy(copy), context)
            }
            NodeKind::Memset(node) => {
                let fill = NodeSpec::Fill {
                    address: node.dst,
                    pitch: node.pitch,
                    element: node.element_size,
                    value: node.value,
                    width: node.width,
                    height: node.height,
                };
                self.driver.add_node(graph, after, &fill, context)
            }
            NodeKind::Host(call) => {
                let call = self.host_calls.of(&self.host_caller, call.user_data);
                self.driver
                    .add_node(graph, after, &NodeSpec::Host(call), context)
            }
            NodeKind::ChildGraph(child) => {
                let fill = |built| self.fill(built, context, child, how, depth + 1);
                let (child, made) = self.filled(fill)?;
                let added = self
                    .driver
                    .add_node(graph, after, &NodeSpec::Child(child), context);
                if let (Ok(node), true) = (&added, how.names_inside) {
                    inside = self.inside(*node, made);
                }
                self.driver.destroy_graph(child)?;
                added
            }
            NodeKind::Empty => self
                .driver
                .add_node(graph, after, &NodeSpec::Empty, context),
            NodeKind::EventWait(event) => self.driver.add_node(
                graph,
                after,
                &NodeSpec::EventWait(event_of(event)?),
                context,
            ),
            NodeKind::EventRecord(event) => self.driver.add_node(
                graph,
                after,
                &NodeSpec::EventRecord(event_of(event)?),
                context,
            ),
            NodeKind::BatchMemOp(ops) => {
                let ops: Vec<BatchOp> = ops.iter().map(batch).collect();
                self.driver
                    .add_node(graph, after, &NodeSpec::Batch(&ops), context)
            }
            NodeKind::Conditional(node) => {
                let of = self.context_of_node(node.context)?;
                let (made, bodies) = self.add_conditional(graph, after, node, how.conditions)?;
                for (number, (body, given)) in (0..).zip(node.bodies.iter().zip(bodies)) {
                    let inside_body = self.fill(given, of, body, how, depth + 1)?;
                    let body = MadeNode {
                        handle: made,
                        inside: inside_body,
                    };
                    inside.insert(NodeId(number), body);
                }
                Ok(made)
            }
            NodeKind::MemAlloc(_) | NodeKind::MemFree(_) => Err(refuse(
                cu::CUDA_ERROR_NOT_SUPPORTED,
                format!("{} nodes are not supported", kind.name()),
            )),
        }?;
        Ok(MadeNode { handle, inside })
    }

    /// The nodes of a child graph, which is a copy of the graph that it was made from. Nodes that the driver does not
    /// name are left out, and cannot be changed one by one.
    fn inside(&self, child: NodeHandle, made: Nodes) -> Nodes {
        let Ok(copy) = self.driver.graph_inside(child) else {
            return Nodes::new();
        };
        let named = |(id, original): (NodeId, MadeNode)| {
            let handle = self.driver.node_in_copy(original.handle, copy).ok()?;
            // A child graph inside that one is a copy, too.
            let inside = match original.inside.is_empty() {
                true => Nodes::new(),
                false => self.inside(handle, original.inside),
            };
            Some((id, MadeNode { handle, inside }))
        };
        made.into_iter().filter_map(named).collect()
    }

    fn function_of(&self, node: &KernelNode) -> Result<FunctionHandle, DriverError> {
        let found = self.functions.get(&node.function).map(|it| it.handle);
        found.ok_or_else(|| {
            refuse(
                cu::CUDA_ERROR_INVALID_HANDLE,
                format!("there is no function {:#x}", node.function),
            )
        })
    }

    fn side(&self, end: &CopyEnd) -> Result<CopySide, DriverError> {
        let endpoint = match end.array() {
            Some(array) => Endpoint::Array(self.array(array)?),
            None => Endpoint::Address(end.address),
        };
        Ok(CopySide {
            endpoint,
            x: end.x_bytes,
            y: end.y,
            z: end.z,
            pitch: end.pitch,
            rows: end.height,
        })
    }
}
