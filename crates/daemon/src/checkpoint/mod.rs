//! Taking an image of a running session.
//!
//! ```text
//!  preflight ─► quiesce ─► detach ─┬─► worker: Save ──┬─► reattach ─► worker: Finish ─► commit
//!                  │               └─► CRIU: dump  ───┘   (or stays stopped and is killed last)
//!                  └── program stopped ────────────────────────┘
//! ```
//! Every process of the session that uses CUDA is stopped, detached and saved at the same time, each by its own worker;
//! CRIU dumps all of them at once. That is `stop`; `behind` says what the other protocols do before, instead of and after Save.
//! Whatever fails, the program goes on as before, and there is no image. Only if it is the program that cannot go on,
//! there is one: it is what is left of it.

mod behind;
mod image;
mod settle;
mod sum;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_control::user::{
    Checkpoint, Checkpointed, Mode, SessionState, Then, Totals, WAITING, Waited,
};
use fermata_control::worker::{FailureKind, FromWorker, ToWorker, Way};
use fermata_store::image::{Draft, sweep_drafts};
use fermata_store::moments;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;

use self::image::{check_space, describe, folder_bytes, target};
use self::settle::{Settled, parts_of};
use self::sum::{Progress, sum};
use crate::agent::Agent;
use crate::attach::{Detached, reject, rejoin};
use crate::beside::{all_at_once, each_at_once};
use crate::criu::{Criu, DUMP_LOG};
use crate::criu_core::clear_registrations;
use crate::criu_files;
use crate::daemon::{Daemon, check_running};
use crate::failure::{Failure, Hint, OrFail, Result, fail, from_store};
use crate::folders;
use crate::input;
use crate::namespace;
use crate::phases::Phases;
use crate::preflight;
use crate::proc::{self, ProcessId};
use crate::record::{self, AgentRecord, Record};
use crate::session::{Served, Session, output};
use crate::tcp::dumped::{self, Unusable};
use crate::tcp::live;
use crate::worker::{STALL_TIME, STEP_TIME, Worker, texts, unexpected};

/// Receives phase, bytes done and bytes in all.
pub type Report<'a> = dyn FnMut(&str, u64, u64) + Send + 'a;

/// How often an image is tried of a session whose processes come and go.
const ATTEMPTS: u32 = 5;
/// How long the threads of a program may take to stop.
const QUIESCE_TIME: Duration = Duration::from_secs(30);
/// How long the worker of a program that makes its first CUDA call may take.
const ATTACH_TIME: Duration = Duration::from_secs(60);
/// How long hashing and syncing what a worker has read may take.
const FINISH_TIME: Duration = Duration::from_secs(600);
/// How long pages of an earlier lazy restore may take to arrive.
const PAGES_TIME: Duration = Duration::from_secs(300);
/// How long the end of a program that is stopped for good may take.
const STOP_TIME: Duration = Duration::from_secs(15);

/// Takes an image as `request` says.
///
/// # Errors
/// The reason; the program goes on, and there is no image.
pub fn checkpoint(
    daemon: &Arc<Daemon>,
    request: &Checkpoint,
    report: &mut Report<'_>,
) -> Result<Checkpointed> {
    let session = daemon.session_or_pid(&request.session)?;
    crate::behind::settle(&session)?;
    let _busy = Turn::take(&session)?;
    check_running(&session)?;
    let _quiet = daemon.cache.as_ref().map(|cache| cache.busy());
    let mut taken = attempt(daemon, &session, request, report);
    for _ in 1..ATTEMPTS {
        match taken {
            Err((_, true)) => taken = attempt(daemon, &session, request, report),
            _ => break,
        }
    }
    let taken = taken.map_err(|(failure, _)| failure);
    if let Some(tier) = &daemon.tier {
        tier.refill();
    }
    let taken = taken?;
    if let Some(cache) = &daemon.cache {
        cache.used(&taken.image);
    }
    daemon.log.line(&format!(
        "checkpoint of `{}` is `{}`",
        session.name,
        taken.image.display()
    ));
    Ok(taken)
}

