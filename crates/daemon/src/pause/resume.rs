//! Resumes a paused session: workers load the data of its entry, and its processes go on with them.
//!
//! ```text
//!  Paused ─► every worker loads, or none ─► noted: Stopped ─► processes woken ─► Running ─► data is there: entry removed
//!     ▲              │ a failure                    │ a failure, all processes parked still
//!     └──────────────┴──────────────────────────────┘
//! ```
//! A resumed session cannot be rolled back once a process runs. So all memory is allocated before that, and kernels wait for all
//! data (`Pace::Certain`), unless the user asks otherwise. If the daemon dies in between, processes are parked, with a worker or
//! without: the next daemon gives those without one a new worker, which loads the entry (`returning`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::agent::Sight;
use fermata_control::user::{self, DeviceChoice, SessionState};
use fermata_control::wait;
use fermata_control::worker::{FailureKind, LoadCheck, Pace, ToWorker};
use fermata_store::moments;
use parking_lot::Mutex;
use tracing::{error, info, warn};

use super::{Entry, end_all, stays_paused};
use crate::agent::attach::{AttachmentEnds, Reattached, go_on, offer, reattach, reject};
use crate::agent::bring_back::{LAST_MOMENT, has_ended};
use crate::agent::loading::{cannot_load, let_wait, load};
use crate::parallel::each_at_once;
use crate::progress::Report;
use crate::restore::on_demand;
use crate::session::Detached;
use crate::turn::Turn;

use crate::agent::wake;
use crate::daemon::{Daemon, check_running};
use crate::failure::{Failure, Hint, OrFail, Result, fail};
use crate::gpu::driver::Driver;
use crate::phases::Phases;
use crate::proc::ProcessId;
use crate::session::Session;
use crate::worker::Worker;

/// How long a process whose return has failed may take until it waits to be woken again.
const PARKED_TIME: Duration = Duration::from_secs(10);
/// The time between two looks at it.
const LOOK: Duration = Duration::from_millis(5);

/// A session on its way back.
struct Return<'a> {
    daemon: &'a Arc<Daemon>,
    session: &'a Arc<Session>,
    entry: Entry,
    pace: Pace,
    phases: Phases,
    /// The GPUs that its processes see.
    sights: HashMap<ProcessId, Sight>,
}

/// A parked process, and a worker that is ready to serve it.
type Ready = (Detached, Arc<Worker>, AttachmentEnds);

/// Lets a paused session go on as `request` says.
///
/// # Errors
/// The reason. If the session was paused it still is, and its data is as it was, unless some of its processes run already.
pub fn resume(
    daemon: &Arc<Daemon>,
    request: &user::Resume,
    report: &mut Report<'_>,
) -> Result<user::Resumed> {
    let session = daemon.session_or_pid(&request.session)?;
    let _turn = Turn::take(&session)?;
    let entry = paused(&session)?;
    let _quiet = daemon.cache.as_ref().map(|cache| cache.busy());
    let pace = match (request.eager, request.on_demand) {
        (true, _) => Pace::Eager,
        (false, true) => Pace::Foreseen,
        (false, false) => Pace::Certain,
    };
    let device_bytes = entry.data.device_bytes;
    let back = Return {
        daemon,
        session: &session,
        entry,
        pace,
        phases: Phases::start(),
        sights: sights(&session),
    };
    if let Err(failure) = back.all(report) {
        if !session.lock().workers().is_empty() {
            // The processes that run need the rest of their data.
            watch(daemon, &session);
        }
        return Err(failure);
    }
    daemon.priorities.tell();
    let coming = session.lock().is_coming();
    let (seconds, phases) = (back.phases.seconds(), back.phases.list());
    watch(daemon, &session);
    info!(session = %session.name, "`{}` is resumed", session.name);
    Ok(user::Resumed {
        session: session.name.clone(),
        device_bytes,
        coming,
        seconds,
        phases,
    })
}

