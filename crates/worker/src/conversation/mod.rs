//! The conversation with the daemon: one request at a time, each answered.
//!
//! ```text
//!           Open           Attach            Detach
//!  Started ──────► Idle ──────────► Serving ──────────► Idle      Save, Load, Describe keep the state
//!                   ▲                  │ program gone
//!                   └──────────────────┘
//! ```
//! When the daemon is gone, the worker goes on serving its program, looks for the next daemon, and ends with the program.
//! If the program was detached for a checkpoint at that moment, its session is kept for some time, and the worker starts
//! the next daemon if no command does. A worker that has saved all of a paused session ends at once.
//!
//! | file | requests |
//! | --- | --- |
//! | this | dispatches requests; what happens without a daemon |
//! | `opening` | Open: the driver, and what is made ready before a program |
//! | `attaching` | Attach, Detach: the thread that serves the program |
//! | `saving` | Save: an image of a stopped program |
//! | `capturing` | an image while the program runs |
//! | `loading` | Load: a session from an image |

mod account;
mod attaching;
mod capturing;
mod loading;
mod opening;
mod saving;
mod serving;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermata_abi::op::DeviceInfo;
use fermata_control::Connection;
use fermata_control::worker::{
    Back, ENV_SOCKET, Failure, FailureKind, FromWorker, ImageDigests, ToWorker, Totals,
};
use fermata_device::ContextHandle;
use fermata_engine::restore::{Background, Guard, ImageFiles, Missed, Preloaded};
use fermata_engine::{EngineError, Gate, Site, Summary, Tier};
use parking_lot::Mutex;

use self::account::Account;
use self::capturing::Capturing;
use self::serving::{Serving, forsake, hold, on_server};
use crate::callbacks::Callbacks;
use crate::errors::Faults;
use crate::failure::failure;
use crate::layout::RingPlace;
use crate::next_daemon::Starter;
use crate::preparation::{Folders, Keeper};
use crate::scratch::{Scratch, Staging};
use crate::trace;

/// The worker's end of the conversation.
pub type Daemon = Connection<ToWorker, FromWorker>;

/// How often a wait for the daemon checks on the program.
const TURN: Duration = Duration::from_millis(200);
/// Progress is told at most this often.
const REPORT: Duration = Duration::from_millis(100);
/// The longest wait for what a session writes at its end: a trace, or the first-use profile of a restore.
const RECORD: Duration = Duration::from_secs(4);

/// How often a worker without a daemon looks for one.
const RETURN_POLL: Duration = Duration::from_millis(100);
/// How often, once a daemon has refused the worker.
const RETURN_PAUSE: Duration = Duration::from_secs(2);
/// How long a detached program's session is kept without a daemon.
const KEPT: Duration = Duration::from_secs(3600);

struct Worker {
    daemon: Daemon,
    callbacks: Arc<Callbacks>,
    site: Option<Site>,
    faults: Faults,
    devices: Vec<DeviceInfo>,
    names: Vec<String>,
    /// Whether a program has been served, or an image loaded.
    used: bool,
    serving: Option<Serving>,
    /// The remains of a session whose device memory has been freed; they go with the process.
    vacated: Option<Site>,
    /// The staging area of the last attachment, for the next one.
    staging: Option<Staging>,
    /// Whether the last program has let go of its ring, and may come back.
    parked: bool,
    /// What a later daemon is told.
    back: Option<Back>,
    /// When the worker last looked for a daemon, or found one.
    returned: Option<Instant>,
    /// Pinned buffers of the last attachment.
    scratch: Scratch,
    /// Where the ring of a loaded session's program will be.
    place: Option<RingPlace>,
    /// The thread that registers a restored program's staging area.
    beside: Option<JoinHandle<Staging>>,
    /// The image whose objects have been made ahead, until it is loaded.
    preloaded: Option<Preloaded>,
    keeper: Option<Keeper>,
    /// The primary context of the first device, where host memory is registered.
    home: Option<ContextHandle>,
    tier: Option<Arc<Tier>>,
    /// The thread that does the rest of the last Save: it writes and publishes.
    behind: Option<JoinHandle<Result<Summary, EngineError>>>,
    /// The cost and the validation of what was copied ahead of the last Save.
    account: Account,
    /// The gate with which the next attachment begins.
    gate: Option<Box<dyn Gate>>,
    /// The loader of data that comes on demand.
    background: Option<Background>,
    /// The guard of common memory, between attachments.
    guard: Option<Guard>,
    /// Why the session must start again from its image, and whether the daemon has been told.
    missed: Option<Missed>,
    told_missed: bool,
    capturing: Capturing,
}

