//! A worker process, and the daemon's requests to it.
//!
//! ```text
//!  start ─► Open/Ready ─► (Load) ─► Attach ─► Detach ─► Save ─► Attach ... ─► (Vacate) ─► Exit
//!              any time: Lost, or the process ends ─► `lost` says why, requests fail
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fermata_control::user::Text;
use fermata_control::worker::{
    Back, Device, ENV_NEXT_DAEMON, ENV_SOCKET, FailureKind, FromWorker, NextDaemon, ToWorker,
};
use fermata_control::{Connection, PROTOCOL};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::process::Signal;

use crate::failure::{Failure, Hint, OrFail, Result, fail, from_control};
use crate::gpu::driver::Driver;
use crate::gpu::leftovers;
use crate::proc::ProcessId;
use crate::sys::{self, Extra};

/// Environment variables of a worker, beyond the daemon's own.
pub type Variables = BTreeMap<String, OsString>;

/// How long loading the driver and making contexts may take.
pub const OPEN_TIME: Duration = Duration::from_secs(60);
/// How long Attach and Detach may take.
pub const STEP_TIME: Duration = Duration::from_secs(60);
/// How long a Save or Load may go without a sign of progress.
pub const STALL_TIME: Duration = Duration::from_secs(120);
/// How long a worker may take to end.
const EXIT_TIME: Duration = Duration::from_secs(5);

/// Name of the socket, beside the workers' log, at which workers whose daemon has ended find the next one.
pub const SOCKET: &str = "worker.sock";

/// The loader's variable that a worker does not get.
const PRELOAD: &str = "LD_PRELOAD";

/// A connection to a worker.
pub type Wire = Connection<FromWorker, ToWorker>;

type Watcher = Box<dyn FnOnce(String) + Send>;

/// Told when a program must start again from its image.
type MissWatcher = Box<dyn FnOnce(String) + Send>;

/// A worker.
pub struct Worker {
    /// Its process.
    pub process: ProcessId,
    /// The driver that it has loaded.
    pub driver: Driver,
    /// Whether it has loaded Fermata's kernels before any module of a program.
    pub kernels_first: bool,
    /// Devices it found.
    pub devices: Vec<Device>,
    /// `cuDriverGetVersion`.
    pub driver_version: i32,
    connection: Arc<Wire>,
    answers: Mutex<Answers>,
    /// `None` if an earlier daemon has started it.
    child: Mutex<Option<Child>>,
    life: Arc<Life>,
    /// The ring's memory file, which its last program shared with it.
    ring: Mutex<Option<OwnedFd>>,
}

/// The data of a worker that has opened its driver.
struct Known {
    process: ProcessId,
    driver: Driver,
    kernels_first: bool,
    devices: Vec<Device>,
    driver_version: i32,
}

/// A worker's answers. It answers each request once, in their order, however late.
struct Answers {
    from: Receiver<FromWorker>,
    /// Answers still to come that no caller waits for any more.
    owed: u64,
}

/// What becomes of it.
#[derive(Default)]
struct Life {
    fate: Mutex<Fate>,
    /// It is lost.
    ended: Condvar,
}

#[derive(Default)]
struct Fate {
    lost: Option<String>,
    ending: bool,
    /// It has ended, and nothing of it is left. Another process may have its number.
    is_over: bool,
    watcher: Option<Watcher>,
    /// The program has written to memory that other sessions have: why it must start again.
    missed: Option<String>,
    miss_watcher: Option<MissWatcher>,
}