/// The entry with the session's data; fails if the session is not paused.
fn paused(session: &Session) -> Result<Entry> {
    if let Some(entry) = session.lock().paused() {
        return Ok(entry.clone());
    }
    check_running(session)?;
    let message = format!("session `{}` is not paused", session.name);
    Err(fail(FailureKind::User, message).hint("`fermata ps` shows how sessions stand"))
}

/// Gives new workers to parked processes whose workers have died with the daemon that resumed them, and lets them go on, all at
/// one moment. Returns those that could not go on, with the reason: each of them is still parked, or has ended.
pub fn revive(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    parked: Vec<Detached>,
) -> Vec<(Detached, Failure)> {
    let entry = session.lock().entry.clone().filter(|it| it.complete);
    let none = || fail(FailureKind::Internal, "its data is in no entry");
    let begun = entry.ok_or_else(none).and_then(|entry| {
        let back = Return {
            daemon,
            session,
            entry,
            pace: Pace::Certain,
            phases: Phases::start(),
            sights: sights(session),
        };
        let driver = back.driver()?;
        Ok((back, driver))
    });
    let mut silent = |_: &str, _, _| {};
    let report: &mut Report<'_> = &mut silent;
    match begun {
        Ok((back, driver)) => back.some(&driver, parked, &Mutex::new(report)),
        Err(failure) => parked.into_iter().map(|it| (it, failure.clone())).collect(),
    }
}

/// Marks a session as paused again, if none of its processes could be brought back. False if it has no complete entry, has ended,
/// or one of its processes is not parked.
pub fn park_again(session: &Session) -> bool {
    {
        let mut inner = session.lock();
        let complete = inner.entry.as_ref().is_some_and(|it| it.complete);
        let parked = inner.members.iter().all(|it| it.detached.is_some());
        if !complete || !parked || inner.has_ended() {
            return false;
        }
        for member in &mut inner.members {
            member.part();
        }
        (inner.state, inner.behind, inner.note) = (SessionState::Paused, None, None);
        inner.loading.clear();
    }
    session.save();
    session.announce();
    true
}

/// Watches a resumed session until all its data is present; then removes its entry and has the next spare worker made.
pub fn watch(daemon: &Arc<Daemon>, session: &Arc<Session>) {
    let entry = session.lock().entry.clone();
    let work = {
        let (daemon, session) = (Arc::clone(daemon), Arc::clone(session));
        move || {
            if let Err(reason) = on_demand::watch(&session) {
                lose(&session, &reason);
            }
            if let Some(entry) = &entry {
                session.drop_entry(entry);
            }
            let driver = session.lock().workers().first().map(|it| it.driver.clone());
            if let Some(driver) = driver {
                let variables = session.variables_of_first(driver.soft);
                daemon.pool.refill(&driver, &variables);
            }
            if let Some(tier) = &daemon.tier {
                tier.refill();
            }
        }
    };
    let named = std::thread::Builder::new().name("resume-watch".into());
    if named.spawn(work.clone()).is_err() {
        work();
    }
}

/// Marks the session as lost, because data of its running program cannot be loaded: its calls fail from now on.
fn lose(session: &Session, reason: &str) {
    let workers = {
        let mut inner = session.lock();
        inner.behind = None;
        inner.workers()
    };
    let text = format!("its data could not be brought back after the pause: {reason}");
    error!(session = %session.name, "`{}`: {text}", session.name);
    session.worker_lost(&text);
    // Operations that wait for data would wait for ever.
    end_all(workers.iter());
}

