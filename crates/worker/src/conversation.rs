//! The conversation with the daemon: one request at a time, each answered.
//!
//! ```text
//!           Open           Attach            Detach
//!  Started ──────► Idle ──────────► Serving ──────────► Idle      Save, Load, Describe keep the state
//!                   ▲                  │ program gone
//!                   └──────────────────┘
//! ```
//! When the daemon is gone, the worker serves its program, and looks for the next daemon; it ends with the
//! program. A program that was detached then, for a checkpoint, is kept for some time, and the next daemon started for
//! it if nobody else does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermata_abi::op::DeviceInfo;
use fermata_control::Connection;
use fermata_control::PROTOCOL;
use fermata_control::worker::{
    Back, Device, ENV_SOCKET, Failure, FailureKind, FromWorker, TierState, ToWorker, Totals,
};
use fermata_device::{ContextHandle, DeviceFacts, Driver};
use fermata_engine::restore::Background;
use fermata_engine::{EngineError, Gate, HostCaller, Live, Site, Summary, Tier, protocol};
use fermata_state::Session;
use fermata_store::Store;
use fermata_wire::{Consumer, Kicker, Side};
use parking_lot::Mutex;

use crate::callbacks::Callbacks;
use crate::capturing::{Account, Capturing};
use crate::errors::Faults;
use crate::failure::{failure, from_engine, full_text};
use crate::keeper::Keeper;
use crate::layout::RingPlace;
use crate::loading::steps;
use crate::next_daemon::Starter;
use crate::output;
use crate::scratch::{Scratch, Staging};
use crate::serve::{Ended, Held, Requests, Server};
use crate::trace;

/// The worker's end of the conversation.
pub type Daemon = Connection<ToWorker, FromWorker>;

/// Bytes of host memory that may hold what waits for the store, beside staging buffers.
const HOST_BUFFER: &str = "FERMATA_HOST_BUFFER";
/// Bytes a second that saves write to storage at most.
const WRITE_RATE: &str = "FERMATA_WRITE_RATE";
/// How often a wait for the daemon looks after the program.
const TURN: Duration = Duration::from_millis(200);
/// Progress is told at most this often.
const REPORT: Duration = Duration::from_millis(100);
/// The longest wait for the record of a traced session.
const RECORD: Duration = Duration::from_secs(4);
/// The longest wait for the server to answer or stop.
const SERVER: Duration = Duration::from_secs(60);

/// How often a worker without a daemon looks for one.
const RETURN_POLL: Duration = Duration::from_millis(100);
/// How often, once a daemon has not wanted it.
const RETURN_PAUSE: Duration = Duration::from_secs(2);
/// How long a detached program's session is kept without a daemon.
const KEPT: Duration = Duration::from_secs(3600);

/// A program that is served, by a thread of its own.
pub(crate) struct Serving {
    thread: JoinHandle<Option<(Held, Ended)>>,
    pub requests: Arc<Requests>,
    pub kicker: Kicker,
}

