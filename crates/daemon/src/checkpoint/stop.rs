//! The stop: all processes that use CUDA are parked and let go of, then CRIU and the workers do their parts.
//!
//! [`Halt`] is what every stop has in common, whether an image is taken in it or the session is paused by it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Mode, SessionState, Totals, WAITING, Waited};
use fermata_control::worker::{FailureKind, FromWorker, ToWorker};
use fermata_store::moments;
use parking_lot::Mutex;

use super::finish::Parts;
use super::host::{Ahead, Dumped};
use super::settle::{self, Settled, parts_of};
use super::sum::{Progress, sum};
use super::{Report, Taking};
use crate::agent::Agent;
use crate::attach::Detached;
use crate::beside::{all_at_once, each_at_once};
use crate::failure::{Failure, Hint, OrFail, Result, fail};
use crate::host::HostCopy;
use crate::phases::Phases;
use crate::record::Record;
use crate::session::{Served, Session};
use crate::worker::{STALL_TIME, STEP_TIME, Worker, unexpected};

/// How long the threads of a program may take to stop.
const QUIESCE_TIME: Duration = Duration::from_secs(30);

/// A process that stands still, and its worker.
pub(crate) struct Parked {
    /// The worker.
    pub(crate) worker: Arc<Worker>,
    /// Where the process waits.
    pub(crate) detached: Detached,
}

/// A session whose processes are being parked.
#[derive(Clone, Copy)]
pub(crate) struct Halt<'a> {
    /// The session.
    pub(crate) session: &'a Arc<Session>,
    /// What takes how long.
    pub(crate) phases: &'a Phases,
}

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
        let settled = {
            let ahead = Mutex::new(&mut ahead);
            let meanwhile = || {
                if let Some(mut ahead) = ahead.try_lock() {
                    ahead.again();
                }
            };
            self.halt().quiesce(served, &meanwhile, report)?
        };
        let mut record = self.record(served);
        let parked = self.halt().park(served)?;
        let taken = self
            .halt()
            .let_go(served)
            .and_then(|()| self.both(&record, ahead, report, device));
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
            let thread = std::thread::Builder::new().name("host".into());
            let beside = thread.spawn_scoped(scope, host);
            let device = self.phases.time("device", || device(&report));
            let host = match beside {
                Ok(thread) => thread.join().unwrap_or_else(|_| {
                    let message = "the thread that runs CRIU has failed";
                    Err(fail(FailureKind::Internal, message))
                }),
                // Without a thread one after the other: a panic here would leave the program parked.
                Err(_) => host(),
            };
            (device, host)
        });
        let dumped = host?;
        Ok((device?, dumped))
    }
}

