//! Exported functions that add nodes to graphs, and read and set their parameters.

use core::ffi::c_void;

use fermata_abi::op::{GraphNodeId, Op};
use fermata_abi::sys::driver as sys;
use fermata_graph::{
    Graph, HostCall, KernelNode, LaunchAttribute, MemAllocNode, MemsetNode, NodeKind,
};

use super::graph::{edge_data, ids};
use super::graph_params::{copy_node, from_copy, kernel_node, kernel_params, memset_node};
use super::user_object::adopt;
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link;
use crate::object::context::current;
use crate::object::graphs::refused;
use crate::object::mirror::{Block, Kind};
use crate::object::session::session;
use crate::result::Result;
use crate::work::capture::PLAIN;

driver_api! {
    fn cuGraphAddKernelNode_v2(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        params: In<sys::CUDA_KERNEL_NODE_PARAMS>,
    ) {
        node.set(add(graph, &after.list(count)?, NodeKind::Kernel(kernel_node(&params.get()?)?))?)
    }

    fn cuGraphAddMemcpyNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        copy: In<sys::CUDA_MEMCPY3D>,
        context: sys::CUcontext,
    ) {
        node.set(add(graph, &after.list(count)?, NodeKind::Memcpy(copy_node(&copy.get()?, context)?))?)
    }

    fn cuGraphAddMemsetNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        params: In<sys::CUDA_MEMSET_NODE_PARAMS>,
        _context: sys::CUcontext,
    ) {
        node.set(add(graph, &after.list(count)?, NodeKind::Memset(memset_node(&params.get()?)?))?)
    }

    fn cuGraphAddHostNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        params: In<sys::CUDA_HOST_NODE_PARAMS>,
    ) {
        node.set(add(graph, &after.list(count)?, NodeKind::Host(host_node(&params.get()?)?))?)
    }

    fn cuGraphAddChildGraphNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        child: sys::CUgraph,
    ) {
        node.set(add_child(graph, &after.list(count)?, &[], child)?)
    }

    fn cuGraphAddEmptyNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
    ) {
        node.set(add(graph, &after.list(count)?, NodeKind::Empty)?)
    }

    fn cuGraphAddEventRecordNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        event: sys::CUevent,
    ) {
        let event = session()?.events.get_for_graph(event)?;
        node.set(add(graph, &after.list(count)?, NodeKind::EventRecord(event))?)
    }

    fn cuGraphAddEventWaitNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        event: sys::CUevent,
    ) {
        let event = session()?.events.get_for_graph(event)?;
        node.set(add(graph, &after.list(count)?, NodeKind::EventWait(event))?)
    }

    fn cuGraphAddMemAllocNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        params: Out<sys::CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) {
        let given = params.get()?;
        let made = NodeKind::MemAlloc(alloc_node(given.poolProps.location.id, given.bytesize)?);
        let NodeKind::MemAlloc(alloc) = made else { return Err(sys::CUDA_ERROR_UNKNOWN) };
        node.set(add(graph, &after.list(count)?, made)?)?;
        params.update(|it| it.dptr = alloc.address)
    }

    fn cuGraphAddMemFreeNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        address: sys::CUdeviceptr,
    ) {
        node.set(add(graph, &after.list(count)?, NodeKind::MemFree(address))?)
    }

    fn cuGraphKernelNodeGetParams_v2(node: sys::CUgraphNode, params: Out<sys::CUDA_KERNEL_NODE_PARAMS>) {
        let kernel = kernel(of(node))?;
        params.set(kernel_params(of(node), &kernel)?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: sys::CUgraphNode, params: In<sys::CUDA_KERNEL_NODE_PARAMS>) {
        let mut new = kernel_node(&params.get()?)?;
        new.attributes = kernel(of(node))?.attributes;
        session()?.graphs.lock().set_kind(of(node), NodeKind::Kernel(new))
    }

    fn cuGraphKernelNodeGetAttribute(
        node: sys::CUgraphNode,
        attribute: sys::CUkernelNodeAttrID,
        value: Out<sys::CUkernelNodeAttrValue>,
    ) {
        let kernel = kernel(of(node))?;
        let known = kernel.attributes.iter().find(|known| known.id == attribute);
        let mut bytes = [0; 64];
        if let Some(known) = known {
            bytes.copy_from_slice(known.value.get(..64).ok_or(sys::CUDA_ERROR_UNKNOWN)?);
        }
        value.cast().set(bytes)
    }

    fn cuGraphKernelNodeSetAttribute(
        node: sys::CUgraphNode,
        attribute: sys::CUkernelNodeAttrID,
        value: In<sys::CUkernelNodeAttrValue>,
    ) {
        let mut kernel = kernel(of(node))?;
        kernel.attributes.retain(|known| known.id != attribute);
        let value = (value.cast::<[u8; 64]>()).get()?.to_vec();
        kernel.attributes.push(LaunchAttribute { id: attribute, value });
        session()?.graphs.lock().set_kind(of(node), NodeKind::Kernel(kernel))
    }

    fn cuGraphKernelNodeCopyAttributes(to: sys::CUgraphNode, from: sys::CUgraphNode) {
        let attributes = kernel(of(from))?.attributes;
        let kernel = KernelNode { attributes, ..kernel(of(to))? };
        session()?.graphs.lock().set_kind(of(to), NodeKind::Kernel(kernel))
    }

    fn cuGraphMemcpyNodeGetParams(node: sys::CUgraphNode, params: Out<sys::CUDA_MEMCPY3D>) {
        match session()?.graphs.lock().kind(of(node))? {
            NodeKind::Memcpy(copy) => params.set(from_copy(copy)),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphMemcpyNodeSetParams(node: sys::CUgraphNode, params: In<sys::CUDA_MEMCPY3D>) {
        let copy = copy_node(&params.get()?, core::ptr::null_mut())?;
        session()?.graphs.lock().set_kind(of(node), NodeKind::Memcpy(copy))
    }

    fn cuGraphMemsetNodeGetParams(node: sys::CUgraphNode, params: Out<sys::CUDA_MEMSET_NODE_PARAMS>) {
        match session()?.graphs.lock().kind(of(node))? {
            NodeKind::Memset(fill) => params.set(sys::CUDA_MEMSET_NODE_PARAMS {
                dst: fill.dst,
                pitch: fill.pitch as usize,
                value: fill.value,
                elementSize: fill.element_size,
                width: fill.width as usize,
                height: fill.height as usize,
            }),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphMemsetNodeSetParams(node: sys::CUgraphNode, params: In<sys::CUDA_MEMSET_NODE_PARAMS>) {
        let fill: MemsetNode = memset_node(&params.get()?)?;
        session()?.graphs.lock().set_kind(of(node), NodeKind::Memset(fill))
    }

    fn cuGraphHostNodeGetParams(node: sys::CUgraphNode, params: Out<sys::CUDA_HOST_NODE_PARAMS>) {
        let NodeKind::Host(call) = *session()?.graphs.lock().kind(of(node))? else {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        };
        let function = std::ptr::with_exposed_provenance_mut::<c_void>(call.function as usize);
        params.set(sys::CUDA_HOST_NODE_PARAMS {
            // SAFETY: the number came from a function of this type, in `host_node`.
            fn_: unsafe { std::mem::transmute::<*mut c_void, sys::CUhostFn>(function) },
            userData: std::ptr::with_exposed_provenance_mut(call.user_data as usize),
        })
    }

    fn cuGraphHostNodeSetParams(node: sys::CUgraphNode, params: In<sys::CUDA_HOST_NODE_PARAMS>) {
        let call = host_node(&params.get()?)?;
        session()?.graphs.lock().set_kind(of(node), NodeKind::Host(call))
    }

    fn cuGraphEventRecordNodeGetEvent(node: sys::CUgraphNode, event: Out<sys::CUevent>) {
        match *session()?.graphs.lock().kind(of(node))? {
            NodeKind::EventRecord(handle) => event.set(to_pointer(handle)),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphEventRecordNodeSetEvent(node: sys::CUgraphNode, event: sys::CUevent) {
        let session = session()?;
        let event = session.events.get_for_graph(event)?;
        session.graphs.lock().set_kind(of(node), NodeKind::EventRecord(event))
    }

    fn cuGraphEventWaitNodeGetEvent(node: sys::CUgraphNode, event: Out<sys::CUevent>) {
        match *session()?.graphs.lock().kind(of(node))? {
            NodeKind::EventWait(handle) => event.set(to_pointer(handle)),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphEventWaitNodeSetEvent(node: sys::CUgraphNode, event: sys::CUevent) {
        let session = session()?;
        let event = session.events.get_for_graph(event)?;
        session.graphs.lock().set_kind(of(node), NodeKind::EventWait(event))
    }

    fn cuGraphMemAllocNodeGetParams(node: sys::CUgraphNode, params: Out<sys::CUDA_MEM_ALLOC_NODE_PARAMS>) {
        let NodeKind::MemAlloc(alloc) = *session()?.graphs.lock().kind(of(node))? else {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        };
        let location = sys::CUmemLocation { type_: sys::CU_MEM_LOCATION_TYPE_DEVICE, id: alloc.device };
        let allocType = sys::CU_MEM_ALLOCATION_TYPE_PINNED;
        params.set(sys::CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: sys::CUmemPoolProps { allocType, location, ..Default::default() },
            bytesize: alloc.bytes as usize,
            dptr: alloc.address,
            ..Default::default()
        })
    }

    fn cuGraphMemFreeNodeGetParams(node: sys::CUgraphNode, address: Out<sys::CUdeviceptr>) {
        match *session()?.graphs.lock().kind(of(node))? {
            NodeKind::MemFree(freed) => address.set(freed),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

pub(super) fn add(
    graph: sys::CUgraph,
    after: &[sys::CUgraphNode],
    kind: NodeKind,
) -> Result<sys::CUgraphNode> {
    add_with(graph, after, &[], kind)
}

/// As [`add`], with edges of their own kind; the others are plain.
pub(super) fn add_with(
    graph: sys::CUgraph,
    after: &[sys::CUgraphNode],
    edges: &[sys::CUgraphEdgeData],
    kind: NodeKind,
) -> Result<sys::CUgraphNode> {
    let mut graphs = session()?.graphs.lock();
    let edges = edges.iter().map(edge_data).chain(std::iter::repeat(PLAIN));
    let after = ids(&graphs, of(graph), after)?;
    let after: Vec<_> = after.into_iter().zip(edges).collect();
    let node = graphs
        .graph_mut(of(graph))?
        .add(kind, &after)
        .map_err(refused)?;
    Ok(to_pointer(graphs.node_handle(of(graph), node)))
}

/// As [`add_with`], of a child graph.
pub(super) fn add_child(
    graph: sys::CUgraph,
    after: &[sys::CUgraphNode],
    edges: &[sys::CUgraphEdgeData],
    child: sys::CUgraph,
) -> Result<sys::CUgraphNode> {
    let node = add_with(graph, after, edges, child_of(child)?)?;
    adopt(session()?, of(node), of(child))?;
    Ok(node)
}

pub(super) fn child_of(graph: sys::CUgraph) -> Result<NodeKind> {
    let graph: Graph = session()?.graphs.lock().graph(of(graph))?.clone();
    if graph.has_conditionals() {
        return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(NodeKind::ChildGraph(Box::new(graph)))
}

pub(super) fn host_node(params: &sys::CUDA_HOST_NODE_PARAMS) -> Result<HostCall> {
    let function = params.fn_.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
    let function = (function as *const ()).expose_provenance() as u64;
    Ok(HostCall {
        function,
        user_data: params.userData.expose_provenance() as u64,
    })
}

/// The kernel node behind a handle.
pub(super) fn kernel(node: GraphNodeId) -> Result<KernelNode> {
    match session()?.graphs.lock().kind(node)? {
        NodeKind::Kernel(kernel) => Ok(kernel.clone()),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Memory for an allocation node. It is allocated now and for as long as a graph has the node: every launch gets the same
/// memory.
pub(super) fn alloc_node(device: sys::CUdevice, bytes: usize) -> Result<MemAllocNode> {
    let session = session()?;
    let context = current()?;
    session.devices.get(device)?;
    if bytes == 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let op = Op::MemAlloc {
        context: context.handle,
        size: bytes,
    };
    let pool = session.pools.default_of(&session.devices, device)?;
    let address = link::ask(&op, link::address)?;
    session.memory.insert(Block::new(
        address,
        bytes,
        Kind::Graph(pool.handle),
        &context,
    ));
    session.graphs.lock().memory.insert(address);
    Ok(MemAllocNode {
        device,
        bytes,
        address: address.raw(),
    })
}
