//! Instrumented kernels: launched in place of the program's kernels, they check each global access against the ranges
//! that they are given, and report the first access outside (PhoenixOS, section 4.1).
//!
//! ```text
//!  prepare: image ─ text ─ guard ─ bind ─► instrumented module, beside the original, with its variables  (make)
//!  launch:  parameters + table ─► instrumented kernel          table: ranges in device memory       (tables)
//!                                    │ first access outside
//!  violations ◄── record in pinned memory ◄┘
//! ```
//! They are made before the program is stopped, once per module. A kernel that cannot be instrumented is reported
//! with the reason, and content validation is used instead. If loading or launching an instrumented kernel fails, the
//! original runs. Executable graphs get instrumented kernels for the time of a capture (`graphs`).

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

/// A report of an instrumented kernel: it has accessed memory outside the ranges it was launched with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The kernel.
    pub function: FunctionId,
    /// Its name.
    pub kernel: String,
    /// Address of the first such access.
    pub address: Address,
    /// Bytes of that access.
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
    /// Kernels that cannot be instrumented.
    pub without: Vec<NotInstrumented>,
    /// Seconds spent.
    pub seconds: f64,
}

/// The instrumented form of a kernel.
struct InstrumentedKernel {
    function: FunctionHandle,
    kernel: String,
    context: ContextId,
    /// Offset of the table's address in the parameter block.
    table_at: usize,
    /// The most threads of a block: fewer than the original allows, because it needs more registers.
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
    /// Executable graphs whose kernels are instrumented, or cannot be.
    graphs: HandleMap<ExecId, InstrumentedGraph>,
    /// The parameter block of the current launch.
    params: Vec<u8>,
}

impl Instrumented {
    /// No instrumented kernels yet; they will check the accesses `what`. `depth` launches of a kernel in a stream (at
    /// least one) can report separately; each costs a small table.
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

    /// Which accesses are checked.
    pub fn what(&self) -> Guard {
        self.what
    }

    /// Instruments all kernels of the session that are not instrumented yet. This compiles, so it takes long; the
    /// program may run meanwhile.
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

    /// Launches the instrumented kernel in place of the kernel, with `allowed` as the ranges it may touch; they apply
    /// until the next launch of the kernel in this stream names others. False if there is no instrumented kernel, or
    /// the driver cannot launch it: the caller must launch the original.
    ///
    /// # Errors
    /// An error that a launch of the original could have had.
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
                // An instrumented kernel takes more shared memory, too. If the launch itself is wrong, the
                // original reports that.
                Ok(false)
            }
        }
    }

    /// The reports since the last call. Kernels that are still running may report later.
    ///
    /// # Errors
    /// A driver error while reporting is enabled again; reports that were read by then come with the next call.
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

    /// The reports that have not been fetched, read from host memory: this works when the device has faulted.
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

    /// Unloads instrumented kernels whose module or context is gone. To be called while no launch of theirs is under way;
    /// [`Instrumented::prepare`] calls it.
    pub fn forget(&mut self, site: &mut Site) {
        let Site { session, live } = site;
        let functions = |handle: &FunctionId| session.functions.contains(*handle);
        self.instrumented.retain(|handle, _| functions(handle));
        self.without.retain(|handle, _| functions(handle));
        self.modules.retain(|module| {
            if session.modules.contains(module.of) {
                return true;
            }
            // A destroyed context has taken its modules along.
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

    /// Releases everything; executable graphs must have their own kernels back. Waits for all work of the contexts in
    /// which instrumented kernels were launched.
    ///
    /// # Errors
    /// A driver error; what could not be released goes with the process.
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
    /// Sets the attributes that the program has set on the original.
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

/// Whether an error says that the instrumented kernel needs more of a multiprocessor than there is.
fn is_too_large(code: cu::CUresult) -> bool {
    matches!(
        code,
        cu::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES | cu::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    )
}
