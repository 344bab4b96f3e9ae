//! A session: one program under Fermata, its processes that use CUDA, and its folder.
//!
//! ```text
//!            run                       checkpoint             pause
//!   (new) ───────► Running ─────────────────────────► Stopped ───────► Paused
//!     │              ▲ │  ▲                              │  ▲   resume    │
//!     │ restore      │ │  └──────────── reattached ──────┘  └────────────┘
//!     └─► Restoring ─┘ │
//!                      ├─ worker gone ─► Lost ──┐
//!                      └──── program ends ──────┴─► Exited
//!   Orphaned: found by a new daemon, and not come back to it yet (`returning`); it can be listed, signalled
//!             and ended, not checkpointed
//! ```
//!
//! This file has the session and its state changes. `member`: a process of it that uses CUDA, with agent and worker.
//! `ending`: signals, and how it ends. `loss`: the loss of a worker. `persist`: its record for the next daemon. `describe`: the session as users see it.
//! `output`: the output of its program.

mod describe;
mod detached;
mod ending;
mod loss;
mod member;
mod members;
pub mod output;
mod persist;
mod token;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata_control::agent::Sight;
use fermata_control::user::{self, ArrivalStand, DeviceChoice, SessionState};
use fermata_control::worker::FailureKind;
use fermata_store::image::unix_now;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tracing::warn;

pub use self::detached::Detached;
pub use self::member::{Behind, Member, MemberMeta, Part, Served};
pub use self::persist::has_printed;
pub use self::token::{same_token, token};
use crate::agent::Agent;
use crate::failure::{Failure, OrFail, Result};
use crate::gpu::visible::variables_of_process;
use crate::host::pages::Pages;
use crate::pause::data::Entry;
use crate::priority::yielded::Yielded;
use crate::proc::{self, ProcessId};
use crate::worker::{Variables, Worker};

/// Name of the file to which `__outer` writes the program's exit status.
pub const EXIT_FILE: &str = "exit";

/// A session: one program under Fermata.
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
    /// The GPUs that replace those that its programs name (`--gpus`).
    pub gpus: Option<String>,
    /// The image it came from.
    pub image: Option<PathBuf>,
    /// Whether it has a network of its own.
    pub own_network: bool,
    /// Sessions of higher priority get device memory from those of lower priority, which are paused.
    pub priority: i32,
    /// Whether its program is a foreign program, which holds the GPU itself.
    pub foreign: bool,
    /// Held by one operation at a time: checkpoint, pause, resume, attachment, restore or rollback.
    pub busy: Mutex<()>,
    /// Whether `busy` is held by a checkpoint, pause or resume, or by a new daemon that wakes the session's processes.
    pub checkpointing: AtomicBool,
    /// How often a process has asked to use CUDA for the first time.
    pub arrivals: AtomicU64,
    started: u64,
    inner: Mutex<Inner>,
    /// Something of `inner` may have changed.
    touched: Condvar,
    /// The state has changed, and is noted down.
    changed: Condvar,
}

/// The changing part of a session, locked. After it has been written to, threads in [`Session::wait_for`] look again; their
/// own looks do not count as writes.
pub struct Locked<'s> {
    inner: MutexGuard<'s, Inner>,
    touched: &'s Condvar,
    is_touched: bool,
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        self.is_touched = true;
        &mut self.inner
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.is_touched {
            self.touched.notify_all();
        }
    }
}

