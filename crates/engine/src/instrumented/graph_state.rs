//! The instrumented kernels of one executable graph, and their tables.

use std::collections::BTreeMap;

use fermata_abi::op::{ContextId, FunctionId, StreamRef};
use fermata_device::FunctionHandle;
use fermata_graph::KernelNode;

use crate::access::Range;
use crate::live::Instead;

/// The instrumented kernels of an executable graph.
pub(super) struct InstrumentedGraph {
    /// [`crate::Live::graph_revision`] when it was instrumented.
    pub revision: u64,
    /// Context of the streams that it is launched in.
    pub context: ContextId,
    /// The stream of all launches that use its tables; `None` if there were several.
    pub stream: Option<StreamRef>,
    pub allowed: Vec<Range>,
    /// By kernel.
    pub tables: BTreeMap<FunctionId, WithTable>,
    /// Why not all of its kernels are instrumented; empty if they are.
    pub without: String,
    /// Whether any of its kernels may be instrumented.
    pub instrumented: bool,
}

/// An instrumented kernel with its table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct WithTable {
    pub function: FunctionHandle,
    pub table_at: usize,
    pub max_threads: u64,
    pub table: u64,
}

impl WithTable {
    /// What a kernel node becomes; `None` if its block is too large for the instrumented kernel.
    pub fn of(self, node: &KernelNode) -> Option<Instead> {
        if threads(node) > self.max_threads {
            return None;
        }
        let mut params = node.params.clone();
        params.resize(self.table_at, 0);
        params.extend_from_slice(&self.table.to_le_bytes());
        let function = self.function;
        Some(Instead { function, params })
    }
}

pub(super) fn threads(node: &KernelNode) -> u64 {
    node.block.iter().map(|n| u64::from(*n)).product()
}

impl InstrumentedGraph {
    /// Whether any of its kernels may be instrumented.
    pub fn is_instrumented(&self) -> bool {
        self.instrumented
    }

    /// The first reason is told.
    pub fn note(&mut self, why: &str) {
        if self.without.is_empty() {
            self.without = why.to_owned();
        }
    }
}
