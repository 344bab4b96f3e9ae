//! The session: one per process, begun by `cuInit`, for good.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fermata_abi::op::{Op, ReplyBody};
use fermata_abi::sys::driver::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_NOT_READY,
    CUDA_ERROR_UNKNOWN, CUresult,
};
use fermata_control::agent::{ENV_SOCKET, ENV_TOKEN, FromAgent, ToAgent};
use fermata_control::{Connection, PROTOCOL};
use fermata_wire::Side;

use crate::agent;
use crate::array::Arrays;
use crate::context::Contexts;
use crate::devices::Devices;
use crate::entry::Result;
use crate::event::Events;
use crate::graphs::Graphs;
use crate::link::{self, Ends};
use crate::managed::Managed;
use crate::mipmap::Mipmaps;
use crate::mirror::Mirror;
use crate::module::Modules;
use crate::physical::PhysicalMemory;
use crate::pool::Pools;
use crate::reference::References;
use crate::shared::OpenedMemory;
use crate::stream::Streams;
use crate::texture::Textures;
use crate::{exact, notice, signal, tally, wake};

/// The agent's connection to the daemon.
pub type Control = Connection<ToAgent, FromAgent>;

/// How the reason begins when the daemon has rejected the program for good.
pub const REFUSED: &str = "the daemon refused";

/// How long the daemon may take to start a worker.
const START: Duration = Duration::from_secs(60);
/// Between two attempts to begin, while the session is being checkpointed.
const TURN: Duration = Duration::from_millis(20);
/// How long one checkpoint after the other may keep a process from beginning.
const TURN_TIME: Duration = Duration::from_secs(600);

/// Everything the library knows of the program's CUDA objects.
#[derive(Debug)]
pub struct Session {
    /// The devices the program may see.
    pub devices: Devices,
    /// Contexts.
    pub contexts: Contexts,
    /// Modules, libraries, functions and kernels.
    pub modules: Modules,
    /// Addresses.
    pub memory: Mirror,
    /// Physical memory.
    pub physical: PhysicalMemory,
    /// Memory of other processes.
    pub opened: OpenedMemory,
    /// Memory pools.
    pub pools: Pools,
    /// Arrays.
    pub arrays: Arrays,
    /// Texture and surface objects.
    pub textures: Textures,
    /// Texture and surface references.
    pub references: References,
    /// Arrays with levels.
    pub mipmaps: Mipmaps,
    /// Streams.
    pub streams: Streams,
    /// Events.
    pub events: Events,
    /// Graphs.
    pub graphs: Graphs,
    /// Managed variables.
    pub managed: Managed,
}

static SESSION: OnceLock<core::result::Result<Session, CUresult>> = OnceLock::new();

/// Begins the session if this is the first call.
///
/// # Errors
/// The same error at every call if the session could not begin.
pub fn begin() -> Result {
    SESSION
        .get_or_init(start)
        .as_ref()
        .map(|_| ())
        .map_err(|status| *status)
}

