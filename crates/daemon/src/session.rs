//! A session: one program under Fermata, with its agent, its worker and its folder.
//!
//! ```text
//!            run                       checkpoint
//!   (new) ───────► Running ─────────────────────────► Stopped
//!     │              ▲ │  ▲                              │
//!     │ restore      │ │  └──────────── reattached ──────┘
//!     └─► Restoring ─┘ │
//!                      ├─ worker gone ─► Lost ──┐
//!                      └──── program ends ──────┴─► Exited
//!   Orphaned: found by a new daemon, and not come back to it yet (`returning`); it can be listed, signalled
//!             and ended, not checkpointed
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use fermata_control::agent::ENV_TOKEN;
use fermata_control::user::{self, ArrivalStand, DeviceChoice, SessionState};
use fermata_control::worker::FailureKind;
use fermata_store::image::unix_now;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::process::{Pid, Signal};

use crate::agent::{Agent, Arrival};
use crate::attach::Detached;
use crate::failure::{Failure, OrFail, Result, fail};
use crate::namespace::{Pages, kill_tree};
use crate::persist::SessionMeta;
use crate::proc::{self, ProcessId};
use crate::returning::Returned;
use crate::worker::{Variables, Worker};

/// How long a signal waits for a program that is being rolled back.
const ROLLBACK_TIME: Duration = Duration::from_secs(10);
/// How long a worker takes from letting go of its program to its end.
const LOSS_TIME: Duration = Duration::from_millis(150);
/// How long the end of a worker may take to be noticed.
const NOTICE_TIME: Duration = Duration::from_secs(10);
/// How long processes may take to go once they are killed.
const END_TIME: Duration = Duration::from_secs(5);
/// Name of the log in a session's folder.
const LOG: &str = "log";
/// Name of the file in which the library in the program leaves messages for the user.
const NOTICES: &str = "notices";
/// Bytes of that file that are shown.
const NOTICE_BYTES: u64 = 4096;
/// Name of the file in which `__outer` leaves the status.
pub const EXIT_FILE: &str = "exit";

/// A session.
pub struct Session {
    /// Name, unique among those listed.
    pub name: String,
    /// Its folder.
    pub dir: PathBuf,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working folder.
    pub cwd: String,
    /// Which driver was asked for.
    pub device: DeviceChoice,
    /// Variables of its workers.
    pub variables: Variables,
    /// The image it came from.
    pub image: Option<PathBuf>,
    /// Held by checkpoint, attachment and restore.
    pub busy: Mutex<()>,
    /// Whether what holds `busy` is a checkpoint.
    pub checkpointing: AtomicBool,
    started: u64,
    inner: Mutex<Inner>,
    changed: Condvar,
}

/// What changes.
pub struct Inner {
    /// State.
    pub state: SessionState,
    /// The token that its agent presents.
    pub token: String,
    /// The program.
    pub root: Option<ProcessId>,
    /// Process 1 of its namespace, if it was restored.
    pub init: Option<ProcessId>,
    /// Knows whether pages are still missing, if it was restored.
    pub pages: Option<Pages>,
    /// The agent, once the program uses CUDA.
    pub agent: Option<Arc<Agent>>,
    /// The worker.
    pub worker: Option<Arc<Worker>>,
    /// A program that is parked without any connection.
    pub detached: Option<Detached>,
    /// Who waits for the agent to come back.
    pub expected: Option<SyncSender<Arrival>>,
    /// Who has come back after another daemon's end.
    pub returned: Returned,
    /// Steps of its restore.
    pub phases: Vec<user::Phase>,
    /// Data that comes, or has come, while the program runs.
    pub behind: Option<Behind>,
    /// Why the program is being started again from its image, and process 1 of the namespace that ends for it.
    pub again: Option<String>,
    pub former: Option<ProcessId>,
    /// Why the program could not be brought back.
    pub failure: Option<Failure>,
    /// For users.
    pub note: Option<String>,
    /// A worker whose program has ended while an image was taken of it: it ends with that.
    leftover: Option<Arc<Worker>>,
    /// Nothing is to be left of it.
    killed: bool,
    /// Its end has begun.
    ending: bool,
    /// Its folder is gone, or another session's.
    retired: bool,
    exit_status: Option<i32>,
    soft: Option<bool>,
    devices: Vec<user::Device>,
    worker_seen: Option<ProcessId>,
}