/// The part of a session that changes.
pub struct Inner {
    /// State.
    pub state: SessionState,
    /// The token that its agent presents.
    pub token: String,
    /// The program.
    pub root: Option<ProcessId>,
    /// Process 1 of its namespace, if it was restored.
    pub init: Option<ProcessId>,
    /// Tells whether host memory is still to come, if it was restored.
    pub pages: Option<Pages>,
    /// Its processes that use CUDA, in the order in which they began to.
    pub members: Vec<Member>,
    /// Workers that load an image for processes that do not exist yet.
    pub loading: Vec<ProcessId>,
    /// Workers that have saved their part of a paused session, and have not ended yet.
    pub leaving: Vec<ProcessId>,
    /// The failure of the first of these workers that could not load.
    pub load_failure: Option<Failure>,
    /// The pipe that is its standard input, if that comes through one.
    pub input: Option<u64>,
    /// Steps of its restore.
    pub phases: Vec<user::Phase>,
    /// Data that comes, or has come, while the program runs.
    pub behind: Option<Behind>,
    /// Where its GPU data is, or goes, from before a pause until all of it is back.
    pub entry: Option<Entry>,
    /// The session that it was paused for, if it was not paused by its user.
    pub yielded: Option<Yielded>,
    /// When it has yielded, as far as this daemon knows.
    pub yielded_at: Option<Instant>,
    /// When this daemon last resumed it.
    pub resumed_at: Option<Instant>,
    /// When the next attempt to resume it is due, and the pause before that attempt.
    pub resume_again: Option<(Instant, Duration)>,
    /// Why the program is being rolled back. `former` is process 1 of the namespace that is ended for that.
    pub again: Option<String>,
    pub former: Option<ProcessId>,
    /// Why the program could not be brought back.
    pub failure: Option<Failure>,
    /// For users.
    pub note: Option<String>,
    /// How often it was lost.
    pub losses: u32,
    /// Whether the program has said that it is ready.
    pub ready: bool,
    /// Workers whose processes have ended during a checkpoint: they end when the checkpoint has.
    leftover: Vec<Arc<Worker>>,
    /// Whether it has been killed, perhaps before its program existed.
    killed: bool,
    /// The processes that were killed with the program.
    killed_tree: Vec<ProcessId>,
    /// Whether its end has begun.
    ending: bool,
    /// Whether its folder has been removed, or belongs to another session.
    retired: bool,
    exit_status: Option<i32>,
    soft: Option<bool>,
    devices: Vec<user::Device>,
}

/// The processes of a session, as far as they exist.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    /// The program.
    pub root: Option<ProcessId>,
    /// The numbers of its processes that use CUDA.
    pub agents: Vec<u32>,
    /// The numbers of their workers.
    pub workers: Vec<u32>,
}

