//! The stop of a checkpoint: all processes that use CUDA are parked and let go of, then CRIU and the workers do their parts.

use std::path::Path;
use std::time::Instant;

use fermata_control::user::{Mode, Waited};
use fermata_control::worker::FailureKind;
use parking_lot::Mutex;

use super::host::{Ahead, Dumped};
use super::parts::Parts;
use super::taking::Taking;
use crate::agent::bring_back::Parked;
use crate::failure::{Result, fail};
use crate::host::HostCopy;
use crate::images::record::{AgentRecord, Record};
use crate::parallel::{beside, joined};
use crate::progress::Report;
use crate::session::Served;

/// A program that stands still.
pub(super) struct Stop {
    /// What a restore must know.
    pub(super) record: Record,
    /// Host memory that CRIU has left out, still tracked.
    pub(super) copy: Option<HostCopy>,
    /// Its processes that use CUDA.
    pub(super) parked: Vec<Parked>,
    /// When a device got something for the last time.
    pub(super) since: Instant,
    /// What it had to end before.
    pub(super) waited: Option<Waited>,
}

impl Taking<'_> {
    /// Takes everything while the program stands still.
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
            device,
            parked: stop.parked,
            waited: stop.waited,
            since: Some(stop.since),
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
        report("quiesce", 0, 0);
        let settled = self.halt().quiesce(served, &mut || ahead.again(), report)?;
        let mut record = self.record(served);
        let parked = self.halt().park(served)?;
        let taken = self
            .halt()
            .let_go(served)
            .and_then(|()| self.both(&record, ahead, report, device))
            .and_then(|taken| all_there(&self.draft.host(), &record).map(|()| taken));
        match taken {
            Ok((taken, dumped)) => {
                dumped.note(&mut record);
                let stop = Stop {
                    record,
                    copy: dumped.copy,
                    parked,
                    since: settled.since,
                    waited: settled.waited,
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
        // Whichever of the two runs takes it.
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
                // Without a thread one after the other: a panic here would leave the program parked.
                Err(_) => host(),
                started => joined(started),
            };
            (device, host)
        });
        let dumped = host?;
        Ok((device?, dumped))
    }
}

/// Refuses what CRIU has written into `host` if it lacks a process whose part of the image a worker has read: one that had
/// ended by then. CRIU describes the memory of each living one in a file of its own.
fn all_there(host: &Path, record: &Record) -> Result<()> {
    let mut agents = record.agent.iter().chain(&record.others);
    let lacks = |it: &&AgentRecord| !host.join(format!("mm-{}.img", it.pid)).exists();
    match agents.find(lacks) {
        None => Ok(()),
        Some(it) => {
            let message = format!("process {} has ended", it.pid);
            Err(fail(FailureKind::NotFound, message))
        }
    }
}
