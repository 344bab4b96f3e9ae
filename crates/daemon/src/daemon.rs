//! The daemon's state: sessions by name, the pool, the folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fermata_control::user::{DeviceChoice, SessionState, SettingValue, Status};
use fermata_control::worker::FailureKind;
use fermata_control::{Paths, settings};
use fermata_store::Store;
use fermata_store::image::{check_name, unix_now};
use parking_lot::Mutex;
use tracing::warn;

use crate::common::Commons;
use crate::criu::Criu;
use crate::criu::kerndat::Kerndat;
use crate::failure::{Hint, OrFail, Result, fail, from_store};
use crate::foreign::under_way::UnderWay;
use crate::gpu::driver::Driver;
use crate::gpu::monitor::Monitors;
use crate::host::kept::KeptPages;
use crate::images::cache::ImageCache;
use crate::images::known::Known;
use crate::images::tier::MemoryTier;
use crate::pool::{self, Pool};
use crate::priority::yielded::Priorities;
use crate::removal::remove_folder;
use crate::session::{self, Inner, Plan, Session, output, same_token};
use crate::worker;

/// Name of the workers' log in the runtime folder.
const WORKERS_LOG: &str = "workers.log";
/// How many ended sessions are remembered, with their logs.
const ENDED_SESSIONS: usize = 200;
/// How long the program of a restore may run before the daemon knows its processes.
const RESTORE_TIME: Duration = Duration::from_secs(5);
/// How long starting a program may take.
const START_TIME: Duration = Duration::from_secs(5);
/// How long ending a session may take.
const END_TIME: Duration = Duration::from_secs(15);

/// The daemon.
pub struct Daemon {
    /// Its folders.
    pub paths: Paths,
    /// Spare workers.
    pub pool: Arc<Pool>,
    /// The memory tier, if images are kept in memory.
    pub tier: Option<Arc<MemoryTier>>,
    /// The cache of packs from a disk, if it is enabled.
    pub cache: Option<Arc<ImageCache>>,
    /// The keeper of common memory.
    pub commons: Commons,
    /// Path of its log.
    pub log: PathBuf,
    /// The monitors of the machine's GPUs.
    pub monitors: Monitors,
    /// Files of images that have been checked against their digests.
    pub known: Known,
    /// What CRIU reads of warm images.
    pub kept: KeptPages,
    /// Pauses and resumes sessions by priority.
    pub priorities: Priorities,
    /// Checkpoints of foreign programs under way.
    pub(crate) foreign: UnderWay,
    /// Its own executable, for helper processes.
    pub executable: PathBuf,
    sessions: Mutex<Sessions>,
    /// CRIU's findings about the kernel, once it has some; `None` inside if CRIU keeps them itself.
    kernel: OnceLock<Option<Kerndat>>,
    started: u64,
}

/// The sessions of a daemon.
#[derive(Default)]
struct Sessions {
    by_name: BTreeMap<String, Arc<Session>>,
    /// Whether none is added any more.
    are_closed: bool,
}

impl Daemon {
    /// A daemon in existing folders, without sessions.
    pub fn new(paths: Paths, executable: PathBuf, log: PathBuf) -> Arc<Self> {
        let cache = ImageCache::from_env(&paths);
        let tier = MemoryTier::from_env(&paths, cache.as_deref());
        let workers_log = paths.runtime.join(WORKERS_LOG);
        let monitors = Monitors::new(&paths.home, workers_log.clone());
        let pool = Pool::new(&paths.home, workers_log, tier.clone());
        pool::look_after(&pool);
        if let Some(tier) = &tier {
            tier.refill();
        }
        let kept = KeptPages::new(&paths.runtime);
        let daemon = Arc::new(Self {
            paths,
            pool,
            tier,
            cache,
            commons: Commons::from_env(),
            log,
            monitors,
            known: Known::default(),
            kept,
            priorities: Priorities::from_env(),
            foreign: UnderWay::default(),
            executable,
            sessions: Mutex::default(),
            kernel: OnceLock::new(),
            started: unix_now(),
        });
        daemon.ask_kernel();
        let mut own = std::env::vars_os().collect();
        settings::complete(&mut own);
        let own: Vec<(String, std::ffi::OsString)> = own
            .into_iter()
            .filter_map(|(n, v)| Some((n.into_string().ok()?, v)))
            .collect();
        let variables = worker::variables(own.iter().map(|(n, v)| (n.as_str(), v.clone())));
        if let Ok(driver) = Driver::find(DeviceChoice::Auto, &daemon.paths.home) {
            daemon.pool.refill(&driver, &variables);
        }
        daemon
    }