/// What a new session is made of.
pub struct Plan {
    /// Name.
    pub name: String,
    /// Its folder, which is made.
    pub dir: PathBuf,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working folder.
    pub cwd: String,
    /// Which driver is asked for.
    pub device: DeviceChoice,
    /// Variables of its workers.
    pub variables: Variables,
    /// The image it comes from.
    pub image: Option<PathBuf>,
    /// `Running` or `Restoring`.
    pub state: SessionState,
}

impl Session {
    /// A new session with an empty folder.
    ///
    /// # Errors
    /// The folder cannot be made, or there is no randomness for the token.
    pub fn new(plan: Plan) -> Result<Arc<Self>> {
        let what = || format!("cannot make the folder of session `{}`", plan.name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&plan.dir)
            .or_fail(FailureKind::User, what)?;
        let token = token().or_fail(FailureKind::Internal, || "cannot make a token".into())?;
        let inner = Inner {
            state: plan.state,
            ..Inner::new(token)
        };
        Ok(Arc::new(Self::assemble(plan, unix_now(), inner)))
    }

    /// A session that another daemon has started.
    pub fn found(meta: SessionMeta, dir: PathBuf) -> Arc<Self> {
        let root = meta.root.or_else(|| unnoted(&meta));
        let alive = root.filter(ProcessId::alive);
        let recorded = fs::read_to_string(dir.join(EXIT_FILE)).ok();
        let status = meta.exit_status.or_else(|| recorded?.trim().parse().ok());
        let mut inner = Inner::new(meta.token);
        inner.again = meta.again.filter(|_| meta.image.is_some());
        inner.state = match (alive, meta.state) {
            _ if inner.again.is_some() => SessionState::Restoring,
            (None, _) => SessionState::Exited,
            (Some(_), state @ (SessionState::Restoring | SessionState::Lost)) => state,
            // A program that has not used CUDA yet needs nothing of the daemon that started it.
            (Some(_), _) if meta.worker.is_none() => SessionState::Running,
            (Some(_), _) => SessionState::Orphaned,
        };
        inner.root = alive;
        inner.init = meta.init.filter(ProcessId::alive);
        inner.exit_status = status.filter(|_| inner.state == SessionState::Exited);
        inner.soft = meta.soft;
        inner.devices = meta.devices;
        inner.detached = meta.detached.filter(|d| d.process.alive());
        inner.worker_seen = meta.worker.filter(ProcessId::alive);
        inner.note = match (alive, meta.state) {
            (Some(_), _) if inner.state == SessionState::Orphaned => {
                Some("the daemon that started it has ended".to_owned())
            }
            _ if inner.state != SessionState::Exited => meta.note,
            (None, SessionState::Exited) => meta.note,
            _ => Some("it ended while no daemon ran".to_owned()),
        };
        let plan = Plan {
            name: meta.name,
            dir,
            argv: meta.argv,
            cwd: meta.cwd,
            device: meta.device,
            variables: meta
                .variables
                .into_iter()
                .map(|(name, value)| (name, value.into()))
                .collect(),
            image: meta.image,
            state: inner.state,
        };
        let session = Self::assemble(plan, meta.started, inner);
        session.save();
        Arc::new(session)
    }

    fn assemble(plan: Plan, started: u64, inner: Inner) -> Self {
        Self {
            name: plan.name,
            dir: plan.dir,
            argv: plan.argv,
            cwd: plan.cwd,
            device: plan.device,
            variables: plan.variables,
            image: plan.image,
            busy: Mutex::new(()),
            checkpointing: AtomicBool::new(false),
            started,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        }
    }

