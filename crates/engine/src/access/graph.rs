//! The access set of an executable graph: the sets of its nodes, joined once.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{Address, ExecId, FunctionId};
use fermata_graph::{Graph, KernelNode, NodeKind};
use fermata_state::Session;

use super::places::Named;
use super::transfer;
use super::{AccessSet, Target};

/// The kernels that a launch of `exec` runs, each once.
pub(crate) fn kernels_of(session: &Session, exec: ExecId) -> Vec<FunctionId> {
    let mut found = BTreeSet::new();
    if let Ok(executable) = session.executables.get(exec) {
        executable.graph.kernels(&mut |node| {
            found.insert(node.function);
        });
    }
    found.into_iter().collect()
}

/// Targets of all nodes, each once. Whether the memory of an `Around` is live is checked at each launch.
#[derive(Debug, Default)]
pub(super) struct GraphPlan {
    targets: BTreeMap<Target, (bool, bool)>,
    /// Whether the graph touches nothing else.
    pub complete: bool,
}

/// Computes the set of a kernel node from its function and parameter block.
pub(super) type OfKernel<'a> = &'a mut dyn FnMut(FunctionId, &[u8]) -> AccessSet;

impl GraphPlan {
    /// Joins the sets of `graph` and of all graphs in it.
    pub fn of(graph: &Graph, of_kernel: OfKernel<'_>) -> Self {
        let mut plan = Self {
            targets: BTreeMap::new(),
            complete: true,
        };
        plan.join(graph, of_kernel);
        plan
    }

    fn join(&mut self, graph: &Graph, of_kernel: OfKernel<'_>) {
        for (_, node) in graph.nodes() {
            match &node.kind {
                NodeKind::Kernel(KernelNode {
                    function, params, ..
                }) => self.add(of_kernel(*function, params)),
                NodeKind::Memcpy(copy) => self.add(transfer::copy_node(copy)),
                NodeKind::Memset(fill) => self.add(transfer::fill_node(fill)),
                NodeKind::BatchMemOp(ops) => {
                    ops.iter().for_each(|op| self.add(transfer::word_node(op)));
                }
                // A host function runs in the program, which reaches device memory only by calls. Memory
                // that a graph allocates for itself does not outlive the launch.
                NodeKind::Host(_)
                | NodeKind::Empty
                | NodeKind::ChildGraph(_)
                | NodeKind::Conditional(_)
                | NodeKind::EventWait(_)
                | NodeKind::EventRecord(_)
                | NodeKind::MemAlloc(_)
                | NodeKind::MemFree(_) => {}
            }
            // Of a conditional node, any body may run.
            for inside in node.kind.graphs() {
                self.join(inside, of_kernel);
            }
        }
    }

    fn add(&mut self, set: AccessSet) {
        for target in set.reads {
            self.targets.entry(target).or_default().0 = true;
        }
        for target in set.writes {
            self.targets.entry(target).or_default().1 = true;
        }
        self.complete &= set.complete;
    }

    /// The set of one launch; `named` says what an address names now.
    pub fn set(&self, mut named: impl FnMut(Address) -> Named) -> AccessSet {
        let mut set = AccessSet {
            complete: self.complete,
            ..AccessSet::default()
        };
        for (target, (read, write)) in &self.targets {
            let target = match target {
                Target::Around(address) => match named(*address) {
                    Named::Memory(address) => Target::Around(address),
                    Named::Nothing => continue,
                    Named::Open => {
                        set.complete = false;
                        continue;
                    }
                },
                target => *target,
            };
            if *read {
                set.reads.push(target);
            }
            if *write {
                set.writes.push(target);
            }
        }
        set
    }
}