impl Worker {
    /// Starts the worker at `program` and has it load `driver`, and Fermata's kernels now if they come first. Its output goes to
    /// `log`.
    ///
    /// # Errors
    /// The worker's own failure; `Host` if it does not start.
    pub fn start(
        program: &Path,
        driver: &Driver,
        variables: &Variables,
        kernels_first: bool,
        log: &Path,
    ) -> Result<Arc<Self>> {
        let what = || format!("cannot start the worker `{}`", program.display());
        let (ours, theirs) = UnixStream::pair().or_fail(FailureKind::Internal, what)?;
        let mut child = spawn(program, variables, log, theirs.into())
            .or_fail(FailureKind::Host, what)
            .map_err(|f| {
                f.hint("is Fermata installed completely? FERMATA_HOME names its folder")
            })?;
        let process = ProcessId::of(child.id());
        let connection = Arc::new(Connection::new(OwnedFd::from(ours), "worker"));
        let opened = open(&connection, driver, kernels_first, log);
        let (Some(process), Ok((devices, driver_version))) = (process, &opened) else {
            // Both fail only when it has ended already.
            let _ = child.kill();
            let _ = child.wait();
            return Err(opened
                .err()
                .unwrap_or_else(|| fail(FailureKind::Internal, what())));
        };
        Self::listen(
            connection,
            Known {
                process,
                driver: driver.clone(),
                kernels_first,
                devices: devices.clone(),
                driver_version: *driver_version,
            },
            Some(child),
        )
    }

