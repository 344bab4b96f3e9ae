//! Instrumented kernels at run time: launched in a kernel's place, they check each global access against the
//! ranges that speculation has named, and report the first one outside (PhoenixOS, section 4.1).
//!
//! ```text
//!  prepare: image ─ text ─ guard ─ bind ─► instrumented module, beside the original, with its variables  (make)
//!  launch:  parameters + table ─► instrumented kernel          table: ranges in device memory       (tables)
//!                                    │ first access outside
//!  violations ◄── record in pinned memory ◄┘
//! ```
//! Instrumented kernels are made before anything stops, once per module; what has none is named with the reason, and
//! content validation has to do. Loading an instrumented kernel may fail, launching one too: the original runs then.
//! Executable graphs are given instrumented kernels for a time (graphs).

mod graph_state;
mod graphs;
mod make;
mod tables;
mod texts;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fermata_abi::op::{
    Address, ContextId, ExecId, FunctionId, Launch, ModuleId, StreamRef, ends_context,
};
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, FunctionHandle, Grid, KernelLaunch, ModuleHandle};
pub use fermata_ptx::passes::Guard;

use crate::access::Range;
use crate::{HandleMap, Live, Site};

use graph_state::InstrumentedGraph;
use tables::{Report, Tables};
use texts::Texts;

/// What instrumented kernels have found: accesses of a kernel outside the ranges it was launched with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The kernel.
    pub function: FunctionId,
    /// Its name.
    pub kernel: String,
    /// The first access: where.
    pub address: Address,
    /// The first access: how many bytes.
    pub bytes: u64,
}

/// A kernel that cannot be instrumented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInstrumented {
    /// The kernel.
    pub function: FunctionId,
    /// Its name.
    pub kernel: String,
    /// Why.
    pub why: String,
}

/// What [`Instrumented::prepare`] did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Instrumentation {
    /// Kernels that are instrumented now.
    pub instrumented: usize,
    /// Those that have none.
    pub without: Vec<NotInstrumented>,
    /// Seconds spent.
    pub seconds: f64,
}

/// The instrumented form of a kernel.
struct InstrumentedKernel {
    function: FunctionHandle,
    kernel: String,
    context: ContextId,
    /// Where the table's address goes in the parameter block.
    table_at: usize,
    /// Larger blocks are beyond it: it needs more registers than the original.
    max_threads: u64,
    /// Attributes as they were last set.
    attributes: BTreeMap<i32, i32>,
}

/// A module with instrumented kernels, and the module it belongs to.
struct InstrumentedModule {
    handle: ModuleHandle,
    context: ContextId,
    of: ModuleId,
}

/// See the module.
pub struct Instrumented {
    what: Guard,
    depth: usize,
    instrumented: HandleMap<FunctionId, InstrumentedKernel>,
    without: HandleMap<FunctionId, NotInstrumented>,
    modules: Vec<InstrumentedModule>,
    tables: HashMap<ContextId, Tables>,
    /// Executable graphs whose kernels are instrumented kernels, or cannot be.
    graphs: HandleMap<ExecId, InstrumentedGraph>,
    /// The parameter block of the launch at hand.
    params: Vec<u8>,
}

impl Instrumented {
    /// No instrumented kernels yet; they will check `what`. `depth` launches of a kernel in a stream, at least one, are
    /// told apart when they report; each costs a small table.
    pub fn new(what: Guard, depth: usize) -> Self {
        Self {
            what,
            depth: depth.max(1),
            instrumented: HandleMap::default(),
            without: HandleMap::default(),
            modules: Vec::new(),
            tables: HashMap::new(),
            graphs: HandleMap::default(),
            params: Vec::new(),
        }
    }

    /// Which accesses they check.
    pub fn what(&self) -> Guard {
        self.what
    }