    /// What changes, locked. Not to be held while waiting for anything.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Path of what the program prints.
    pub fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// The log, opened for appending: all who print share the end of the file, whoever opened it.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open_log(&self) -> Result<File> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.log())
            .or_fail(FailureKind::User, || {
                format!("cannot open `{}`", self.log().display())
            })
    }

    /// Changes state and notes it down.
    pub fn set_state(&self, state: SessionState) {
        let mut inner = self.lock();
        if inner.state != SessionState::Exited {
            inner.state = state;
        }
        drop(inner);
        self.save();
        self.changed.notify_all();
    }

    /// The program is parked, and will have no connection. Notes down how it can be reached.
    ///
    /// # Errors
    /// As [`Session::note_down`].
    pub fn park(&self, detached: Detached) -> io::Result<()> {
        let mut inner = self.lock();
        inner.detached = Some(detached);
        if inner.state != SessionState::Exited {
            inner.state = SessionState::Stopped;
        }
        drop(inner);
        self.changed.notify_all();
        self.note_down()
    }

    /// Notes down the worker that the program is about to get.
    pub fn expect(&self, worker: ProcessId) {
        self.lock().worker_seen = Some(worker);
        self.save();
    }

    /// Takes agent and worker into use.
    pub fn attached(&self, agent: Arc<Agent>, worker: Arc<Worker>) {
        let mut inner = self.lock();
        inner.soft = Some(worker.driver.soft);
        inner.devices.clone_from(&worker.devices);
        inner.worker_seen = Some(worker.process);
        inner.agent = Some(agent);
        inner.detached = None;
        inner.worker = Some(worker);
        drop(inner);
        self.save();
    }

    /// The GPU side is gone.
    pub fn worker_lost(&self, reason: &str) {
        let mut inner = self.lock();
        if inner.rolls_back() {
            // Whoever looks after the restore brings the program back.
            return;
        }
        if inner.state != SessionState::Exited {
            inner.state = SessionState::Lost;
            inner.note = Some(reason.to_owned());
        }
        drop(inner);
        self.save();
        self.changed.notify_all();
    }

    /// The agent's process has ended, or uses CUDA no more.
    pub fn agent_gone(&self, process: ProcessId) {
        let other = |agent: &Arc<Agent>| agent.process != process;
        let Some(mut inner) = self.unless_lost(|inner| inner.agent.as_ref().is_none_or(other))
        else {
            return;
        };
        // Nobody needs the data that is still coming.
        if inner.rolls_back() {
            inner.behind = None;
        }
        inner.agent = None;
        let worker = self.part_with_worker(&mut inner);
        inner.worker_seen = None;
        drop(inner);
        if let Some(worker) = worker {
            worker.end();
        }
        self.save();
    }

    /// The tree below `init`, process 1 of a restored program's namespace, has ended. It may have been taken
    /// back, or be about to be: then the session goes on.
    pub fn tree_ended(&self, init: ProcessId, status: Option<i32>) {
        if let Some(inner) = self.unless_lost(|inner| inner.init != Some(init)) {
            drop(inner);
            self.ended(status);
        }
    }

    /// What changes, locked, unless `other` holds, or the worker was lost while data was coming. Which of
    /// worker and program was first to end may take a moment to be known.
    fn unless_lost(&self, other: impl Fn(&Inner) -> bool) -> Option<MutexGuard<'_, Inner>> {
        let begun = Instant::now();
        loop {
            let inner = self.lock();
            if other(&inner) || inner.is_lost_behind() {
                return None;
            }
            let limit = match inner.has_ended_behind() {
                true => NOTICE_TIME,
                false => LOSS_TIME,
            };
            if !inner.rolls_back() || begun.elapsed() > limit {
                return Some(inner);
            }
            drop(inner);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The program has ended: ends everything else of the session.
    pub fn ended(&self, status: Option<i32>) {
        let mut inner = self.lock();
        inner.ending = true;
        let worker = self.part_with_worker(&mut inner);
        inner.agent = None;
        inner.expected = None;
        let kept = inner.leftover.as_ref().map(|it| it.process);
        let (init, seen) = (inner.init.take(), inner.worker_seen.take());
        let seen = seen.filter(|it| Some(*it) != kept);
        let token = inner.token.clone();
        drop(inner);
        if let Some(init) = init {
            init.signal(Signal::KILL);
        }
        match (worker, seen) {
            (Some(worker), _) => worker.end(),
            (None, Some(process)) => process.signal(Signal::KILL),
            (None, None) => {}
        }
        self.kill_marked(&token);
        let mut inner = self.lock();
        inner.state = SessionState::Exited;
        inner.exit_status = status.or(inner.exit_status);
        inner.root = None;
        drop(inner);
        self.save();
        self.changed.notify_all();
    }

    /// The worker, which is to be ended; none if it still has an image to finish.
    fn part_with_worker(&self, inner: &mut Inner) -> Option<Arc<Worker>> {
        let worker = inner.worker.take();
        if inner.killed || !self.checkpointing.load(Ordering::Acquire) {
            return worker;
        }
        inner.leftover = worker.or_else(|| inner.leftover.take());
        None
    }

    /// No image is taken any more.
    pub fn checkpoint_is_over(&self) {
        let leftover = {
            let mut inner = self.lock();
            self.checkpointing.store(false, Ordering::Release);
            inner.leftover.take()
        };
        if let Some(worker) = leftover {
            worker.end();
        }
    }

    /// Ends every process that was started with this session's environment and still runs here, and
    /// waits until they are gone.
    fn kill_marked(&self, token: &str) {
        if self.image.is_some() {
            // Restored processes carry the token of the session that was checkpointed, which may
            // still run; theirs ended with their namespace.
            return;
        }
        let own = fs::read_link("/proc/self/ns/pid").ok();
        let until = Instant::now() + END_TIME;
        loop {
            let mut left: Vec<ProcessId> = Vec::new();
            for pid in proc::marked(ENV_TOKEN, token) {
                let there = fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
                left.extend(ProcessId::of(pid).filter(|_| there == own));
            }
            if left.is_empty() || Instant::now() > until {
                return;
            }
            left.iter().for_each(|process| process.signal(Signal::KILL));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends `signal` to the program and its children.
    ///
    /// # Errors
    /// `NotFound` when it has ended.
    pub fn signal(&self, number: i32) -> Result<()> {
        let until = Instant::now() + ROLLBACK_TIME;
        let kills = number == Signal::KILL.as_raw();
        let (root, init) = loop {
            let mut inner = self.lock();
            let comes = inner.rolls_back() || inner.again.is_some();
            if inner.root.is_none() && kills && inner.state == SessionState::Restoring {
                // Whoever restores it ends it, as soon as there is something to end.
                inner.killed = true;
                return Ok(());
            }
            if inner.root.is_some() || !comes || Instant::now() > until {
                break (inner.root, inner.init);
            }
            drop(inner);
            std::thread::sleep(Duration::from_millis(10));
        };
        let root = root.filter(ProcessId::alive).ok_or_else(|| {
            fail(
                FailureKind::NotFound,
                format!("session `{}` has ended", self.name),
            )
        })?;
        let signal = Signal::from_named_raw(number)
            .ok_or_else(|| fail(FailureKind::User, format!("there is no signal {number}")))?;
        if !kills {
            let group = i32::try_from(root.pid).ok().and_then(Pid::from_raw);
            if let Some(group) = group {
                // The program leads its own group; it fails only when it has just ended.
                let _ = rustix::process::kill_process_group(group, signal);
            }
            return Ok(());
        }
        self.lock().killed = true;
        match init {
            Some(init) => init.signal(Signal::KILL),
            None => kill_tree(root.pid),
        }
        Ok(())
    }

    /// Refuses to go on with a program that was killed before it was there.
    ///
    /// # Errors
    /// `NotFound`, when it was.
    pub fn check_wanted(&self) -> Result<()> {
        if !self.lock().killed {
            return Ok(());
        }
        let message = format!("session `{}` was killed while it was restored", self.name);
        Err(fail(FailureKind::NotFound, message))
    }

    /// Waits until the program has ended; false at the deadline.
    pub fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut inner = self.inner.lock();
        while inner.state != SessionState::Exited {
            if self.changed.wait_until(&mut inner, until).timed_out() {
                return inner.state == SessionState::Exited;
            }
        }
        true
    }

    /// Whether the program still runs.
    pub fn live(&self) -> bool {
        self.lock().state != SessionState::Exited
    }

    /// Whether process `pid` belongs to it.
    pub fn contains(&self, pid: u32) -> bool {
        let (root, init) = {
            let inner = self.lock();
            (inner.root, inner.init)
        };
        let line = proc::ancestors(pid);
        [root, init]
            .into_iter()
            .flatten()
            .any(|process| line.contains(&process.pid))
    }

    /// As users see it.
    pub fn describe(&self) -> user::Session {
        let inner = self.lock();
        user::Session {
            name: self.name.clone(),
            state: inner.state,
            pid: inner.root.map(|p| p.pid),
            worker_pid: inner
                .worker
                .as_ref()
                .map(|w| w.process)
                .or(inner.worker_seen)
                .map(|p| p.pid),
            exit_status: inner.exit_status,
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            started: self.started,
            log: self.log(),
            soft: inner.soft,
            devices: inner.devices.clone(),
            image: self.image.clone(),
            note: self.note(&inner),
            phases: inner.phases.clone(),
            arrival: inner.behind.as_ref().map(|it| it.arrival.clone()),
            failure: inner.failure.clone(),
        }
    }

    /// File for messages of the library in the program.
    pub fn notices(&self) -> PathBuf {
        self.dir.join(NOTICES)
    }

    /// The daemon's note and the library's messages in one line.
    fn note(&self, inner: &Inner) -> Option<String> {
        let mut text = String::new();
        if let Ok(file) = File::open(self.notices()) {
            // What is not text is not shown.
            let _ = file.take(NOTICE_BYTES).read_to_string(&mut text);
        }
        let lines = inner.note.iter().map(String::as_str).chain(text.lines());
        let mut parts: Vec<&str> = Vec::new();
        for line in lines.filter(|line| !line.trim().is_empty()) {
            if !parts.contains(&line) {
                parts.push(line);
            }
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Its folder is about to be removed: nothing is noted down any more, whoever is still about to.
    pub fn retire(&self) {
        self.lock().retired = true;
    }

    /// Whether its name and its folder may go to another session: it has ended, and no image of it is being written.
    pub fn is_over(&self) -> bool {
        !self.live() && !self.checkpointing.load(Ordering::Acquire)
    }

    /// When it was started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// As [`Session::note_down`], where a full disk loses only that.
    pub fn save(&self) {
        let _ = self.note_down();
    }

    /// Notes everything down for a later daemon.
    ///
    /// # Errors
    /// The folder is gone or full.
    pub fn note_down(&self) -> io::Result<()> {
        let inner = self.lock();
        if inner.retired {
            return Ok(());
        }
        let meta = SessionMeta {
            version: 0,
            name: self.name.clone(),
            token: inner.token.clone(),
            state: inner.state,
            root: inner.root,
            init: inner.init.or(inner.former),
            worker: inner
                .worker
                .as_ref()
                .map(|w| w.process)
                .or(inner.worker_seen),
            exit_status: inner.exit_status,
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            started: self.started,
            soft: inner.soft,
            devices: inner.devices.clone(),
            image: self.image.clone(),
            again: inner.again.clone(),
            detached: inner.detached,
            note: inner.note.clone(),
            device: self.device,
            variables: self
                .variables
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), value.to_str()?.to_owned())))
                .collect(),
        };
        // Still locked: two savers must not swap their order.
        meta.save(&self.dir)
    }
}

