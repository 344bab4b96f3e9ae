//! Taking an image of a running session.
//!
//! ```text
//!  preflight ─► quiesce ─► detach ─┬─► worker: Save ──┬─► reattach ─► worker: Finish ─► commit
//!                  │               └─► CRIU: dump  ───┘   (or stays stopped and is killed last)
//!                  └── program stopped ────────────────────────┘
//! ```
//! Whatever fails, the program goes on as before, and there is no image.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_control::user::{Checkpoint, Checkpointed, Mode, SessionState, Text, Then, Totals};
use fermata_control::worker::{FailureKind, FromWorker, ToWorker};
use fermata_store::image::{
    DeviceRecord, Draft, HostRecord, Manifest, Program, SessionTotals, next_name,
};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;

use crate::attach::{Detached, reattach, reject};
use crate::criu::{Criu, DUMP_LOG};
use crate::daemon::{Daemon, check_running};
use crate::failure::{Failure, Hint, OrFail, Result, fail, from_store};
use crate::phases::Phases;
use crate::preflight;
use crate::proc::{self, ProcessId};
use crate::record::{self, AgentRecord, Record};
use crate::session::Session;
use crate::worker::{STALL_TIME, STEP_TIME, Worker, unexpected};

/// Receives phase, bytes done and bytes in all.
pub type Report<'a> = dyn FnMut(&str, u64, u64) + Send + 'a;

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
    let _busy = Turn::take(&session)?;
    check_running(&session)?;
    check_mode(request.mode)?;
    let taking = Taking::prepare(daemon, &session, request)?;
    daemon
        .log
        .line(&format!("checkpoint of `{}` begins", session.name));
    let taken = taking.take(request.then, report)?;
    daemon.log.line(&format!(
        "checkpoint of `{}` is `{}`",
        session.name,
        taken.image.display()
    ));
    Ok(taken)
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
        self.session.checkpointing.store(false, Ordering::Release);
    }
}

fn check_mode(mode: Mode) -> Result<()> {
    match mode {
        Mode::Auto | Mode::Stop => Ok(()),
        other => {
            let name = format!("{other:?}").to_lowercase();
            let message = format!("this release cannot checkpoint with `--mode {name}`");
            Err(fail(FailureKind::User, message).hint("use `--mode stop`"))
        }
    }
}

/// A checkpoint under way.
struct Taking<'a> {
    daemon: &'a Arc<Daemon>,
    session: &'a Arc<Session>,
    criu: Criu,
    draft: Draft,
    root: ProcessId,
    phases: Phases,
}

impl<'a> Taking<'a> {
    /// Everything that can be found out and made while the program runs.
    fn prepare(
        daemon: &'a Arc<Daemon>,
        session: &'a Arc<Session>,
        request: &Checkpoint,
    ) -> Result<Self> {
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
        preflight::check_tree(root.pid)?;
        let (folder, name) = target(daemon, session, request.output.as_ref())?;
        preflight::check_space(&folder, needed_bytes(session, root)?)?;
        wait_for_pages(session)?;
        let store = daemon.store()?;
        let draft = Draft::create(&store, &folder, &name).map_err(|e| from_store(&e))?;
        Ok(Self {
            daemon,
            session,
            criu,
            draft,
            root,
            phases: Phases::start(),
        })
    }

    fn take(self, then: Then, report: &mut Report<'_>) -> Result<Checkpointed> {
        let (agent, worker) = {
            let inner = self.session.lock();
            (inner.agent.clone(), inner.worker.clone())
        };
        let begun = Instant::now();
        let parts = match agent.zip(worker) {
            None => {
                let record = self.record(None);
                self.phases.time("host", || self.host(&record))?;
                Parts {
                    record,
                    device: Totals::default(),
                    worker: None,
                }
            }
            Some((agent, worker)) => {
                report("quiesce", 0, 0);
                self.phases
                    .time("quiesce", || agent.quiesce(QUIESCE_TIME))?;
                let record = self.record(Some(AgentRecord {
                    pid: agent.inner_pid,
                    wake_block: agent.wake_block,
                }));
                let detached = Detached {
                    process: agent.process,
                    wake_block: agent.wake_block,
                };
                self.session.lock().detached = Some(detached);
                self.session.set_state(SessionState::Stopped);
                if let Err(failure) = self.phases.time("detach", || agent.detach()) {
                    self.recover(&worker, detached);
                    return Err(failure);
                }
                match self.save(&record, &worker, report) {
                    Ok(device) => Parts {
                        record,
                        device,
                        worker: Some((worker, detached)),
                    },
                    Err(failure) => {
                        self.recover(&worker, detached);
                        return Err(failure);
                    }
                }
            }
        };
        self.finish(parts, then, begun, report)
    }

