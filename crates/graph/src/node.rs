//! The kinds of graph nodes with everything they need, owned.

use serde::{Deserialize, Serialize};

use crate::{Copy, Graph};

/// A launch attribute as CUDA passes it: its id and the 64 bytes of the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchAttribute {
    /// A `CU_LAUNCH_ATTRIBUTE_*` number.
    pub id: u32,
    /// The value's bytes, 64 of them.
    pub value: Vec<u8>,
}

/// A kernel launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNode {
    /// Handle of a function or kernel.
    pub function: u64,
    /// Context the launch belongs to; 0 means the function's.
    pub context: u64,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The parameter block.
    pub params: Vec<u8>,
    /// Launch attributes, by id.
    pub attributes: Vec<LaunchAttribute>,
}

/// A memset of rows of 1-, 2- or 4-byte elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemsetNode {
    /// First byte.
    pub dst: u64,
    /// Bytes from row to row; meaningless for one row.
    pub pitch: u64,
    /// The value, in its low `element_size` bytes.
    pub value: u32,
    /// 1, 2 or 4.
    pub element_size: u32,
    /// Elements per row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// A call of a function in the program's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCall {
    /// Address of the function.
    pub function: u64,
    /// Its argument.
    pub user_data: u64,
}

/// An allocation that lives from this node to the matching free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemAllocNode {
    /// Device it lives on.
    pub device: i32,
    /// Bytes.
    pub bytes: u64,
    /// Address it was given when the node was made.
    pub address: u64,
}

/// What one memory operation of a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemOpKind {
    /// Wait until the comparison with `value` holds; `flags` are `CU_STREAM_WAIT_VALUE_*`.
    Wait,
    /// Write `value`; `flags` are `CU_STREAM_WRITE_VALUE_*`.
    Write,
    /// A memory barrier or a flush of remote writes.
    Barrier,
}

/// A 32- or 64-bit wait or write, or a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemOp {
    /// What is done.
    pub kind: MemOpKind,
    /// Address of the word.
    pub address: u64,
    /// Value written or compared with.
    pub value: u64,
    /// CUDA's flags.
    pub flags: u32,
    /// 64-bit rather than 32-bit.
    pub wide: bool,
}

/// What a node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// Launch a kernel.
    Kernel(KernelNode),
    /// Copy memory.
    Memcpy(Copy),
    /// Fill memory.
    Memset(MemsetNode),
    /// Call the program.
    Host(HostCall),
    /// Run another graph.
    ChildGraph(Box<Graph>),
    /// Nothing; joins edges.
    Empty,
    /// Wait for an event, by handle.
    EventWait(u64),
    /// Record an event, by handle.
    EventRecord(u64),
    /// Allocate memory.
    MemAlloc(MemAllocNode),
    /// Free memory of an allocation node, by address.
    MemFree(u64),
    /// Waits and writes of words, in order.
    BatchMemOp(Vec<MemOp>),
}

impl NodeKind {
    /// The kind's name, for messages and drawings.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "kernel",
            Self::Memcpy(_) => "memcpy",
            Self::Memset(_) => "memset",
            Self::Host(_) => "host",
            Self::ChildGraph(_) => "child graph",
            Self::Empty => "empty",
            Self::EventWait(_) => "event wait",
            Self::EventRecord(_) => "event record",
            Self::MemAlloc(_) => "memory allocation",
            Self::MemFree(_) => "memory free",
            Self::BatchMemOp(_) => "batch memory operation",
        }
    }

    /// CUDA's number for the kind (`CU_GRAPH_NODE_TYPE_*`).
    pub fn cuda_type(&self) -> u32 {
        use fermata_abi::sys::driver as cu;
        match self {
            Self::Kernel(_) => cu::CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Memcpy(_) => cu::CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Memset(_) => cu::CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Host(_) => cu::CU_GRAPH_NODE_TYPE_HOST,
            Self::ChildGraph(_) => cu::CU_GRAPH_NODE_TYPE_GRAPH,
            Self::Empty => cu::CU_GRAPH_NODE_TYPE_EMPTY,
            Self::EventWait(_) => cu::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::EventRecord(_) => cu::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::MemAlloc(_) => cu::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::MemFree(_) => cu::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Self::BatchMemOp(_) => cu::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        }
    }

    /// Whether both are of one kind, whatever their parameters.
    pub fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether it allocates or frees memory: such graphs have one instance and no clones.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::MemAlloc(_) | Self::MemFree(_))
    }
}