    /// A worker of an earlier daemon that has come back.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn returned(link: Wire, process: ProcessId, back: Back) -> Result<Arc<Self>> {
        let known = Known {
            process,
            driver: Driver {
                path: back.driver,
                soft: back.soft,
            },
            kernels_first: back.kernels_first,
            devices: back.devices,
            driver_version: back.driver_version,
        };
        Self::listen(Arc::new(link), known, None)
    }

    fn listen(connection: Arc<Wire>, known: Known, child: Option<Child>) -> Result<Arc<Self>> {
        let (sender, answers) = channel();
        let life = Arc::<Life>::default();
        let reader = (connection.clone(), life.clone());
        std::thread::Builder::new()
            .name("worker-reader".into())
            .spawn(move || read(&reader.0, &sender, &reader.1))
            .or_fail(FailureKind::Internal, || {
                "cannot listen to the worker".into()
            })?;
        let Known {
            process,
            driver,
            kernels_first,
            devices,
            driver_version,
        } = known;
        Ok(Arc::new(Self {
            process,
            driver,
            kernels_first,
            devices,
            driver_version,
            connection,
            answers: Mutex::new(Answers {
                from: answers,
                owed: 0,
            }),
            child: Mutex::new(child),
            life,
            ring: Mutex::default(),
        }))
    }

    /// The memory file for the ring with its next program. It is the one it had, because the worker keeps its registration with
    /// the driver.
    ///
    /// # Errors
    /// The system has no memory or descriptors left.
    pub fn ring(&self) -> io::Result<OwnedFd> {
        let config = fermata_wire::Config::default();
        let mut kept = self.ring.lock();
        let ring = match kept.take() {
            Some(ring) if fermata_wire::renew(ring.as_fd(), &config).is_ok() => ring,
            _ => fermata_wire::create(&config).map_err(io::Error::other)?,
        };
        let ours = ring.try_clone()?;
        *kept = Some(ours);
        Ok(ring)
    }

    /// How many bytes the program has had staged for it at most.
    pub fn staged_bytes(&self) -> u64 {
        let kept = self.ring.lock();
        let config = fermata_wire::Config::default();
        kept.as_ref()
            .map_or(0, |ring| fermata_wire::staged(ring.as_fd(), &config))
    }

    /// Makes the ring's memory in advance, for a spare worker: a GPU's driver takes 25 ms to register absent pages, and 5 ms for
    /// present ones.
    pub fn make_ring(&self) {
        if self.driver.soft {
            return;
        }
        // If this fails, the ring is made when a program comes.
        if let Ok(ring) = self.ring() {
            fermata_wire::touch(ring.as_fd(), &fermata_wire::Config::default());
        }
    }

    /// Why it can no longer serve; `None` if it can.
    pub fn lost(&self) -> Option<String> {
        self.life.fate.lock().lost.clone()
    }

    /// Waits for `turn` between two requests, or until the worker is lost.
    pub fn pause(&self, turn: Duration) {
        let mut fate = self.life.fate.lock();
        if fate.lost.is_none() {
            self.life.ended.wait_for(&mut fate, turn);
        }
    }

    /// Calls `watcher` with the reason when the worker is lost; at once if it is already.
    pub fn watch(&self, watcher: impl FnOnce(String) + Send + 'static) {
        let mut fate = self.life.fate.lock();
        match fate.lost.clone() {
            Some(reason) => {
                drop(fate);
                watcher(reason);
            }
            None => fate.watcher = Some(Box::new(watcher)),
        }
    }

    /// Calls `watcher`, once, when the program has written to common memory that other sessions have, too.
    pub fn watch_misses(&self, watcher: impl FnOnce(String) + Send + 'static) {
        let mut fate = self.life.fate.lock();
        match fate.missed.take() {
            Some(reason) => {
                drop(fate);
                watcher(reason);
            }
            None => fate.miss_watcher = Some(Box::new(watcher)),
        }
    }

    /// Sends a request, and waits for the answer. `stall` limits each wait for an answer or for progress.
    ///
    /// # Errors
    /// The worker's own failure, or that it is lost.
    pub fn request(
        &self,
        message: &ToWorker,
        fds: &[BorrowedFd<'_>],
        stall: Duration,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FromWorker> {
        self.begin(message, fds)?.finish(stall, progress)
    }

    /// Sends a request; [`Pending::finish`] waits for the answer.
    ///
    /// # Errors
    /// The worker is lost.
    pub fn begin(&self, message: &ToWorker, fds: &[BorrowedFd<'_>]) -> Result<Pending<'_>> {
        self.begin_with(self.answers.lock(), message, fds)
    }

    /// As [`Worker::begin`]; `None` if it would have to wait for another request.
    ///
    /// # Errors
    /// As there.
    pub fn try_begin(&self, message: &ToWorker) -> Option<Result<Pending<'_>>> {
        let answers = self.answers.try_lock()?;
        Some(self.begin_with(answers, message, &[]))
    }

    fn begin_with<'a>(
        &'a self,
        answers: MutexGuard<'a, Answers>,
        message: &ToWorker,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Pending<'a>> {
        self.connection
            .send(message, fds)
            .map_err(|e| self.gone(&from_control(&e).message))?;
        Ok(Pending {
            worker: self,
            answers,
            name: name(message),
            answered: false,
        })
    }

    fn gone(&self, otherwise: &str) -> Failure {
        let reason = self.lost().unwrap_or_else(|| otherwise.to_owned());
        fail(
            FailureKind::Internal,
            format!("the session's worker is lost: {reason}"),
        )
    }

    /// Bytes that it holds for its process, on devices and in host memory.
    ///
    /// # Errors
    /// It does not answer.
    pub fn held_bytes(&self) -> Result<u64> {
        match self.request(&ToWorker::Describe, &[], STEP_TIME, &mut |_, _| {})? {
            FromWorker::Description(totals) => Ok(totals.device_bytes + totals.host_bytes),
            other => Err(unexpected(&other)),
        }
    }

    /// Has it release all device memory of its session, which is no longer needed.
    ///
    /// # Errors
    /// It does not answer, or the driver has refused some of it.
    pub fn vacate(&self) -> Result<()> {
        match self.request(&ToWorker::Vacate, &[], STEP_TIME, &mut |_, _| {})? {
            FromWorker::Vacated => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends it: asks it first, and kills it if it does not end. Returns when it has ended. From then on it is only a name for what it
    /// has done, which may be kept long.
    pub fn end(&self) {
        self.life.fate.lock().ending = true;
        // Fails only when it is gone already.
        let _ = self.connection.send(&ToWorker::Exit, &[]);
        // Held until it has ended: another thread that ends it waits here.
        let mut child = self.child.lock();
        if self.life.fate.lock().is_over {
            return;
        }
        self.process.ends_within(EXIT_TIME);
        self.process.signal(Signal::KILL);
        if let Some(child) = child.as_mut() {
            let _ = child.wait();
        }
        self.connection.shutdown();
        leftovers::remove(self.process.pid);
        self.ring.lock().take();
        self.life.fate.lock().is_over = true;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.life.fate.lock().is_over {
            return;
        }
        // A lost one may still need to be collected.
        self.process.signal(Signal::KILL);
        if let Some(child) = self.child.get_mut() {
            let _ = child.wait();
        }
        leftovers::remove(self.process.pid);
    }
}

/// A request under way.
pub struct Pending<'a> {
    worker: &'a Worker,
    answers: MutexGuard<'a, Answers>,
    name: &'static str,
    answered: bool,
}

impl Pending<'_> {
    /// As the second half of [`Worker::request`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(
        mut self,
        stall: Duration,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FromWorker> {
        loop {
            match self.answers.from.recv_timeout(stall) {
                // It is still at what was asked before.
                Ok(FromWorker::Progress { .. }) if self.answers.owed > 0 => {}
                Ok(FromWorker::Progress { done, total }) => progress(done, total),
                Ok(_) if self.answers.owed > 0 => self.answers.owed -= 1,
                Ok(answer) => {
                    self.answered = true;
                    return match answer {
                        FromWorker::Failed(failure) => Err(failure),
                        answer => Ok(answer),
                    };
                }
                Err(RecvTimeoutError::Timeout) => {
                    let message =
                        format!("the worker does not answer {} within {stall:?}", self.name);
                    return Err(fail(FailureKind::Internal, message));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.worker.gone("it has ended"));
                }
            }
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        // An answer that comes late must not be taken for that to the next request.
        self.answers.owed += u64::from(!self.answered);
    }
}

fn name(message: &ToWorker) -> &'static str {
    match message {
        ToWorker::Open { .. } => "Open",
        ToWorker::Warm => "Warm",
        ToWorker::Preload { .. } => "Preload",
        ToWorker::Keep { .. } => "Keep",
        ToWorker::Attach => "Attach",
        ToWorker::Hold(_) => "Hold",
        ToWorker::Detach => "Detach",
        ToWorker::Save { .. } => "Save",
        ToWorker::Finish => "Finish",
        ToWorker::Load { .. } => "Load",
        ToWorker::Common => "Common",
        ToWorker::Restoring => "Restoring",
        ToWorker::HostMemoryThere => "HostMemoryThere",
        ToWorker::Prepare { .. } => "Prepare",
        ToWorker::Ahead => "Ahead",
        ToWorker::Begin { .. } => "Begin",
        ToWorker::Look => "Look",
        ToWorker::Abandon => "Abandon",
        ToWorker::Describe => "Describe",
        ToWorker::Share { .. } => "Share",
        ToWorker::Vacate => "Vacate",
        ToWorker::Exit => "Exit",
    }
}