    /// Path of the socket for agents.
    pub fn agent_socket(&self) -> PathBuf {
        self.paths.runtime.join("agent.sock")
    }

    /// Path of the log with the workers' output.
    pub fn workers_log(&self) -> PathBuf {
        self.paths.runtime.join(WORKERS_LOG)
    }

    /// CRIU.
    ///
    /// # Errors
    /// `Host` when it is missing.
    pub fn criu(&self) -> Result<Criu> {
        let criu = Criu::find(&self.paths.home, &self.executable)?;
        Ok(criu.knowing(self.kernel.get().cloned().flatten()))
    }

    /// Has CRIU find out in the background what the kernel supports.
    fn ask_kernel(self: &Arc<Self>) {
        let daemon = Arc::clone(self);
        let work = move || {
            if let Ok(criu) = daemon.criu() {
                let kernel = Kerndat::probe(criu.helper(), criu.command());
                daemon.kernel.get_or_init(|| kernel);
            }
        };
        // If no thread can be started, each CRIU finds that out itself.
        let _ = std::thread::Builder::new()
            .name("kernel".into())
            .spawn(work);
    }

    /// Path of the socket for workers that come back.
    pub fn worker_socket(&self) -> PathBuf {
        self.paths.runtime.join(worker::SOCKET)
    }

    /// The chunk store; it is made if it does not exist.
    ///
    /// # Errors
    /// The store cannot be made or opened.
    pub fn store(&self) -> Result<Store> {
        let dir = self.paths.store();
        fs::create_dir_all(&self.paths.images).or_fail(FailureKind::User, || {
            format!(
                "cannot make the folder of images `{}`",
                self.paths.images.display()
            )
        })?;
        Store::open(&dir, true).map_err(|e| from_store(&e))
    }