/// The session, if it has begun and its worker lives.
///
/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED` before `cuInit`; the sticky error of a session whose worker is lost.
#[inline]
pub fn session() -> Result<&'static Session> {
    link::check()?;
    match SESSION.get() {
        Some(Ok(session)) => Ok(session),
        Some(Err(status)) => Err(*status),
        None => Err(CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// The session as the agent sees it: whatever state it is in.
pub fn begun() -> Option<&'static Session> {
    SESSION.get().and_then(|session| session.as_ref().ok())
}

fn start() -> core::result::Result<Session, CUresult> {
    let (Ok(path), Ok(token)) = (std::env::var(ENV_SOCKET), std::env::var(ENV_TOKEN)) else {
        return Err(CUDA_ERROR_SYSTEM_NOT_READY);
    };
    signal::asked().map_err(|wrong| {
        notice::write(&format!("the session does not begin: {wrong}"));
        CUDA_ERROR_SYSTEM_NOT_READY
    })?;
    wake::prepare();
    let connect = || -> core::result::Result<_, NotWelcome> {
        let control =
            Control::connect(path.as_ref(), "fermatad").map_err(|error| error.to_string())?;
        let (ends, _) = attach(&control, &token, false, START)?;
        link::install(ends).map_err(|error| error.to_string())?;
        Ok(control)
    };
    let control = in_turn(connect).map_err(|reason| {
        notice::write(&format!("the session could not begin: {reason}"));
        CUDA_ERROR_SYSTEM_NOT_READY
    })?;
    let nothing = |_: &str| ();
    let devices = link::ask_long(&Op::Devices, nothing, |body| match body {
        ReplyBody::Devices(devices) => Ok(devices),
        _ => Err(CUDA_ERROR_UNKNOWN),
    })?;
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let devices = Devices::new(devices, visible.as_deref());
    exact::arm();
    tally::arm();
    let home = wake::Summons {
        socket: path,
        token,
    };
    agent::start(control, home).map_err(|error| {
        let signal = signal::chosen();
        notice::write(&format!(
            "the session does not begin: its agent cannot start or take signal {signal} ({error}); \
             FERMATA_PARK_SIGNAL names another"
        ));
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    })?;
    Ok(Session {
        devices,
        contexts: Contexts::default(),
        modules: Modules::default(),
        memory: Mirror::default(),
        physical: PhysicalMemory::default(),
        opened: OpenedMemory::default(),
        pools: Pools::default(),
        arrays: Arrays::default(),
        textures: Textures::default(),
        references: References::default(),
        mipmaps: Mipmaps::default(),
        streams: Streams::default(),
        events: Events::default(),
        graphs: Graphs::default(),
        managed: Managed::default(),
    })
}

/// Why there is no Welcome.
pub enum NotWelcome {
    /// Another process of the session is being checkpointed.
    Later,
    /// The session is paused.
    Paused,
    /// In words, for the notice file.
    Because(String),
}

impl From<String> for NotWelcome {
    fn from(reason: String) -> Self {
        Self::Because(reason)
    }
}

impl From<NotWelcome> for String {
    fn from(refusal: NotWelcome) -> Self {
        match refusal {
            NotWelcome::Later => "a checkpoint of the session is under way".to_owned(),
            NotWelcome::Paused => "the session is paused".to_owned(),
            NotWelcome::Because(reason) => reason,
        }
    }
}

/// Connects as soon as no checkpoint of the session is under way, and it is not paused. Between two attempts no connection is open, since CRIU
/// cannot dump one.
fn in_turn<T>(
    connect: impl Fn() -> core::result::Result<T, NotWelcome>,
) -> core::result::Result<T, String> {
    let mut until = Instant::now() + TURN_TIME;
    loop {
        match connect() {
            Ok(connected) => return Ok(connected),
            Err(NotWelcome::Because(reason)) => return Err(reason),
            Err(NotWelcome::Later) if Instant::now() > until => {
                return Err("checkpoints of the session do not end".to_owned());
            }
            Err(NotWelcome::Later) => {}
            // It ends when its user says so.
            Err(NotWelcome::Paused) => until = Instant::now() + TURN_TIME,
        }
        // Polled: without a connection the daemon cannot tell.
        std::thread::sleep(TURN);
    }
}

/// Says Hello; what comes with the Welcome, and whether threads are to be woken.
///
/// # Errors
/// What the daemon says, or why it cannot be understood.
pub fn attach(
    control: &Control,
    token: &str,
    reattach: bool,
    timeout: Duration,
) -> core::result::Result<(Ends, bool), NotWelcome> {
    let hello = FromAgent::Hello {
        protocol: PROTOCOL,
        pid: std::process::id(),
        token: token.to_owned(),
        wake_block: wake::address(),
        reattach,
        says_mapped: true,
    };
    control
        .send(&hello, &[])
        .map_err(|error| error.to_string())?;
    let (answer, fds) = control.recv(timeout).map_err(|error| error.to_string())?;
    let resume = match answer {
        ToAgent::Welcome {
            protocol: PROTOCOL,
            resume,
        } => resume,
        ToAgent::Welcome { protocol, .. } => {
            let reason = format!("the daemon speaks protocol {protocol}, this library {PROTOCOL}");
            return Err(reason.into());
        }
        ToAgent::Reject { reason, .. } => return Err(format!("{REFUSED}: {reason}").into()),
        ToAgent::Later => return Err(NotWelcome::Later),
        ToAgent::Paused => return Err(NotWelcome::Paused),
        _ => {
            return Err("the daemon did not answer Hello with Welcome"
                .to_owned()
                .into());
        }
    };
    let [memory, side]: [_; 2] = fds
        .try_into()
        .map_err(|_| "the daemon's Welcome lacks its two descriptors".to_owned())?;
    let side = Arc::new(Side::new(side));
    Ok((Ends { memory, side }, resume))
}