/// Tries to take an image. A failure says whether another attempt may succeed: a process of the session has begun to use
/// CUDA meanwhile, when its connection was in the way, or one that did has ended, and the session has not.
fn attempt(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    request: &Checkpoint,
    report: &mut Report<'_>,
) -> std::result::Result<Checkpointed, (Failure, bool)> {
    let taking = Taking::prepare(daemon, session, request).map_err(|failure| (failure, false))?;
    let before_it = session.processes();
    let arrivals = || session.arrivals.load(Ordering::Relaxed);
    let before = arrivals();
    daemon
        .log
        .line(&format!("checkpoint of `{}` begins", session.name));
    taking.take(request, report).map_err(|failure| {
        let left = session.processes();
        let fewer = before_it.agents.iter().any(|it| !left.agents.contains(it));
        let runs = check_running(session).is_ok() && left.root.is_some_and(|it| it.alive());
        (failure, (fewer || arrivals() != before) && runs)
    })
}

/// The right to work on a session, held while it is checkpointed.
struct Turn<'s> {
    session: &'s Session,
    _busy: MutexGuard<'s, ()>,
}

impl<'s> Turn<'s> {
    /// A checkpoint under way is told at once; a session that is still starting is waited for.
    fn take(session: &'s Session) -> Result<Self> {
        let end = Instant::now() + ATTACH_TIME;
        let busy = loop {
            if let Some(busy) = session.busy.try_lock_for(Duration::from_millis(20)) {
                break busy;
            }
            let what = match session.checkpointing.load(Ordering::Acquire) {
                true => "is being checkpointed",
                false if Instant::now() >= end => "is still starting",
                false => continue,
            };
            let message = format!("session `{}` {what}", session.name);
            return Err(fail(FailureKind::Locked, message).hint("try again when that has ended"));
        };
        session.checkpointing.store(true, Ordering::Release);
        Ok(Self {
            session,
            _busy: busy,
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.session.checkpoint_is_over();
    }
}

/// A checkpoint under way.
struct Taking<'a> {
    daemon: &'a Arc<Daemon>,
    session: &'a Arc<Session>,
    criu: Criu,
    draft: Draft,
    /// Where the device parts of its processes go.
    folders: Vec<PathBuf>,
    root: ProcessId,
    /// TCP connections to elsewhere are closed in the image.
    tcp_close: bool,
    phases: Phases,
}

impl<'a> Taking<'a> {
    /// Everything that can be found out and made while the program runs.
    fn prepare(
        daemon: &'a Arc<Daemon>,
        session: &'a Arc<Session>,
        request: &Checkpoint,
    ) -> Result<Self> {
        Criu::check_permitted()?;
        let criu = daemon.criu()?;
        let root = session
            .lock()
            .root
            .filter(ProcessId::alive)
            .ok_or_else(|| {
                fail(
                    FailureKind::NotFound,
                    format!("session `{}` has ended", session.name),
                )
            })?;
        preflight::check_tree(root.pid, &session.processes(), request.tcp_close)?;
        let (folder, name) = target(daemon, session, request.output.as_ref())?;
        // What a killed checkpoint has left takes space, too: opening the store and this remove it.
        let store = daemon.store()?;
        sweep_drafts(&folder).map_err(|e| from_store(&e))?;
        let ready = daemon.tier.as_ref().map_or(0, |tier| tier.ready_bytes());
        check_space(daemon, session, root, &folder, ready)?;
        wait_for_pages(session)?;
        let draft = Draft::create(&store, &folder, &name).map_err(|e| from_store(&e))?;
        Ok(Self {
            daemon,
            session,
            criu,
            folders: vec![draft.path().to_owned()],
            draft,
            root,
            tcp_close: request.tcp_close,
            phases: Phases::start(),
        })
    }

