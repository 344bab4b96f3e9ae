//! Keeps the events of executable graphs up to date, on which the order of parked operations depends.

use fermata_abi::op::{Blob, EventId, ExecId, Op};
use fermata_graph::Graph;

use crate::server::Server;
use crate::touches::Touches;

impl Server {
    /// What an operation touches; the events of a graph that it launches are known then.
    pub(super) fn touches_of(&mut self, op: &Op<'_>) -> Touches {
        if let Op::GraphLaunch { exec, .. } = op {
            self.know_events(*exec);
        }
        Touches::of(op, &self.site.session)
    }

    /// Looks for the events of an executable graph, if that was not done yet.
    pub(crate) fn know_events(&mut self, exec: ExecId) {
        if !self.lot.graphs.knows(exec)
            && let Ok(known) = self.site.session.executables.get(exec)
        {
            self.lot.graphs.add(exec, &known.graph);
        }
    }

    /// Whether an executable graph records or waits for an event.
    pub(crate) fn is_in_graph(&mut self, event: EventId) -> bool {
        let graphs = &mut self.lot.graphs;
        self.site.session.executables.iter().any(|(exec, known)| {
            if !graphs.knows(exec) {
                graphs.add(exec, &known.graph);
            }
            graphs.of(exec).any(|it| it == event)
        })
    }

    /// Adds the events of a graph that `op`, which is being parked, will make. A program waits for the answer if its graph
    /// is staged, so no launch depends on that one meanwhile.
    pub(super) fn expect_events(&mut self, op: &Op<'_>) {
        let (Op::GraphInstantiate { exec, graph, .. } | Op::GraphUpdate { exec, graph }) = op
        else {
            return;
        };
        let Blob::Inline(bytes) = graph else {
            return;
        };
        // What cannot be read is reported when it is its turn.
        if let Ok(graph) = postcard::from_bytes::<Graph>(bytes) {
            self.know_events(*exec);
            self.lot.graphs.add(*exec, &graph);
        }
    }

    /// To be called when the driver's executable graph has become another. While operations are parked, the events of
    /// what it was, and of what it will be, stay known.
    pub(crate) fn graph_changed(&mut self, exec: ExecId) {
        if self.lot.is_empty() {
            self.lot.graphs.forget(exec);
        } else if let Ok(known) = self.site.session.executables.get(exec) {
            self.lot.graphs.add(exec, &known.graph);
        } else {
            self.lot.graphs.forget_later(exec);
        }
    }
}
