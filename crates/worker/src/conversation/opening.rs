//! Open, Warm and Keep: what a worker makes ready before it has a program. The driver and its devices, staging buffers,
//! the tier.

use std::path::Path;
use std::sync::Arc;

use fermata_abi::op::DeviceInfo;
use fermata_control::agent::{FIRST_DEVICE, first_among};
use fermata_control::worker::{Back, Device, Failure, FailureKind, FromWorker, TierState};
use fermata_control::{PROTOCOL, settings};
use fermata_device::{DeviceFacts, Driver};
use fermata_engine::{HostCaller, Live, Site, Tier};
use fermata_state::Session;

use super::Worker;
use crate::failure::{failure, full_text};
use crate::preparation::{Folders, Keeper};

/// Variable: bytes of host memory, beside staging buffers, for data that waits for the store.
const HOST_BUFFER: &str = "FERMATA_HOST_BUFFER";
/// Variable: the most bytes a second that saves write to storage.
const WRITE_RATE: &str = "FERMATA_WRITE_RATE";
/// Variable, for tests: every kernel is treated as one without PTX.
const OPAQUE: &str = "FERMATA_TEST_OPAQUE";
/// `cuDriverGetVersion` of the oldest driver that is used.
const OLDEST: i32 = 13000;

impl Worker {
    pub(super) fn open(
        &mut self,
        protocol: u32,
        path: &Path,
        soft: bool,
        kernels_first: bool,
    ) -> Result<FromWorker, Failure> {
        if protocol != PROTOCOL {
            let message = format!(
                "the daemon speaks version {protocol} of the protocol, this worker {PROTOCOL}"
            );
            return Err(failure(
                FailureKind::Host,
                message,
                "install daemon and worker of one release",
            ));
        }
        if self.site.is_some() {
            return Err(failure(
                FailureKind::Internal,
                "the driver is open already",
                "",
            ));
        }
        let host = |error: &dyn std::error::Error| {
            failure(
                FailureKind::Host,
                full_text(error),
                "fermata doctor says what this machine can do",
            )
        };
        self.keeper = Some(Keeper::start().map_err(|error| host(&error))?);
        let driver = Arc::new(Driver::load(path).map_err(|error| host(&error))?);
        refuse_older(&driver)?;
        let facts: Vec<DeviceFacts> = (0..driver.device_count())
            .map(|index| driver.device_facts(index))
            .collect::<Result<_, _>>()
            .map_err(|error| host(&error))?;
        let callbacks = Arc::clone(&self.callbacks);
        let caller: HostCaller = Arc::new(move |id| callbacks.call(id));
        let number = |name| {
            let hint = "`fermata doctor --settings` lists the settings";
            settings::number(name)
                .map_err(|wrong| failure(FailureKind::User, wrong.to_string(), hint))
        };
        let first = number(FIRST_DEVICE)?.unwrap_or(0);
        let first = first_among(u32::try_from(first).unwrap_or(0), facts.len());
        if !facts.is_empty() {
            // Held for the life of the process, so that a program finds the device's context ready. Another device would get a
            // context that nobody needs, of some 500 MiB.
            let context = driver.primary_context(first, 0);
            self.home = Some(context.map_err(|error| host(&error))?);
        }
        let version = driver.version();
        let mut live = Live::new(driver, caller).map_err(|error| host(&error))?;
        (live.home, live.home_device) = (self.home, first);
        live.device_hashes = !soft;
        live.texts = std::env::var_os(OPAQUE).is_none();
        live.host_buffer = number(HOST_BUFFER)?.unwrap_or(live.host_buffer);
        live.write_rate = number(WRITE_RATE)?.unwrap_or(0);
        if let Some(home) = self.home.filter(|_| kernels_first && !soft) {
            live.load_hash_kernels(first, home)
                .map_err(|error| host(&error))?;
        }
        let recorded = facts.iter().map(|it| fermata_state::Device {
            name: it.name.clone(),
            uuid: it.uuid,
            memory: it.memory,
            compute_capability: it.compute_capability(),
        });
        self.site = Some(Site {
            session: Session::new(recorded.collect()),
            live,
        });
        self.devices = facts.iter().map(|it| device_info(it, version)).collect();
        self.names = facts.iter().map(|it| it.name.clone()).collect();
        let devices = facts.iter().map(|it| Device {
            name: it.name.clone(),
            uuid: it.uuid_text(),
            memory: it.memory,
            compute_capability: it.compute_capability(),
        });
        let devices: Vec<_> = devices.collect();
        self.back = Some(Back {
            protocol: PROTOCOL,
            driver: path.to_owned(),
            soft,
            kernels_first,
            devices: devices.clone(),
            driver_version: version,
            serving: false,
        });
        Ok(FromWorker::Ready {
            protocol: PROTOCOL,
            devices,
            driver_version: version,
        })
    }