    fn take(mut self, request: &Checkpoint, report: &mut Report<'_>) -> Result<Checkpointed> {
        let served = self.session.lock().served();
        if served.is_empty() {
            let mut record = self.record(&[]);
            self.phases
                .time("host", || self.host(&record))?
                .note(&mut record);
            let parts = Parts {
                record,
                device: Totals::default(),
                parked: Vec::new(),
                mode: Mode::Stop,
                overtaken: 0,
                waited: None,
                began: 0.0,
                stopped_seconds: 0.0,
                since: None,
                resumed: true,
                saved: true,
            };
            return self.finish(parts, request.then, report);
        }
        for _ in 1..served.len() {
            let folder = self.draft.add_part().map_err(|e| from_store(&e))?;
            self.folders.push(folder);
        }
        let ready = self.ready(&served, request);
        let taken = ready.and_then(|way| match way {
            None => self.stopped(&served, Mode::Stop, report),
            Some(Way::Recopy) => {
                let began = self.copy_ahead(&served, report)?;
                let parts = self.stopped(&served, Mode::Recopy, report)?;
                Ok(Parts { began, ..parts })
            }
            Some(Way::Snapshot | Way::Cow) => self.behind(&served, request.then, report),
        });
        match taken {
            Ok(parts) => self.finish(parts, request.then, report),
            Err(failure) => {
                self.abandon(&served);
                Err(failure)
            }
        }
    }

    /// Takes everything while the program stands still.
    fn stopped(&self, served: &[Served], mode: Mode, report: &mut Report<'_>) -> Result<Parts> {
        let (stop, device) = self.stop(served, report, |report| self.device(served, report))?;
        self.phases
            .moved("device", device.device_bytes + device.host_bytes);
        Ok(Parts {
            record: stop.record,
            device,
            parked: stop.parked,
            mode,
            overtaken: 0,
            waited: stop.waited,
            began: 0.0,
            stopped_seconds: 0.0,
            since: Some(stop.since),
            resumed: false,
            saved: false,
        })
    }