pub(crate) struct Worker {
    pub(crate) daemon: Daemon,
    callbacks: Arc<Callbacks>,
    pub(crate) site: Option<Site>,
    pub(crate) faults: Faults,
    devices: Vec<DeviceInfo>,
    names: Vec<String>,
    /// Whether a program or an image has been here.
    pub(crate) used: bool,
    serving: Option<Serving>,
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
    pub(crate) place: Option<RingPlace>,
    /// What makes a restored program's staging area ready.
    pub(crate) beside: Option<JoinHandle<Staging>>,
    keeper: Option<Keeper>,
    /// The primary context of the first device, where host memory is registered.
    home: Option<ContextHandle>,
    tier: Option<Arc<Tier>>,
    /// What the last Save has left to do; its thread publishes and writes.
    behind: Option<JoinHandle<Result<Summary, EngineError>>>,
    /// What the last Save's copying ahead has cost, and what vouches for it.
    account: Account,
    /// What the next attachment begins with.
    pub(crate) gate: Option<Box<dyn Gate>>,
    /// Data that comes while the program runs.
    pub(crate) background: Option<Background>,
    capturing: Capturing,
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
        staging: None,
        parked: false,
        back: None,
        returned: None,
        scratch: Scratch::default(),
        place: None,
        beside: None,
        keeper: None,
        home: None,
        tier: None,
        behind: None,
        account: Account::default(),
        gate: None,
        background: None,
        capturing: Capturing::default(),
    };
    loop {
        worker.look_after_program();
        let error = match worker.daemon.recv(TURN) {
            Ok((ToWorker::Exit, _)) => {
                worker.let_record_be_written();
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
    /// A session that is traced ends with its record; an unfinished one is not waited for longer than the
    /// daemon waits.
    fn let_record_be_written(&self) {
        let Some(serving) = self.serving.as_ref().filter(|_| trace::is_on()) else {
            return;
        };
        serving.kicker.kick();
        let until = Instant::now() + RECORD;
        while !serving.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The daemon that has taken the last one's place; `None` when there is no session to keep any more.
    fn find_daemon(&mut self) -> Option<Daemon> {
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
            std::thread::sleep(pause);
            self.look_after_program();
            let kept = self.parked && begun.elapsed() < KEPT && socket.parent()?.exists();
            if self.serving.is_none() && !kept {
                return None;
            }
            if self.serving.is_none() {
                starter.look();
            }
            back.serving = self.serving.is_some();
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
            } => self.open(protocol, Path::new(&driver), soft, kernels_first),
            ToWorker::Warm => Ok(self.warm()),
            ToWorker::Keep { store, limit } => self.keep(PathBuf::from(store), limit),
            ToWorker::Attach => self.attach(fds),
            ToWorker::Detach => self.detach(),
            ToWorker::Save { store, image } => self.save(Path::new(&store), Path::new(&image)),
            ToWorker::Finish => self.finish(),
            ToWorker::Load { store, image, pace } => {
                self.load(Path::new(&store), Path::new(&image), pace, fds)
            }
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
                    .prepare(serving, Path::new(&store), way, pool_bytes, validate)
            }
            ToWorker::Ahead => self.capturing.ahead(self.serving.as_ref()),
            ToWorker::Begin { image } => self.begin(Path::new(&image)),
            ToWorker::Look => {
                let names = self.names.clone();
                self.capturing.look(|captured| {
                    let account = Account::of(&captured.stall, &captured.vouched);
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
            ToWorker::Describe => self.describe(),
            ToWorker::Exit => Err(failure(FailureKind::Internal, "Exit is handled before", "")),
        }
    }

    fn open(
        &mut self,
        protocol: u32,
        path: &Path,
        soft: bool,
        kernels_first: bool,
    ) -> Result<FromWorker, Failure> {
        if protocol != PROTOCOL {
            let message = format!(
                "the daemon speaks version {protocol} of the protocol, this worker {PROTOCOL}"
            );
            return Err(failure(
                FailureKind::Host,
                message,
                "install daemon and worker of one release",
            ));
        }
        if self.site.is_some() {
            return Err(failure(
                FailureKind::Internal,
                "the driver is open already",
                "",
            ));
        }
        let host = |error: &dyn std::error::Error| {
            failure(
                FailureKind::Host,
                full_text(error),
                "fermata doctor says what this machine can do",
            )
        };
        self.keeper = Some(Keeper::start().map_err(|error| host(&error))?);
        let driver = Arc::new(Driver::load(path).map_err(|error| host(&error))?);
        let facts: Vec<DeviceFacts> = (0..driver.device_count())
            .map(|index| driver.device_facts(index))
            .collect::<Result<_, _>>()
            .map_err(|error| host(&error))?;
        let callbacks = Arc::clone(&self.callbacks);
        let caller: HostCaller = Arc::new(move |id| callbacks.call(id));
        if !facts.is_empty() {
            // Held for the life of the process: a program finds the device's context ready.
            self.home = Some(driver.primary_context(0, 0).map_err(|error| host(&error))?);
        }
        let version = driver.version();
        let mut live = Live::new(driver, caller).map_err(|error| host(&error))?;
        live.device_hashes = !soft;
        let number = |name| std::env::var(name).ok()?.parse().ok();
        live.host_buffer = number(HOST_BUFFER).unwrap_or(live.host_buffer);
        live.write_rate = number(WRITE_RATE).unwrap_or(0);
        if let Some(home) = self.home.filter(|_| kernels_first && !soft) {
            live.load_hash_kernels(0, home)
                .map_err(|error| host(&error))?;
        }
        let recorded = facts.iter().map(|it| fermata_state::Device {
            name: it.name.clone(),
            uuid: it.uuid,
            memory: it.memory,
            compute_capability: it.compute_capability(),
        });
        self.site = Some(Site {
            session: Session::new(recorded.collect()),
            live,
        });
        self.devices = facts.iter().map(|it| device_info(it, version)).collect();
        self.names = facts.iter().map(|it| it.name.clone()).collect();
        let devices = facts.iter().map(|it| Device {
            name: it.name.clone(),
            uuid: it.uuid_text(),
            memory: it.memory,
            compute_capability: it.compute_capability(),
        });
        let devices: Vec<_> = devices.collect();
        self.back = Some(Back {
            protocol: PROTOCOL,
            driver: path.to_string_lossy().into_owned(),
            soft,
            kernels_first,
            devices: devices.clone(),
            driver_version: version,
            serving: false,
        });
        Ok(FromWorker::Ready {
            protocol: PROTOCOL,
            devices,
            driver_version: version,
        })
    }

    /// Has staging buffers made by the keeper; a software GPU's are made soon enough.
    fn warm(&self) -> FromWorker {
        if let (Some(site), Some(keeper), Some(home)) = (&self.site, &self.keeper, self.home)
            && site.live.device_hashes
        {
            let live = &site.live;
            keeper.pin(live.spare_staging.clone(), Arc::clone(&live.driver), home);
        }
        FromWorker::Warming
    }

    /// Begins to keep the tier; once begun, it stays as it is.
    fn keep(&mut self, store: PathBuf, limit: u64) -> Result<FromWorker, Failure> {
        if self.tier.is_none() {
            let early = || {
                failure(
                    FailureKind::Internal,
                    "Keep before Open, or without a GPU",
                    "",
                )
            };
            let (site, keeper) = (self.site.as_mut(), self.keeper.as_ref());
            let site = site.ok_or_else(early)?;
            let home = self.home.ok_or_else(early)?;
            let tier = Tier::new(Arc::clone(&site.live.driver), home, limit);
            keeper.ok_or_else(early)?.keep(Arc::clone(&tier), store);
            site.live.tier = Some(Arc::clone(&tier));
            self.tier = Some(tier);
        }
        let status = self.tier.as_ref().map(|tier| tier.status());
        let status = status.unwrap_or_default();
        Ok(FromWorker::Kept(fermata_control::worker::Tier {
            state: match status.state {
                fermata_engine::TierState::Complete => TierState::Complete,
                fermata_engine::TierState::Registering => TierState::Registering,
                fermata_engine::TierState::Paused => TierState::Paused,
                fermata_engine::TierState::Full => TierState::Full,
                fermata_engine::TierState::Failed => TierState::Failed,
            },
            registered: status.registered,
            ready: status.ready,
            missing: status.missing,
            limit: status.limit,
            trouble: status.trouble.unwrap_or_default(),
        }))
    }

    fn attach(&mut self, fds: Vec<OwnedFd>) -> Result<FromWorker, Failure> {
        let internal = |message: String| failure(FailureKind::Internal, message, "");
        self.look_after_program();
        if self.serving.is_some() {
            return Err(internal("a program is attached already".to_owned()));
        }
        let [ring, side, stdout]: [OwnedFd; 3] = fds
            .try_into()
            .map_err(|_| internal("Attach comes with three descriptors".to_owned()))?;
        let side = Arc::new(Side::new(side));
        drop(self.place.take());
        if let Some(thread) = self.beside.take() {
            self.staging = thread.join().ok();
        }
        let kept = self.take_staging(ring.as_fd());
        let consumer = match &kept {
            Some(staging) => Consumer::again(staging.area(), Arc::clone(&side)),
            None => Consumer::open(ring.as_fd(), Arc::clone(&side)),
        };
        let consumer = consumer.map_err(|error| {
            internal(format!(
                "cannot attach to the program's ring: {}",
                full_text(&error)
            ))
        })?;
        output::to_program(stdout.as_fd())
            .map_err(|error| internal(format!("cannot redirect output: {error}")))?;
        let requests = Arc::new(Requests::default());
        let own = Arc::clone(&requests);
        let (hand_over, taken) = mpsc::channel::<(Server, Consumer)>();
        let serve = move || {
            let (server, consumer) = taken.recv().ok()?;
            Some(server.run(consumer, &own))
        };
        // First the thread: where there is none, the session stays here, and the program may be attached later.
        let thread = serving_thread()
            .spawn(serve)
            .map_err(|error| internal(format!("cannot start a thread: {error}")))?;
        let site = self
            .site
            .take()
            .ok_or_else(|| internal("Attach before Open".to_owned()))?;
        self.used = true;
        let kicker = consumer.kicker();
        let faults = std::mem::take(&mut self.faults);
        let held = Held {
            site,
            faults,
            staging: kept.unwrap_or_else(|| Staging::new(consumer.staging())),
            scratch: std::mem::take(&mut self.scratch),
        };
        let server = Server::new(
            held,
            &consumer,
            side,
            Arc::clone(&self.callbacks),
            self.devices.clone(),
            self.gate.take(),
        );
        // The thread waits for it.
        let _ = hand_over.send((server, consumer));
        self.serving = Some(Serving {
            thread,
            requests,
            kicker,
        });
        Ok(FromWorker::Attached)
    }

    /// The staging area of the last attachment, if it is that of `ring`; another one is given back.
    fn take_staging(&mut self, ring: BorrowedFd<'_>) -> Option<Staging> {
        let mut staging = self.staging.take()?;
        if staging.area().is_of(ring) {
            return Some(staging);
        }
        if let Some(site) = &mut self.site
            && site.live.enter_any().is_ok()
        {
            // A dead context cannot give anything back, and ends with the process.
            let _ = staging.unregister(&site.live.driver);
            site.live.forget_current();
        }
        None
    }

    fn detach(&mut self) -> Result<FromWorker, Failure> {
        if let Some(serving) = &self.serving {
            serving.requests.stop.store(true, Ordering::Release);
            serving.kicker.kick();
            let until = Instant::now() + SERVER;
            while !serving.thread.is_finished() {
                if Instant::now() >= until {
                    return Err(failure(
                        FailureKind::Internal,
                        "the server does not stop",
                        "",
                    ));
                }
                std::thread::sleep(Duration::from_micros(200));
                serving.kicker.kick();
            }
        }
        self.look_after_program();
        Ok(FromWorker::Detached)
    }

    /// Takes the session back when serving has ended.
    fn look_after_program(&mut self) {
        if !self
            .serving
            .as_ref()
            .is_some_and(|serving| serving.thread.is_finished())
        {
            return;
        }
        let Some(serving) = self.serving.take() else {
            return;
        };
        let lost = |reason: String| FromWorker::Lost { reason };
        let told = match serving.thread.join() {
            Ok(Some((held, ended))) => {
                self.site = Some(held.site);
                self.faults = held.faults;
                self.staging = Some(held.staging);
                self.parked = matches!(ended, Ended::Detached | Ended::ProgramLeft);
                self.scratch = held.scratch;
                match ended {
                    Ended::Detached | Ended::ProgramLeft | Ended::ProgramGone => return,
                    Ended::Unfinished => lost(
                        "operations of the program were still waiting when it let go".to_owned(),
                    ),
                    Ended::Broken(error) => lost(format!(
                        "the program's ring is broken: {}",
                        full_text(&error)
                    )),
                }
            }
            Ok(None) | Err(_) => lost("the serving thread has panicked".to_owned()),
        };
        // A daemon that is gone is noticed by the next receive.
        let _ = self.daemon.send(&told, &[]);
    }

    pub(crate) fn idle(&mut self, operation: &str) -> Result<&mut Site, Failure> {
        self.look_after_program();
        if self.serving.is_some() {
            return Err(failure(
                FailureKind::Internal,
                format!("{operation} while the program is attached"),
                "",
            ));
        }
        let missing = || {
            failure(
                FailureKind::Internal,
                format!("{operation} without a session"),
                "",
            )
        };
        self.site.as_mut().ok_or_else(missing)
    }

    /// Takes the session as it is, for an image behind the program.
    fn begin(&mut self, image: &Path) -> Result<FromWorker, Failure> {
        self.sound()?;
        self.idle("Begin")?;
        let Some(mut site) = self.site.take() else {
            return self.describe();
        };
        site.live.forget_current();
        let begun = self.capturing.begin(&mut site, image);
        site.live.forget_current();
        self.site = Some(site);
        let (gate, answer) = begun?;
        self.gate = Some(gate);
        Ok(answer)
    }

    /// Closes a gate that no attachment has taken over.
    fn close_gate(&mut self) {
        if let (Some(mut gate), Some(site)) = (self.gate.take(), self.site.as_mut()) {
            site.live.forget_current();
            gate.close(site);
            site.live.forget_current();
        }
    }

    /// A session whose data is still coming cannot be saved.
    fn whole(&self) -> Result<(), Failure> {
        if self.background.as_ref().is_some_and(|it| !it.is_complete()) {
            return Err(failure(
                FailureKind::Locked,
                "the session's data is still coming from its image",
                "try again when everything is there",
            ));
        }
        Ok(())
    }

    /// A session whose context has been killed by a fault cannot be saved.
    fn sound(&self) -> Result<(), Failure> {
        match self.faults.any_fatal() {
            None => Ok(()),
            Some(error) => {
                let message = format!(
                    "a fault has ended the program's GPU context: {}",
                    error.text
                );
                let hint = "restore an earlier image";
                Err(failure(FailureKind::NotCheckpointable, message, hint))
            }
        }
    }

    fn save(&mut self, store: &Path, image: &Path) -> Result<FromWorker, Failure> {
        self.sound()?;
        self.idle("Save")?;
        self.wait_for_behind()?;
        self.whole()?;
        let Some(mut site) = self.site.take() else {
            return self.describe();
        };
        site.live.forget_current();
        let mut account = Account::default();
        let captured = {
            let report = Reporter::new(&self.daemon);
            let progress = |done, total| report.tell(done, total);
            let capturing = &mut self.capturing;
            Store::open(store, true)
                .map_err(Into::into)
                .and_then(|store| Ok((store, capturing.take_ahead()?)))
                .and_then(|(store, ahead)| {
                    if let Some(ahead) = &ahead {
                        account = Account::of(&ahead.stall, &ahead.vouched);
                    }
                    protocol::stop::capture(&mut site, &store, ahead, image, &progress)
                })
        };
        site.live.forget_current();
        let summary = Summary::of(&site.session);
        self.site = Some(site);
        let captured = captured.map_err(|error| from_engine(&error))?;
        let steps = steps(captured.steps());
        let thread = std::thread::Builder::new()
            .name("finish".to_owned())
            .spawn(move || captured.finish());
        let failed = |error| {
            let message = format!("cannot start a thread that finishes the image: {error}");
            failure(FailureKind::Internal, message, "")
        };
        self.behind = Some(thread.map_err(failed)?);
        self.account = account;
        Ok(FromWorker::Captured(Totals {
            steps,
            ..totals(self.names.clone(), summary, &self.account)
        }))
    }

    fn finish(&mut self) -> Result<FromWorker, Failure> {
        let missing = || failure(FailureKind::Internal, "Finish without a Save", "");
        let summary = self.wait_for_behind()?.ok_or_else(missing)?;
        let summary = summary.map_err(|error| from_engine(&error))?;
        Ok(FromWorker::Saved(totals(
            self.names.clone(),
            summary,
            &self.account,
        )))
    }

    /// The outcome of what the last Save has left to do, waited for; `None` if that was nothing.
    fn wait_for_behind(&mut self) -> Result<Option<Result<Summary, EngineError>>, Failure> {
        let Some(thread) = self.behind.take() else {
            return Ok(None);
        };
        // It has a limit for each of its steps.
        let outcome = thread.join().map_err(|_| {
            let message = "the thread that finishes the image has panicked";
            failure(FailureKind::Internal, message, "")
        })?;
        Ok(Some(outcome))
    }

    pub(crate) fn describe(&mut self) -> Result<FromWorker, Failure> {
        if let Some(site) = &self.site {
            return Ok(FromWorker::Description(
                self.totals(Summary::of(&site.session)),
            ));
        }
        let Some(serving) = &self.serving else {
            return Err(failure(FailureKind::Internal, "there is no session", ""));
        };
        let (sender, receiver) = mpsc::channel();
        serving.requests.describe.lock().push(sender);
        serving.kicker.kick();
        let summary = receiver.recv_timeout(Duration::from_secs(5));
        let summary = summary
            .map_err(|_| failure(FailureKind::Internal, "the server does not answer", ""))?;
        Ok(FromWorker::Description(self.totals(summary)))
    }

    pub(crate) fn totals(&self, summary: Summary) -> Totals {
        totals(self.names.clone(), summary, &Account::default())
    }
}

fn totals(devices: Vec<String>, summary: Summary, account: &Account) -> Totals {
    Totals {
        allocations: summary.allocations,
        device_bytes: summary.device_bytes,
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

/// The thread that serves, and the one that loads.
pub(crate) fn serving_thread() -> std::thread::Builder {
    std::thread::Builder::new()
        .name("serve".to_owned())
        .stack_size(2 << 20)
}

/// Sends progress from whichever thread makes it, not too often.
pub(crate) struct Reporter<'a> {
    daemon: &'a Daemon,
    last: Mutex<Option<Instant>>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(daemon: &'a Daemon) -> Self {
        Self {
            daemon,
            last: Mutex::new(None),
        }
    }

    pub(crate) fn tell(&self, done: u64, total: u64) {
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

fn device_info(facts: &DeviceFacts, driver_version: i32) -> DeviceInfo {
    DeviceInfo {
        name: facts.name.clone(),
        uuid: facts.uuid,
        memory: facts.memory,
        bus_id: facts.bus_id.clone(),
        attributes: facts.attributes.clone(),
        peers: facts.peers.clone(),
        driver_version,
    }
}
