//! Building, instantiating and launching graphs of the driver.

use std::ffi::c_void;

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::launch::with_extra;
use crate::{
    ContextHandle, CopyBox, Driver, EventHandle, ExecHandle, GraphHandle, KernelLaunch, NodeHandle,
    StreamHandle,
};

/// One operation on a word in a batch node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchOp {
    /// Wait until the word compares as the flags say.
    Wait {
        /// Address of the word.
        address: u64,
        /// Value to compare with.
        value: u64,
        /// `CU_STREAM_WAIT_VALUE_*`.
        flags: u32,
        /// 64 bits.
        wide: bool,
    },
    /// Write the word.
    Write {
        /// Address of the word.
        address: u64,
        /// Value.
        value: u64,
        /// `CU_STREAM_WRITE_VALUE_*`.
        flags: u32,
        /// 64 bits.
        wide: bool,
    },
    /// A barrier with its flags.
    Barrier {
        /// `CU_STREAM_MEMORY_BARRIER_TYPE_*`.
        flags: u32,
    },
}

/// What a node to be added does.
pub enum NodeSpec<'a> {
    /// Launch a kernel.
    Kernel(KernelLaunch<'a>),
    /// Run a kernel in the context that is given with the node, not in its function's own: in a green context.
    KernelIn(KernelLaunch<'a>),
    /// Copy.
    Copy(CopyBox),
    /// Fill, as [`Driver::fill`].
    Fill {
        /// First byte.
        address: u64,
        /// Bytes from row to row.
        pitch: u64,
        /// 1, 2 or 4.
        element: u32,
        /// The value.
        value: u32,
        /// Elements per row.
        width: u64,
        /// Rows.
        height: u64,
    },
    /// Call on a thread of the driver, every time the graph runs, which may be until the process ends.
    Host(&'static HostFn),
    /// Another graph.
    Child(GraphHandle),
    /// Nothing.
    Empty,
    /// Record an event.
    EventRecord(EventHandle),
    /// Wait for an event.
    EventWait(EventHandle),
    /// Words written and waited for.
    Batch(&'a [BatchOp]),
}

/// What a host node calls.
pub type HostFn = Box<dyn Fn() + Send + Sync>;

unsafe extern "C" fn run_host(data: *mut c_void) {
    // SAFETY: `data` is the address of a `HostFn` that lives as long as the process, given in `add_node`.
    let call = unsafe { &*data.cast::<HostFn>() };
    // A panic must not cross into the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
}

fn batch_entry(op: &BatchOp) -> cu::CUstreamBatchMemOpParams {
    let mut entry = cu::CUstreamBatchMemOpParams::default();
    match *op {
        BatchOp::Wait {
            address,
            value,
            flags,
            wide,
        } => {
            let operation = if wide {
                cu::CU_STREAM_MEM_OP_WAIT_VALUE_64
            } else {
                cu::CU_STREAM_MEM_OP_WAIT_VALUE_32
            };
            let mut wait = cu::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
                operation,
                address,
                flags,
                ..Default::default()
            };
            wait.__bindgen_anon_1.value64 = value;
            entry.waitValue = wait;
        }
        BatchOp::Write {
            address,
            value,
            flags,
            wide,
        } => {
            let operation = if wide {
                cu::CU_STREAM_MEM_OP_WRITE_VALUE_64
            } else {
                cu::CU_STREAM_MEM_OP_WRITE_VALUE_32
            };
            let mut write = cu::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                operation,
                address,
                flags,
                ..Default::default()
            };
            write.__bindgen_anon_1.value64 = value;
            entry.writeValue = write;
        }
        BatchOp::Barrier { flags } => {
            entry.memoryBarrier.operation = cu::CU_STREAM_MEM_OP_BARRIER;
            entry.memoryBarrier.flags = flags;
        }
    }
    entry
}

impl Driver {
    /// An empty graph.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_graph(&self) -> Result<GraphHandle> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuGraphCreate(&mut graph, 0)? };
        Ok(GraphHandle::from_raw(graph))
    }

    /// Destroys a graph; executable ones made from it live on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        self.f.cuGraphDestroy(graph.raw())
    }

    /// Adds a node that depends on `after`; copies and fills belong to `context`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn add_node(
        &self,
        graph: GraphHandle,
        after: &[NodeHandle],
        spec: &NodeSpec<'_>,
        context: ContextHandle,
    ) -> Result<NodeHandle> {
        let after: Vec<cu::CUgraphNode> = after.iter().map(|node| node.raw()).collect();
        let (deps, count, graph) = (after.as_ptr(), after.len(), graph.raw());
        let mut node = std::ptr::null_mut();
        // SAFETY: the dependencies are `count` handles; every parameter structure is a live local that the
        // driver copies, and the parameter block of a kernel outlives the call.
        unsafe {
            match spec {
                NodeSpec::Kernel(launch) => {
                    self.add_kernel(&mut node, graph, &after, launch)?;
                }
                NodeSpec::KernelIn(launch) => {
                    let add = || self.add_kernel(&mut node, graph, &after, launch);
                    self.within(Some(context), add)?;
                }
                NodeSpec::Copy(copy) => {
                    let descriptor = copy.descriptor();
                    self.f.cuGraphAddMemcpyNode(
                        &mut node,
                        graph,
                        deps,
                        count,
                        &descriptor,
                        context.raw(),
                    )?;
                }
                NodeSpec::Fill {
                    address,
                    pitch,
                    element,
                    value,
                    width,
                    height,
                } => {
                    let params = cu::CUDA_MEMSET_NODE_PARAMS {
                        dst: *address,
                        pitch: *pitch as usize,
                        value: *value,
                        elementSize: *element,
                        width: *width as usize,
                        height: *height as usize,
                    };
                    self.f.cuGraphAddMemsetNode(
                        &mut node,
                        graph,
                        deps,
                        count,
                        &params,
                        context.raw(),
                    )?;
                }
                NodeSpec::Host(call) => {
                    let params = cu::CUDA_HOST_NODE_PARAMS {
                        fn_: Some(run_host),
                        userData: std::ptr::from_ref(*call).cast_mut().cast::<c_void>(),
                    };
                    self.f
                        .cuGraphAddHostNode(&mut node, graph, deps, count, &params)?;
                }
                NodeSpec::Child(child) => {
                    self.f
                        .cuGraphAddChildGraphNode(&mut node, graph, deps, count, child.raw())?;
                }
                NodeSpec::Empty => self.f.cuGraphAddEmptyNode(&mut node, graph, deps, count)?,
                NodeSpec::EventRecord(event) => {
                    self.f
                        .cuGraphAddEventRecordNode(&mut node, graph, deps, count, event.raw())?;
                }
                NodeSpec::EventWait(event) => {
                    self.f
                        .cuGraphAddEventWaitNode(&mut node, graph, deps, count, event.raw())?;
                }
                NodeSpec::Batch(ops) => {
                    let mut entries: Vec<_> = ops.iter().map(batch_entry).collect();
                    let params = cu::CUDA_BATCH_MEM_OP_NODE_PARAMS {
                        ctx: context.raw(),
                        count: entries.len() as u32,
                        paramArray: entries.as_mut_ptr(),
                        flags: 0,
                    };
                    self.f
                        .cuGraphAddBatchMemOpNode(&mut node, graph, deps, count, &params)?;
                }
            }
        }
        Ok(NodeHandle::from_raw(node))
    }

    /// Makes `node` depend on another with an edge of its own kind: ports and type as CUDA numbers them.
    ///
    /// # Errors
    /// What the driver says; an old one cannot.
    pub fn add_edge(
        &self,
        graph: GraphHandle,
        (from, node): (NodeHandle, NodeHandle),
        [from_port, to_port, kind]: [u8; 3],
    ) -> Result<()> {
        let (from, to) = (from.raw(), node.raw());
        let data = cu::CUgraphEdgeData {
            from_port,
            to_port,
            type_: kind,
            reserved: [0; 5],
        };
        // SAFETY: all three pointers refer to one live local each.
        unsafe {
            self.f
                .cuGraphAddDependencies_v2(graph.raw(), &from, &to, &data, 1)
        }
    }

    /// Calls `call` while `context`, if there is one, is the calling thread's current context.
    fn within<R>(
        &self,
        context: Option<ContextHandle>,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some(context) = context else {
            return call();
        };
        let before = self.current_context()?;
        self.set_current(context)?;
        let called = call();
        match before {
            Some(before) => self.set_current(before)?,
            None => self.clear_current()?,
        }
        called
    }

    /// Calls `call` with a kernel's function, size and parameters as the driver wants them for a node: by a pointer to each
    /// parameter. The driver takes one block, too, but no such node can be made cooperative.
    fn with_params<R>(
        &self,
        launch: &KernelLaunch<'_>,
        call: impl FnOnce(&cu::CUDA_KERNEL_NODE_PARAMS) -> Result<R>,
    ) -> Result<R> {
        let size = launch.size;
        let mut params = cu::CUDA_KERNEL_NODE_PARAMS {
            func: launch.function.raw(),
            gridDimX: size.grid[0],
            gridDimY: size.grid[1],
            gridDimZ: size.grid[2],
            blockDimX: size.block[0],
            blockDimY: size.block[1],
            blockDimZ: size.block[2],
            sharedMemBytes: size.shared,
            // The current context: a green context that is named here does not keep the kernel on its multiprocessors
            // (measured with driver 580.159.04), unlike one that is current.
            ctx: std::ptr::null_mut(),
            ..Default::default()
        };
        let mut pointers = Vec::new();
        for (offset, size) in self.function_params(launch.function)? {
            let param = launch
                .params
                .get(offset as usize..offset as usize + size as usize);
            let Some(param) = param else {
                // A block that is shorter than the kernel's parameters: what it says of the rest is the driver's to decide.
                return with_extra(launch.params, |extra| {
                    params.extra = extra;
                    call(&params)
                });
            };
            pointers.push(param.as_ptr().cast_mut().cast());
        }
        if !pointers.is_empty() {
            params.kernelParams = pointers.as_mut_ptr();
        }
        call(&params)
    }

    /// Adds a kernel node and sets its attributes.
    fn add_kernel(
        &self,
        node: &mut cu::CUgraphNode,
        graph: cu::CUgraph,
        after: &[cu::CUgraphNode],
        launch: &KernelLaunch<'_>,
    ) -> Result<()> {
        self.with_params(launch, |params| {
            // SAFETY: dependencies are live handles; parameters outlive the call and are copied.
            unsafe {
                self.f
                    .cuGraphAddKernelNode_v2(node, graph, after.as_ptr(), after.len(), params)
            }
        })?;
        for attribute in launch.attributes {
            let (id, value) = (attribute.id, attribute.raw());
            // SAFETY: the node was just made; the value is a live local.
            unsafe { self.f.cuGraphKernelNodeSetAttribute(*node, id, &value)? };
        }
        Ok(())
    }

    /// The graph inside a child-graph node, which is a copy of the one that it was made from.
    ///
    /// # Errors
    /// What the driver says.
    pub fn graph_inside(&self, node: NodeHandle) -> Result<GraphHandle> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuGraphChildGraphNodeGetGraph(node.raw(), &mut graph)?
        };
        Ok(GraphHandle::from_raw(graph))
    }

    /// The node of a copy of a graph that stands for `original`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn node_in_copy(&self, original: NodeHandle, copy: GraphHandle) -> Result<NodeHandle> {
        let mut node = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuGraphNodeFindInClone(&mut node, original.raw(), copy.raw())?
        };
        Ok(NodeHandle::from_raw(node))
    }

    /// Gives one kernel of an executable graph another function, size and parameters; its attributes stay. `node` is of the
    /// graph that was made executable, or of one inside it; `context` is that of a [`NodeSpec::KernelIn`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_exec_kernel(
        &self,
        exec: ExecHandle,
        node: NodeHandle,
        launch: &KernelLaunch<'_>,
        context: Option<ContextHandle>,
    ) -> Result<()> {
        let set = |params: &cu::CUDA_KERNEL_NODE_PARAMS| {
            // SAFETY: parameters outlive the call and are copied.
            unsafe {
                self.f
                    .cuGraphExecKernelNodeSetParams_v2(exec.raw(), node.raw(), params)
            }
        };
        self.within(context, || self.with_params(launch, set))
    }

    /// Makes a graph executable in the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn instantiate(&self, graph: GraphHandle, flags: u64) -> Result<ExecHandle> {
        let mut exec = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuGraphInstantiateWithFlags(&mut exec, graph.raw(), flags)?
        };
        Ok(ExecHandle::from_raw(exec))
    }

    /// Gives an executable graph the parameters of another graph of the same shape.
    ///
    /// # Errors
    /// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE` if the shapes differ.
    pub fn update_exec(&self, exec: ExecHandle, graph: GraphHandle) -> Result<()> {
        let mut info = cu::CUgraphExecUpdateResultInfo::default();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuGraphExecUpdate_v2(exec.raw(), graph.raw(), &mut info)
        }
    }

    /// Launches an executable graph.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch_exec(&self, exec: ExecHandle, stream: StreamHandle) -> Result<()> {
        self.f.cuGraphLaunch(exec.raw(), stream.raw())
    }

    /// Destroys an executable graph.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_exec(&self, exec: ExecHandle) -> Result<()> {
        self.f.cuGraphExecDestroy(exec.raw())
    }
}
