//! The events of executable graphs: a launch touches what its graph records or waits for.

use fermata_abi::op::{EventId, ExecId};
use fermata_engine::HandleMap;
use fermata_graph::Graph;

/// An event of a graph, and whether the graph records it.
type Used = (EventId, bool);

/// For each executable graph that was looked at, at least the events of the graph as it is, and of what parked operations
/// will make it.
#[derive(Default)]
pub(crate) struct GraphEvents {
    known: HandleMap<ExecId, Vec<Used>>,
    /// Executable graphs that were destroyed while operations were parked. Those may make others of the same handles.
    gone: Vec<ExecId>,
}

impl GraphEvents {
    /// Whether an executable graph was looked at.
    pub fn knows(&self, exec: ExecId) -> bool {
        self.known.contains_key(&exec)
    }

    /// The events of an executable graph.
    pub fn of(&self, exec: ExecId) -> impl Iterator<Item = EventId> {
        self.uses(exec).iter().map(|(event, _)| *event)
    }

    /// Whether an executable graph may record an event.
    pub fn records(&self, exec: ExecId) -> bool {
        self.uses(exec).iter().any(|(_, records)| *records)
    }

    fn uses(&self, exec: ExecId) -> &[Used] {
        self.known.get(&exec).map_or(&[], Vec::as_slice)
    }

    /// Adds the events of `graph`, which an executable graph is or will be.
    pub fn add(&mut self, exec: ExecId, graph: &Graph) {
        let events = self.known.entry(exec).or_default();
        graph.events(&mut |event, records| {
            if !events.contains(&(event, records)) {
                events.push((event, records));
            }
        });
    }

    /// Forgets an executable graph.
    pub fn forget(&mut self, exec: ExecId) {
        self.known.remove(&exec);
    }

    /// Forgets an executable graph once nothing is parked.
    pub fn forget_later(&mut self, exec: ExecId) {
        self.gone.push(exec);
    }

    /// To be called when nothing is parked.
    pub fn nothing_is_parked(&mut self) {
        for exec in std::mem::take(&mut self.gone) {
            self.forget(exec);
        }
    }
}