/// A failure for an answer that does not fit the request.
pub fn unexpected(answer: &FromWorker) -> Failure {
    let text = format!("{answer:?}");
    let short: String = text.chars().take(60).collect();
    fail(
        FailureKind::Internal,
        format!("the worker gave an answer that does not fit: {short}"),
    )
}

fn spawn(
    program: &Path,
    variables: &Variables,
    log: &Path,
    socket: OwnedFd,
) -> std::io::Result<Child> {
    let socket_beside = log.with_file_name(SOCKET);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)?;
    let mut command = Command::new(program);
    command
        .current_dir("/")
        .envs(variables)
        .env(ENV_SOCKET, socket_beside)
        .env_remove(PRELOAD);
    // Without it, a parked program waits for the user's next command.
    if let Some(next) = next_daemon(variables) {
        command.env(ENV_NEXT_DAEMON, next);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    sys::prepare(
        &mut command,
        Extra {
            setsid: true,
            ..Extra::fds(vec![socket])
        },
    );
    command.spawn()
}

/// How the worker starts a daemon like this one.
fn next_daemon(variables: &Variables) -> Option<String> {
    let changed = variables.keys().map(String::as_str).chain([PRELOAD]);
    let own = |name: &str| std::env::var_os(name).map(|value| Text::from(value.as_os_str()));
    let next = NextDaemon {
        program: std::env::current_exe().ok()?.as_path().into(),
        variables: changed.map(|name| (name.to_owned(), own(name))).collect(),
    };
    serde_json::to_string(&next).ok()
}