/// A restore behind a running program.
pub struct Behind {
    /// The worker that brings the data.
    pub worker: Arc<Worker>,
    /// How far it is.
    pub arrival: user::Arrival,
}

impl Inner {
    /// What of another daemon's session ends for a program that is started again.
    pub fn take_former(&mut self) -> (Option<ProcessId>, Option<ProcessId>) {
        self.returned = Returned::default();
        let init = self.former.take().or_else(|| self.init.take());
        (init, self.worker_seen.take())
    }

    /// The worker's process, as far as it is known and runs.
    pub fn worker_seen(&self) -> Option<ProcessId> {
        self.worker_seen.filter(ProcessId::alive)
    }

    /// Whether a failure now is answered by a rollback.
    pub fn rolls_back(&self) -> bool {
        let open = |it: &Behind| {
            matches!(
                it.arrival.stand,
                ArrivalStand::Coming | ArrivalStand::RollingBack
            )
        };
        !self.ending && self.behind.as_ref().is_some_and(open)
    }

    /// Whether the worker is gone while data was coming, so that a rollback follows.
    fn is_lost_behind(&self) -> bool {
        let lost =
            |it: &Behind| it.arrival.stand == ArrivalStand::Coming && it.worker.lost().is_some();
        !self.ending && self.behind.as_ref().is_some_and(lost)
    }