    /// Has the preparation thread make staging buffers; a software GPU needs none ahead.
    pub(super) fn warm(&self) -> FromWorker {
        if let (Some(site), Some(keeper), Some(home)) = (&self.site, &self.keeper, self.home)
            && site.live.device_hashes
        {
            let live = &site.live;
            keeper.pin(live.spare_staging.clone(), Arc::clone(&live.driver), home);
        }
        FromWorker::Warming
    }

    /// Begins to keep the tier up to date. Later calls change nothing.
    pub(super) fn keep(&mut self, folders: Folders, limit: u64) -> Result<FromWorker, Failure> {
        if self.tier.is_none() {
            let early = || {
                failure(
                    FailureKind::Internal,
                    "Keep before Open, or without a GPU",
                    "",
                )
            };
            let (site, keeper) = (self.site.as_mut(), self.keeper.as_ref());
            let site = site.ok_or_else(early)?;
            let home = self.home.ok_or_else(early)?;
            // Where images are on a disk, the daemon has staging buffers made by Warm.
            let brings_staging = folders.store.is_some();
            let driver = Arc::clone(&site.live.driver);
            let tier = Tier::new(driver, home, limit, brings_staging);
            site.live.copies.clone_from(&folders.copies);
            keeper.ok_or_else(early)?.keep(Arc::clone(&tier), folders);
            site.live.tier = Some(Arc::clone(&tier));
            self.tier = Some(tier);
        }
        let status = self.tier.as_ref().map(|tier| tier.status());
        let status = status.unwrap_or_default();
        Ok(FromWorker::Kept(fermata_control::worker::Tier {
            state: match status.state {
                fermata_engine::TierState::Complete => TierState::Complete,
                fermata_engine::TierState::Registering => TierState::Registering,
                fermata_engine::TierState::Paused => TierState::Paused,
                fermata_engine::TierState::Full => TierState::Full,
                fermata_engine::TierState::Failed => TierState::Failed,
            },
            registered: status.registered,
            ready: status.ready,
            missing: status.missing,
            limit: status.limit,
            trouble: status.trouble.unwrap_or_default(),
        }))
    }
}

/// Refuses drivers that lack functions which programs are told of.
fn refuse_older(driver: &Driver) -> Result<(), Failure> {
    let version = driver.version();
    if version >= OLDEST {
        return Ok(());
    }
    let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    let message = format!(
        "the driver `{}` is of CUDA {}, and Fermata needs one of CUDA {} or newer: NVIDIA's driver 580",
        driver.path().display(),
        text(version),
        text(OLDEST)
    );
    let hint = "install a newer driver, or run the program with `--device soft`";
    Err(failure(FailureKind::Host, message, hint))
}

fn device_info(facts: &DeviceFacts, driver_version: i32) -> DeviceInfo {
    DeviceInfo {
        name: facts.name.clone(),
        uuid: facts.uuid,
        memory: facts.memory,
        bus_id: facts.bus_id.clone(),
        attributes: facts.attributes.clone(),
        peers: facts.peers.clone(),
        driver_version,
    }
}
