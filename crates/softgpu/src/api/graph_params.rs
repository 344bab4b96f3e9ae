//! Converts node parameters between the API's structures and the graph model.

use fermata_abi::op::{ContextId, EventId, FunctionId};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::{HostCall, KernelNode, MemAllocNode, MemsetNode, NodeKind};

use super::args::{In, Out};
use super::function::function;
use super::init::driver;
use super::launch::pack_params;
use super::memop::read_ops;
use super::{copy, to_handle, to_pointer};
use crate::context;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::graph::{GraphObject, NodeRef};
use crate::memory::Kind;
use crate::module::Function;

/// Reads a kernel's parameters.
pub fn kernel(params: &cu::CUDA_KERNEL_NODE_PARAMS_v2) -> Result<NodeKind> {
    let handle = if params.func.is_null() {
        params.kern.cast()
    } else {
        params.func
    };
    let context = to_handle(params.ctx);
    let function = match driver()?.contexts().get(context) {
        // A kernel of a library has a function in each context.
        Some(context) if params.func.is_null() => {
            let kernel = driver()?
                .kernels()
                .get(to_handle(params.kern))
                .ok_or(INVALID_VALUE)?;
            kernel.function(driver()?, &context)?
        }
        _ => function(handle)?,
    };
    // SAFETY: the program's structure says so: each is null or the list that a launch demands.
    let list = |pointer| unsafe { In::from_raw(pointer) };
    Ok(NodeKind::Kernel(KernelNode {
        function: FunctionId::from_raw(function.handle),
        context: ContextId::from_raw(place_of(context, &function)?),
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared_bytes: params.sharedMemBytes,
        params: pack_params(
            &function.info,
            list(params.kernelParams),
            list(params.extra),
        )?,
        attributes: Vec::new(),
    }))
}

/// Handle of the context that a kernel runs in: that of its function, or a green context of that one.
fn place_of(given: u64, function: &Function) -> Result<u64> {
    let handle = match given {
        0 => context::current_handle(),
        given => given,
    };
    let own = &function.module.context;
    let green = driver()?.greens().get(handle);
    let green = green.filter(|green| green.context.id == own.id);
    Ok(green.map_or(own.handle, |green| green.converted))
}

/// Reads a kernel's parameters in their first version.
pub fn kernel_v1(params: &cu::CUDA_KERNEL_NODE_PARAMS_v1) -> Result<NodeKind> {
    kernel(&cu::CUDA_KERNEL_NODE_PARAMS_v2 {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
        ..Default::default()
    })
}

/// Shows a kernel node's parameters. What they point to stays until they are asked for again.
pub fn show_kernel(node: &NodeRef) -> Result<cu::CUDA_KERNEL_NODE_PARAMS_v2> {
    let NodeKind::Kernel(kernel) = node.kind()? else {
        return Err(INVALID_VALUE);
    };
    let function = Function::resolve(driver()?, kernel.function.raw())?;
    let offsets: Vec<usize> = function
        .info
        .params
        .iter()
        .map(|param| param.offset)
        .collect();
    Ok(cu::CUDA_KERNEL_NODE_PARAMS_v2 {
        func: to_pointer(kernel.function.raw()),
        gridDimX: kernel.grid[0],
        gridDimY: kernel.grid[1],
        gridDimZ: kernel.grid[2],
        blockDimX: kernel.block[0],
        blockDimY: kernel.block[1],
        blockDimZ: kernel.block[2],
        sharedMemBytes: kernel.shared_bytes,
        kernelParams: node
            .graph
            .show_params(node.handle, &kernel.params, &offsets),
        extra: std::ptr::null_mut(),
        kern: to_pointer(kernel_of(&function)?),
        ctx: to_pointer(kernel.context.raw()),
    })
}

/// The handle of the kernel of a library that a function is of, 0 if it is of none.
fn kernel_of(function: &Function) -> Result<u64> {
    let libraries = driver()?.libraries().all();
    let library = libraries.iter().find(|it| it.has(&function.module));
    let kernel = library.and_then(|it| it.kernel(&function.info.name).ok());
    Ok(kernel.map_or(0, |kernel| kernel.handle))
}

