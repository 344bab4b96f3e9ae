//! What a graph consists of. A node may hold a graph of its own.

use std::collections::BTreeMap;

use fermata_abi::op::{ContextId, EventId};
use fermata_abi::sys::driver as cu;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, ConditionalKind};
use crate::copy::Copy;
use crate::node::{HostCall, KernelNode, MemAllocNode, MemOp, MemsetNode};

/// A node's name within its graph and the graph's clones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// Ports and type of an edge, as CUDA numbers them; zeros mean a full dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EdgeData {
    /// Port the edge leaves from.
    pub from_port: u8,
    /// Port it enters.
    pub to_port: u8,
    /// Type of the dependency.
    pub kind: u8,
}

/// A dependency of one node on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// Runs first.
    pub from: NodeId,
    /// Runs after it.
    pub to: NodeId,
    /// Ports and type.
    pub data: EdgeData,
}

/// A node: what it does and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What it does.
    pub kind: NodeKind,
    /// What it waits for, in the order it was said.
    pub dependencies: Vec<(NodeId, EdgeData)>,
}

/// A CUDA graph.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Graph {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// The highest number that a node has had.
    pub(super) next: u64,
}

/// A conditional node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditional {
    /// Its condition, which no other node has.
    pub condition: Condition,
    /// The condition's value at the beginning of a launch, if it is given one then.
    pub default: Option<u32>,
    /// The context that it and all in its bodies belong to.
    pub context: ContextId,
    /// How the value decides.
    pub kind: ConditionalKind,
    /// Its graphs.
    pub bodies: Vec<Graph>,
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
    /// Wait for an event.
    EventWait(EventId),
    /// Record an event.
    EventRecord(EventId),
    /// Allocate memory.
    MemAlloc(MemAllocNode),
    /// Free memory of an allocation node, by address.
    MemFree(u64),
    /// Waits and writes of words, in order.
    BatchMemOp(Vec<MemOp>),
    /// Run graphs by a value that kernels set.
    Conditional(Box<Conditional>),
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
            Self::Conditional(_) => "conditional",
        }
    }

    /// CUDA's number for the kind (`CU_GRAPH_NODE_TYPE_*`).
    pub fn cuda_type(&self) -> u32 {
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
            Self::Conditional(_) => cu::CU_GRAPH_NODE_TYPE_CONDITIONAL,
        }
    }

    /// Whether both are of one kind, whatever their parameters.
    pub fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Visits itself, or those of the graphs in it, if they allocate or free memory.
    pub fn memory_nodes<'n>(&'n self, visit: &mut dyn FnMut(&'n Self)) {
        if self.is_memory() {
            visit(self);
        }
        for inside in self.graphs() {
            inside.memory_nodes(visit);
        }
    }

    /// Whether it allocates or frees memory: such graphs have one instance and no clones.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::MemAlloc(_) | Self::MemFree(_))
    }
}
