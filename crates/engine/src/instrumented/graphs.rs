//! Gives executable graphs instrumented kernels during a capture.
//!
//! ```text
//!  as the program has it ── update: instrumented kernels in the kernels' place, each with a table ──► checks its stores
//!            ▲                                                                              │
//!            └──────────────── update: the kernels themselves ◄──── nothing is copied any more
//! ```
//! The program's own executable graph is updated; no second graph is launched instead. The driver runs launches of one
//! executable graph in order whatever their streams, and an update does not affect launches under way (`cuGraphLaunch`,
//! `cuGraphExecUpdate`), so nothing changes for the program. The whole access set of a graph has been isolated before it
//! is launched, so each of its kernels may store anywhere in it.
//!
//! A graph that cannot get its own kernels back, because something that it names is gone, keeps the instrumented ones,
//! which compute the same. Their tables stay allocated.

use std::collections::BTreeMap;
use std::sync::Arc;

use fermata_abi::op::{Address, ExecId, FunctionId, StreamRef, ends_context};
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, StreamHandle};
use fermata_graph::{Graph, KernelNode};

use super::graph_state::{InstrumentedGraph, WithTable, threads};
use super::{Instrumented, tables_in};
use crate::Site;
use crate::access::Range;

impl Instrumented {
    /// Launches an executable graph with instrumented kernels, each of which may touch the ranges `allowed`. Returns
    /// why not all of its kernels are checked; empty if they are.
    ///
    /// # Errors
    /// An error that the launch could have had without instrumented kernels.
    pub fn launch_graph(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
        allowed: &[Range],
    ) -> Result<String, DriverError> {
        let mut without = self.instrument(site, exec, stream, allowed);
        let mut launched = launch(site, exec, stream);
        let instrumented = self.graphs.get(&exec).is_some_and(|it| it.instrumented);
        if let Err(error) = &launched
            && instrumented
        {
            // No later launch is ordered behind this one, which has failed, so its tables must not be used again.
            let over = ends_context(error.code);
            self.restore_kernels(site, exec);
            if let Some(graph) = self.graphs.get_mut(&exec) {
                graph.stream = None;
                graph.without = "its instrumented kernels cannot be launched".to_owned();
                without.clone_from(&graph.without);
            }
            if !over {
                launched = launch(site, exec, stream);
            }
        }
        launched.map(|()| without)
    }

    /// Gives an executable graph its own kernels back; launches under way are not affected.
    pub fn put_back(&mut self, site: &mut Site, exec: ExecId) {
        self.restore_kernels(site, exec);
        if self.graphs.get(&exec).is_some_and(|it| !it.instrumented) {
            self.graphs.remove(&exec);
        }
    }

    fn restore_kernels(&mut self, site: &mut Site, exec: ExecId) {
        let Some(graph) = self.graphs.get_mut(&exec).filter(|it| it.instrumented) else {
            return;
        };
        let Site { session, live } = site;
        graph.instrumented = match session.executables.get(exec) {
            Ok(executable) => live
                .replace_kernels(exec, &executable.graph, &|_| None)
                .is_err(),
            // The program has destroyed it.
            Err(_) => false,
        };
    }

    /// Gives all executable graphs their own kernels back. To be called when no launch with instrumented kernels is
    /// under way.
    pub fn put_back_all(&mut self, site: &mut Site) {
        for exec in self.graphs.keys().copied().collect::<Vec<_>>() {
            self.put_back(site, exec);
        }
        let graphs = &self.graphs;
        for tables in self.tables.values_mut() {
            tables.recycle(&|exec| graphs.contains_key(&exec));
        }
    }