    /// Device and host at the same time; both have ended when this returns.
    fn save(
        &self,
        record: &Record,
        worker: &Arc<Worker>,
        report: &mut Report<'_>,
    ) -> Result<Totals> {
        match self.phases.time("release", || {
            worker.request(&ToWorker::Detach, &[], STEP_TIME, &mut |_, _| {})
        })? {
            FromWorker::Detached => {}
            other => return Err(unexpected(&other)),
        }
        let report = Mutex::new(report);
        let (device, host) = std::thread::scope(|scope| {
            let host = scope.spawn(|| self.phases.time("host", || self.host(record)));
            let device = self.phases.time("device", || self.device(worker, &report));
            let host = host.join().unwrap_or_else(|_| {
                Err(fail(
                    FailureKind::Internal,
                    "the thread that runs CRIU has failed",
                ))
            });
            (device, host)
        });
        host?;
        let device = device?;
        self.phases
            .moved("device", device.device_bytes + device.host_bytes);
        Ok(device)
    }

    fn device(&self, worker: &Worker, report: &Mutex<&mut Report<'_>>) -> Result<Totals> {
        let save = ToWorker::Save {
            store: self.daemon.paths.store().to_string_lossy().into_owned(),
            image: self.draft.path().to_string_lossy().into_owned(),
        };
        let mut progress = |done, total| report.lock()("device", done, total);
        match worker.request(&save, &[], STALL_TIME, &mut progress)? {
            FromWorker::Captured(totals) => Ok(totals),
            other => Err(unexpected(&other)),
        }
    }

    fn host(&self, record: &Record) -> Result<()> {
        if let Err(failure) = self.criu.dump(self.root.pid, &self.draft.host()) {
            self.keep_log();
            return Err(keep_hint(failure, &self.session.dir.join(DUMP_LOG)));
        }
        // CRIU's log is no part of the image; the session keeps that of the last dump.
        self.keep_log();
        fs::remove_file(self.draft.host().join(DUMP_LOG))
            .or_fail(FailureKind::Internal, || "cannot remove CRIU's log".into())?;
        copy_prefix(
            &self.session.log(),
            &self.draft.path().join(record::LOG),
            record.log_length,
        )
        .or_fail(FailureKind::User, || "cannot copy the session's log".into())
    }

    /// The draft disappears after a failure, and CRIU's log with it.
    fn keep_log(&self) {
        let copy = self.session.dir.join(DUMP_LOG);
        // That of an earlier dump says nothing of this one; both steps fail when there is no log.
        let _ = fs::remove_file(&copy);
        let _ = fs::copy(self.draft.host().join(DUMP_LOG), &copy);
    }

    /// Lets the program go on, finishes and commits; or finishes, commits and ends it.
    fn finish(
        self,
        mut parts: Parts,
        then: Then,
        begun: Instant,
        report: &mut Report<'_>,
    ) -> Result<Checkpointed> {
        let Self {
            daemon,
            session,
            criu,
            draft,
            root,
            phases,
        } = self;
        let resume = |parts: &Parts| match &parts.worker {
            Some((worker, detached)) => phases.time("reattach", || {
                bring_back(daemon, session, worker, *detached)
            }),
            None => Ok(()),
        };
        if then == Then::Run {
            resume(&parts)?;
        }
        let stopped_seconds = if parts.worker.is_some() {
            begun.elapsed().as_secs_f64()
        } else {
            0.0
        };
        let host_bytes = folder_bytes(&draft.host());
        phases.moved("host", host_bytes);
        let committed = phases
            .time("finish", || parts.finish(report))
            .and_then(|()| {
                report("commit", 0, 0);
                let manifest = describe(session, &criu, root, &parts, &phases, stopped_seconds)?;
                phases
                    .time("commit", || draft.commit(manifest))
                    .map_err(|e| from_store(&e))
            });
        let image = match committed {
            Ok(image) => image.dir().to_owned(),
            Err(failure) => {
                if then == Then::Stop {
                    resume(&parts)?;
                }
                return Err(failure);
            }
        };
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
            mode: Mode::Stop,
            running: then == Then::Run,
            device: parts.device,
            host_bytes,
            stopped_seconds,
            seconds: phases.seconds(),
            phases: phases.list(),
        })
    }

    fn recover(&self, worker: &Arc<Worker>, detached: Detached) {
        // The first failure is the one to report; what this one means is in `ps`.
        let _ = bring_back(self.daemon, self.session, worker, detached);
    }

    /// What the daemon must know at restore.
    fn record(&self, agent: Option<AgentRecord>) -> Record {
        let log = self.session.log();
        let text = |(name, value): (&String, &std::ffi::OsString)| {
            Some((name.clone(), value.to_str()?.to_owned()))
        };
        Record {
            root: proc::inner_pid(self.root.pid).unwrap_or(self.root.pid),
            log_length: log.metadata().map_or(0, |m| m.len()),
            log,
            agent,
            soft: self.session.lock().worker.as_ref().map(|w| w.driver.soft),
            variables: self.session.variables.iter().filter_map(text).collect(),
        }
    }
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
    worker: Option<(Arc<Worker>, Detached)>,
}