    /// Stops the program, all its processes that use CUDA at once, and saves its host state while `device` does its part;
    /// both have ended when this returns. After a failure the program goes on.
    fn stop<T>(
        &self,
        served: &[Served],
        report: &mut Report<'_>,
        device: impl FnOnce(&Mutex<&mut Report<'_>>) -> Result<T>,
    ) -> Result<(Stop, T)> {
        report("quiesce", 0, 0);
        let settled = self.quiesce(served, report)?;
        let mut record = self.record(served);
        let detached = |it: &Served| Detached {
            process: it.agent.process,
            wake_block: it.agent.wake_block,
        };
        let parked: Vec<Parked> = served
            .iter()
            .map(|it| Parked {
                worker: it.worker.clone(),
                detached: detached(it),
            })
            .collect();
        // Once they are detached, a later daemon can reach them only if it knows where.
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
        let agents = || served.iter().map(|it| it.agent.clone()).collect();
        let taken = self
            .phases
            .time("detach", || {
                all_at_once(agents(), "detach", |it: Arc<Agent>| it.detach())
            })
            .inspect(|_| moments::pass("detached"))
            .and_then(|_| self.both(&record, served, report, device));
        match taken {
            Ok((taken, dumped)) => {
                dumped.note(&mut record);
                let stop = Stop {
                    record,
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

    /// Waits until the devices have nothing to do, and parks all threads of all processes that use CUDA. If one cannot be
    /// stopped, all go on.
    fn quiesce(&self, served: &[Served], report: &mut Report<'_>) -> Result<Settled> {
        let asked = Instant::now();
        let report = Mutex::new(report);
        let (settled, settling, stopped) = self.phases.time("quiesce", || {
            let settle = |worker: Arc<Worker>| self.settle(&worker, &report);
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

    fn both<T>(
        &self,
        record: &Record,
        served: &[Served],
        report: &mut Report<'_>,
        device: impl FnOnce(&Mutex<&mut Report<'_>>) -> Result<T>,
    ) -> Result<(T, Dumped)> {
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
            all_at_once(workers_of(served), "release", release)
        })?;
        let report = Mutex::new(report);
        let host = || self.phases.time("host", || self.host(record));
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

    /// Has every worker read its part.
    fn device(&self, served: &[Served], report: &Mutex<&mut Report<'_>>) -> Result<Totals> {
        let asked = Instant::now();
        let done = Progress::of(served.len());
        let save = |(at, worker): (usize, Arc<Worker>)| {
            let save = ToWorker::Save {
                store: self.daemon.paths.store(),
                image: self.folders[at].clone(),
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

    /// Has CRIU dump the program. Processes of it that do not use CUDA run until CRIU stops them, so that there may be
    /// more than when the record was made.
    fn host(&self, record: &Record) -> Result<Dumped> {
        let host = self.draft.host();
        if let Err(failure) = self.criu.dump(self.root.pid, &host, self.tcp_close) {
            self.keep_log();
            return Err(explain(keep_hint(
                failure,
                &self.session.dir.join(DUMP_LOG),
            )));
        }
        let tree = proc::tree(self.root.pid);
        let elsewhere = |ends| live::is_held_elsewhere(ends, &tree);
        let connections =
            dumped::settle(&host, self.tcp_close, elsewhere).map_err(|e| no_connection(&e))?;
        clear_registrations(&self.draft.host()).or_fail(FailureKind::Internal, || {
            format!("cannot change `{}`", self.draft.host().display())
        })?;
        folders::note_down(&self.draft.host()).or_fail(FailureKind::User, || {
            format!("cannot write to `{}`", self.draft.host().display())
        })?;
        // CRIU's log is no part of the image; the session keeps that of the last dump.
        self.keep_log();
        fs::remove_file(self.draft.host().join(DUMP_LOG))
            .or_fail(FailureKind::Internal, || "cannot remove CRIU's log".into())?;
        let dumped = criu_files::length_of(&self.draft.host(), &record.log);
        let dumped = dumped.or_fail(FailureKind::Internal, || {
            format!("cannot read `{}`", self.draft.host().display())
        })?;
        let log_length = dumped.unwrap_or(record.log_length);
        let copy = self.draft.path().join(record::LOG);
        output::keep(&self.session.log(), &copy, log_length)
            .or_fail(FailureKind::User, || "cannot copy the session's log".into())?;
        Ok(Dumped {
            log_length,
            connections,
        })
    }

    /// The draft disappears after a failure, and CRIU's log with it.
    fn keep_log(&self) {
        let copy = self.session.dir.join(DUMP_LOG);
        // That of an earlier dump says nothing of this one; both steps fail when there is no log.
        let _ = fs::remove_file(&copy);
        let _ = fs::copy(self.draft.host().join(DUMP_LOG), &copy);
    }

    /// Lets the program go on, finishes and commits; or finishes, commits and ends it.
    fn finish(self, mut parts: Parts, then: Then, report: &mut Report<'_>) -> Result<Checkpointed> {
        let Self {
            daemon,
            session,
            criu,
            mut draft,
            root,
            phases,
            ..
        } = self;
        let resume = |parts: &Parts| match parts.resumed {
            false => phases.time("reattach", || bring_back(daemon, session, &parts.parked)),
            true => Ok(()),
        };
        let resumed = match then {
            Then::Run => resume(&parts),
            Then::Stop => Ok(()),
        };
        parts.count_stop();
        let host_bytes = folder_bytes(&draft.host());
        phases.moved("host", host_bytes);
        let committed = phases
            .time("finish", || parts.finish(report))
            .and_then(|()| {
                report("commit", 0, 0);
                // The manifest tells how long this took; what is left of the step, the answer.
                phases
                    .time("commit", || draft.seal())
                    .map_err(|e| from_store(&e))?;
                parts.device.stall.timeline.start = parts.began;
                let manifest = describe(session, &criu, root, &parts, &phases)?;
                phases
                    .time("commit", || draft.commit(manifest))
                    .map_err(|e| from_store(&e))
            });
        let image = match committed {
            Ok(image) => image.dir().to_owned(),
            Err(failure) => {
                if let Err(first) = resumed {
                    let text = format!("nor is there an image: {}", failure.message);
                    daemon.log.line(&text);
                    return Err(first);
                }
                if then == Then::Stop {
                    resume(&parts)?;
                }
                return Err(failure);
            }
        };
        if let Err(failure) = resumed {
            let message = format!("the program cannot go on: {}", failure.message);
            let hint = format!(
                "its image is complete: `fermata restore {}`",
                image.display()
            );
            return Err(fail(failure.kind, message).hint(hint));
        }
        if then == Then::Stop {
            // Fails only when it has just ended by itself.
            let _ = session.signal(Signal::KILL.as_raw());
            if !session.wait(STOP_TIME) {
                let message = format!(
                    "the image is complete, but session `{}` does not end",
                    session.name
                );
                return Err(fail(FailureKind::Internal, message));
            }
        }
        Ok(Checkpointed {
            session: session.name.clone(),
            image,
            mode: parts.mode,
            running: then == Then::Run,
            device: parts.device,
            host_bytes,
            stopped_seconds: parts.stopped_seconds,
            seconds: phases.seconds(),
            phases: phases.list(),
            overtaken: parts.overtaken,
            waited: parts.waited,
        })
    }

    fn recover(&self, parked: &[Parked]) {
        // The first failure is the one to report; what this one means is in `ps`.
        let _ = bring_back(self.daemon, self.session, parked);
    }

    /// What the daemon must know at restore.
    fn record(&self, served: &[Served]) -> Record {
        let log = self.session.log();
        let input = self.session.lock().input;
        let mut agents = served.iter().map(|it| AgentRecord {
            pid: it.agent.inner_pid,
            wake_block: it.agent.wake_block,
            kernels_first: it.worker.kernels_first,
        });
        let first = served.first().map(|it| &it.worker);
        let open = |pipe: &u64| input::is_open(&proc::tree(self.root.pid), *pipe);
        Record {
            root: proc::inner_pid(self.root.pid).unwrap_or(self.root.pid),
            log_length: log.metadata().map_or(0, |m| m.len()),
            log,
            folder: proc::working_folder(self.root.pid)
                .filter(|it| it.to_str().is_none())
                .map(|it| it.as_path().into()),
            agent: agents.next(),
            others: agents.collect(),
            connections: None,
            // CRIU shortens it.
            input: input.filter(open).map(|pipe| pipe as u32),
            soft: first.map(|worker| worker.driver.soft),
            kernels_first: first.is_some_and(|worker| worker.kernels_first),
            variables: texts(&self.session.variables),
        }
    }
}

/// What only the dump tells.
struct Dumped {
    /// Bytes of the log.
    log_length: u64,
    /// Ends of TCP connections that are whole.
    connections: u32,
}

impl Dumped {
    fn note(&self, record: &mut Record) {
        record.log_length = self.log_length;
        record.connections = Some(self.connections);
    }
}

/// Why connections keep the dump from being an image.
fn no_connection(why: &Unusable) -> Failure {
    let message = format!("the program cannot be checkpointed: {why}");
    let failure = fail(FailureKind::NotCheckpointable, message);
    match why {
        Unusable::Outside(_) => failure.hint(live::CLOSE_HINT),
        Unusable::Moving(_) => failure.hint("try again"),
        Unusable::Files(_) => failure,
    }
}

/// Says what CRIU means, where users meet it.
fn explain(failure: Failure) -> Failure {
    if !failure.message.contains("External socket is used") {
        return failure;
    }
    let message = "the program cannot be checkpointed: it holds a Unix socket whose other end is outside the session";
    let hint = format!(
        "close it before the checkpoint (`ss -xp` lists them); {}",
        failure.hint
    );
    fail(FailureKind::NotCheckpointable, message).hint(hint)
}

/// The folder that a failure points to goes with it: names the log's copy, if there is one.
pub fn keep_hint(failure: Failure, copy: &Path) -> Failure {
    let hint = match copy.exists() {
        true => format!("CRIU's log is `{}`", copy.display()),
        false => String::new(),
    };
    failure.hint(hint)
}

/// What has been written, and who is to be brought back.
struct Parts {
    record: Record,
    device: Totals,
    parked: Vec<Parked>,
    /// How it was done.
    mode: Mode,
    /// Buffers that an unforeseen write has reached before their copy.
    overtaken: u64,
    /// What the device had to end before the program was stopped.
    waited: Option<Waited>,
    /// When copying behind the program began, in seconds.
    began: f64,
    /// Seconds of the stops that are over.
    stopped_seconds: f64,
    /// When the stop began that is not over.
    since: Option<Instant>,
    /// Whether the program goes on already.
    resumed: bool,
    /// Whether its device part is complete already.
    saved: bool,
}

impl Parts {
    /// The stop is over, or will be as soon as this is done.
    fn count_stop(&mut self) {
        if let Some(since) = self.since.take() {
            self.stopped_seconds += since.elapsed().as_secs_f64();
        }
    }
}

/// A process that stands still, and its worker.
struct Parked {
    worker: Arc<Worker>,
    detached: Detached,
}

/// A program that stands still.
struct Stop {
    record: Record,
    parked: Vec<Parked>,
    /// When a device got something for the last time.
    since: Instant,
    /// What it had to end before.
    waited: Option<Waited>,
}

impl Parts {
    /// Waits until the worker has written what it has read.
    fn finish(&mut self, report: &mut Report<'_>) -> Result<()> {
        if self.saved {
            return Ok(());
        }
        let report = Mutex::new(report);
        let done = Progress::of(self.parked.len());
        let finish = |(at, it): (usize, &Parked)| {
            let mut progress = |now, total| done.report("finish", at, (now, total), &report);
            let finish = ToWorker::Finish;
            match it
                .worker
                .request(&finish, &[], FINISH_TIME, &mut progress)?
            {
                FromWorker::Saved(totals) => Ok(totals),
                other => Err(unexpected(&other)),
            }
        };
        let parked = self.parked.iter().enumerate().collect();
        self.device = sum(all_at_once(parked, "finish", finish)?);
        Ok(())
    }
}

fn workers_of(served: &[Served]) -> Vec<Arc<Worker>> {
    served.iter().map(|it| it.worker.clone()).collect()
}

/// Lets processes go on that are stopped and were not detached.
fn resume(served: &[Served]) -> Result<()> {
    let agents = served.iter().map(|it| it.agent.clone()).collect();
    all_at_once(agents, "resume", |it: Arc<Agent>| it.resume(STEP_TIME)).map(drop)
}

/// Brings the detached processes of a program back, all of them. Those whose worker cannot serve any more are told, so
/// that they do not stand still for ever.
fn bring_back(daemon: &Arc<Daemon>, session: &Arc<Session>, parked: &[Parked]) -> Result<()> {
    let back = |it: &Parked| bring_one_back(daemon, session, &it.worker, it.detached);
    all_at_once(parked.iter().collect(), "reattach", back)?;
    session.set_state(SessionState::Running);
    Ok(())
}

fn bring_one_back(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    worker: &Arc<Worker>,
    detached: Detached,
) -> Result<()> {
    let failure = match rejoin(daemon, session, worker, detached) {
        Ok(()) => return Ok(()),
        Err(failure) => failure,
    };
    daemon.log.line(&format!(
        "`{}` cannot go on: {}",
        session.name, failure.message
    ));
    if detached.process.alive() {
        reject(daemon, session, detached, &failure.message);
    }
    Err(failure)
}

/// CRIU cannot dump a process whose pages still come from an image.
fn wait_for_pages(session: &Session) -> Result<()> {
    let (pages, init) = {
        let mut inner = session.lock();
        (inner.pages.take(), inner.init)
    };
    if let Some(mut pages) = pages {
        if pages.wait(PAGES_TIME) {
            return Ok(());
        }
        session.lock().pages = Some(pages);
    } else if init.is_none_or(|init| namespace::pages_are_there(init, PAGES_TIME)) {
        return Ok(());
    }
    let message = format!(
        "the memory of session `{}` is still coming from its image",
        session.name
    );
    Err(fail(FailureKind::Locked, message).hint("try again later, or restore with `--eager`"))
}