/// Reads a memset's parameters.
pub fn memset(params: &cu::CUDA_MEMSET_NODE_PARAMS) -> NodeKind {
    NodeKind::Memset(MemsetNode {
        dst: params.dst,
        pitch: params.pitch as u64,
        value: params.value,
        element_size: params.elementSize,
        width: params.width as u64,
        height: params.height as u64,
    })
}

/// Shows a memset's parameters.
pub fn show_memset(kind: &NodeKind) -> Result<cu::CUDA_MEMSET_NODE_PARAMS> {
    let NodeKind::Memset(memset) = kind else {
        return Err(INVALID_VALUE);
    };
    Ok(cu::CUDA_MEMSET_NODE_PARAMS {
        dst: memset.dst,
        pitch: memset.pitch as usize,
        value: memset.value,
        elementSize: memset.element_size,
        width: memset.width as usize,
        height: memset.height as usize,
    })
}

/// Reads a host call.
pub fn host(function: cu::CUhostFn, user_data: *mut c_void) -> Result<NodeKind> {
    let function = function.ok_or(INVALID_VALUE)? as usize as u64;
    Ok(NodeKind::Host(HostCall {
        function,
        user_data: user_data.expose_provenance() as u64,
    }))
}

/// Shows a host call.
pub fn show_host(kind: &NodeKind) -> Result<cu::CUDA_HOST_NODE_PARAMS> {
    let NodeKind::Host(call) = kind else {
        return Err(INVALID_VALUE);
    };
    let function = std::ptr::with_exposed_provenance::<c_void>(call.function as usize);
    Ok(cu::CUDA_HOST_NODE_PARAMS {
        // SAFETY: the address came from a `CUhostFn` of the program, and null is `None`.
        fn_: unsafe { std::mem::transmute::<*const c_void, cu::CUhostFn>(function) },
        userData: std::ptr::with_exposed_provenance_mut(call.user_data as usize),
    })
}

/// Reads an allocation and makes it: its address is fixed from now on.
pub fn allocation(
    graph: &GraphObject,
    pool: &cu::CUmemPoolProps,
    bytes: usize,
) -> Result<MemAllocNode> {
    if pool.allocType != cu::CU_MEM_ALLOCATION_TYPE_PINNED || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if pool.location.type_ != cu::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(NOT_SUPPORTED);
    }
    let (device, bytes) = (pool.location.id, bytes as u64);
    let address = graph.allocate(driver()?, device, bytes)?;
    Ok(MemAllocNode {
        device,
        bytes,
        address,
    })
}

/// A node that frees an allocation of a graph: it can free no other memory.
pub fn free_node(address: u64) -> Result<NodeKind> {
    let range = driver()?.memory.find(address).ok_or(INVALID_VALUE)?;
    if range.base != address || !matches!(range.kind, Kind::Graph) {
        return Err(INVALID_VALUE);
    }
    Ok(NodeKind::MemFree(address))
}

/// Shows an allocation's pool.
pub fn show_pool(node: &MemAllocNode) -> cu::CUmemPoolProps {
    cu::CUmemPoolProps {
        allocType: cu::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: cu::CUmemLocation {
            type_: cu::CU_MEM_LOCATION_TYPE_DEVICE,
            id: node.device,
        },
        ..Default::default()
    }
}

/// Reads memory operations.
pub fn mem_ops(count: c_uint, params: *mut cu::CUstreamBatchMemOpParams) -> Result<NodeKind> {
    // SAFETY: the program's structure says that so many operations lie there.
    let params = unsafe { In::from_raw(params) };
    Ok(NodeKind::BatchMemOp(read_ops(count, params)?))
}