    /// All sessions, by name.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().by_name.values().cloned().collect()
    }

    /// The session called `name`.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn session(&self, name: &str) -> Result<Arc<Session>> {
        self.sessions
            .lock()
            .by_name
            .get(name)
            .cloned()
            .ok_or_else(|| {
                fail(
                    FailureKind::NotFound,
                    format!("there is no session `{name}`"),
                )
                .hint("`fermata ps` lists the sessions")
            })
    }

    /// The session that is called `text`, or that has the process with this number.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn session_or_pid(&self, text: &str) -> Result<Arc<Session>> {
        let by_name = self.session(text);
        let (Err(_), Ok(pid)) = (&by_name, text.parse::<u32>()) else {
            return by_name;
        };
        self.sessions()
            .into_iter()
            .find(|s| s.live() && s.contains(pid))
            .ok_or_else(|| {
                let message = format!("process {pid} belongs to no session");
                fail(FailureKind::NotFound, message).hint("`fermata ps` lists the sessions")
            })
    }

    /// The live session whose token this is, or to which process `pid` belongs: a restored program
    /// that uses CUDA for the first time has the token of another session in its environment.
    pub fn session_of(&self, token: &str, pid: u32) -> Option<Arc<Session>> {
        let find = |is: &dyn Fn(&Session) -> bool| {
            let mut live = self.sessions().into_iter().filter(|s| s.live());
            live.find(|s| is(s))
        };
        let by_process = || find(&|s| s.contains(pid));
        let by_token = find(&|s| same_token(&s.lock().token, token));
        match by_token {
            // While it is being restored its processes are not known yet.
            Some(session) if session.image.is_some() || session.contains(pid) => Some(session),
            other => by_process()
                .or_else(|| {
                    self.wait_for_restores();
                    by_process()
                })
                .or(other),
        }
    }

    /// Waits until the processes of all sessions that are being restored are known. Their programs may run before that, so a
    /// process of no known session may belong to one of these.
    fn wait_for_restores(&self) {
        let until = Instant::now() + RESTORE_TIME;
        for session in self.sessions() {
            let left = until.saturating_duration_since(Instant::now());
            let is_known =
                |inner: &Inner| inner.state != SessionState::Restoring || inner.init.is_some();
            let _ = session.wait_for(left, |inner| is_known(inner).then_some(()));
        }
    }

    /// Adds a session under `name`, or under a free one made from `base`.
    ///
    /// # Errors
    /// `User` when a live session has the name; `Locked` when the daemon is about to end.
    pub fn add(
        &self,
        name: Option<&str>,
        base: &str,
        plan: impl FnOnce(String, PathBuf) -> Plan,
    ) -> Result<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        if sessions.are_closed {
            let message = "the daemon is ending: it starts no session";
            return Err(fail(FailureKind::Locked, message)
                .hint("try again: the command starts the next daemon"));
        }
        let sessions = &mut sessions.by_name;
        let folder = session::folder(&self.paths.runtime);
        let name = match name {
            Some(name) => name.to_owned(),
            None => free_name(base, |n| {
                sessions.contains_key(n) || session::has_printed(&folder.join(n))
            }),
        };
        if check_name(&name).is_err() {
            return Err(fail(
                FailureKind::User,
                format!("`{name}` cannot be the name of a session"),
            )
            .hint("use letters, digits, dots and dashes"));
        }
        if let Some(old) = sessions.get(&name) {
            if old.live() {
                let message = format!("there is a session `{name}` already");
                return Err(fail(FailureKind::User, message).hint(format!(
                    "choose another name, or end it with `fermata kill {name}`"
                )));
            }
            if !old.is_over() {
                let message = format!("an image of session `{name}`, which has ended, is written");
                return Err(fail(FailureKind::Locked, message)
                    .hint("choose another name, or try again when the image is complete"));
            }
            old.retire();
            remove_folder(&old.dir)?;
            sessions.remove(&name);
        }
        let dir = folder.join(&name);
        if session::has_printed(&dir) {
            let message = format!("`{}` is of no session that is known", dir.display());
            return Err(fail(FailureKind::User, message)
                .hint("choose another name, or remove the folder if nobody needs what is in it"));
        }
        if dir.exists() {
            remove_folder(&dir)?;
        }
        let session = Session::new(plan(name.clone(), dir))?;
        if let Some(logs) = &self.paths.logs {
            output::place(&session.dir, logs, &name).or_fail(FailureKind::User, || {
                format!("cannot make a log in `{}`", logs.display())
            })?;
        }
        sessions.insert(name, session.clone());
        prune(sessions);
        Ok(session)
    }

    /// Adds a session that an earlier daemon has left.
    pub(crate) fn found(&self, session: &Arc<Session>) {
        let name = session.name.clone();
        self.sessions
            .lock()
            .by_name
            .insert(name, Arc::clone(session));
    }

    /// Removes a session and its folder.
    pub fn remove(&self, session: &Arc<Session>) {
        let sessions = &mut self.sessions.lock().by_name;
        let its = |it: &Arc<Session>| Arc::ptr_eq(it, session);
        if !sessions.get(&session.name).is_some_and(its) {
            // It had ended, and its name and folder belong to another session.
            return;
        }
        sessions.remove(&session.name);
        session.retire();
        if let Err(failure) = remove_folder(&session.dir) {
            warn!(session = %session.name, "{}", failure.message);
        }
    }

    /// The daemon's status.
    pub fn status(&self) -> Status {
        let running = self.sessions().iter().filter(|s| s.live()).count();
        Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            started: self.started,
            runtime_dir: self.paths.runtime.clone(),
            image_dir: self.paths.images.clone(),
            store_dir: self.paths.store(),
            log: self.log.as_path().into(),
            running: u32::try_from(running).unwrap_or(u32::MAX),
            spare_workers: self.pool.waiting(),
            memory_tier: self.memory_tier(),
            cache: self.cache.as_ref().map(|cache| cache.status()),
            settings: own_settings(),
        }
    }

    /// The state of the memory tier, as seen by the worker that has the least of it ready.
    fn memory_tier(&self) -> Option<fermata_control::worker::Tier> {
        let tier = self.tier.as_ref()?;
        let mut workers = self.pool.workers();
        let sessions = self.sessions();
        workers.extend(sessions.iter().flat_map(|it| it.lock().workers()));
        tier.status(&workers)
    }

    /// Adds no session from now on, because the daemon is about to end; unless `force`, only if no session is live.
    ///
    /// # Errors
    /// The names of the live sessions; others can be added as before.
    pub fn close_sessions(&self, force: bool) -> std::result::Result<(), Vec<String>> {
        let mut sessions = self.sessions.lock();
        let live = sessions.by_name.values().filter(|it| it.live());
        let live: Vec<String> = live.map(|it| it.name.clone()).collect();
        if !force && !live.is_empty() {
            return Err(live);
        }
        sessions.are_closed = true;
        Ok(())
    }

    /// Ends all sessions and spare workers, for good.
    pub fn close(&self) {
        // With force it does not fail.
        let _ = self.close_sessions(true);
        if let Some(cache) = &self.cache {
            cache.close();
        }
        self.pool.close();
        self.monitors.close();
        let live: Vec<_> = self.sessions().into_iter().filter(|s| s.live()).collect();
        for session in &live {
            // A program that is just being started would be left behind.
            let is_begun = |it: &Inner| it.root.is_some() || it.state != SessionState::Running;
            let _ = session.wait_for(START_TIME, |it| is_begun(it).then_some(()));
            // Fails only when it has just ended.
            let _ = session.signal(rustix::process::Signal::KILL.as_raw());
        }
        for session in &live {
            if !session.wait(END_TIME) {
                warn!(session = %session.name, "session `{}` does not end", session.name);
            }
        }
        self.kept.clear();
    }
}

