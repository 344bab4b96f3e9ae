//! CUDA graphs as data: nodes, edges, parameters and stream capture.
//!
//! Nothing here runs anything: handles are numbers, pointers are addresses. The software GPU executes
//! this model, the client captures into it, and the worker keeps it as state that can be stored.
#![forbid(unsafe_code)]

pub mod capture;
pub mod condition;
mod conditional;
pub mod copy;
pub mod dot;
mod error;
mod graph;
mod held;
mod model;
pub mod node;
pub mod update;

pub use capture::{CaptureError, CaptureMode, CaptureStatus, Captures, StreamKey, Waited};
pub use condition::{Condition, ConditionalKind};
pub use copy::{Copy, CopyEnd, Place};
pub use error::GraphError;
pub use held::Held;
pub use model::{Conditional, Edge, EdgeData, Graph, Node, NodeId, NodeKind};
pub use node::{HostCall, KernelNode, LaunchAttribute, MemAllocNode, MemOp, MemOpKind, MemsetNode};
