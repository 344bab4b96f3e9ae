//! Records a traced session: the access set of every operation goes into a heat map, instrumented kernels check the
//! prediction, and the result is written to a file when the program ends (PhoenixOS, figure 21 and table 3).
//!
//! Launches of a kernel are checked for stores and for loads in turn. No operation waits for a check: the reports of
//! instrumented kernels are read between operations, so a traced program behaves as before, but runs slower.

mod heat;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fermata_abi::op::{Address, ExecId, FunctionId, Launch, Op, StreamRef};
use fermata_control::trace::{ENV_FILE, ENV_TEST_INSTRUMENTED, Kernel, Trace, VERSION};
use fermata_device::DriverError;
use fermata_engine::access::{AccessSet, Places, Predictor, Range, Target};
use fermata_engine::instrumented::{Guard, Instrumented};
use fermata_engine::{HandleMap, Site};
use parking_lot::Mutex;

use heat::Heat;

/// Launches of a kernel in a stream that are told apart when they report.
const DEPTH: usize = 64;
/// Between two looks at what instrumented kernels have found.
const LOOK: Duration = Duration::from_millis(2);

/// The recorder between two attachments of the program; a worker has one session.
static PARKED: Mutex<Option<Recorder>> = Mutex::new(None);

/// Whether this worker's session is traced.
pub(crate) fn is_on() -> bool {
    [ENV_FILE, ENV_TEST_INSTRUMENTED]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

const EVERYTHING: Range = Range {
    start: Address::NULL,
    len: u64::MAX,
};

/// See the module.
pub(crate) struct Recorder {
    file: Option<PathBuf>,
    start: Instant,
    last: f64,
    looked: Instant,
    /// Instrumented kernels may touch everything: for tests of the instrumentation alone.
    all_allowed: bool,
    /// The instrumented kernels that check stores, and those that check loads.
    instrumented: Vec<Instrumented>,
    predictor: Predictor,
    places: Places,
    /// The access set of the current operation.
    set: AccessSet,
    heat: Heat,
    kernels: HandleMap<FunctionId, Kernel>,
    /// The records of kernels whose module has been unloaded.
    gone: Vec<Kernel>,
    trace: Trace,
}

/// The kernels of an executable graph, each with how often a launch of the graph launches it.
fn kernels_of(site: &Site, exec: ExecId) -> BTreeMap<FunctionId, u64> {
    let mut launches: BTreeMap<FunctionId, u64> = BTreeMap::new();
    if let Ok(executable) = site.session.executables.get(exec) {
        executable
            .graph
            .kernels(&mut |node| *launches.entry(node.function).or_default() += 1);
    }
    launches
}

/// What an instrumented kernel may touch: its access set, or everything.
fn allowed(
    what: Guard,
    foreseen: Option<&AccessSet>,
    places: &mut Places,
    site: &Site,
) -> Vec<Range> {
    let Some(set) = foreseen else {
        return vec![EVERYTHING];
    };
    let reads = set.reads.iter().filter(|_| what != Guard::Writes);
    let writes = set.writes.iter().filter(|_| what != Guard::Reads);
    reads
        .chain(writes)
        .filter_map(|target| places.range(&site.session, target))
        .collect()
}

impl Recorder {
    /// The recorder of this session if it is to be traced: that of an earlier attachment, or a new one as the environment
    /// asks for.
    pub fn of_session() -> Option<Box<Self>> {
        if let Some(parked) = PARKED.lock().take() {
            return Some(Box::new(parked));
        }
        let file = std::env::var_os(ENV_FILE).map(PathBuf::from);
        let tested = std::env::var(ENV_TEST_INSTRUMENTED).ok();
        if file.is_none() && tested.is_none() {
            return None;
        }
        let (writes, reads) = (Guard::Writes, Guard::Reads);
        let checked = match tested.as_deref() {
            Some("writes") => vec![writes],
            Some("reads") => vec![reads],
            _ => vec![writes, reads],
        };
        let instrumented = checked
            .into_iter()
            .map(|what| Instrumented::new(what, DEPTH));
        Some(Box::new(Self {
            file,
            start: Instant::now(),
            last: 0.0,
            looked: Instant::now(),
            all_allowed: tested.is_some(),
            instrumented: instrumented.collect(),
            predictor: Predictor::default(),
            places: Places::default(),
            set: AccessSet::nothing(),
            heat: Heat::new(),
            kernels: HandleMap::default(),
            gone: Vec::new(),
            trace: Trace {
                version: VERSION,
                ..Trace::default()
            },
        }))
    }

    /// Records what `op` is about to touch. To be called for each operation, launches included.
    pub fn before(&mut self, site: &mut Site, op: &Op<'_>) {
        match op {
            Op::Launch { launch, .. } => self.prepare(site, launch.function),
            Op::GraphLaunch { exec, .. } => {
                self.trace.graph_launches += 1;
                for function in kernels_of(site, *exec).into_keys() {
                    self.prepare(site, function);
                }
            }
            Op::ModuleUnload { .. } | Op::ContextDestroy { .. } => {
                self.look(site);
                self.part_with_kernels(site);
                return;
            }
            _ => {}
        }
        self.set = self.predictor.predict(op, site);
        let transfer = !matches!(op, Op::Launch { .. } | Op::GraphLaunch { .. });
        if transfer && self.set.is_empty() {
            return;
        }
        self.trace.transfers += u64::from(transfer);
        let open = !transfer && !self.set.complete;
        self.trace.open_graph_launches += u64::from(open && matches!(op, Op::GraphLaunch { .. }));
        self.last = self.start.elapsed().as_secs_f64();
        let set = std::mem::take(&mut self.set);
        for (targets, write) in [(&set.reads, false), (&set.writes, true)] {
            for target in targets {
                self.count(site, target, write);
            }
        }
        self.set = set;
        if self.looked.elapsed() >= LOOK {
            self.look(site);
        }
    }

    fn count(&mut self, site: &Site, target: &Target, write: bool) {
        let address = match target {
            Target::Exactly(range) => range.start,
            Target::Around(address) => *address,
            Target::Array(_) => return,
        };
        if let Some(range) = self.places.around(&site.session, address) {
            let kind = self.places.kind(&site.session, range.start);
            self.heat.add(range, kind, self.last, write);
        }
    }

    /// Instruments a kernel that is launched for the first time, and all other kernels that are not instrumented yet.
    fn prepare(&mut self, site: &mut Site, function: FunctionId) {
        if self.kernels.contains_key(&function) {
            return;
        }
        // Without its variables the sets of a module's kernels stay open; nothing else depends on them.
        let _ = fermata_engine::discover_variables(site);
        for instrumented in self
            .instrumented
            .iter_mut()
            .filter(|it| !it.knows(function))
        {
            // If the context cannot be made current, the launch itself fails.
            let _ = instrumented.prepare(site);
        }
        let name = site.session.functions.get(function);
        let without = self.instrumented.iter().find_map(|it| it.without(function));
        let kernel = Kernel {
            name: name.map(|it| it.name.clone()).unwrap_or_default(),
            unchecked: without.map(|it| it.why.clone()),
            ..Kernel::default()
        };
        self.kernels.insert(function, kernel);
    }

    /// Launches the instrumented form of a kernel whose access set has just been predicted; false if the caller must launch
    /// the original.
    pub fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        let Some(kernel) = self.kernels.get_mut(&launch.function) else {
            return Ok(false);
        };
        kernel.launches += 1;
        kernel.complete += u64::from(self.set.complete);
        let turn = (kernel.launches % self.instrumented.len() as u64) as usize;
        let Some(instrumented) = self.instrumented.get_mut(turn) else {
            return Ok(false);
        };
        let foreseen = (!self.all_allowed).then_some(&self.set);
        let allowed = allowed(instrumented.what(), foreseen, &mut self.places, site);
        let checked = instrumented.launch(site, launch, stream, &allowed)?;
        kernel.checked += u64::from(checked);
        Ok(checked)
    }

    /// Launches an executable graph, whose access set has just been predicted, with instrumented kernels; false if it has no
    /// kernels.
    pub fn launch_graph(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        let launches = kernels_of(site, exec);
        let turn = (self.trace.graph_launches % self.instrumented.len() as u64) as usize;
        self.put_back_but(site, exec, Some(turn));
        let Some(instrumented) = self
            .instrumented
            .get_mut(turn)
            .filter(|_| !launches.is_empty())
        else {
            return Ok(false);
        };
        let foreseen = (!self.all_allowed).then_some(&self.set);
        let allowed = allowed(instrumented.what(), foreseen, &mut self.places, site);
        let without = instrumented.launch_graph(site, exec, stream, &allowed)?;
        for (function, times) in launches {
            if let Some(kernel) = self.kernels.get_mut(&function) {
                kernel.launches += times;
                kernel.complete += if self.set.complete { times } else { 0 };
                kernel.checked += if without.is_empty() { times } else { 0 };
            }
        }
        Ok(true)
    }

    /// Gives an executable graph its own kernels back.
    pub fn put_back(&mut self, site: &mut Site, exec: ExecId) {
        self.put_back_but(site, exec, None);
    }

    fn put_back_but(&mut self, site: &mut Site, exec: ExecId, turn: Option<usize>) {
        let others = self.instrumented.iter_mut().enumerate();
        for (_, instrumented) in others.filter(|(index, _)| Some(*index) != turn) {
            instrumented.put_back(site, exec);
        }
    }

    /// Collects the reports of instrumented kernels.
    fn look(&mut self, site: &mut Site) {
        self.looked = Instant::now();
        let mut missed: Vec<(Address, bool)> = Vec::new();
        for instrumented in &mut self.instrumented {
            let write = instrumented.what() == Guard::Writes;
            // Reports that cannot be read now are read at the next look.
            for found in instrumented.violations(&mut site.live).unwrap_or_default() {
                let Some(kernel) = self.kernels.get_mut(&found.function) else {
                    continue;
                };
                kernel.mispredicted += 1;
                kernel
                    .first_miss
                    .get_or_insert((found.address.raw(), found.bytes));
                if kernel.complete == kernel.launches {
                    kernel.wrongly_complete += 1;
                }
                missed.push((found.address, write));
            }
        }
        for (address, write) in missed {
            self.count(site, &Target::Around(address), write);
        }
    }

    fn part_with_kernels(&mut self, site: &Site) {
        let functions = &site.session.functions;
        let gone = self
            .kernels
            .extract_if(|handle, _| !functions.contains(*handle));
        self.gone.extend(gone.map(|(_, kernel)| kernel));
    }

    /// Writes the file, and keeps the recorder for the next attachment. To be called when the device is idle or has failed.
    pub fn park(mut self: Box<Self>, site: &mut Site) {
        for context in site.live.contexts.keys().copied().collect::<Vec<_>>() {
            if site.live.enter(context).is_ok() {
                // A context that has failed has nothing more to report.
                let _ = site.live.driver.synchronize_context();
            }
        }
        self.look(site);
        self.trace.seconds = self.last;
        self.trace.bin_seconds = self.heat.width();
        self.trace.buffers = self.heat.buffers();
        self.trace.kernels = self.kernels.values().chain(&self.gone).cloned().collect();
        self.trace.kernels.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(file) = &self.file {
            // The user who asked for the file sees that it is not there.
            let _ = write(file, &self.trace);
        }
        *PARKED.lock() = Some(*self);
    }
}

/// Writes a temporary file and renames it, so that the file is always whole.
fn write(file: &std::path::Path, trace: &Trace) -> std::io::Result<()> {
    let beside = file.with_extension("part");
    let text = serde_json::to_vec(trace)?;
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}