/// Reads parameters of any kind. An allocation is made for `graph`, whose address goes back to the
/// program; without a graph it cannot be.
pub fn generic(
    params: Out<cu::CUgraphNodeParams>,
    graph: Option<&GraphObject>,
) -> Result<NodeKind> {
    let mut all = params.get()?;
    let body = &mut all.__bindgen_anon_1;
    // SAFETY of each arm: the type says which member of the union the program has filled in.
    match all.type_ {
        cu::CU_GRAPH_NODE_TYPE_KERNEL => {
            // SAFETY: as above.
            let p = unsafe { body.kernel };
            kernel(&cu::CUDA_KERNEL_NODE_PARAMS_v2 {
                func: p.func,
                gridDimX: p.gridDimX,
                gridDimY: p.gridDimY,
                gridDimZ: p.gridDimZ,
                blockDimX: p.blockDimX,
                blockDimY: p.blockDimY,
                blockDimZ: p.blockDimZ,
                sharedMemBytes: p.sharedMemBytes,
                kernelParams: p.kernelParams,
                extra: p.extra,
                kern: p.kern,
                ctx: p.ctx,
            })
        }
        cu::CU_GRAPH_NODE_TYPE_MEMCPY => {
            // SAFETY: as above.
            let p = unsafe { body.memcpy };
            Ok(NodeKind::Memcpy(copy::from_3d(&p.copyParams)?))
        }
        cu::CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: as above.
            let p = unsafe { body.memset };
            Ok(memset(&cu::CUDA_MEMSET_NODE_PARAMS {
                dst: p.dst,
                pitch: p.pitch,
                value: p.value,
                elementSize: p.elementSize,
                width: p.width,
                height: p.height,
            }))
        }
        cu::CU_GRAPH_NODE_TYPE_HOST => {
            // SAFETY: as above.
            let p = unsafe { body.host };
            host(p.fn_, p.userData)
        }
        cu::CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: as above.
            child_graph(&*child(unsafe { body.graph })?)
        }
        cu::CU_GRAPH_NODE_TYPE_EMPTY => Ok(NodeKind::Empty),
        cu::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            // SAFETY: as above.
            event_exists(unsafe { body.eventWait }.event).map(NodeKind::EventWait)
        }
        cu::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            // SAFETY: as above.
            event_exists(unsafe { body.eventRecord }.event).map(NodeKind::EventRecord)
        }
        cu::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            // SAFETY: as above.
            let p = unsafe { &mut body.alloc };
            let node = allocation(graph.ok_or(INVALID_VALUE)?, &p.poolProps, p.bytesize)?;
            p.dptr = node.address;
            params.set(all)?;
            Ok(NodeKind::MemAlloc(node))
        }
        // SAFETY: as above.
        cu::CU_GRAPH_NODE_TYPE_MEM_FREE => free_node(unsafe { body.free }.dptr),
        cu::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
            // SAFETY: as above.
            let p = unsafe { body.memOp };
            mem_ops(p.count, p.paramArray)
        }
        _ => Err(NOT_SUPPORTED),
    }
}

fn child(params: cu::CUDA_CHILD_GRAPH_NODE_PARAMS) -> Result<Arc<GraphObject>> {
    GraphObject::resolve(driver()?, to_handle(params.graph))
}

/// The graph that a node with these parameters runs a copy of, if it is such a node.
pub fn child_of(params: Out<cu::CUgraphNodeParams>) -> Result<Option<Arc<GraphObject>>> {
    let all = params.get()?;
    if all.type_ != cu::CU_GRAPH_NODE_TYPE_GRAPH {
        return Ok(None);
    }
    // SAFETY: the type says which member of the union the program has filled in.
    child(unsafe { all.__bindgen_anon_1.graph }).map(Some)
}

/// The handle of an event that exists.
pub fn event_exists(event: cu::CUevent) -> Result<EventId> {
    crate::event::Event::resolve(event).map(|event| EventId::from_raw(event.handle))
}

/// A node that runs a copy of another graph.
pub fn child_graph(child: &GraphObject) -> Result<NodeKind> {
    let graph = child.with(|graph| Ok(graph.clone()))?;
    if graph.has_memory_nodes() || graph.has_conditionals() {
        return Err(NOT_SUPPORTED);
    }
    Ok(NodeKind::ChildGraph(Box::new(graph)))
}

/// The nodes behind handles, which must all be of this graph.
pub fn node_ids(
    graph: &GraphObject,
    handles: &[cu::CUgraphNode],
) -> Result<Vec<fermata_graph::NodeId>> {
    let ids = handles.iter().map(|handle| {
        let node = NodeRef::resolve(driver()?, to_handle(*handle)).map_err(|_| INVALID_VALUE)?;
        let same = Arc::ptr_eq(&node.graph.root, &graph.root) && node.graph.path == graph.path;
        if same {
            Ok(node.id)
        } else {
            Err(INVALID_VALUE)
        }
    });
    ids.collect()
}