/// The properties of a new session.
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
    /// See [`Session::gpus`].
    pub gpus: Option<String>,
    /// The image it comes from.
    pub image: Option<PathBuf>,
    /// Whether it has a network of its own.
    pub own_network: bool,
    /// See [`Session::priority`].
    pub priority: i32,
    /// Whether it holds the GPU itself.
    pub foreign: bool,
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

    fn assemble(plan: Plan, started: u64, inner: Inner) -> Self {
        Self {
            name: plan.name,
            dir: plan.dir,
            argv: plan.argv,
            cwd: plan.cwd,
            device: plan.device,
            variables: plan.variables,
            gpus: plan.gpus,
            image: plan.image,
            own_network: plan.own_network,
            priority: plan.priority,
            foreign: plan.foreign,
            busy: Mutex::new(()),
            checkpointing: AtomicBool::new(false),
            arrivals: AtomicU64::new(0),
            started,
            inner: Mutex::new(inner),
            touched: Condvar::new(),
            changed: Condvar::new(),
        }
    }

    /// Locks the part that changes. The lock must not be held during a wait.
    pub fn lock(&self) -> Locked<'_> {
        Locked {
            inner: self.inner.lock(),
            touched: &self.touched,
            is_touched: false,
        }
    }

    /// Waits until `look` returns a value; `None` if it does not within `limit`.
    pub fn wait_for<T>(&self, limit: Duration, look: impl Fn(&Inner) -> Option<T>) -> Option<T> {
        let until = Instant::now() + limit;
        let mut inner = self.inner.lock();
        loop {
            if let Some(found) = look(&inner) {
                return Some(found);
            }
            if self.touched.wait_until(&mut inner, until).timed_out() {
                return look(&inner);
            }
        }
    }

    /// How often processes have asked for their first worker.
    pub fn arrived(&self) -> u64 {
        self.arrivals.load(Ordering::Relaxed)
    }

    /// Waits for `turn`, or until the session changes. For loops that also look at other things; a change before the call does
    /// not end the wait.
    pub fn pause(&self, turn: Duration) {
        self.touched.wait_for(&mut self.inner.lock(), turn);
    }

    /// Its processes.
    pub fn processes(&self) -> Processes {
        let inner = self.lock();
        Processes {
            root: inner.root,
            agents: inner.agents().collect(),
            workers: inner.workers().iter().map(|it| it.process.pid).collect(),
        }
    }

    /// Path of the log with the program's output.
    pub fn log(&self) -> PathBuf {
        output::path(&self.dir)
    }

    /// The log, opened for appending: every process that prints appends at the end of the file.
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

    /// Changes the state and saves it.
    pub fn set_state(&self, state: SessionState) {
        let mut inner = self.lock();
        if inner.state != SessionState::Exited {
            inner.state = state;
        }
        drop(inner);
        self.save();
        self.changed.notify_all();
    }

    /// Wakes threads that wait for a change of state, once the new state is saved.
    pub fn announce(&self) {
        self.changed.notify_all();
    }

    /// Removes an entry of this session, unless that has been done; a later entry stays. If the removal fails, logs a warning; the
    /// entry stays recorded, for the next pause or the next daemon to remove.
    pub fn drop_entry(&self, entry: &Entry) {
        let is_it = |it: &&mut Entry| it.data.folder == entry.data.folder;
        match self.lock().entry.as_mut().filter(is_it) {
            // The data is elsewhere by now, and may have changed there: no daemon may bring the session back from here.
            Some(entry) => entry.complete = false,
            None => return,
        }
        self.save();
        if let Err(failure) = entry.remove() {
            warn!(session = %self.name, "{}", failure.message);
            return;
        }
        {
            let mut inner = self.lock();
            if inner.entry.as_mut().filter(is_it).is_none() {
                return;
            }
            inner.entry = None;
        }
        self.save();
    }

    /// Marks the session as stopped, and saves how its parked processes can be reached once they have no connection.
    ///
    /// # Errors
    /// As [`Session::note_down`].
    pub fn park(&self, parked: &[Detached]) -> io::Result<()> {
        let mut inner = self.lock();
        for detached in parked {
            inner.member_or_new(detached.process).detached = Some(*detached);
        }
        if inner.state != SessionState::Exited {
            inner.state = SessionState::Stopped;
        }
        drop(inner);
        self.changed.notify_all();
        self.note_down()
    }

    /// Environment variables for the worker of a process that is to see these GPUs.
    pub fn variables_of_process(&self, soft: bool, visible: Option<&Sight>) -> Variables {
        variables_of_process(&self.variables, self.gpus.as_deref(), soft, visible)
    }

    /// As [`Session::variables_of_process`], for its first process; a spare worker for the session is started with these.
    pub fn variables_of_first(&self, soft: bool) -> Variables {
        let first = self
            .lock()
            .members
            .first()
            .and_then(|it| it.visible.clone());
        self.variables_of_process(soft, first.as_ref())
    }

    /// Saves which worker `process`, which is to see these GPUs, is about to get.
    pub fn expect(&self, process: ProcessId, worker: ProcessId, visible: Option<Sight>) {
        let mut inner = self.lock();
        let member = inner.member_or_new(process);
        member.sees(worker);
        member.visible = visible;
        drop(inner);
        self.save();
    }

    /// Saves that a worker loads an image for the session.
    pub fn loads(&self, worker: ProcessId) {
        self.lock().loading.push(worker);
        self.save();
    }

    /// Notes that a worker of the paused session has ended.
    pub fn has_left(&self, worker: ProcessId) {
        self.lock().leaving.retain(|it| *it != worker);
        self.save();
    }

    /// Removes a process that gets no worker after all.
    pub fn forget(&self, process: ProcessId) {
        let mut inner = self.lock();
        inner.members.retain(|it| it.process != process);
        drop(inner);
        self.save();
    }

    /// Adds the agent and the worker of a process, which are now connected.
    pub fn attached(&self, agent: Arc<Agent>, worker: Arc<Worker>) {
        let mut inner = self.lock();
        inner.soft = Some(worker.driver.soft);
        for device in &worker.devices {
            if inner.devices.iter().all(|it| it.uuid != device.uuid) {
                inner.devices.push(device.clone());
            }
        }
        inner.loading.retain(|it| *it != worker.process);
        // An earlier attempt to reattach the process may have failed, which looked like its end.
        inner.leftover.retain(|it| !Arc::ptr_eq(it, &worker));
        let member = inner.member_or_new(agent.process);
        member.sees(worker.process);
        member.agent = Some(agent);
        member.detached = None;
        member.worker = Some(worker);
        member.unserved = false;
        drop(inner);
        self.save();
    }

    /// Sets the devices of a foreign program, which holds them itself.
    pub fn holds(&self, devices: &[user::Device], soft: bool) {
        let mut inner = self.lock();
        inner.soft = Some(soft);
        inner.devices = devices.to_vec();
        drop(inner);
        self.save();
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

    /// Whether its name and its folder may go to another session: it has ended, and no image of it is being written.
    pub fn is_over(&self) -> bool {
        !self.live() && !self.checkpointing.load(Ordering::Acquire)
    }

    /// Whether a checkpoint, restore, pause or resume of it is under way, or data of it is still coming.
    pub fn is_changing(&self) -> bool {
        let inner = self.lock();
        let between = [SessionState::Stopped, SessionState::Restoring];
        self.busy.try_lock().is_none() || between.contains(&inner.state) || inner.is_coming()
    }

    /// When it was started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.started
    }
}

