//! The stop of a checkpoint: parks and detaches all processes that use CUDA; then CRIU and the workers save their parts.

use std::path::Path;
use std::time::Instant;

use fermata_control::user::{Mode, Waited};
use fermata_control::worker::FailureKind;
use parking_lot::Mutex;

use super::host::{Ahead, Dumped};
use super::parts::Parts;
use super::taking::Taking;
use crate::agent::bring_back::Parked;
use crate::awake::Awake;
use crate::criu::dump::HeldTree;
use crate::failure::{Hint as _, Result, fail};
use crate::host::HostCopy;
use crate::images::record::{AgentRecord, Record};
use crate::parallel::{beside, joined};
use crate::progress::Report;
use crate::session::Served;

/// A program that stands still.
pub(super) struct Stop {
    /// The daemon's record for the manifest; a restore needs it.
    pub(super) record: Record,
    /// Host memory that CRIU has left out, still tracked.
    pub(super) copy: Option<HostCopy>,
    /// Its processes, if CRIU keeps all of them from running.
    pub(super) held: Option<HeldTree>,
    /// Its processes that use CUDA.
    pub(super) parked: Vec<Parked>,
    /// When a device was last given work.
    pub(super) since: Instant,
    /// The work that the stop waited for, if that took long.
    pub(super) waited: Option<Waited>,
    /// Until the program runs again.
    pub(super) awake: Awake,
}

impl Taking<'_> {
    /// Saves host and device state while the program stands still.
    pub(super) fn stopped(
        &self,
        served: &[Served],
        copy: Option<HostCopy>,
        mode: Mode,
        report: &mut Report<'_>,
    ) -> Result<Parts> {
        let save = (self.daemon.paths.store(), &*self.folders);
        let device = |report: &Mutex<&mut Report<'_>>| self.halt().save(served, save, report);
        let (stop, device) = self.stop(served, copy, report, device)?;
        self.phases
            .moved("device", device.device_bytes + device.host_bytes);
        Ok(Parts {
            copy: stop.copy,
            held: stop.held,
            device,
            parked: stop.parked,
            waited: stop.waited,
            since: Some(stop.since),
            awake: Some(stop.awake),
            ..Parts::new(stop.record, mode)
        })
    }

    /// Stops the program, all its processes that use CUDA at once, and saves its host state while `device` does its part;
    /// both have ended when this returns. `copy` is the host memory that was copied ahead. After a failure the program
    /// goes on.
    pub(super) fn stop<T>(
        &self,
        served: &[Served],
        copy: Option<HostCopy>,
        report: &mut Report<'_>,
        device: impl FnOnce(&Mutex<&mut Report<'_>>) -> Result<T>,
    ) -> Result<(Stop, T)> {
        let mut ahead = self.ahead(copy, report)?;
        let awake = Awake::new();
        report("quiesce", 0, 0);
        let settled = self.halt().quiesce(served, &mut || ahead.again(), report)?;
        let record = self.record(served);
        let parked = self.halt().park(served)?;
        let taken = self
            .halt()
            .let_go(served)
            .and_then(|()| self.both(&record, ahead, report, device))
            .and_then(|taken| all_there(&self.draft.host(), &record).map(|()| taken));
        match taken {
            Ok((taken, dumped)) => {
                let stop = Stop {
                    record,
                    copy: dumped.copy,
                    held: dumped.held,
                    parked,
                    since: settled.since,
                    waited: settled.waited,
                    awake,
                };
                Ok((stop, taken))
            }
            Err(failure) => {
                self.recover(&parked);
                Err(failure)
            }
        }
    }

    fn both<T>(
        &self,
        record: &Record,
        ahead: Ahead,
        report: &mut Report<'_>,
        device: impl FnOnce(&Mutex<&mut Report<'_>>) -> Result<T>,
    ) -> Result<(T, Dumped)> {
        let report = Mutex::new(report);
        // `host` runs on a thread or, if none can be started, here; the one that runs takes `ahead`.
        let ahead = Mutex::new(Some(ahead));
        let host = || {
            let ahead = ahead.lock().take();
            let none = || fail(FailureKind::Internal, "CRIU was asked twice");
            let ahead = ahead.ok_or_else(none)?;
            self.phases.time("host", || self.host(record, ahead))
        };
        let (device, host) = std::thread::scope(|scope| {
            let dump = beside(scope, "host", host);
            let device = self.phases.time("device", || device(&report));
            let host = match dump {
                // If no thread can be started, the dump follows here: a panic would leave the program parked.
                Err(_) => host(),
                started => joined(started),
            };
            (device, host)
        });
        let dumped = host?;
        Ok((device?, dumped))
    }
}

/// Refuses CRIU's dump in `host` if it lacks a process whose part of the image a worker has read, because that process has
/// ended. For each living process CRIU writes a file `mm-PID.img`.
pub(super) fn all_there(host: &Path, record: &Record) -> Result<()> {
    let mut agents = record.agent.iter().chain(&record.others);
    let lacks = |it: &&AgentRecord| !host.join(format!("mm-{}.img", it.pid)).exists();
    match agents.find(lacks) {
        None => Ok(()),
        Some(it) => {
            let message = format!("process {} has ended", it.pid);
            Err(fail(FailureKind::NotFound, message).hint("try again"))
        }
    }
}
