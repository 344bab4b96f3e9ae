//! Exported functions for graph nodes of any kind, whose parameters come in one structure.

use core::ffi::{c_uint, c_void};

use fermata_abi::sys::driver as sys;
use fermata_graph::{Condition, ConditionalKind, HostCall, MemOp, MemOpKind, NodeKind};

use super::graph_exec::adopt_child;
use super::graph_node::{add, add_child, add_with, alloc_node, child_of};
use super::graph_params::{copy_node, kernel_node, memset_node};
use super::user_object::adopt;
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::of;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuGraphAddNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        params: Out<sys::CUgraphNodeParams>,
    ) {
        node.set(add_any(graph, &after.list(count)?, &[], params)?)
    }

    fn cuGraphAddNode_v2(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        edges: In<sys::CUgraphEdgeData>,
        count: usize,
        params: Out<sys::CUgraphNodeParams>,
    ) {
        let edges = edges.list_if_any(count)?;
        node.set(add_any(graph, &after.list(count)?, &edges, params)?)
    }

    fn cuGraphNodeSetParams(node: sys::CUgraphNode, params: Out<sys::CUgraphNodeParams>) {
        let params = &params.get()?;
        let kind = kind_of(params)?;
        let session = session()?;
        session.graphs.lock().set_kind(of(node), kind)?;
        child_in(params).map_or(Ok(()), |child| adopt(session, of(node), of(child)))
    }

    fn cuGraphExecNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: Out<sys::CUgraphNodeParams>,
    ) {
        let params = &params.get()?;
        let kind = kind_of(params)?;
        session()?.graphs.lock().set_exec(exec, of(node), &kind)?;
        child_in(params).map_or(Ok(()), |child| adopt_child(exec, of(node), of(child)))
    }

    fn cuGraphAddBatchMemOpNode(
        node: Out<sys::CUgraphNode>,
        graph: sys::CUgraph,
        after: In<sys::CUgraphNode>,
        count: usize,
        params: In<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>,
    ) {
        let params = &params.get()?;
        let operations = memory_operations(&entries(params.paramArray, params.count)?)?;
        node.set(add(graph, &after.list(count)?, NodeKind::BatchMemOp(operations))?)
    }

    fn cuGraphBatchMemOpNodeSetParams(
        node: sys::CUgraphNode,
        params: In<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>,
    ) {
        let params = &params.get()?;
        let operations = memory_operations(&entries(params.paramArray, params.count)?)?;
        session()?.graphs.lock().set_kind(of(node), NodeKind::BatchMemOp(operations))
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: In<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>,
    ) {
        let params = &params.get()?;
        let operations = memory_operations(&entries(params.paramArray, params.count)?)?;
        session()?.graphs.lock().set_exec(exec, of(node), &NodeKind::BatchMemOp(operations))
    }
}

fn add_any(
    graph: sys::CUgraph,
    after: &[sys::CUgraphNode],
    edges: &[sys::CUgraphEdgeData],
    params: Out<sys::CUgraphNodeParams>,
) -> Result<sys::CUgraphNode> {
    let given = params.get()?;
    if let Some(child) = child_in(&given) {
        return add_child(graph, after, edges, child);
    }
    if given.type_ == sys::CU_GRAPH_NODE_TYPE_CONDITIONAL {
        return add_conditional(graph, after, edges, params);
    }
    let kind = kind_of(&given)?;
    if let NodeKind::MemAlloc(alloc) = &kind {
        let address = alloc.address;
        params.update(|it| it.__bindgen_anon_1.alloc.dptr = address)?;
    }
    add_with(graph, after, edges, kind)
}

/// Adds a conditional node and tells the program where its bodies are.
fn add_conditional(
    graph: sys::CUgraph,
    after: &[sys::CUgraphNode],
    edges: &[sys::CUgraphEdgeData],
    params: Out<sys::CUgraphNodeParams>,
) -> Result<sys::CUgraphNode> {
    // SAFETY: the field is of this kind of node; of numbers and pointers every bit pattern is one.
    let given = unsafe { params.get()?.__bindgen_anon_1.conditional };
    let kind = ConditionalKind::of_cuda(given.type_);
    let kind = (kind.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?, given.size);
    let session = session()?;
    let context = match given.ctx.is_null() {
        true => None,
        false => Some(session.contexts.get(given.ctx)?.handle),
    };
    let condition = Condition(given.handle);
    let graphs = session.graphs.lock();
    let node = graphs.conditional(of(graph), condition, kind, context)?;
    drop(graphs);
    let node = add_with(graph, after, edges, node)?;
    let bodies = session.graphs.lock().bodies(of(node))?;
    params.update(|it| it.__bindgen_anon_1.conditional.phGraph_out = bodies)?;
    Ok(node)
}

/// The graph that a node of these parameters runs, if it is a child-graph node.
fn child_in(params: &sys::CUgraphNodeParams) -> Option<sys::CUgraph> {
    // SAFETY: the field is read for the kind that it belongs to; of pointers every bit pattern is one.
    let child = || unsafe { params.__bindgen_anon_1.graph.graph };
    (params.type_ == sys::CU_GRAPH_NODE_TYPE_GRAPH).then(child)
}