    /// Whether the worker's process has ended while data was coming, noticed or not.
    fn has_ended_behind(&self) -> bool {
        let ended =
            |it: &Behind| it.arrival.stand == ArrivalStand::Coming && !it.worker.process.alive();
        self.behind.as_ref().is_some_and(ended)
    }

    fn new(token: String) -> Self {
        Self {
            state: SessionState::Running,
            token,
            root: None,
            init: None,
            pages: None,
            agent: None,
            worker: None,
            detached: None,
            expected: None,
            returned: Returned::default(),
            phases: Vec::new(),
            behind: None,
            again: None,
            former: None,
            failure: None,
            leftover: None,
            killed: false,
            ending: false,
            retired: false,
            exit_status: None,
            soft: None,
            devices: Vec::new(),
            note: None,
            worker_seen: None,
        }
    }
}

/// The program of a session whose daemon died before it could note that down: the first of its processes.
fn unnoted(meta: &SessionMeta) -> Option<ProcessId> {
    if meta.state != SessionState::Running || meta.image.is_some() {
        return None;
    }
    let marked = proc::marked(ENV_TOKEN, &meta.token).into_iter();
    let processes = marked.filter_map(ProcessId::of);
    processes.min_by_key(|process| process.start)
}

/// 32 random bytes as text.
fn token() -> io::Result<String> {
    let mut bytes = [0u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Whether two tokens are equal, in a time that does not depend on where they differ.
pub fn same_token(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |all, (x, y)| all | (x ^ y))
            == 0
}

/// Whether there is output of a program in a session's folder that was noted down.
pub fn has_printed(dir: &Path) -> bool {
    SessionMeta::is_in(dir) && fs::metadata(dir.join(LOG)).is_ok_and(|log| log.len() > 0)
}

/// The folder in which sessions have theirs.
pub fn folder(runtime: &Path) -> PathBuf {
    runtime.join("sessions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_can_be_killed_while_it_is_restored() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = Plan {
            state: SessionState::Restoring,
            ..crate::daemon::scene::plan("x".to_owned(), folder.path().join("x"))
        };
        let session = Session::new(plan).expect("made");
        session.check_wanted().expect("nobody has killed it");
        let term = session.signal(Signal::TERM.as_raw());
        assert_eq!(
            term.expect_err("no process yet").kind,
            FailureKind::NotFound
        );
        session.signal(Signal::KILL.as_raw()).expect("noted");
        assert_eq!(
            session.check_wanted().expect_err("killed").kind,
            FailureKind::NotFound
        );
    }

    #[test]
    fn tokens_differ_and_are_compared_whole() {
        let (a, b) = (token().expect("random"), token().expect("random"));
        assert_eq!(a.len(), 64);
        assert!(!same_token(&a, &b) && same_token(&a, &a.clone()) && !same_token(&a, &a[..63]));
    }
}