    /// Instruments the graph's kernels with these ranges, if they are not. Returns why not all of them are.
    fn instrument(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
        allowed: &[Range],
    ) -> String {
        let revision = site.live.graph_revision(exec);
        if let Some(known) = self.graphs.get_mut(&exec)
            && (known.revision, known.context) == (revision, stream.context)
            && (!known.instrumented || known.allowed == allowed)
        {
            if known.stream != Some(stream) {
                known.stream = None;
            }
            return known.without.clone();
        }
        let before = self.graphs.remove(&exec);
        let in_order = before.as_ref().is_some_and(|it| it.stream == Some(stream));
        let mut graph = InstrumentedGraph {
            revision,
            context: stream.context,
            stream: Some(stream),
            allowed: allowed.to_vec(),
            tables: BTreeMap::new(),
            without: String::new(),
            instrumented: before.as_ref().is_some_and(|it| it.instrumented),
        };
        let done = self.tables_of(site, exec, stream, allowed, in_order, &mut graph);
        let same = |it: &InstrumentedGraph| {
            it.instrumented && it.revision == revision && it.tables == graph.tables
        };
        let done = done.and_then(|()| {
            if before.as_ref().is_some_and(same) {
                return Ok(());
            }
            let Ok(executable) = site.session.executables.get(exec) else {
                return Ok(());
            };
            let tables = &graph.tables;
            if !graph.instrumented && tables.is_empty() {
                return Ok(());
            }
            graph.instrumented |= !tables.is_empty();
            let dress = |node: &KernelNode| tables.get(&node.function)?.of(node);
            site.live.replace_kernels(exec, &executable.graph, &dress)
        });
        if let Err(error) = done {
            graph.without = format!("it does not take instrumented kernels: {error}");
            self.graphs.insert(exec, graph);
            self.restore_kernels(site, exec);
        } else {
            self.graphs.insert(exec, graph);
        }
        let known = self.graphs.get(&exec);
        known.map(|it| it.without.clone()).unwrap_or_default()
    }

    /// Finds the instrumented form and a table for each of a graph's kernels; notes kernels without one.
    fn tables_of(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
        allowed: &[Range],
        in_order: bool,
        into: &mut InstrumentedGraph,
    ) -> Result<(), DriverError> {
        let Ok(executable) = site.session.executables.get(exec) else {
            into.note("it is not known");
            return Ok(());
        };
        let largest = largest_blocks(&executable.graph);
        let on = site.live.stream(stream)?;
        for (function, threads) in largest {
            let Some(instrumented) = self.instrumented.get_mut(&function) else {
                let without = self.without.get(&function);
                let name = without.map_or("?", |it| it.kernel.as_str());
                let why = without.map_or("it is not known", |it| it.why.as_str());
                into.note(&format!(
                    "its kernel `{name}` cannot be instrumented: {why}"
                ));
                continue;
            };
            if instrumented.context != stream.context {
                let why = "is of another context than the stream";
                into.note(&format!("its kernel `{}` {why}", instrumented.kernel));
                continue;
            }
            if threads > instrumented.max_threads {
                let why = "has blocks too large for its instrumented form";
                into.note(&format!("its kernel `{}` {why}", instrumented.kernel));
            }
            if let Ok(record) = site.session.functions.get(function) {
                instrumented.follow(&record.attributes, &site.live)?;
            }
            let mut with_table = WithTable {
                function: instrumented.function,
                table_at: instrumented.table_at,
                max_threads: instrumented.max_threads,
                table: 0,
            };
            let name = instrumented.kernel.clone();
            let place = (exec, function);
            let table = self.table_of_graph(site, place, (stream, on), allowed, in_order)?;
            let Some((table, alone)) = table else {
                into.note(&format!(
                    "what its kernel `{name}` may touch changes too often"
                ));
                continue;
            };
            if !alone {
                into.stream = None;
            }
            with_table.table = table.raw();
            into.tables.insert(function, with_table);
        }
        Ok(())
    }

    fn table_of_graph(
        &mut self,
        site: &mut Site,
        place: (ExecId, FunctionId),
        (stream, on): (StreamRef, StreamHandle),
        allowed: &[Range],
        in_order: bool,
    ) -> Result<Option<(Address, bool)>, DriverError> {
        let driver = Arc::clone(&site.live.driver);
        let (all, live) = (&mut self.tables, &mut site.live);
        let tables = tables_in(all, live, stream.context, self.depth)?;
        tables.table_of_graph(&driver, place, (stream, on), allowed, in_order)
    }
}

/// The kernels that a graph launches, each with the threads of its largest block.
fn largest_blocks(graph: &Graph) -> BTreeMap<FunctionId, u64> {
    let mut found = BTreeMap::new();
    graph.kernels(&mut |node| {
        let largest: &mut u64 = found.entry(node.function).or_default();
        *largest = (*largest).max(threads(node));
    });
    found
}

fn launch(site: &mut Site, exec: ExecId, stream: StreamRef) -> Result<(), DriverError> {
    let found = site.live.executables.get(&exec).copied();
    let (handle, _) = found.ok_or_else(|| DriverError {
        call: "cuGraphLaunch",
        code: cu::CUDA_ERROR_INVALID_VALUE,
        name: format!("there is no graph {exec:#x}").into(),
    })?;
    let on = site.live.stream(stream)?;
    site.live.driver.launch_exec(handle, on)
}