impl Parts {
    /// Waits until the worker has written what it has read.
    fn finish(&mut self, report: &mut Report<'_>) -> Result<()> {
        let Some((worker, _)) = &self.worker else {
            return Ok(());
        };
        let mut progress = |done, total| report("finish", done, total);
        match worker.request(&ToWorker::Finish, &[], FINISH_TIME, &mut progress)? {
            FromWorker::Saved(totals) => self.device = totals,
            other => return Err(unexpected(&other)),
        }
        Ok(())
    }
}

/// Brings a detached program back. When its worker cannot serve any more the program is told, so that
/// it does not stand still for ever.
fn bring_back(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    worker: &Arc<Worker>,
    detached: Detached,
) -> Result<()> {
    let failure = match reattach(daemon, session, worker, detached) {
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

/// Folder and name of the image.
fn target(daemon: &Daemon, session: &Session, output: Option<&Text>) -> Result<(PathBuf, String)> {
    let Some(output) = output else {
        let images = daemon.paths.images.clone();
        let name = next_name(&images, &session.name).map_err(|e| from_store(&e))?;
        return Ok((images, name));
    };
    let path = output.to_path();
    let bad = || {
        fail(
            FailureKind::User,
            format!("`{}` cannot be an image's path", path.display()),
        )
    };
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .ok_or_else(bad)?
        .to_owned();
    match path.parent() {
        Some(folder) if folder.is_absolute() => Ok((folder.to_owned(), name)),
        Some(folder) if folder.as_os_str().is_empty() => Ok((daemon.paths.images.clone(), name)),
        _ => Err(bad().hint("the daemon needs an absolute path")),
    }
}

/// Bytes that the image can take, if nothing of it is in the store yet.
fn needed_bytes(session: &Session, root: ProcessId) -> Result<u64> {
    const MARGIN: u64 = 16 << 20;
    let host = preflight::resident_bytes(root.pid) + MARGIN;
    let worker = session.lock().worker.clone();
    let Some(worker) = worker else {
        return Ok(host);
    };
    match worker.request(&ToWorker::Describe, &[], STEP_TIME, &mut |_, _| {})? {
        FromWorker::Description(totals) => Ok(host + totals.device_bytes + totals.host_bytes),
        other => Err(unexpected(&other)),
    }
}

/// CRIU cannot dump a process whose pages still come from an image.
fn wait_for_pages(session: &Session) -> Result<()> {
    let pages = session.lock().pages.take();
    let Some(mut pages) = pages else {
        return Ok(());
    };
    if pages.wait(PAGES_TIME) {
        return Ok(());
    }
    session.lock().pages = Some(pages);
    let message = format!(
        "the memory of session `{}` is still coming from its image",
        session.name
    );
    Err(fail(FailureKind::Locked, message).hint("try again later, or restore with `--eager`"))
}

fn describe(
    session: &Session,
    criu: &Criu,
    root: ProcessId,
    parts: &Parts,
    phases: &Phases,
    stopped_seconds: f64,
) -> Result<Manifest> {
    let uname = rustix::system::uname();
    let device = &parts.device;
    let devices = parts.worker.iter().flat_map(|(worker, _)| {
        worker.devices.iter().map(|d| DeviceRecord {
            name: d.name.clone(),
            uuid: d.uuid.clone(),
            memory: d.memory,
            compute_capability: d.compute_capability,
            driver_version: worker.driver_version,
            soft: worker.driver.soft,
        })
    });
    let mut manifest = Manifest {
        fermata_version: env!("CARGO_PKG_VERSION").into(),
        session: session.name.clone(),
        mode: "stop".into(),
        program: Program {
            argv: session.argv.clone(),
            cwd: session.cwd.clone(),
            executable: proc::executable(root.pid)
                .map(|p| p.to_string_lossy().into_owned())
                .unwrap_or_default(),
            pid: parts.record.root,
        },
        host: HostRecord {
            hostname: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            criu: criu.version()?,
        },
        devices: devices.collect(),
        totals: SessionTotals {
            allocations: device.allocations,
            device_bytes: device.device_bytes,
            host_bytes: device.host_bytes,
            objects: device.objects,
            chunks: device.chunks,
            written_bytes: device.written_bytes,
            seconds: phases.seconds(),
            stopped_seconds,
        },
        phases: phases.recorded(),
        ..Manifest::default()
    };
    parts.record.store(&mut manifest)?;
    Ok(manifest)
}

/// Copies the first `length` bytes of a file.
fn copy_prefix(from: &Path, to: &Path, length: u64) -> io::Result<()> {
    let mut source = File::open(from)?.take(length);
    let copied = io::copy(&mut source, &mut File::create_new(to)?)?;
    if copied == length {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::UnexpectedEof))
    }
}

/// Bytes of the files in a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|e| e.metadata().ok())
        .map(|m| m.len())
        .sum()
}
