//! The steps of every stop: parks and detaches the processes of a session, and has their workers save.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Totals, WAITING};
use fermata_control::worker::{FailureKind, FromWorker, ToWorker};
use fermata_store::moments;
use parking_lot::Mutex;

use super::halt::{Halt, workers_of};
use super::settled::{Settled, parts_of};
use super::sum::{Progress, sum};
use crate::agent::Agent;
use crate::agent::bring_back::Parked;
use crate::failure::{Failure, Hint, OrFail, Result, fail};
use crate::parallel::{all_at_once, each_at_once};
use crate::progress::Report;
use crate::session::{Detached, Served};
use crate::worker::{STALL_TIME, STEP_TIME, Worker, unexpected};

/// How long the threads of a program may take to stop.
const QUIESCE_TIME: Duration = Duration::from_secs(30);

impl Halt<'_> {
    /// Waits until the devices are idle, and parks all threads of all processes that use CUDA. If one cannot be stopped, all
    /// go on. `meanwhile` is called repeatedly while the program still runs.
    ///
    /// # Errors
    /// The reason why it cannot be stopped now.
    pub(crate) fn quiesce(
        &self,
        served: &[Served],
        meanwhile: &mut dyn FnMut(),
        report: &mut Report<'_>,
    ) -> Result<Settled> {
        let asked = Instant::now();
        let (settled, settling, stopped) = self.phases.time("quiesce", || {
            let settled = self.settle(served, meanwhile, report)?;
            let begun = Instant::now();
            let report = Mutex::new(report);
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
            return Ok(settled);
        }
        let parked = served.iter().zip(&stopped).filter(|(_, it)| it.is_ok());
        let parked: Vec<Served> = parked.map(|(it, _)| it.clone()).collect();
        // If one of them cannot go on, `ps` shows why.
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

    /// Records the wake blocks of the stopped processes in the session's folder: once the processes are detached, a later
    /// daemon can reach them only through these.
    ///
    /// # Errors
    /// The record cannot be written; the processes go on.
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
            self.session.goes_on();
            resumed?;
            return Err(error).or_fail(FailureKind::User, what);
        }
        moments::pass("parked");
        Ok(parked)
    }

    /// Detaches parked processes, and then their workers: they release the ring, sockets and mappings that they share.
    ///
    /// # Errors
    /// One of them does not; the caller has to bring the processes back.
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

    /// Has every worker save its part: chunks go to `store`, other files to the worker's folder in `folders`.
    ///
    /// # Errors
    /// The first failure of a worker.
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

/// Lets stopped processes go on that have not been detached.
fn resume(served: &[Served]) -> Result<()> {
    let agents = served.iter().map(|it| it.agent.clone()).collect();
    all_at_once(agents, "resume", |it: Arc<Agent>| it.resume(STEP_TIME)).map(drop)
}
