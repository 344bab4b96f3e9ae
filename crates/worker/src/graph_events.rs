//! The events of executable graphs: a launch touches what its graph records or waits for.

use fermata_abi::op::{EventId, ExecId};
use fermata_engine::HandleMap;
use fermata_graph::Graph;

/// For each executable graph that was looked at, at least the events of the graph as it is, and of what parked operations
/// will make it.
#[derive(Default)]
pub(crate) struct GraphEvents(HandleMap<ExecId, Vec<EventId>>);

impl GraphEvents {
    /// Whether an executable graph was looked at.
    pub fn knows(&self, exec: ExecId) -> bool {
        self.0.contains_key(&exec)
    }

    /// The events of an executable graph.
    pub fn of(&self, exec: ExecId) -> &[EventId] {
        self.0.get(&exec).map_or(&[], Vec::as_slice)
    }

    /// Adds the events of `graph`, which an executable graph is or will be.
    pub fn add(&mut self, exec: ExecId, graph: &Graph) {
        let events = self.0.entry(exec).or_default();
        graph.events(&mut |event, _| {
            if !events.contains(&event) {
                events.push(event);
            }
        });
    }

    /// Forgets an executable graph.
    pub fn forget(&mut self, exec: ExecId) {
        self.0.remove(&exec);
    }
}