fn files_of<'a>(folder: &'a Path, digests: &'a ImageDigests) -> ImageFiles<'a> {
    ImageFiles {
        folder,
        state: &digests.state,
        chunks: &digests.chunks,
    }
}

/// Talks with the daemon until it says Exit or is gone.
///
/// # Errors
/// The connection broke in another way than by the daemon's end.
pub fn run(daemon: Daemon) -> anyhow::Result<()> {
    let mut worker = Worker {
        daemon,
        callbacks: Arc::default(),
        site: None,
        faults: Faults::default(),
        devices: Vec::new(),
        names: Vec::new(),
        used: false,
        serving: None,
        vacated: None,
        staging: None,
        parked: false,
        back: None,
        returned: None,
        scratch: Scratch::default(),
        place: None,
        beside: None,
        preloaded: None,
        keeper: None,
        home: None,
        tier: None,
        behind: None,
        account: Account::default(),
        gate: None,
        background: None,
        guard: None,
        missed: None,
        told_missed: false,
        capturing: Capturing::default(),
    };
    loop {
        worker.look_after_program();
        worker.tell_missed();
        let error = match worker.daemon.recv(TURN) {
            Ok((ToWorker::Exit, _)) => {
                worker.let_end_be_noted();
                return Ok(());
            }
            Ok((request, fds)) => {
                let answer = worker
                    .handle(request, fds)
                    .unwrap_or_else(FromWorker::Failed);
                match worker.daemon.send(&answer, &[]) {
                    // Requests that the daemon sent before it ended are read first.
                    Err(error) if !error.is_closed() => error,
                    _ => continue,
                }
            }
            Err(error) if error.is_timeout() => continue,
            Err(error) => error,
        };
        // A daemon that stalls or breaks the protocol must not cost the program its GPU: only the connection ends.
        worker.daemon.shutdown();
        if let Some(daemon) = worker.find_daemon() {
            worker.daemon = daemon;
            continue;
        }
        if let Some(serving) = worker.serving.take() {
            // Only the program's end is waited for.
            let _ = serving.thread.join();
        }
        return if error.is_closed() {
            Ok(())
        } else {
            Err(error.into())
        };
    }
}

impl Worker {
    /// Waits until a traced session has written its trace, and one with common memory its profile, but not longer than the
    /// daemon waits.
    fn let_end_be_noted(&self) {
        let notes = |it: &&Serving| trace::is_on() || it.requests.learns.load(Ordering::Acquire);
        let Some(serving) = self.serving.as_ref().filter(notes) else {
            return;
        };
        serving.kicker.kick();
        serving.thread.ends_within(RECORD);
    }

    /// Waits for the next daemon; `None` when there is no session to keep any more.
    fn find_daemon(&mut self) -> Option<Daemon> {
        if self.vacated.is_some() {
            // The session's data has been saved: another worker will resume its program.
            return None;
        }
        let socket = PathBuf::from(std::env::var_os(ENV_SOCKET)?);
        let mut back = self.back.clone()?;
        self.give_up();
        let begun = Instant::now();
        let mut starter = Starter::new();
        // A daemon that refused this worker has closed the connection at once.
        let pause = match self.returned.replace(begun) {
            Some(last) if last.elapsed() < RETURN_PAUSE => RETURN_PAUSE,
            _ => RETURN_POLL,
        };
        loop {
            match &self.serving {
                Some(serving) => drop(serving.thread.ends_within(pause)),
                // Polled: a killed daemon leaves its socket behind, so only connecting shows whether a daemon listens.
                None => std::thread::sleep(pause),
            }
            self.look_after_program();
            let kept = self.parked && begun.elapsed() < KEPT && socket.parent()?.exists();
            if self.serving.is_none() && !kept {
                return None;
            }
            if self.serving.is_none() {
                starter.look();
            }
            back.serving = self.serving.is_some();
            // The next daemon must be told again.
            self.told_missed = false;
            if let Ok(daemon) = Daemon::connect(&socket, "daemon")
                && daemon.send(&FromWorker::Back(back.clone()), &[]).is_ok()
            {
                self.returned = Some(Instant::now());
                return Some(daemon);
            }
        }
    }

    /// Abandons the checkpoint that the last daemon has begun: there will be no image.
    fn give_up(&mut self) {
        self.capturing.abandon();
        if let Some(serving) = &self.serving {
            // An error means that there is no program any more, and then no stream is held.
            let _ = forsake(serving);
        }
        // It has deadlines of its own. There is no daemon to report the outcome to.
        let _ = self.wait_for_behind();
        if self.serving.is_none() {
            self.close_gate();
        }
    }