    /// Instruments all kernels of the session that are not yet. Compiles, so it takes its time;
    /// nothing needs to stand still for it.
    ///
    /// # Errors
    /// A context cannot be entered. A kernel that cannot be instrumented is no error.
    pub fn prepare(&mut self, site: &mut Site) -> Result<Instrumentation, DriverError> {
        let start = std::time::Instant::now();
        self.forget(site);
        let mut by_module: BTreeMap<ModuleId, Vec<FunctionId>> = BTreeMap::new();
        for (function, record) in site.session.functions.iter() {
            if !self.knows(function) {
                by_module.entry(record.module).or_default().push(function);
            }
        }
        let mut texts = Texts::default();
        for (module, functions) in by_module {
            self.make(site, module, &functions, &mut texts)?;
        }
        let mut without: Vec<NotInstrumented> = self.without.values().cloned().collect();
        without.sort_by_key(|it| it.function);
        Ok(Instrumentation {
            instrumented: self.instrumented.len(),
            without,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Whether [`Instrumented::prepare`] has looked at this kernel.
    pub fn knows(&self, function: FunctionId) -> bool {
        self.instrumented.contains_key(&function) || self.without.contains_key(&function)
    }

    /// Why a kernel is not instrumented; `None` if it is, or was never looked at.
    pub fn without(&self, function: FunctionId) -> Option<&NotInstrumented> {
        self.without.get(&function)
    }

    /// Launches the instrumented kernel in the kernel's place, with `allowed` as the ranges it may touch; they are used
    /// until the next launch of the kernel in this stream names others. False if it has no instrumented kernel, or one
    /// that cannot run so, whatever the driver says: the original must be launched.
    ///
    /// # Errors
    /// What a launch of the original could have said.
    pub fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
        allowed: &[Range],
    ) -> Result<bool, DriverError> {
        let Self {
            instrumented,
            tables,
            params,
            depth,
            ..
        } = self;
        let Some(instrumented) = instrumented.get_mut(&launch.function) else {
            return Ok(false);
        };
        let threads: u64 = launch.block.iter().map(|n| u64::from(*n)).product();
        if threads > instrumented.max_threads {
            return Ok(false);
        }
        let Site { session, live } = site;
        live.enter(instrumented.context)?;
        let on = live.stream(stream)?;
        if let Ok(record) = session.functions.get(launch.function)
            && instrumented.follow(&record.attributes, live).is_err()
        {
            return Ok(false);
        }
        let driver = Arc::clone(&live.driver);
        let table = tables_in(tables, live, instrumented.context, *depth)
            .and_then(|tables| tables.table(&driver, launch.function, stream, on, allowed));
        let table = match table {
            Err(error) if !ends_context(error.code) => return Ok(false),
            other => other?,
        };
        params.clear();
        params.extend_from_slice(launch.params);
        params.resize(instrumented.table_at, 0);
        params.extend_from_slice(&table.raw().to_le_bytes());
        let attributes = live.launch_attributes(launch)?;
        let kernel = KernelLaunch {
            function: instrumented.function,
            size: Grid {
                grid: launch.grid,
                block: launch.block,
                shared: launch.shared,
            },
            params,
            attributes: &attributes,
        };
        match live.driver.launch(&kernel, on) {
            Ok(()) => Ok(true),
            Err(error) if ends_context(error.code) => Err(error),
            Err(error) => {
                if is_too_large(error.code) {
                    instrumented.max_threads =
                        instrumented.max_threads.min(threads.saturating_sub(1));
                }
                // An instrumented kernel takes more shared memory, too. What is wrong with the launch itself the
                // original says.
                Ok(false)
            }
        }
    }

    /// What has been found since the last call. Kernels that are still running may report later.
    ///
    /// # Errors
    /// What the driver says when kernels are to report again; what was read by then comes with the next call.
    pub fn violations(&mut self, live: &mut Live) -> Result<Vec<Violation>, DriverError> {
        let mut found = Vec::new();
        for (context, tables) in &mut self.tables {
            if !tables.has_reports() {
                continue;
            }
            live.enter(*context)?;
            let reports = tables.take(live)?;
            found.extend(
                reports
                    .into_iter()
                    .map(|report| name(&self.instrumented, report)),
            );
        }
        Ok(found)
    }

    /// What has been found and not been fetched, as the host sees it; the device is not asked, so this works when it
    /// has faulted.
    pub fn reported(&self) -> Vec<Violation> {
        let reports = self.tables.values().flat_map(Tables::reported);
        reports
            .map(|report| name(&self.instrumented, report))
            .collect()
    }

    /// Whether an executable graph still has instrumented kernels.
    pub fn are_in_use(&self) -> bool {
        self.graphs.values().any(InstrumentedGraph::is_instrumented)
    }

    /// Lets go of instrumented kernels whose module or context is gone. To be called while no launch of theirs is under
    /// way, at the latest by the next [`Instrumented::prepare`], which does.
    pub fn forget(&mut self, site: &mut Site) {
        let Site { session, live } = site;
        let functions = |handle: &FunctionId| session.functions.contains(*handle);
        self.instrumented.retain(|handle, _| functions(handle));
        self.without.retain(|handle, _| functions(handle));
        self.modules.retain(|module| {
            if session.modules.contains(module.of) {
                return true;
            }
            // A context that is gone has taken its modules along.
            if live.enter(module.context).is_ok() {
                let _ = live.driver.unload_module(module.handle);
            }
            false
        });
        let gone = |context: &ContextId| !session.contexts.contains(*context);
        let gone: Vec<ContextId> = self.tables.keys().copied().filter(gone).collect();
        for context in gone {
            // All work of a context has ended with it.
            if let Some(tables) = self.tables.remove(&context) {
                tables.release();
            }
        }
    }

    /// Gives everything back, executable graphs having their own kernels back. Waits for all work of the contexts in
    /// which instrumented kernels were launched.
    ///
    /// # Errors
    /// What the driver says; what could not be given back goes with the process.
    pub fn close(mut self, live: &mut Live) -> Result<(), DriverError> {
        for (context, tables) in self.tables.drain() {
            live.enter(context)?;
            live.driver.synchronize_context()?;
            tables.release();
        }
        for module in self.modules.drain(..) {
            live.enter(module.context)?;
            live.driver.unload_module(module.handle)?;
        }
        Ok(())
    }
}

impl InstrumentedKernel {
    /// Sets the attributes that the program has set.
    fn follow(&mut self, wanted: &BTreeMap<i32, i32>, live: &Live) -> Result<(), DriverError> {
        if self.attributes == *wanted {
            return Ok(());
        }
        for (attribute, value) in wanted {
            if self.attributes.get(attribute) != Some(value) {
                live.driver
                    .set_function_attribute(self.function, *attribute, *value)?;
            }
        }
        self.attributes.clone_from(wanted);
        Ok(())
    }
}

/// A report, with the kernel's name.
fn name(instrumented: &HandleMap<FunctionId, InstrumentedKernel>, report: Report) -> Violation {
    let instrumented = instrumented.get(&report.function);
    Violation {
        function: report.function,
        kernel: instrumented
            .map(|instrumented| instrumented.kernel.clone())
            .unwrap_or_default(),
        address: report.address,
        bytes: report.bytes,
    }
}

/// The tables of a context, which is current.
fn tables_in<'t>(
    all: &'t mut HashMap<ContextId, Tables>,
    live: &mut Live,
    context: ContextId,
    depth: usize,
) -> Result<&'t mut Tables, DriverError> {
    Ok(match all.entry(context) {
        Entry::Occupied(found) => found.into_mut(),
        Entry::Vacant(room) => {
            let device = live.enter(context)?.device;
            room.insert(Tables::new(&live.driver, device, depth)?)
        }
    })
}

/// An instrumented kernel needs more of a multiprocessor than its original.
fn is_too_large(code: cu::CUresult) -> bool {
    matches!(
        code,
        cu::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES | cu::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    )
}
