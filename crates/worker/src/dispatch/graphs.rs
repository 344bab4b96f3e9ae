//! Operations on executable graphs.

use fermata_abi::op::{Blob, ContextId, EventId, ExecId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_graph::Graph;
use fermata_graph::update::KernelChange;
use fermata_state::Executable;

use super::{DONE, Step};
use crate::errors::OpError;
use crate::server::Server;

/// The most pieces that one launch counts for in its stream's queue, so that a graph of any size fits.
const MOST: u64 = 64;

impl Server {
    fn graph(&self, graph: &Blob<'_>) -> Result<Graph, OpError> {
        Ok(postcard::from_bytes(&self.blob(graph)?)?)
    }

    pub(super) fn graph_instantiate(
        &mut self,
        exec: ExecId,
        context: ContextId,
        graph: &Blob<'_>,
        flags: u64,
    ) -> Step {
        if self.site.session.executables.contains(exec) {
            return Err(OpError::invalid(format!(
                "there is an executable graph {exec:#x} already"
            )));
        }
        let graph = self.graph(graph)?;
        self.pass_guard_with(&graph)?;
        self.site.live.instantiate(exec, context, &graph, flags)?;
        self.site.session.executables.insert(
            exec,
            Executable {
                context,
                flags,
                graph,
            },
        )?;
        self.graph_changed(exec);
        DONE
    }

    pub(super) fn graph_set_kernels(&mut self, exec: ExecId, kernels: &Blob<'_>) -> Step {
        let bytes = self.blob(kernels)?;
        let changes: Vec<KernelChange<'_>> = postcard::from_bytes(&bytes)?;
        let live = &mut self.site.live;
        let known = self.site.session.executables.get_mut(exec)?;
        for change in &changes {
            let made = change.apply(&mut known.graph);
            made.map_err(|error| OpError::invalid(error.to_string()))?;
        }
        let there = live.executables.contains_key(&exec);
        if there && live.change_kernels(exec, &known.graph, &changes).is_ok() {
            return DONE;
        }
        self.graph_anew(exec)
    }

    pub(super) fn graph_update(&mut self, exec: ExecId, graph: &Blob<'_>) -> Step {
        let graph = self.graph(graph)?;
        self.pass_guard_with(&graph)?;
        let known = self.site.session.executables.get_mut(exec)?;
        known.graph = graph;
        self.graph_changed(exec);
        let live = &mut self.site.live;
        let known = self.site.session.executables.get(exec)?;
        // A restore does not make a graph whose module or event is gone.
        let there = live.executables.contains_key(&exec);
        if there && live.update(exec, &known.graph).is_ok() {
            return DONE;
        }
        self.graph_anew(exec)
    }

    /// Makes an executable graph again that the driver could not update. If that fails, the old one is removed, so that it
    /// is neither launched nor restored; the operation has no answer that could report it.
    fn graph_anew(&mut self, exec: ExecId) -> Step {
        let live = &mut self.site.live;
        let known = self.site.session.executables.get(exec)?;
        if let Some((handle, context)) = live.take_executable(exec) {
            live.enter(context)?;
            live.driver.destroy_exec(handle)?;
        }
        live.instantiate(exec, known.context, &known.graph, known.flags)?;
        DONE
    }

    pub(super) fn graph_launch(&mut self, exec: ExecId, stream: StreamRef) -> Step {
        let found = self.site.live.executables.get(&exec).copied();
        let (handle, _) = found.ok_or_else(|| {
            OpError::new(
                cu::CUDA_ERROR_INVALID_VALUE,
                format!("there is no graph {exec:#x}"),
            )
        })?;
        let recorded = self.recorded_by(exec);
        for event in &recorded {
            // The launch itself reports an event that is gone.
            if self.site.session.events.contains(*event) {
                self.before_record(*event)?;
            }
        }
        let launched = match (&mut self.gate, &mut self.recorder) {
            (Some(gate), recorder) => {
                if let Some(recorder) = recorder {
                    recorder.put_back(&mut self.site, exec);
                }
                gate.launch_graph(&mut self.site, exec, stream)?
            }
            (None, Some(recorder)) => recorder.launch_graph(&mut self.site, exec, stream)?,
            (None, None) => false,
        };
        if !launched {
            let live = &mut self.site.live;
            let on = live.stream(stream)?;
            live.driver.launch_exec(handle, on)?;
        }
        for event in recorded {
            if let Ok(known) = self.site.session.events.get_mut(event) {
                known.recorded = true;
            }
        }
        let nodes = self.site.session.executables.get(exec)?.graph.len() as u64;
        self.keep_pace(stream, nodes.clamp(1, MOST));
        DONE
    }

    /// The events that a launch of an executable graph records.
    fn recorded_by(&mut self, exec: ExecId) -> Vec<EventId> {
        self.know_events(exec);
        let mut recorded = Vec::new();
        // Nearly all graphs record no events, and launches have no time to look at every node.
        if !self.lot.graphs.records(exec) {
            return recorded;
        }
        if let Ok(known) = self.site.session.executables.get(exec) {
            known.graph.events(&mut |event, records| {
                if records {
                    recorded.push(event);
                }
            });
        }
        recorded
    }

    pub(super) fn graph_destroy(&mut self, exec: ExecId) -> Step {
        self.site.session.executables.remove(exec)?;
        self.graph_changed(exec);
        let live = &mut self.site.live;
        if let Some((handle, context)) = live.take_executable(exec) {
            live.enter(context)?;
            live.driver.destroy_exec(handle)?;
        }
        DONE
    }
}
