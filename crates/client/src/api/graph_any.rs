//! Nodes of any kind through one structure.

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;
use fermata_graph::{HostCall, MemOp, MemOpKind, NodeKind};

use super::graph_node::{add, add_with, alloc_node, child_of};
use super::graph_params::{copy_node, kernel_node, memset_node};
use crate::entry::{Result, array, driver_api, get, put};
use crate::handles::of;
use crate::session::session;

driver_api! {
    fn cuGraphAddNode(
        node: *mut sys::CUgraphNode,
        graph: sys::CUgraph,
        after: *const sys::CUgraphNode,
        count: usize,
        params: *mut sys::CUgraphNodeParams,
    ) {
        put(node, add_any(graph, array(after, count)?, &[], params)?)
    }

    fn cuGraphAddNode_v2(
        node: *mut sys::CUgraphNode,
        graph: sys::CUgraph,
        after: *const sys::CUgraphNode,
        edges: *const sys::CUgraphEdgeData,
        count: usize,
        params: *mut sys::CUgraphNodeParams,
    ) {
        let edges: &[_] = if edges.is_null() { &[] } else { array(edges, count)? };
        put(node, add_any(graph, array(after, count)?, edges, params)?)
    }

    fn cuGraphNodeSetParams(node: sys::CUgraphNode, params: *mut sys::CUgraphNodeParams) {
        let kind = kind_of(get(params)?)?;
        session()?.graphs.lock().set_kind(of(node), kind)
    }

    fn cuGraphExecNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: *mut sys::CUgraphNodeParams,
    ) {
        let kind = kind_of(get(params)?)?;
        session()?.graphs.lock().set_exec(exec, of(node), kind)
    }

    fn cuGraphAddBatchMemOpNode(
        node: *mut sys::CUgraphNode,
        graph: sys::CUgraph,
        after: *const sys::CUgraphNode,
        count: usize,
        params: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) {
        let params = get(params)?;
        let operations = memory_operations(array(params.paramArray, params.count as usize)?)?;
        put(node, add(graph, array(after, count)?, NodeKind::BatchMemOp(operations))?)
    }

    fn cuGraphBatchMemOpNodeSetParams(
        node: sys::CUgraphNode,
        params: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) {
        let params = get(params)?;
        let operations = memory_operations(array(params.paramArray, params.count as usize)?)?;
        session()?.graphs.lock().set_kind(of(node), NodeKind::BatchMemOp(operations))
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        exec: sys::CUgraphExec,
        node: sys::CUgraphNode,
        params: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) {
        let params = get(params)?;
        let operations = memory_operations(array(params.paramArray, params.count as usize)?)?;
        session()?.graphs.lock().set_exec(exec, of(node), NodeKind::BatchMemOp(operations))
    }
}

/// # Safety
/// `params` is null or a structure as the API demands, which may be written.
unsafe fn add_any(
    graph: sys::CUgraph,
    after: &[sys::CUgraphNode],
    edges: &[sys::CUgraphEdgeData],
    params: *mut sys::CUgraphNodeParams,
) -> Result<sys::CUgraphNode> {
    // SAFETY: by the caller's promise.
    let kind = unsafe { kind_of(get(params)?) }?;
    if let NodeKind::MemAlloc(alloc) = &kind {
        // SAFETY: the structure says that it is an allocation's.
        unsafe { (*params).__bindgen_anon_1.alloc.dptr = alloc.address };
    }
    add_with(graph, after, edges, kind)
}

/// # Safety
/// The structure is as the API demands for the kind it names.
unsafe fn kind_of(params: &sys::CUgraphNodeParams) -> Result<NodeKind> {
    let of_kind = &params.__bindgen_anon_1;
    // SAFETY: each field is read for the kind that it belongs to, by the caller's promise.
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
                NodeKind::EventWait(session()?.events.get(of_kind.eventWait.event)?.handle)
            }
            sys::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
                NodeKind::EventRecord(session()?.events.get(of_kind.eventRecord.event)?.handle)
            }
            sys::CU_GRAPH_NODE_TYPE_MEM_ALLOC => NodeKind::MemAlloc(alloc_node(
                of_kind.alloc.poolProps.location.id,
                of_kind.alloc.bytesize,
            )?),
            sys::CU_GRAPH_NODE_TYPE_MEM_FREE => NodeKind::MemFree(of_kind.free.dptr),
            sys::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
                let batch = &of_kind.memOp;
                NodeKind::BatchMemOp(memory_operations(array(
                    batch.paramArray,
                    batch.count as usize,
                )?)?)
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

/// Operations on words.
///
/// # Safety
/// Every entry is as the API demands for the operation it names.
pub(super) unsafe fn memory_operations(
    entries: &[sys::CUstreamBatchMemOpParams],
) -> Result<Vec<MemOp>> {
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
