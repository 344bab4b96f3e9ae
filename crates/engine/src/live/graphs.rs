//! Executable graphs: from data to the driver's objects.

use std::borrow::Cow;
use std::collections::HashMap;

use fermata_abi::op::Handle;
use fermata_abi::sys::driver as cu;
use fermata_device::{
    BatchOp, ContextHandle, CopyBox, CopySide, DriverError, Endpoint, ExecHandle, FunctionHandle,
    GraphHandle, Grid, KernelLaunch, NodeSpec,
};
use fermata_graph::{CopyEnd, EdgeData, Graph, KernelNode, MemOp, MemOpKind, NodeKind, Place};

use super::attributes::of_node;
use crate::Live;

/// What takes the place of a kernel node's function and parameter block.
pub(crate) struct Instead {
    pub function: FunctionHandle,
    pub params: Vec<u8>,
}

/// Says which kernel nodes get something else; the others stay as the program has made them.
pub(crate) type Replacements<'a> = &'a dyn Fn(&KernelNode) -> Option<Instead>;

const PLAIN: Replacements<'static> = &|_: &KernelNode| None;

fn refuse(code: cu::CUresult, why: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError {
        call: "cuGraphInstantiate",
        code,
        name: why.into(),
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
    /// Makes a graph executable in `context`.
    ///
    /// # Errors
    /// An unknown handle in the graph, a node kind that is not supported, or what the driver says.
    pub fn instantiate(
        &mut self,
        context: Handle,
        graph: &Graph,
        flags: u64,
    ) -> Result<ExecHandle, DriverError> {
        let entered = self.enter(context)?.handle;
        let built = self.build(entered, graph, PLAIN, 0)?;
        let exec = self.driver.instantiate(built, flags);
        self.driver.destroy_graph(built)?;
        exec
    }

    /// Gives an executable graph the parameters of `graph`.
    ///
    /// # Errors
    /// As [`Live::instantiate`]; `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE` if the shapes differ.
    pub fn update(&mut self, exec: Handle, graph: &Graph) -> Result<(), DriverError> {
        let updated = self.replace_kernels(exec, graph, PLAIN);
        self.revise(exec);
        updated
    }

    /// The program's executable graph `exec` is this one from now on.
    pub fn add_executable(&mut self, exec: Handle, made: ExecHandle, context: Handle) {
        self.executables.insert(exec, (made, context));
        self.revise(exec);
    }

    /// No two states of executable graphs have one number, also if one is made again under a handle.
    fn revise(&mut self, exec: Handle) {
        self.last_revision += 1;
        self.revisions.insert(exec, self.last_revision);
    }

    /// Gives an executable graph the parameters of `graph`, with other kernels where `replacements` says so, for launches
    /// from now on: those that are under way keep theirs (CUDA programming guide, updating instantiated graphs).
    ///
    /// # Errors
    /// As [`Live::update`]; the graph may have been changed in part then.
    pub(crate) fn replace_kernels(
        &mut self,
        exec: Handle,
        graph: &Graph,
        replacements: Replacements<'_>,
    ) -> Result<(), DriverError> {
        let (handle, context) = *self.executables.get(&exec).ok_or_else(|| {
            refuse(
                cu::CUDA_ERROR_INVALID_VALUE,
                "there is no such executable graph",
            )
        })?;
        let entered = self.enter(context)?.handle;
        let built = self.build(entered, graph, replacements, 0)?;
        let updated = self.driver.update_exec(handle, built);
        self.driver.destroy_graph(built)?;
        updated
    }

    /// Makes an executable graph from data other than what it was recorded with.
    ///
    /// # Errors
    /// As [`Live::instantiate`].
    pub fn make_anew(
        &mut self,
        exec: Handle,
        context: Handle,
        graph: &Graph,
        flags: u64,
    ) -> Result<(), DriverError> {
        let made = self.instantiate(context, graph, flags)?;
        self.add_executable(exec, made, context);
        Ok(())
    }

    /// Takes an executable graph out that is about to be destroyed, with all that is known of it.
    pub fn take_executable(&mut self, exec: Handle) -> Option<(ExecHandle, Handle)> {
        self.revisions.remove(&exec);
        self.executables.remove(&exec)
    }

    /// A number that changes whenever the program makes or updates an executable graph.
    pub fn graph_revision(&self, exec: Handle) -> u64 {
        self.revisions.get(&exec).copied().unwrap_or_default()
    }

    fn build(
        &self,
        context: ContextHandle,
        graph: &Graph,
        replacements: Replacements<'_>,
        depth: u32,
    ) -> Result<GraphHandle, DriverError> {
        if depth > 16 {
            return Err(refuse(
                cu::CUDA_ERROR_NOT_SUPPORTED,
                "graphs nested more than 16 deep",
            ));
        }
        let order = graph
            .order()
            .map_err(|error| refuse(cu::CUDA_ERROR_INVALID_VALUE, error.to_string()))?;
        let built = self.driver.create_graph()?;
        let mut nodes = HashMap::new();
        for id in order {
            let added = graph
                .node(id)
                .map_err(|error| refuse(cu::CUDA_ERROR_INVALID_VALUE, error.to_string()))
                .and_then(|node| {
                    let given = node.dependencies.iter();
                    let (plain, special): (Vec<_>, Vec<_>) = given
                        .filter_map(|(from, data)| Some((*nodes.get(from)?, *data)))
                        .partition(|(_, data)| *data == EdgeData::default());
                    let after: Vec<_> = plain.iter().map(|(from, _)| *from).collect();
                    let added =
                        self.add(built, &after, &node.kind, context, replacements, depth)?;
                    for (from, data) in special {
                        let data = [data.from_port, data.to_port, data.kind];
                        let edge = (from, added);
                        // A driver that takes no such edge gets one that waits for all of the node.
                        self.driver
                            .add_edge(built, edge, data)
                            .or_else(|_| self.driver.add_edge(built, edge, [0; 3]))?;
                    }
                    Ok(added)
                });
            match added {
                Ok(handle) => nodes.insert(id, handle),
                Err(error) => {
                    self.driver.destroy_graph(built)?;
                    return Err(error);
                }
            };
        }
        Ok(built)
    }

    fn add(
        &self,
        graph: GraphHandle,
        after: &[fermata_device::NodeHandle],
        kind: &NodeKind,
        context: ContextHandle,
        replacements: Replacements<'_>,
        depth: u32,
    ) -> Result<fermata_device::NodeHandle, DriverError> {
        let context_of = |handle: Handle| match handle {
            0 => Ok(context),
            other => self
                .contexts
                .get(&other)
                .map(|found| found.handle)
                .ok_or_else(|| {
                    refuse(
                        cu::CUDA_ERROR_INVALID_CONTEXT,
                        format!("there is no context {other:#x}"),
                    )
                }),
        };
        let event_of = |handle: &Handle| {
            let found = self.events.get(handle).map(|(event, _)| *event);
            found.ok_or_else(|| {
                refuse(
                    cu::CUDA_ERROR_INVALID_HANDLE,
                    format!("there is no event {handle:#x}"),
                )
            })
        };
        match kind {
            NodeKind::Kernel(node) => {
                let function = self.functions.get(&node.function).ok_or_else(|| {
                    refuse(
                        cu::CUDA_ERROR_INVALID_HANDLE,
                        format!("there is no function {:#x}", node.function),
                    )
                })?;
                let attributes = of_node(node);
                let size = Grid {
                    grid: node.grid,
                    block: node.block,
                    shared: node.shared_bytes,
                };
                let instead = replacements(node);
                let (function, params) = match &instead {
                    Some(other) => (other.function, &other.params),
                    None => (function.handle, &node.params),
                };
                let launch = KernelLaunch {
                    function,
                    size,
                    params,
                    attributes: &attributes,
                };
                self.driver.add_node(
                    graph,
                    after,
                    &NodeSpec::Kernel(launch),
                    context_of(node.context)?,
                )
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
                let child = self.build(context, child, replacements, depth + 1)?;
                let added = self
                    .driver
                    .add_node(graph, after, &NodeSpec::Child(child), context);
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
            NodeKind::MemAlloc(_) | NodeKind::MemFree(_) => Err(refuse(
                cu::CUDA_ERROR_NOT_SUPPORTED,
                format!("{} nodes are not supported", kind.name()),
            )),
        }
    }

    fn side(&self, end: &CopyEnd) -> Result<CopySide, DriverError> {
        let endpoint = match end.place {
            Place::Array => Endpoint::Array(self.array(end.address)?),
            Place::Host | Place::Device | Place::Unified => Endpoint::Address(end.address),
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