fn open(
    connection: &Connection<FromWorker, ToWorker>,
    driver: &Driver,
    kernels_first: bool,
    log: &Path,
) -> Result<(Vec<Device>, i32)> {
    let message = ToWorker::Open {
        protocol: PROTOCOL,
        driver: driver.path.clone(),
        soft: driver.soft,
        kernels_first,
    };
    let answer = connection
        .send(&message, &[])
        .and_then(|()| connection.recv(OPEN_TIME));
    match answer {
        Ok((
            FromWorker::Ready {
                protocol,
                devices,
                driver_version,
            },
            _,
        )) if protocol == PROTOCOL => Ok((devices, driver_version)),
        Ok((FromWorker::Ready { protocol, .. }, _)) => Err(fail(
            FailureKind::Internal,
            format!("the worker speaks protocol {protocol}, the daemon {PROTOCOL}"),
        )
        .hint("daemon and worker must be of one release: end the daemon and try again")),
        Ok((FromWorker::Failed(failure), _)) => Err(failure),
        Ok((other, _)) => Err(unexpected(&other)),
        Err(e) => Err(fail(
            FailureKind::Internal,
            format!("the worker does not start: {}", from_control(&e).message),
        )
        .hint(format!("its log is `{}`", log.display()))),
    }
}

fn read(connection: &Connection<FromWorker, ToWorker>, answers: &Sender<FromWorker>, life: &Life) {
    let reason = loop {
        match connection.recv(Duration::from_secs(3600)) {
            Ok((FromWorker::Lost { reason }, _)) => break reason,
            Ok((FromWorker::Missed { reason }, _)) => {
                let mut fate = life.fate.lock();
                match fate.miss_watcher.take() {
                    Some(watcher) => {
                        drop(fate);
                        watcher(reason);
                    }
                    None => fate.missed = Some(reason),
                }
            }
            Ok((message, _)) => {
                if answers.send(message).is_err() {
                    break "the daemon has let go of it".to_owned();
                }
            }
            Err(e) if e.is_timeout() => {}
            Err(e) if e.is_closed() => break "its process has ended".to_owned(),
            Err(e) => break from_control(&e).message,
        }
    };
    let mut fate = life.fate.lock();
    fate.lost = Some(reason.clone());
    life.ended.notify_all();
    let watcher = fate.watcher.take().filter(|_| !fate.ending);
    let misses = fate.miss_watcher.take();
    drop(fate);
    // It keeps an image.
    drop(misses);
    if let Some(watcher) = watcher {
        watcher(reason);
    }
}

/// The variables of a program that its worker gets: those of CUDA, those of softgpu, the limits of its
/// buffers and of what it writes, and `FERMATA_WORKER_NAME` as `NAME`.
pub fn variables<'a>(env: impl Iterator<Item = (&'a str, OsString)>) -> Variables {
    const KEPT: [&str; 5] = [
        "CUDA_",
        "NVIDIA_",
        "FERMATA_SOFTGPU_",
        "FERMATA_HOST_BUFFER",
        "FERMATA_WRITE_RATE",
    ];
    let mut kept = Variables::new();
    let mut explicit = Variables::new();
    for (name, value) in env {
        if let Some(own) = name
            .strip_prefix("FERMATA_WORKER_")
            .filter(|n| !n.is_empty())
        {
            explicit.insert(own.to_owned(), value);
        } else if KEPT.iter().any(|prefix| name.starts_with(prefix)) {
            kept.insert(name.to_owned(), value);
        }
    }
    kept.extend(explicit);
    kept
}

/// Variables as files hold them.
pub fn texts(variables: &Variables) -> BTreeMap<String, Text> {
    let text = |(name, value): (&String, &OsString)| (name.clone(), value.as_os_str().into());
    variables.iter().map(text).collect()
}

/// Variables from a file.
pub fn variables_of(texts: BTreeMap<String, Text>) -> Variables {
    let variable = |(name, text): (String, Text)| (name, text.to_os());
    texts.into_iter().map(variable).collect()
}

/// Path of the worker's executable in the installation at `home`.
pub fn program(home: &Path) -> PathBuf {
    home.join("bin/fermata-worker")
}

#[cfg(test)]
pub(crate) mod scene {
    use fermata_control::worker::{Restoring, Stand};

    use super::*;

    /// The worker's end of its connection.
    type End = Connection<ToWorker, FromWorker>;

    /// Waits until the worker is asked how far its data has come.
    pub(crate) fn is_asked(end: &End) {
        let (asked, _) = end.recv(Duration::from_secs(60)).expect("asked");
        assert_eq!(asked, ToWorker::Restoring);
    }