impl Halt<'_> {
    /// Waits until the devices have nothing to do, and parks all threads of all processes that use CUDA. If one cannot be
    /// stopped, all go on. `meanwhile` is called again and again while the program still runs.
    ///
    /// # Errors
    /// Why it cannot be stopped now.
    pub(crate) fn quiesce(
        &self,
        served: &[Served],
        meanwhile: &(dyn Fn() + Sync),
        report: &mut Report<'_>,
    ) -> Result<Settled> {
        let asked = Instant::now();
        let report = Mutex::new(report);
        let (settled, settling, stopped) = self.phases.time("quiesce", || {
            let settle = |worker: Arc<Worker>| self.settle(&worker, meanwhile, &report);
            let settled = all_at_once(workers_of(served), "settle", settle);
            let settled = settled.inspect_err(|_| self.let_on(served))?;
            let begun = Instant::now();
            let quiesce = |agent: Arc<Agent>| {
                let mut waiting = || {
                    let limit = QUIESCE_TIME.as_secs();
                    report.lock()(WAITING, begun.elapsed().as_secs().min(limit), limit);
                };
                agent.quiesce(QUIESCE_TIME, &mut waiting)
            };
            let agents = served.iter().map(|it| it.agent.clone()).collect();
            let stopped = each_at_once(agents, "quiesce", quiesce);
            Ok::<_, Failure>((settled, begun - asked, stopped))
        })?;
        let slowest = stopped.iter().flatten().max_by_key(|it| it.whole);
        if let Some(slowest) = slowest.filter(|_| stopped.iter().all(Result::is_ok)) {
            let parts = parts_of(settling, *slowest);
            self.phases.parts("quiesce", asked, &parts);
            return Ok(settle::together(settled));
        }
        let parked = served.iter().zip(&stopped).filter(|(_, it)| it.is_ok());
        let parked: Vec<Served> = parked.map(|(it, _)| it.clone()).collect();
        // What keeps one of them from going on is in `ps`.
        let _ = resume(&parked);
        self.let_on(served);
        let several = served.len() > 1;
        match served.iter().zip(stopped).find(|(_, it)| it.is_err()) {
            Some((it, Err(failure))) if several => {
                let message = format!("process {}: {}", it.agent.process.pid, failure.message);
                Err(fail(failure.kind, message).hint(failure.hint))
            }
            Some((_, Err(failure))) => Err(failure),
            _ => Err(fail(FailureKind::Internal, "no process was stopped")),
        }
    }

    /// Notes down where the processes wait, which are stopped: once they are detached, a later daemon can reach them only
    /// if it knows that.
    ///
    /// # Errors
    /// It cannot be noted down; they go on.
    pub(crate) fn park(&self, served: &[Served]) -> Result<Vec<Parked>> {
        let parked = |it: &Served| Parked {
            worker: it.worker.clone(),
            detached: Detached {
                process: it.agent.process,
                wake_block: it.agent.wake_block,
            },
        };
        let parked: Vec<Parked> = served.iter().map(parked).collect();
        let places: Vec<Detached> = parked.iter().map(|it| it.detached).collect();
        if let Err(error) = self.session.park(&places) {
            let what = || format!("cannot note down session `{}`", self.session.name);
            for member in &mut self.session.lock().members {
                member.detached = None;
            }
            let resumed = resume(served);
            self.let_on(served);
            self.session.set_state(SessionState::Running);
            resumed?;
            return Err(error).or_fail(FailureKind::User, what);
        }
        moments::pass("parked");
        Ok(parked)
    }

    /// Has parked processes let go of everything shared, and then their workers.
    ///
    /// # Errors
    /// One of them does not; they are to be brought back.
    pub(crate) fn let_go(&self, served: &[Served]) -> Result<()> {
        let agents = served.iter().map(|it| it.agent.clone()).collect();
        self.phases.time("detach", || {
            all_at_once(agents, "detach", |it: Arc<Agent>| it.detach())
        })?;
        moments::pass("detached");
        self.phases.time("release", || {
            let release = |worker: Arc<Worker>| match worker.request(
                &ToWorker::Detach,
                &[],
                STEP_TIME,
                &mut |_, _| {},
            )? {
                FromWorker::Detached => Ok(()),
                other => Err(unexpected(&other)),
            };
            all_at_once(workers_of(served), "release", release).map(drop)
        })
    }

    /// Has every worker read its part, whose chunks go to `store` and whose other files to its folder.
    ///
    /// # Errors
    /// The first of their failures.
    pub(crate) fn save(
        &self,
        served: &[Served],
        (store, folders): (PathBuf, &[PathBuf]),
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<Totals> {
        let asked = Instant::now();
        let done = Progress::of(served.len());
        let save = |(at, worker): (usize, Arc<Worker>)| {
            let save = ToWorker::Save {
                store: store.clone(),
                image: folders[at].clone(),
            };
            let mut progress = |now, total| done.report("device", at, (now, total), report);
            match worker.request(&save, &[], STALL_TIME, &mut progress)? {
                FromWorker::Captured(totals) => Ok(totals),
                other => Err(unexpected(&other)),
            }
        };
        let workers = workers_of(served).into_iter().enumerate().collect();
        let mut totals = sum(all_at_once(workers, "device", save)?);
        let steps = std::mem::take(&mut totals.steps);
        self.phases.parts("device", asked, &steps);
        Ok(totals)
    }
}

/// Their workers.
pub(super) fn workers_of(served: &[Served]) -> Vec<Arc<Worker>> {
    served.iter().map(|it| it.worker.clone()).collect()
}

/// Lets processes go on that are stopped and were not detached.
fn resume(served: &[Served]) -> Result<()> {
    let agents = served.iter().map(|it| it.agent.clone()).collect();
    all_at_once(agents, "resume", |it: Arc<Agent>| it.resume(STEP_TIME)).map(drop)
}