impl Inner {
    /// Takes the processes of an earlier daemon's session that have to end before its program is started again.
    pub fn take_former(&mut self) -> Vec<ProcessId> {
        let init = self.former.take().or_else(|| self.init.take());
        let members = std::mem::take(&mut self.members);
        let workers = members.iter().filter_map(Member::worker_process);
        let loading = std::mem::take(&mut self.loading);
        init.into_iter().chain(workers).chain(loading).collect()
    }

    /// Whether its program runs while data is still coming.
    pub fn is_coming(&self) -> bool {
        let open = [ArrivalStand::Coming, ArrivalStand::RollingBack];
        let behind = self.behind.as_ref();
        !self.ending && behind.is_some_and(|it| open.contains(&it.stand))
    }

    /// Notes that a worker brings no more data.
    pub fn brings_no_more(&mut self, worker: &Arc<Worker>) {
        if let Some(behind) = &mut self.behind {
            behind.parts.retain(|it| !Arc::ptr_eq(&it.worker, worker));
            if behind.parts.is_empty() {
                self.behind = None;
            }
        }
    }

    /// Whether a failure now leads to a rollback.
    pub fn rolls_back(&self) -> bool {
        self.is_coming() && self.behind.as_ref().is_some_and(|it| !it.resumed)
    }

    /// The entry with its data, if it is paused.
    pub fn paused(&self) -> Option<&Entry> {
        let entry = self.entry.as_ref().filter(|it| it.complete);
        entry.filter(|_| self.state == SessionState::Paused)
    }

    /// Whether its program has ended, or is about to have.
    pub fn has_ended(&self) -> bool {
        self.ending || self.state == SessionState::Exited
    }

    /// Whether it runs on softgpu; `None` until it has used CUDA.
    pub fn soft(&self) -> Option<bool> {
        self.soft
    }

    fn new(token: String) -> Self {
        Self {
            state: SessionState::Running,
            token,
            root: None,
            init: None,
            pages: None,
            members: Vec::new(),
            loading: Vec::new(),
            leaving: Vec::new(),
            load_failure: None,
            input: None,
            phases: Vec::new(),
            behind: None,
            entry: None,
            yielded: None,
            yielded_at: None,
            resumed_at: None,
            resume_again: None,
            again: None,
            former: None,
            failure: None,
            leftover: Vec::new(),
            killed: false,
            killed_tree: Vec::new(),
            ending: false,
            retired: false,
            exit_status: None,
            soft: None,
            devices: Vec::new(),
            note: None,
            losses: 0,
            ready: false,
        }
    }
}

/// The folder that contains the sessions' folders.
pub fn folder(runtime: &Path) -> PathBuf {
    runtime.join("sessions")
}