    fn handle(&mut self, request: ToWorker, fds: Vec<OwnedFd>) -> Result<FromWorker, Failure> {
        match request {
            ToWorker::Open {
                protocol,
                driver,
                soft,
                kernels_first,
            } => self.open(protocol, &driver, soft, kernels_first),
            ToWorker::Warm => Ok(self.warm()),
            ToWorker::Keep {
                store,
                copies,
                limit,
            } => {
                let folder = |path: PathBuf| (!path.as_os_str().is_empty()).then_some(path);
                let folders = Folders {
                    store: folder(store),
                    copies: folder(copies),
                };
                self.keep(folders, limit)
            }
            ToWorker::Attach => self.attach(fds),
            ToWorker::Hold(asked) => {
                self.look_after_program();
                hold(self.serving.as_ref(), asked)
            }
            ToWorker::Detach => self.detach(),
            ToWorker::Save { store, image } => self.save(&store, &image),
            ToWorker::Finish => self.finish(),
            ToWorker::Load {
                store,
                image,
                digests,
                pace,
                check,
                ignore_places,
            } => {
                if let Some(site) = &mut self.site {
                    site.live.other_places = ignore_places;
                }
                let image = files_of(&image, &digests);
                self.load(&store, image, (pace, check), &fds)
            }
            ToWorker::Preload {
                store,
                image,
                digests,
            } => self.preload(&store, files_of(&image, &digests), &fds),
            ToWorker::Common => self.common(fds),
            ToWorker::Restoring => Ok(self.restoring()),
            ToWorker::HostMemoryThere => Ok(self.host_memory_there()),
            ToWorker::Prepare {
                store,
                way,
                pool_bytes,
                validate,
            } => {
                self.look_after_program();
                self.whole()?;
                let serving = self.serving.as_ref();
                self.capturing
                    .prepare(serving, &store, way, pool_bytes, validate)
            }
            ToWorker::Ahead => self.capturing.ahead(self.serving.as_ref()),
            ToWorker::Begin { image } => self.begin(&image),
            ToWorker::Look => {
                let names = self.names.clone();
                self.capturing.look(|captured| {
                    let account = Account::of(&captured.stall, &captured.validation);
                    totals(names, captured.summary.clone(), &account)
                })
            }
            ToWorker::Abandon => {
                self.look_after_program();
                self.capturing.abandon();
                if self.serving.is_none() {
                    self.close_gate();
                }
                Ok(FromWorker::Abandoned)
            }
            ToWorker::Share { folder, number } => self.share(folder, number, fds),
            ToWorker::Describe => self.describe(),
            ToWorker::Vacate => self.vacate(),
            ToWorker::Exit => Err(failure(FailureKind::Internal, "Exit is handled before", "")),
        }
    }

    fn describe(&mut self) -> Result<FromWorker, Failure> {
        let home = self.home;
        if let Some(site) = &mut self.site {
            let summary = described(site, home);
            return Ok(FromWorker::Description(self.totals(summary)));
        }
        let Some(serving) = &self.serving else {
            return Err(failure(FailureKind::Internal, "there is no session", ""));
        };
        let summary = on_server(serving, move |server| described(&mut server.site, home))?;
        Ok(FromWorker::Description(self.totals(summary)))
    }

    fn totals(&self, summary: Summary) -> Totals {
        totals(self.names.clone(), summary, &Account::default())
    }
}

fn described(site: &mut Site, home: Option<ContextHandle>) -> Summary {
    Summary {
        free: site.free(home),
        ..Summary::of(&site.session)
    }
}

fn totals(devices: Vec<String>, summary: Summary, account: &Account) -> Totals {
    Totals {
        allocations: summary.allocations,
        device_bytes: summary.device_bytes,
        queued: summary.queued,
        memory: summary.memory,
        fetched: summary.fetched,
        free: summary.free,
        host_bytes: summary.host_bytes,
        objects: summary.objects,
        chunks: summary.chunks,
        written_bytes: summary.written_bytes,
        seconds: summary.seconds,
        devices,
        stall: account.stall.clone(),
        validation: account.validation.clone(),
        warnings: summary.warnings,
        steps: Vec::new(),
    }
}

/// Sends progress from whichever thread makes it, not too often.
struct Reporter<'a> {
    daemon: &'a Daemon,
    last: Mutex<Option<Instant>>,
}

impl<'a> Reporter<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        Self {
            daemon,
            last: Mutex::new(None),
        }
    }

    fn tell(&self, done: u64, total: u64) {
        let Some(mut last) = self.last.try_lock() else {
            return;
        };
        if last.is_some_and(|last| last.elapsed() < REPORT) {
            return;
        }
        *last = Some(Instant::now());
        // The answer to the request notices a daemon that is gone.
        let _ = self.daemon.send(&FromWorker::Progress { done, total }, &[]);
    }
}
