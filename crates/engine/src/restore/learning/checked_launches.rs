//! Launches kernels instrumented while data is absent, so that a fault names its kernel (PhoenixOS, section 6).
//!
//! ```text
//!  launch ─► instrumented kernel ─► device ─┬─ no absent block is touched
//!                            └─ first access to one: reported; the kernel waits until the host has the report, then accesses
//!                                  ├─ the block has come meanwhile ─► look: the kernel's access set has it from now on
//!                                  └─ it is not mapped: the context dies ─► faulted: kernel and address are known
//! ```
//! The report prevents nothing: memory that is not mapped faults whether or not the access was reported. Reports lie
//! in host memory that outlives the context, so they can be read after the device has failed.

use std::sync::Arc;
use std::time::Duration;

use fermata_abi::op::{Address, ExecId, FunctionId, Launch, StreamRef};
use fermata_device::DriverError;
use fermata_terms::Miss;
use parking_lot::Mutex;

use crate::Site;
use crate::access::Range;
use crate::instrumented::{Guard, Instrumented, Violation};
use crate::restore::blocks::Blocks;
use crate::restore::learning::recorder::Recorder;
use crate::restore::times::Times;

/// How long another thread waits for the thread that launches, to read the reports.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module. The thread that serves the program launches and looks. Any thread that notices a fault may ask for its
/// cause.
pub(in crate::restore) struct CheckedLaunches {
    /// `None` if nothing is checked (any more).
    instrumented: Mutex<Option<Box<Instrumented>>>,
    blocks: Arc<Blocks>,
    recorder: Arc<Recorder>,
    times: Arc<Times>,
    caught: Mutex<Vec<Miss>>,
}

impl CheckedLaunches {
    /// Checks launches of a restore of these blocks, if `on`.
    pub fn new(on: bool, blocks: Arc<Blocks>, recorder: Arc<Recorder>, times: Arc<Times>) -> Self {
        let instrumented = on.then(|| Box::new(Instrumented::new(Guard::Accesses, 1)));
        Self {
            instrumented: Mutex::new(instrumented),
            blocks,
            recorder,
            times,
            caught: Mutex::default(),
        }
    }

    /// Whether launches are checked.
    pub fn are_on(&self) -> bool {
        self.instrumented.lock().is_some()
    }

    /// Launches a kernel instrumented; false if the caller must launch the kernel itself.
    pub fn launch(
        &self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
        allowed: &[Range],
    ) -> Result<bool, DriverError> {
        let mut instrumented = self.instrumented.lock();
        let Some(instrumented) = &mut *instrumented else {
            return Ok(false);
        };
        self.prepare(instrumented, site, &[launch.function]);
        let checked = instrumented.launch(site, launch, stream, allowed)?;
        if !checked {
            self.unchecked(site, &[launch.function]);
        }
        Ok(checked)
    }

    /// Launches an executable graph of these kernels, instrumented; false if the caller must launch it as it is.
    pub fn launch_graph(
        &self,
        site: &mut Site,
        (exec, kernels): (ExecId, &[FunctionId]),
        stream: StreamRef,
        allowed: &[Range],
    ) -> Result<bool, DriverError> {
        let mut instrumented = self.instrumented.lock();
        let Some(instrumented) = instrumented.as_mut().filter(|_| !kernels.is_empty()) else {
            return Ok(false);
        };
        self.prepare(instrumented, site, kernels);
        if !instrumented
            .launch_graph(site, exec, stream, allowed)?
            .is_empty()
        {
            self.unchecked(site, kernels);
        }
        Ok(true)
    }

    /// Gives an executable graph its own kernels back, for later launches.
    pub fn put_back(&self, site: &mut Site, exec: ExecId) {
        if let Some(instrumented) = &mut *self.instrumented.lock() {
            instrumented.put_back(site, exec);
        }
    }

    /// Makes instrumented kernels that are missing. If a context cannot be made current, the launch itself fails.
    fn prepare(&self, instrumented: &mut Instrumented, site: &mut Site, kernels: &[FunctionId]) {
        if !kernels.iter().all(|kernel| instrumented.knows(*kernel)) {
            let _ = self.times.instrumented.on(|| instrumented.prepare(site));
        }
    }

    fn unchecked(&self, site: &Site, kernels: &[FunctionId]) {
        for kernel in kernels {
            if let Ok(record) = site.session.functions.get(*kernel) {
                self.recorder.unchecked(&record.name);
            }
        }
    }

    /// Kernels that have reported since the last call, each with a buffer's address. The access need not have
    /// faulted. The reports are recorded, and stay readable for [`Self::faulted`].
    pub fn look(&self) -> Vec<(FunctionId, Address)> {
        let reports = self
            .instrumented
            .lock()
            .as_ref()
            .map(|instrumented| instrumented.reported());
        self.learn(reports.unwrap_or_default())
    }

    /// As [`Self::look`], when all data is present: takes the reports, so that kernels report again.
    pub fn take(&self, site: &mut Site) -> Vec<(FunctionId, Address)> {
        let mut instrumented = self.instrumented.lock();
        // Reports that cannot be read now are read at the next call.
        let reports = instrumented
            .as_mut()
            .map(|instrumented| instrumented.violations(&mut site.live));
        self.learn(reports.and_then(Result::ok).unwrap_or_default())
    }

    fn learn(&self, found: Vec<Violation>) -> Vec<(FunctionId, Address)> {
        let news = |found: Violation| {
            let at = self.start(found.address);
            let news = self.recorder.seen(&found.kernel, at);
            news.then_some((found.function, at))
        };
        found.into_iter().filter_map(news).collect()
    }

    /// The start of the buffer at `address`, so that each buffer is recorded once.
    fn start(&self, address: Address) -> Address {
        let buffer = self.blocks.buffer_at(address);
        buffer.map_or(address, |(_, start)| start)
    }

    /// To be called when the device has faulted, as it does for absent data: records the reports of instrumented kernels.
    pub fn faulted(&self) {
        let mut caught = self.caught.lock();
        if caught.is_empty() {
            let instrumented = self.instrumented.try_lock_for(PATIENCE);
            let reports =
                instrumented.and_then(|instrumented| Some(instrumented.as_ref()?.reported()));
            let place = |found: Violation| Miss {
                buffer: self.blocks.buffer_at(found.address).map_or(0, |it| it.0),
                kernel: found.kernel,
                address: found.address.raw(),
                bytes: found.bytes,
            };
            caught.extend(reports.into_iter().flatten().map(place));
        }
        let known: Vec<(String, Address)> = caught
            .iter()
            .map(|it| (it.kernel.clone(), self.start(Address::from_raw(it.address))))
            .collect();
        self.recorder.mis_speculated(&known);
    }

    /// What [`Self::faulted`] has found.
    pub fn caught(&self) -> Vec<Miss> {
        self.caught.lock().clone()
    }

    /// Ends the checks, and releases what they took if the devices are idle (`idle`). Else work under way may use it,
    /// and it goes with the process.
    pub fn release(&self, site: &mut Site, idle: bool) {
        let Some(mut instrumented) = self.instrumented.lock().take() else {
            return;
        };
        instrumented.put_back_all(site);
        if idle && !instrumented.are_in_use() {
            // What cannot be released goes with the process, too.
            let _ = instrumented.close(&mut site.live);
        }
    }
}