    /// Answers that its data stands so.
    pub(crate) fn tell(end: &End, stand: Stand) {
        let answer = FromWorker::Restoring(restoring(stand));
        end.send(&answer, &[]).expect("sent");
    }

    /// Data that stands so.
    pub(crate) fn restoring(stand: Stand) -> Restoring {
        Restoring {
            done: 1,
            total: 2,
            seconds: 0.0,
            steps: Vec::new(),
            stand,
            misses: Vec::new(),
        }
    }

    /// A worker whose part the test plays, at the other end of the connection.
    pub(crate) fn played() -> (Arc<Worker>, End) {
        // Nobody's process: ending the worker ends nothing.
        played_as(ProcessId {
            pid: std::process::id(),
            start: 0,
        })
    }

    /// As [`played`]; the worker seems to be that process.
    pub(crate) fn played_as(process: ProcessId) -> (Arc<Worker>, End) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let back = Back {
            protocol: PROTOCOL,
            driver: "none".into(),
            soft: true,
            kernels_first: false,
            devices: Vec::new(),
            driver_version: 0,
            serving: false,
        };
        let link = Connection::new(OwnedFd::from(ours), "worker");
        let worker = Worker::returned(link, process, back).expect("listens");
        (worker, Connection::new(OwnedFd::from(theirs), "daemon"))
    }
}

#[cfg(test)]
mod tests {
    use super::scene::{played, played_as};
    use super::*;

    #[test]
    fn a_late_answer_is_not_taken_for_that_to_the_next_request() {
        let (worker, other) = played();
        let patience = Duration::from_secs(60);
        let ask = |message: &ToWorker, stall| worker.request(message, &[], stall, &mut |_, _| {});
        ask(&ToWorker::Finish, Duration::ZERO).expect_err("nobody answers");
        ask(&ToWorker::Look, Duration::ZERO).expect_err("nobody answers");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let (message, _) = other.recv(patience).expect("asked");
                    let answer = match message {
                        ToWorker::Detach => FromWorker::Detached,
                        ToWorker::Finish => {
                            FromWorker::Failed(fail(FailureKind::Internal, "too late"))
                        }
                        _ => FromWorker::Capturing { done: 1, total: 2 },
                    };
                    let progress = FromWorker::Progress { done: 1, total: 2 };
                    other.send(&progress, &[]).expect("sent");
                    other.send(&answer, &[]).expect("sent");
                }
            });
            let answer = ask(&ToWorker::Detach, patience);
            assert_eq!(answer.expect("answered"), FromWorker::Detached);
        });
    }

    #[test]
    fn a_worker_that_has_ended_keeps_no_ring_and_touches_nothing_of_a_later_process() {
        // Above all numbers that the kernel gives to processes.
        let pid = 0x7fff_0000 | (std::process::id() & 0xffff);
        let (worker, _other) = played_as(ProcessId { pid, start: 0 });
        drop(worker.ring().expect("made"));
        assert!(worker.ring.lock().is_some());
        worker.end();
        assert!(worker.ring.lock().is_none());
        let later = PathBuf::from(format!("/dev/shm/cuda.shm.0.{pid:x}.1"));
        std::fs::write(&later, "").expect("written");
        worker.end();
        drop(worker);
        std::fs::remove_file(&later).expect("it is there");
    }

    #[test]
    fn a_worker_gets_the_variables_meant_for_it() {
        let env = [
            ("HOME", "/root"),
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("FERMATA_SOFTGPU_DEVICES", "2"),
            ("FERMATA_WORKER_CUDA_INJECTION64_PATH", "/p.so"),
            ("FERMATA_WORKER_CUDA_VISIBLE_DEVICES", "1"),
        ];
        let got = variables(env.into_iter().map(|(n, v)| (n, OsString::from(v))));
        let got: Vec<_> = got
            .iter()
            .map(|(n, v)| format!("{n}={}", v.display()))
            .collect();
        assert_eq!(
            got,
            [
                "CUDA_INJECTION64_PATH=/p.so",
                "CUDA_VISIBLE_DEVICES=1",
                "FERMATA_SOFTGPU_DEVICES=2"
            ]
        );
    }
}
