//! Memory of allocation nodes: its address stays, whether it is in use or not.
//!
//! ```text
//!   node made ─► unused ── launch ──► in use ── freed by a call or a node ──► unused
//!                  │                    │
//!                  │                    └ the last graph with the node goes ─► memory of the device's pool
//!                  └ the last graph with the node goes ─► freed
//! ```
//! For the worker, the memory is an allocation like any other until it is freed. Memory in use outlives its graphs, as in CUDA
//! (CUDA C++ Programming Guide, graph memory nodes), and the program frees it.

use std::collections::HashMap;

use fermata_abi::op::{Address, Op};
use fermata_abi::sys::driver as sys;
use fermata_graph::{Graph, NodeKind};

use crate::link;
use crate::object::mirror::{Kind, Mirror};
use crate::result::Result;

/// The memory of all allocation nodes; whether each piece is in use.
#[derive(Debug, Default)]
pub struct GraphMemory(HashMap<Address, bool>);

/// Memory of allocation nodes that no graph has any more; whether it is in use.
#[derive(Debug, Default)]
#[must_use = "the memory has to be let go"]
pub struct Orphans(Vec<(Address, bool)>);

impl GraphMemory {
    /// Adds the memory of a new node.
    pub fn insert(&mut self, address: Address) {
        self.0.insert(address, false);
    }

    /// A graph is launched: its nodes allocate and free.
    pub fn launched(&mut self, graph: &Graph) {
        graph.memory_nodes(&mut |kind| {
            if let NodeKind::MemAlloc(node) = kind {
                self.set(node.address, true);
            }
        });
        graph.memory_nodes(&mut |kind| {
            if let NodeKind::MemFree(address) = kind {
                self.set(*address, false);
            }
        });
    }

    fn set(&mut self, address: u64, used: bool) {
        if let Some(now) = self.0.get_mut(&Address::from_raw(address)) {
            *now = used;
        }
    }

    /// The program frees memory, which must be in use.
    pub fn free(&mut self, address: Address) -> Result {
        match self.0.get_mut(&address) {
            Some(used @ true) => *used = false,
            _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// Takes out the memory of the allocation nodes of `gone` that none of the graphs `left` has.
    pub fn orphans<'g>(
        &mut self,
        gone: &NodeKind,
        left: impl Iterator<Item = &'g Graph>,
    ) -> Orphans {
        let mut lost = HashMap::new();
        if !self.0.is_empty() {
            gone.memory_nodes(&mut |kind| {
                if let NodeKind::MemAlloc(node) = kind {
                    let address = Address::from_raw(node.address);
                    lost.extend(self.0.get(&address).map(|used| (address, *used)));
                }
            });
        }
        if !lost.is_empty() {
            left.for_each(|graph| {
                graph.memory_nodes(&mut |kind| {
                    if let NodeKind::MemAlloc(node) = kind {
                        lost.remove(&Address::from_raw(node.address));
                    }
                });
            });
        }
        self.0.retain(|address, _| !lost.contains_key(address));
        Orphans(lost.into_iter().collect())
    }
}

impl Orphans {
    /// Frees what is not in use, once all work that may use it has ended; the rest becomes memory of its pool.
    pub fn let_go(self, memory: &Mirror) -> Result {
        for (address, used) in self.0 {
            if used {
                memory.leave_graph(address);
                continue;
            }
            // Memory of a context that has ended is gone.
            let gone = memory.remove(address, |block| matches!(block.kind, Kind::Graph(_)));
            if gone.is_ok() {
                link::post(&Op::MemFree { address })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_graph::MemAllocNode;

    #[test]
    fn memory_is_orphaned_with_the_last_graph_that_allocates_it() {
        let node = NodeKind::MemAlloc(MemAllocNode {
            device: 0,
            bytes: 8,
            address: 4096,
        });
        let mut graph = Graph::new();
        graph.add(node.clone(), &[]).unwrap();
        let mut inner = Graph::new();
        inner
            .add(NodeKind::ChildGraph(Box::new(graph.clone())), &[])
            .unwrap();
        let address = Address::from_raw(4096);
        let mut memory = GraphMemory::default();
        memory.insert(address);
        assert!(memory.free(address).is_err());
        memory.launched(&inner);
        let gone = NodeKind::ChildGraph(Box::new(inner));
        assert!(memory.orphans(&gone, [&graph].into_iter()).0.is_empty());
        memory.free(address).unwrap();
        memory.launched(&graph);
        let orphans = memory.orphans(&node, [&Graph::new()].into_iter());
        assert_eq!(orphans.0, [(address, true)]);
        assert!(memory.free(address).is_err());
    }
}