impl Return<'_> {
    /// Brings all processes back, or none.
    fn all(&self, report: &mut Report<'_>) -> Result<()> {
        let waiting = self.waiting();
        report("resume", 0, 0);
        let report = Mutex::new(report);
        let driver = self
            .driver()
            .map_err(|failure| stays_paused(self.session, failure))?;
        let_wait(self.session);
        let loaded = self.phases.time("device", || {
            each_at_once(waiting, "resume", |it| self.ready(&driver, it, &report))
        });
        let (ready, failed): (Vec<_>, Vec<_>) = loaded.into_iter().partition(Result::is_ok);
        let ready: Vec<Ready> = ready.into_iter().flatten().collect();
        if let Some(Err(failure)) = failed.into_iter().next() {
            return Err(self.back_to_pause(&ready, failure));
        }
        moments::pass("resume-loaded");
        if let Err(failure) = self.note(&ready) {
            return Err(self.back_to_pause(&ready, failure));
        }
        moments::pass("resume-noted");
        let failed = self.phases.time("reattach", || self.run(ready));
        if !failed.is_empty() {
            self.recover(failed, &driver, &report)?;
        }
        self.is_back();
        self.session.goes_on();
        Ok(())
    }

    /// Notes that the session waits for no other one, before it is shown as running: from then on it may be marked as one that is about
    /// to be paused for another.
    fn is_back(&self) {
        let mut inner = self.session.lock();
        (inner.yielded, inner.resume_again) = (None, None);
        inner.resumed_at = Some(Instant::now());
    }

    /// The processes that wait; removes those that have ended meanwhile.
    fn waiting(&self) -> Vec<Detached> {
        let mut inner = self.session.lock();
        inner.members.retain(|it| !it.process.is_ending());
        let waiting = inner.members.iter().filter_map(|it| it.detached);
        waiting.collect()
    }

    /// The driver that the session had.
    fn driver(&self) -> Result<Driver> {
        let choice = match self.session.lock().soft() {
            Some(true) => DeviceChoice::Soft,
            Some(false) => DeviceChoice::Gpu,
            None => self.session.device,
        };
        Driver::find(choice, &self.daemon.paths.home)
    }

    /// Has a worker load the part of a process, and makes it ready to serve.
    fn ready(
        &self,
        driver: &Driver,
        detached: Detached,
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<Ready> {
        let worker = self.load(driver, detached, report)?;
        let ends = offer(self.session, &worker).map_err(|failure| {
            worker.end();
            cannot_load(self.session, failure)
        })?;
        Ok((detached, worker, ends))
    }

    fn load(
        &self,
        driver: &Driver,
        detached: Detached,
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<Arc<Worker>> {
        let pid = detached.process.pid;
        let lacking = || {
            let message = format!("there is no data of process {pid}");
            fail(FailureKind::Damaged, message)
        };
        let image = self.session.image.as_deref();
        let part = self.entry.part(detached.process, image);
        let no_part = || cannot_load(self.session, lacking());
        let (part, folder) = part.ok_or_else(no_part)?;
        let visible = self.sights.get(&detached.process);
        let variables = self.session.variables_of_process(driver.soft, visible);
        let pool = &self.daemon.pool;
        let worker = pool
            .take_for(driver, &variables, part.kernels_first, None)
            .map_err(|failure| cannot_load(self.session, failure))?;
        // The next daemon ends it, if this one does not come to it.
        self.session.loads(worker.process);
        let request = ToWorker::Load {
            store: self.entry.data.folder.clone(),
            image: folder,
            digests: part.digests(),
            pace: self.pace,
            check: LoadCheck::Off,
            // It gets the GPUs that it had when it was paused. If those differ from its image's, a restore has accepted that.
            ignore_places: true,
        };
        let mut progress = |done, total| report.lock()("device", done, total);
        load(self.session, &worker, &request, &self.phases, &mut progress)?;
        // The parked program has kept its own memory.
        on_demand::give_disk(&worker)?;
        Ok(worker)
    }

    /// Saves which process each of these workers serves: from here on a next daemon lets the session go on.
    fn note(&self, ready: &[Ready]) -> Result<()> {
        let seconds = self.phases.seconds();
        for (_, worker, _) in ready {
            on_demand::begin(self.session, worker, seconds, true)?;
        }
        {
            let mut inner = self.session.lock();
            if inner.has_ended() {
                let message = format!("session `{}` has ended", self.session.name);
                return Err(fail(FailureKind::NotFound, message));
            }
            for (detached, worker, _) in ready {
                inner.member_or_new(detached.process).sees(worker.process);
            }
            inner.loading.clear();
            inner.state = SessionState::Stopped;
        }
        self.session.announce();
        self.session.note_down().or_fail(FailureKind::User, || {
            format!("cannot note down session `{}`", self.session.name)
        })
    }

    fn attach(&self, (detached, worker, ends): Ready) -> Result<Reattached> {
        let attached = reattach(self.daemon, self.session, &worker, detached, Some(ends));
        attached.inspect_err(|_| {
            self.session.lock().brings_no_more(&worker);
            worker.end();
        })
    }

    /// Lets processes go on with their workers, all at one moment; returns those that live and could not, with the reason.
    fn run(&self, ready: Vec<Ready>) -> Vec<(Detached, Failure)> {
        let places: Vec<Detached> = ready.iter().map(|it| it.0).collect();
        let come = go_on(each_at_once(ready, "attach", |it| self.attach(it)));
        let until = Instant::now() + LAST_MOMENT;
        let failed = places.into_iter().zip(come);
        failed
            .filter_map(|(place, come)| Some((place, come.err()?)))
            .filter(|(place, _)| !has_ended(self.session, place.process, until))
            .collect()
    }

    /// Brings back as many of these processes as possible; returns those that could not, with the reason.
    fn some(
        &self,
        driver: &Driver,
        waiting: Vec<Detached>,
        report: &Mutex<&mut Report<'_>>,
    ) -> Vec<(Detached, Failure)> {
        let_wait(self.session);
        let loaded = each_at_once(waiting.clone(), "resume", |it| {
            self.ready(driver, it, report)
        });
        let (mut ready, mut failed) = (Vec::new(), Vec::new());
        for (detached, loaded) in waiting.into_iter().zip(loaded) {
            match loaded {
                Ok(loaded) => ready.push(loaded),
                Err(failure) => failed.push((detached, failure)),
            }
        }
        if ready.is_empty() {
            return failed;
        }
        if let Err(failure) = self.note(&ready) {
            let mut inner = self.session.lock();
            ready.iter().for_each(|it| inner.brings_no_more(&it.1));
            drop(inner);
            end_all(ready.iter().map(|it| &it.1));
            failed.extend(ready.into_iter().map(|it| (it.0, failure.clone())));
            return failed;
        }
        failed.extend(self.run(ready));
        failed
    }

    /// Returns the session to its pause, because none of its processes can go on.
    fn back_to_pause(&self, ready: &[Ready], failure: Failure) -> Failure {
        end_all(ready.iter().map(|it| &it.1));
        match self.parks_again() {
            true => stays_paused(self.session, failure),
            false => failure,
        }
    }

    /// As [`park_again`]. A session that had yielded waits for its memory again from here on.
    fn parks_again(&self) -> bool {
        let parked = park_again(self.session);
        if parked {
            self.daemon.priorities.tell();
        }
        parked
    }

    /// Handles processes that have not come back. If none has, the session is paused as before. Otherwise those that wait are tried
    /// once more, because the processes that run cannot wait for them. Those that still have not come, or do not wait, are rejected.
    fn recover(
        &self,
        failed: Vec<(Detached, Failure)>,
        driver: &Driver,
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<()> {
        let (waiting, mut rejected): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|it| waits(it.0));
        rejected.retain(|it| !has_ended(self.session, it.0.process, Instant::now()));
        for (detached, _) in &waiting {
            self.part_again(*detached);
        }
        if let Some((_, failure)) = waiting.first()
            && rejected.is_empty()
            && self.parks_again()
        {
            return Err(stays_paused(self.session, failure.clone()));
        }
        for (detached, first) in &waiting {
            warn!(
                session = %self.session.name,
                "`{}`: process {} is tried once more: {}",
                self.session.name, detached.process.pid, first.message
            );
        }
        let waiting = waiting.into_iter().map(|it| it.0).collect();
        rejected.extend(self.some(driver, waiting, report));
        self.is_back();
        for (detached, failure) in &rejected {
            reject(self.daemon, self.session, *detached, &failure.message);
        }
        match rejected.into_iter().next() {
            Some((_, failure)) => Err(failure),
            None => Ok(()),
        }
    }

    /// Parts a process that waits to be woken again from the worker that it could not go on with.
    fn part_again(&self, detached: Detached) {
        let worker = {
            let mut inner = self.session.lock();
            let member = inner.member_or_new(detached.process);
            let worker = member.worker.take();
            member.part();
            member.visible = self.sights.get(&detached.process).cloned();
            member.detached = Some(detached);
            if let Some(worker) = &worker {
                inner.brings_no_more(worker);
            }
            worker
        };
        end_all(worker.iter());
    }
}

/// The GPUs that the processes of a session see. The end of a connection may remove a process from it that comes back.
fn sights(session: &Session) -> HashMap<ProcessId, Sight> {
    let inner = session.lock();
    let each = inner.members.iter();
    each.filter_map(|it| Some((it.process, it.visible.clone()?)))
        .collect()
}

/// Whether a process waits to be woken, or does so soon.
pub fn waits(detached: Detached) -> bool {
    let look = || match wake::waits(detached.process.pid, detached.wake_block) {
        Some(true) => Some(true),
        _ if detached.process.is_ending() => Some(false),
        _ => None,
    };
    // Polled: the process has no connection, and reports that only in its own memory.
    wait::until(PARKED_TIME, LOOK, look).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use fermata_control::user::Text;

    use super::*;
    use crate::daemon::scene;
    use crate::priority::yielded::Yielded;

    /// A paused session without processes, which has yielded to another one.
    fn yielded(folder: &Path) -> (Arc<Daemon>, Arc<Session>) {
        let daemon = scene::daemon(folder);
        let driver = folder.join("home/lib/softgpu");
        fs::create_dir_all(&driver).expect("made");
        fs::write(driver.join("libcuda.so.1"), "").expect("written");
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let to: Text = folder.into();
        let mut entry = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        entry.complete = true;
        {
            let mut inner = session.lock();
            inner.state = SessionState::Paused;
            inner.entry = Some(entry);
            inner.yielded = Some(Yielded {
                to: "y".to_owned(),
                since: 0,
            });
            inner.resume_again = Some((Instant::now(), Duration::ZERO));
        }
        (daemon, session)
    }

    fn way_back<'a>(daemon: &'a Arc<Daemon>, session: &'a Arc<Session>) -> Return<'a> {
        Return {
            daemon,
            session,
            entry: paused(session).expect("it is paused"),
            pace: Pace::Certain,
            phases: Phases::start(),
            sights: sights(session),
        }
    }

    #[test]
    fn a_session_that_runs_again_waits_for_no_other_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (daemon, session) = yielded(folder.path());
        let back = way_back(&daemon, &session);
        back.all(&mut |_, _, _| {}).expect("it has no processes");
        {
            let inner = session.lock();
            assert_eq!(inner.state, SessionState::Running);
            assert!(inner.yielded.is_none() && inner.resume_again.is_none());
            assert!(inner.resumed_at.is_some());
        }
        session.ended(None);
    }

    #[test]
    fn a_session_that_has_yielded_and_cannot_be_resumed_waits_for_its_memory_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (daemon, session) = yielded(folder.path());
        let back = way_back(&daemon, &session);
        back.note(&[]).expect("noted");
        // Here it is seen that no session waits.
        let seen = daemon.priorities.changes();
        back.back_to_pause(&[], fail(FailureKind::Internal, "a fault"));
        assert!(daemon.priorities.changes() > seen);
        {
            let inner = session.lock();
            assert!(inner.paused().is_some() && inner.yielded.is_some());
        }
        session.ended(None);
    }
}