fn kind_of(params: &sys::CUgraphNodeParams) -> Result<NodeKind> {
    let of_kind = &params.__bindgen_anon_1;
    // SAFETY: each field is read for the kind that it belongs to; of numbers and pointers every bit pattern is one.
    unsafe {
        Ok(match params.type_ {
            sys::CU_GRAPH_NODE_TYPE_KERNEL => {
                let kernel = &of_kind.kernel;
                NodeKind::Kernel(kernel_node(&sys::CUDA_KERNEL_NODE_PARAMS {
                    func: kernel.func,
                    gridDimX: kernel.gridDimX,
                    gridDimY: kernel.gridDimY,
                    gridDimZ: kernel.gridDimZ,
                    blockDimX: kernel.blockDimX,
                    blockDimY: kernel.blockDimY,
                    blockDimZ: kernel.blockDimZ,
                    sharedMemBytes: kernel.sharedMemBytes,
                    kernelParams: kernel.kernelParams,
                    extra: kernel.extra,
                    kern: kernel.kern,
                    ctx: kernel.ctx,
                })?)
            }
            sys::CU_GRAPH_NODE_TYPE_MEMCPY => NodeKind::Memcpy(copy_node(
                &of_kind.memcpy.copyParams,
                of_kind.memcpy.copyCtx,
            )?),
            sys::CU_GRAPH_NODE_TYPE_MEMSET => {
                let fill = &of_kind.memset;
                NodeKind::Memset(memset_node(&sys::CUDA_MEMSET_NODE_PARAMS {
                    dst: fill.dst,
                    pitch: fill.pitch,
                    value: fill.value,
                    elementSize: fill.elementSize,
                    width: fill.width,
                    height: fill.height,
                })?)
            }
            sys::CU_GRAPH_NODE_TYPE_HOST => {
                NodeKind::Host(host_call(of_kind.host.fn_, of_kind.host.userData)?)
            }
            sys::CU_GRAPH_NODE_TYPE_GRAPH => child_of(of_kind.graph.graph)?,
            sys::CU_GRAPH_NODE_TYPE_EMPTY => NodeKind::Empty,
            sys::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
                NodeKind::EventWait(session()?.events.get_for_graph(of_kind.eventWait.event)?)
            }
            sys::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
                NodeKind::EventRecord(session()?.events.get_for_graph(of_kind.eventRecord.event)?)
            }
            sys::CU_GRAPH_NODE_TYPE_MEM_ALLOC => NodeKind::MemAlloc(alloc_node(
                of_kind.alloc.poolProps.location.id,
                of_kind.alloc.bytesize,
            )?),
            sys::CU_GRAPH_NODE_TYPE_MEM_FREE => NodeKind::MemFree(of_kind.free.dptr),
            sys::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
                let batch = &of_kind.memOp;
                NodeKind::BatchMemOp(memory_operations(&entries(batch.paramArray, batch.count)?)?)
            }
            _ => return Err(sys::CUDA_ERROR_NOT_SUPPORTED),
        })
    }
}

fn host_call(function: sys::CUhostFn, data: *mut c_void) -> Result<HostCall> {
    super::graph_node::host_node(&sys::CUDA_HOST_NODE_PARAMS {
        fn_: function,
        userData: data,
    })
}

/// The list of operations that a structure names.
fn entries(
    list: *mut sys::CUstreamBatchMemOpParams,
    count: c_uint,
) -> Result<Vec<sys::CUstreamBatchMemOpParams>> {
    // SAFETY: null, or as many operations as the program's structure says.
    unsafe { In::from_raw(list) }.list(count as usize)
}

/// Operations on words.
pub(super) fn memory_operations(entries: &[sys::CUstreamBatchMemOpParams]) -> Result<Vec<MemOp>> {
    let one = |entry: &sys::CUstreamBatchMemOpParams| {
        // SAFETY: the operation's number is at the same place in every member, and tells which one it is.
        let (kind, address, value, flags, wide) = unsafe {
            match entry.operation {
                sys::CU_STREAM_MEM_OP_WAIT_VALUE_32 => {
                    let wait = entry.waitValue;
                    (
                        MemOpKind::Wait,
                        wait.address,
                        wait.__bindgen_anon_1.value.into(),
                        wait.flags,
                        false,
                    )
                }
                sys::CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
                    let wait = entry.waitValue;
                    (
                        MemOpKind::Wait,
                        wait.address,
                        wait.__bindgen_anon_1.value64,
                        wait.flags,
                        true,
                    )
                }
                sys::CU_STREAM_MEM_OP_WRITE_VALUE_32 => {
                    let write = entry.writeValue;
                    (
                        MemOpKind::Write,
                        write.address,
                        write.__bindgen_anon_1.value.into(),
                        write.flags,
                        false,
                    )
                }
                sys::CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
                    let write = entry.writeValue;
                    (
                        MemOpKind::Write,
                        write.address,
                        write.__bindgen_anon_1.value64,
                        write.flags,
                        true,
                    )
                }
                sys::CU_STREAM_MEM_OP_BARRIER => {
                    (MemOpKind::Barrier, 0, 0, entry.memoryBarrier.flags, false)
                }
                sys::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => (
                    MemOpKind::Barrier,
                    0,
                    0,
                    entry.flushRemoteWrites.flags,
                    false,
                ),
                _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
            }
        };
        Ok(MemOp {
            kind,
            address,
            value,
            flags,
            wide,
        })
    };
    entries.iter().map(one).collect()
}