/// The settings that this process was started with and that were set.
fn own_settings() -> Vec<SettingValue> {
    let set = |setting: &settings::Setting| {
        Some(SettingValue {
            name: setting.name.to_owned(),
            value: settings::value(setting.name)?
                .to_string_lossy()
                .into_owned(),
        })
    };
    settings::public().filter_map(set).collect()
}

/// `base`, or `base-2`, `base-3`, ...
fn free_name(base: &str, taken: impl Fn(&str) -> bool) -> String {
    let base: String = base
        .trim_start_matches(['.', '-'])
        .chars()
        .map(|c| if c.is_control() || c == '/' { '_' } else { c })
        .take(100)
        .collect();
    let base = if base.is_empty() {
        "session".to_owned()
    } else {
        base
    };
    let numbered = (2u32..).map(|n| format!("{base}-{n}"));
    std::iter::once(base.clone())
        .chain(numbered)
        .find(|name| !taken(name))
        .unwrap_or(base)
}

/// Removes the oldest ended sessions beyond the limit.
fn prune(sessions: &mut BTreeMap<String, Arc<Session>>) {
    let ended = sessions.values().filter(|s| s.is_over());
    let mut ended: Vec<_> = ended.cloned().collect();
    ended.sort_by_key(|s| s.started());
    let extra = ended.len().saturating_sub(ENDED_SESSIONS);
    for session in ended.into_iter().take(extra) {
        session.retire();
        if remove_folder(&session.dir).is_ok() {
            sessions.remove(&session.name);
        }
    }
}

/// Whether a session can be checkpointed in this state, and why not.
///
/// # Errors
/// `NotFound` or `NotCheckpointable`.
pub fn check_running(session: &Session) -> Result<()> {
    let name = &session.name;
    let (state, note) = {
        let inner = session.lock();
        (inner.state, inner.note.clone())
    };
    match state {
        SessionState::Running => Ok(()),
        SessionState::Exited => Err(fail(
            FailureKind::NotFound,
            format!("session `{name}` has ended"),
        )),
        SessionState::Lost => {
            let why = note.map(|it| format!(": {it}")).unwrap_or_default();
            let message = format!("session `{name}` has lost its worker{why}");
            let hint = format!("end it with `fermata kill {name}`");
            Err(fail(FailureKind::NotCheckpointable, message).hint(hint))
        }
        SessionState::Orphaned => {
            let message = format!(
                "session `{name}` has not come back to this daemon after the last one's end"
            );
            Err(fail(FailureKind::NotCheckpointable, message).hint(
                "try again in a few seconds; a program of an older release has to be started again",
            ))
        }
        SessionState::Paused => {
            let message = format!("session `{name}` is paused");
            Err(fail(FailureKind::User, message).hint(format!(
                "`fermata resume {name}` lets it go on; then try again"
            )))
        }
        SessionState::Stopped | SessionState::Restoring => {
            let message = format!("session `{name}` is being checkpointed or restored");
            Err(fail(FailureKind::Locked, message).hint("try again when that has ended"))
        }
    }
}

/// What tests of this crate share.
#[cfg(test)]
pub(crate) mod scene {
    use std::path::Path;

    use super::*;

    /// A daemon without sockets, in a folder of its own.
    pub(crate) fn daemon(folder: &Path) -> Arc<Daemon> {
        fs::create_dir(folder.join("run")).expect("made");
        daemon_again(folder)
    }

