//! The conversation with the daemon: one request at a time, each answered.
//!
//! ```text
//!           Open           Attach            Detach
//!  Started ──────► Idle ──────────► Serving ──────────► Idle      Save, Load, Describe keep the state
//!                   ▲                  │ program gone
//!                   └──────────────────┘
//! ```
//! When the daemon is gone, the worker serves its program, and looks for the next daemon; it ends with the
//! program. A program that was detached then, for a checkpoint, is kept for some time, and the worker starts the next daemon for
//! it if no command does. A worker that has given back all of a paused session ends at once.
//!
//! Here: what is asked, and who answers it. `opening`: the driver, and what is ready before a program. `attaching`: the
//! thread that serves it. `saving`: an image of a stopped program. `capturing`: one behind a running program.
//! `loading`: a session from an image.

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
    Back, ENV_SOCKET, Failure, FailureKind, FromWorker, Hold, ImageDigests, ToWorker, Totals,
};
use fermata_device::ContextHandle;
use fermata_engine::restore::{Background, Guard, ImageFiles, Missed, Preloaded};
use fermata_engine::{EngineError, Gate, Site, Summary, Tier};
use parking_lot::Mutex;

use self::account::Account;
use self::capturing::Capturing;
use self::serving::{Serving, hold, on_server};
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

/// How often a wait for the daemon looks after the program.
const TURN: Duration = Duration::from_millis(200);
/// Progress is told at most this often.
const REPORT: Duration = Duration::from_millis(100);
/// The longest wait for what a session leaves behind: the record of a traced one, what was learnt of one that was restored.
const RECORD: Duration = Duration::from_secs(4);

/// How often a worker without a daemon looks for one.
const RETURN_POLL: Duration = Duration::from_millis(100);
/// How often, once a daemon has not wanted it.
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
    /// Whether a program or an image has been here.
    used: bool,
    serving: Option<Serving>,
    /// What is left of a session without its device memory; it goes with the process.
    vacated: Option<Site>,
    /// The staging area of the last attachment, for the next one.
    staging: Option<Staging>,
    /// Whether the program that was served last has let go of its ring, and may want to come back.
    parked: bool,
    /// What a later daemon is told.
    back: Option<Back>,
    /// When a daemon was looked for, or found, last.
    returned: Option<Instant>,
    /// Pinned buffers of the last attachment.
    scratch: Scratch,
    /// Where the ring of a loaded session's program will be.
    place: Option<RingPlace>,
    /// What makes a restored program's staging area ready.
    beside: Option<JoinHandle<Staging>>,
    /// The image whose objects have been made ahead, until it is loaded.
    preloaded: Option<Preloaded>,
    keeper: Option<Keeper>,
    /// The primary context of the first device, where host memory is registered.
    home: Option<ContextHandle>,
    tier: Option<Arc<Tier>>,
    /// What the last Save has left to do; its thread publishes and writes.
    behind: Option<JoinHandle<Result<Summary, EngineError>>>,
    /// What the last Save's copying ahead has cost, and how it was validated.
    account: Account,
    /// What the next attachment begins with.
    gate: Option<Box<dyn Gate>>,
    /// Data that comes while the program runs.
    background: Option<Background>,
    /// What watches memory that other sessions have, too, between attachments.
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
                    // What it has said before it went is read first.
                    Err(error) if !error.is_closed() => error,
                    _ => continue,
                }
            }
            Err(error) if error.is_timeout() => continue,
            Err(error) => error,
        };
        // A daemon that stalls or talks nonsense must not cost the program its GPU: what has come between ends the
        // connection, not the session.
        worker.daemon.shutdown();
        if let Some(daemon) = worker.find_daemon() {
            worker.daemon = daemon;
            continue;
        }
        if let Some(serving) = worker.serving.take() {
            // The program's own end is the only thing that is waited for.
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
    /// A session that is traced ends with its record, and one that has memory in common with what there is to learn of it; an
    /// unfinished one is not waited for longer than the daemon waits.
    fn let_end_be_noted(&self) {
        let notes = |it: &&Serving| trace::is_on() || it.requests.learns.load(Ordering::Acquire);
        let Some(serving) = self.serving.as_ref().filter(notes) else {
            return;
        };
        serving.kicker.kick();
        serving.thread.ends_within(RECORD);
    }

    /// The daemon that has taken the last one's place; `None` when there is no session to keep any more.
    fn find_daemon(&mut self) -> Option<Daemon> {
        if self.vacated.is_some() {
            // What it held is noted down: its program is resumed by another worker.
            return None;
        }
        let socket = PathBuf::from(std::env::var_os(ENV_SOCKET)?);
        let mut back = self.back.clone()?;
        self.give_up();
        let begun = Instant::now();
        let mut starter = Starter::new();
        // A daemon that did not want it has closed the connection at once.
        let pause = match self.returned.replace(begun) {
            Some(last) if last.elapsed() < RETURN_PAUSE => RETURN_PAUSE,
            _ => RETURN_POLL,
        };
        loop {
            match &self.serving {
                Some(serving) => drop(serving.thread.ends_within(pause)),
                // Polled: a daemon that was killed leaves a socket that nobody serves; only a connection tells them apart.
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
            // The next one asks, or is told.
            self.told_missed = false;
            if let Ok(daemon) = Daemon::connect(&socket, "daemon")
                && daemon.send(&FromWorker::Back(back.clone()), &[]).is_ok()
            {
                self.returned = Some(Instant::now());
                return Some(daemon);
            }
        }
    }

    /// Gives up what the last daemon has begun and cannot end: no image comes of it.
    fn give_up(&mut self) {
        self.capturing.abandon();
        // Without a program nothing is held.
        let _ = hold(self.serving.as_ref(), Hold::Off);
        // It has limits of its own; nobody is told how it ended.
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
            ToWorker::Share { folder } => self.share(folder),
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
        // A daemon that is gone is noticed when the operation is answered.
        let _ = self.daemon.send(&FromWorker::Progress { done, total }, &[]);
    }
}
