//! Exported functions that add nodes of each kind to graphs, and read and set their parameters.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use fermata_abi::sys::driver as cu;
use fermata_graph::{LaunchAttribute, NodeKind};

use super::args::{In, Out};
use super::graph::{add, add_child, dependencies, graph, node};
use super::graph_params as params;
use super::init::driver;
use super::launch::is_cooperative;
use super::{copy, to_pointer};
use crate::context;
use crate::error::{INVALID_VALUE, Result};
use crate::graph::NodeRef;
use crate::work::Work;

type Nodes = In<cu::CUgraphNode>;

fn add_kind(
    out: Out<cu::CUgraphNode>,
    handle: cu::CUgraph,
    after: Nodes,
    count: usize,
    kind: NodeKind,
) -> Result {
    let graph = graph(handle)?;
    add(
        out,
        &graph,
        &dependencies(&graph, after, In::null(), count)?,
        kind,
    )
    .map(drop)
}

/// Replaces a node's parameters by others of its kind.
fn set_kind(handle: cu::CUgraphNode, kind: NodeKind) -> Result {
    let node = node(handle)?;
    Work::check(driver()?, &context::current()?, &kind)?;
    node.graph.with_mut(|graph| graph.set(node.id, kind))
}

/// Remembers whether a kernel node's parameters were given as one block: `extra` is not null then.
fn given_by(handle: cu::CUgraphNode, extra: *mut *mut c_void) -> Result {
    let by_block = !extra.is_null();
    node(handle)?.by_block.store(by_block, Ordering::Relaxed);
    Ok(())
}

/// Changes a kernel node in place.
fn with_kernel<T>(
    handle: cu::CUgraphNode,
    change: impl FnOnce(&mut Vec<LaunchAttribute>) -> T,
) -> Result<T> {
    let node = node(handle)?;
    if !matches!(node.kind()?, NodeKind::Kernel(_)) {
        return Err(INVALID_VALUE);
    }
    let mut unused = Vec::new();
    node.graph.with_mut(|graph| match graph.kind_mut(node.id)? {
        NodeKind::Kernel(kernel) => Ok(change(&mut kernel.attributes)),
        _ => Ok(change(&mut unused)),
    })
}

fn kind_of(handle: cu::CUgraphNode) -> Result<(std::sync::Arc<NodeRef>, NodeKind)> {
    let node = node(handle)?;
    let kind = node.kind()?;
    Ok((node, kind))
}

