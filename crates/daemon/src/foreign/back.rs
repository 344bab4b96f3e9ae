//! A foreign program comes back: CRIU has restored its processes, the driver gives them their GPUs again.

use fermata_control::user::DeviceChoice;
use fermata_control::worker::{Device, FailureKind};
use fermata_store::image::Manifest;
use fermata_store::moments;

use super::gpus;
use super::helper::Helper;
use crate::daemon::Daemon;
use crate::failure::{Hint as _, Result, fail};
use crate::gpu::driver::Driver;
use crate::proc::{self, ProcessId};
use crate::worker::Variables;

/// What brings the GPU side of an image back; checked against this host.
pub(crate) struct Returning {
    driver: Driver,
    variables: Variables,
    /// The processes that use CUDA, as the image numbers them.
    processes: Vec<u32>,
    /// The first process of the program, as the image numbers it.
    root: u32,
    /// Which GPU takes the place of which.
    pairs: Vec<(String, String)>,
    /// All GPUs.
    devices: Vec<Device>,
    bytes: u64,
}

impl Returning {
    /// That of an image, if it is of a foreign program.
    ///
    /// # Errors
    /// This host has not the GPUs, or the wrong driver.
    pub(crate) fn of(
        daemon: &Daemon,
        manifest: &Manifest,
        device: DeviceChoice,
        variables: Variables,
    ) -> Result<Option<Self>> {
        if manifest.driver_processes.is_empty() {
            return Ok(None);
        }
        let driver = Driver::find(device, &daemon.paths.home)?;
        let recorded = &manifest.devices;
        if recorded.iter().any(|it| it.soft != driver.soft) {
            let message = "the image holds the memory of another driver: NVIDIA's and the software GPU's cannot take each other's place";
            return Err(fail(FailureKind::Host, message)
                .hint("leave out `--device`; only images of programs started with `fermata run` can be restored on another device"));
        }
        let described = Helper::start(daemon, &driver, &variables)?.describe()?;
        let pairs = gpus::pairs(recorded, &described.devices, described.version)?;
        Ok(Some(Self {
            driver,
            variables,
            processes: manifest.driver_processes.clone(),
            root: manifest.program.pid,
            pairs,
            devices: described.devices,
            bytes: manifest.totals.device_bytes,
        }))
    }

    /// Lets the driver bring back the processes in the namespace of `init`. None makes a call before all are on their GPUs. One
    /// below the first that was killed meanwhile needs nothing.
    ///
    /// # Errors
    /// What it says, or the program has ended.
    pub(crate) fn bring_back(&self, daemon: &Daemon, init: ProcessId) -> Result<()> {
        let outer = |inner: &u32| Some((*inner, proc::outer_pid(init.pid, *inner)?));
        moments::pass("foreign-return");
        let there: Vec<(u32, u32)> = self.processes.iter().filter_map(outer).collect();
        let has = |number| there.iter().any(|(inner, _)| *inner == number);
        let root_has_ended = self.processes.contains(&self.root) && !has(self.root);
        if there.is_empty() || root_has_ended {
            let message = "the restored process has ended";
            return Err(fail(FailureKind::Internal, message));
        }
        let pids: Vec<u32> = there.into_iter().map(|(_, outer)| outer).collect();
        let helper = Helper::start(daemon, &self.driver, &self.variables)?;
        helper.restore(&pids, &self.pairs, self.bytes)?;
        helper.bring_back(&pids, self.bytes)
    }

    /// The GPUs, and whether they are the software GPU's.
    pub(crate) fn devices(&self) -> (&[Device], bool) {
        (&self.devices, self.driver.soft)
    }
}