    /// The next daemon in that folder.
    pub(crate) fn daemon_again(folder: &Path) -> Arc<Daemon> {
        let paths = Paths {
            runtime: folder.join("run"),
            images: folder.join("images"),
            home: folder.join("home"),
            logs: None,
        };
        let log = folder.join("run/log");
        Daemon::new(paths, folder.join("fermatad"), log)
    }

    /// A session without a program, in a folder of its own.
    pub(crate) fn session(folder: &Path) -> Arc<Session> {
        Session::new(plan("x".to_owned(), folder.join("x"))).expect("made")
    }

    pub(crate) fn plan(name: String, dir: PathBuf) -> Plan {
        Plan {
            name,
            dir,
            argv: Vec::new(),
            cwd: String::new(),
            device: DeviceChoice::Soft,
            variables: worker::Variables::new(),
            gpus: None,
            image: None,
            own_network: false,
            priority: 0,
            foreign: false,
            state: SessionState::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scene::plan;
    use super::*;
    use crate::persist::SessionMeta;
    use crate::proc::ProcessId;

    #[test]
    fn what_ends_late_of_a_session_does_not_touch_the_next_of_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let first = daemon.add(Some("x"), "", plan).expect("added");
        first.ended(None);
        let second = daemon.add(Some("x"), "", plan).expect("the name is free");
        second.note_down().expect("noted down");
        // As the thread does that has waited for the first one's worker to end.
        first.save();
        daemon.remove(&first);
        let noted = SessionMeta::load(&second.dir).expect("the second one's");
        assert_eq!(noted.token, second.lock().token);
        let found = daemon.session("x").expect("the second");
        assert!(Arc::ptr_eq(&found, &second));
        second.ended(None);
        second
            .checkpointing
            .store(true, std::sync::atomic::Ordering::Release);
        let refused = daemon
            .add(Some("x"), "", plan)
            .err()
            .expect("an image is written");
        assert_eq!(refused.kind, FailureKind::Locked);
        second.checkpoint_is_over();
        daemon.remove(&second);
        assert!(daemon.session("x").is_err() && !second.dir.exists());
    }

    #[test]
    fn a_daemon_that_is_about_to_end_starts_no_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let first = daemon.add(Some("first"), "", plan).expect("added");
        let live = daemon.close_sessions(false).expect_err("one is live");
        assert_eq!(live, ["first"]);
        let second = daemon.add(Some("second"), "", plan);
        second.expect("the daemon goes on").ended(None);
        first.ended(None);
        daemon.close_sessions(false).expect("none is live");
        let third = daemon.add(Some("third"), "", plan).err();
        assert_eq!(third.expect("it ends").kind, FailureKind::Locked);
        let folder = tempfile::tempdir().expect("a folder");
        let killed = scene::daemon(folder.path());
        killed.close();
        let first = killed.add(Some("first"), "", plan).err();
        assert_eq!(first.expect("it ends").kind, FailureKind::Locked);
    }

    #[test]
    fn a_restored_program_is_known_as_soon_as_it_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let first = daemon.add(Some("x"), "", plan).expect("added");
        let restoring = |name, dir| Plan {
            state: SessionState::Restoring,
            ..plan(name, dir)
        };
        let second = daemon.add(Some("y"), "", restoring).expect("added");
        let own = ProcessId::of(std::process::id()).expect("it runs");
        // With a token of nobody's, or with that of the session whose image it was.
        let tokens = [String::new(), first.lock().token.clone()];
        let found: Vec<_> = std::thread::scope(|scope| {
            let asks = tokens.each_ref().map(|token| {
                let daemon = &daemon;
                scope.spawn(move || daemon.session_of(token, own.pid))
            });
            std::thread::sleep(Duration::from_millis(50));
            second.lock().init = Some(own);
            let found = asks.map(|it| it.join().expect("ended"));
            found.into_iter().flatten().collect()
        });
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|it| Arc::ptr_eq(it, &second)));
        // Nobody is waited for who is of a session that is known.
        assert!(Arc::ptr_eq(
            &daemon.session_of(&tokens[1], 1).expect("by its token"),
            &first
        ));
    }

    #[test]
    fn names_are_made_from_the_program() {
        assert_eq!(free_name("heat", |_| false), "heat");
        assert_eq!(
            free_name("heat", |n| n == "heat" || n == "heat-2"),
            "heat-3"
        );
        assert_eq!(free_name("..", |_| false), "session");
    }
}