api! {
    fn cuGraphAddKernelNode_v2(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        kernel: In<cu::CUDA_KERNEL_NODE_PARAMS_v2>,
    ) {
        let kernel = kernel.get()?;
        add_kind(out, handle, after, count, params::kernel(&kernel)?)?;
        given_by(out.get()?, kernel.extra)
    }

    fn cuGraphAddKernelNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        kernel: In<cu::CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        let kernel = kernel.get()?;
        add_kind(out, handle, after, count, params::kernel_v1(&kernel)?)?;
        given_by(out.get()?, kernel.extra)
    }

    fn cuGraphKernelNodeGetParams_v2(handle: cu::CUgraphNode, out: Out<cu::CUDA_KERNEL_NODE_PARAMS_v2>) {
        let node = node(handle)?;
        out.set(params::show_kernel(&node)?)
    }

    fn cuGraphKernelNodeGetParams(handle: cu::CUgraphNode, out: Out<cu::CUDA_KERNEL_NODE_PARAMS_v1>) {
        let node = node(handle)?;
        let all = params::show_kernel(&node)?;
        out.set(cu::CUDA_KERNEL_NODE_PARAMS_v1 {
            func: all.func,
            gridDimX: all.gridDimX,
            gridDimY: all.gridDimY,
            gridDimZ: all.gridDimZ,
            blockDimX: all.blockDimX,
            blockDimY: all.blockDimY,
            blockDimZ: all.blockDimZ,
            sharedMemBytes: all.sharedMemBytes,
            kernelParams: all.kernelParams,
            extra: all.extra,
        })
    }

    fn cuGraphKernelNodeSetParams_v2(handle: cu::CUgraphNode, kernel: In<cu::CUDA_KERNEL_NODE_PARAMS_v2>) {
        let kernel = kernel.get()?;
        set_kind(handle, params::kernel(&kernel)?)?;
        given_by(handle, kernel.extra)
    }

    fn cuGraphKernelNodeSetParams(handle: cu::CUgraphNode, kernel: In<cu::CUDA_KERNEL_NODE_PARAMS_v1>) {
        let kernel = kernel.get()?;
        set_kind(handle, params::kernel_v1(&kernel)?)?;
        given_by(handle, kernel.extra)
    }

    fn cuGraphKernelNodeSetAttribute(
        handle: cu::CUgraphNode,
        id: cu::CUkernelNodeAttrID,
        value: In<cu::CUkernelNodeAttrValue>,
    ) {
        let value = value.get()?;
        // SAFETY: the value is a union of 64 bytes of which every one may be read as a byte.
        let value = unsafe { value.pad }.map(|byte| byte as u8).to_vec();
        let wanted = LaunchAttribute { id, value };
        if is_cooperative(&wanted) && node(handle)?.by_block.load(Ordering::Relaxed) {
            return Err(INVALID_VALUE);
        }
        with_kernel(handle, |attributes| {
            attributes.retain(|attribute| attribute.id != id);
            attributes.push(wanted);
        })
    }

    fn cuGraphKernelNodeGetAttribute(
        handle: cu::CUgraphNode,
        id: cu::CUkernelNodeAttrID,
        out: Out<cu::CUkernelNodeAttrValue>,
    ) {
        let found = with_kernel(handle, |attributes| {
            attributes.iter().find(|attribute| attribute.id == id).map(|found| found.value.clone())
        })?;
        let mut pad = [0; 64];
        for (to, from) in pad.iter_mut().zip(found.unwrap_or_default()) {
            *to = from as std::ffi::c_char;
        }
        out.set(cu::CUkernelNodeAttrValue { pad })
    }

    fn cuGraphKernelNodeCopyAttributes(to: cu::CUgraphNode, from: cu::CUgraphNode) {
        let copied = with_kernel(from, |attributes| attributes.clone())?;
        with_kernel(to, |attributes| *attributes = copied)
    }

    fn cuGraphAddMemcpyNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        copy_params: In<cu::CUDA_MEMCPY3D>,
        context: cu::CUcontext,
    ) {
        let _ = context;
        add_kind(out, handle, after, count, NodeKind::Memcpy(copy::from_3d(&copy_params.get()?)?))
    }

    fn cuGraphMemcpyNodeGetParams(handle: cu::CUgraphNode, out: Out<cu::CUDA_MEMCPY3D>) {
        match kind_of(handle)?.1 {
            NodeKind::Memcpy(copied) => out.set(copy::to_3d(&copied)),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuGraphMemcpyNodeSetParams(handle: cu::CUgraphNode, copy_params: In<cu::CUDA_MEMCPY3D>) {
        set_kind(handle, NodeKind::Memcpy(copy::from_3d(&copy_params.get()?)?))
    }

    fn cuGraphAddMemsetNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        memset: In<cu::CUDA_MEMSET_NODE_PARAMS>,
        context: cu::CUcontext,
    ) {
        let _ = context;
        add_kind(out, handle, after, count, params::memset(&memset.get()?))
    }

    fn cuGraphMemsetNodeGetParams(handle: cu::CUgraphNode, out: Out<cu::CUDA_MEMSET_NODE_PARAMS>) {
        out.set(params::show_memset(&kind_of(handle)?.1)?)
    }

    fn cuGraphMemsetNodeSetParams(handle: cu::CUgraphNode, memset: In<cu::CUDA_MEMSET_NODE_PARAMS>) {
        set_kind(handle, params::memset(&memset.get()?))
    }

    fn cuGraphAddHostNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        host: In<cu::CUDA_HOST_NODE_PARAMS>,
    ) {
        let host = host.get()?;
        add_kind(out, handle, after, count, params::host(host.fn_, host.userData)?)
    }

    fn cuGraphHostNodeGetParams(handle: cu::CUgraphNode, out: Out<cu::CUDA_HOST_NODE_PARAMS>) {
        out.set(params::show_host(&kind_of(handle)?.1)?)
    }

    fn cuGraphHostNodeSetParams(handle: cu::CUgraphNode, host: In<cu::CUDA_HOST_NODE_PARAMS>) {
        let host = host.get()?;
        set_kind(handle, params::host(host.fn_, host.userData)?)
    }

    fn cuGraphAddChildGraphNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        child: cu::CUgraph,
    ) {
        let (graph, child) = (graph(handle)?, graph(child)?);
        add_child(out, &graph, &dependencies(&graph, after, In::null(), count)?, &child)
    }

    fn cuGraphChildGraphNodeGetGraph(handle: cu::CUgraphNode, out: Out<cu::CUgraph>) {
        let node = node(handle)?;
        out.set(to_pointer(node.graph.child(driver()?, &[node.id])?.handle))
    }

    fn cuGraphAddEmptyNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
    ) {
        add_kind(out, handle, after, count, NodeKind::Empty)
    }

    fn cuGraphAddEventRecordNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        event: cu::CUevent,
    ) {
        add_kind(out, handle, after, count, NodeKind::EventRecord(params::event_exists(event)?))
    }

    fn cuGraphEventRecordNodeGetEvent(handle: cu::CUgraphNode, out: Out<cu::CUevent>) {
        match kind_of(handle)?.1 {
            NodeKind::EventRecord(event) => out.set(to_pointer(event.raw())),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuGraphEventRecordNodeSetEvent(handle: cu::CUgraphNode, event: cu::CUevent) {
        set_kind(handle, NodeKind::EventRecord(params::event_exists(event)?))
    }

    fn cuGraphAddEventWaitNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        event: cu::CUevent,
    ) {
        add_kind(out, handle, after, count, NodeKind::EventWait(params::event_exists(event)?))
    }

    fn cuGraphEventWaitNodeGetEvent(handle: cu::CUgraphNode, out: Out<cu::CUevent>) {
        match kind_of(handle)?.1 {
            NodeKind::EventWait(event) => out.set(to_pointer(event.raw())),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuGraphEventWaitNodeSetEvent(handle: cu::CUgraphNode, event: cu::CUevent) {
        set_kind(handle, NodeKind::EventWait(params::event_exists(event)?))
    }

    fn cuGraphAddMemAllocNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        alloc: Out<cu::CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) {
        let (graph, mut wanted) = (graph(handle)?, alloc.get()?);
        // The graph keeps what it has allocated, so everything else is checked before.
        let after = dependencies(&graph, after, In::null(), count)?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        let made = params::allocation(&graph, &wanted.poolProps, wanted.bytesize)?;
        wanted.dptr = made.address;
        alloc.set(wanted)?;
        add(out, &graph, &after, NodeKind::MemAlloc(made)).map(drop)
    }

    fn cuGraphMemAllocNodeGetParams(handle: cu::CUgraphNode, out: Out<cu::CUDA_MEM_ALLOC_NODE_PARAMS>) {
        let NodeKind::MemAlloc(made) = kind_of(handle)?.1 else { return Err(INVALID_VALUE) };
        out.set(cu::CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: params::show_pool(&made),
            bytesize: made.bytes as usize,
            dptr: made.address,
            ..Default::default()
        })
    }

    fn cuGraphAddMemFreeNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        address: cu::CUdeviceptr,
    ) {
        add_kind(out, handle, after, count, params::free_node(address)?)
    }

    fn cuGraphMemFreeNodeGetParams(handle: cu::CUgraphNode, out: Out<cu::CUdeviceptr>) {
        match kind_of(handle)?.1 {
            NodeKind::MemFree(address) => out.set(address),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuGraphAddBatchMemOpNode(
        out: Out<cu::CUgraphNode>,
        handle: cu::CUgraph,
        after: In<cu::CUgraphNode>,
        count: usize,
        ops: In<cu::CUDA_BATCH_MEM_OP_NODE_PARAMS>,
    ) {
        let ops = ops.get()?;
        add_kind(out, handle, after, count, params::mem_ops(ops.count, ops.paramArray)?)
    }

    fn cuGraphBatchMemOpNodeSetParams(handle: cu::CUgraphNode, ops: In<cu::CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
        let ops = ops.get()?;
        set_kind(handle, params::mem_ops(ops.count, ops.paramArray)?)
    }
}
