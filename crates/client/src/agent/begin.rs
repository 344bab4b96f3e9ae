//! Begins the session: connects with the daemon, starts the agent, and asks the worker for its devices.

use std::time::{Duration, Instant};

use fermata_abi::op::{Op, ReplyBody};
use fermata_abi::sys::driver::{
    CUDA_ERROR_NO_DEVICE, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_NOT_READY,
    CUDA_ERROR_UNKNOWN, CUresult,
};
use fermata_control::agent::{ENV_SOCKET, ENV_TOKEN, Visible};

use crate::agent::{self, Attached};
use crate::link;
use crate::link::hello::{NotWelcome, attach, visible};
use crate::link::wake;
use crate::notice;
use crate::object::devices::Devices;
use crate::object::session::{self, Session};
use crate::result::Result;
use crate::thread::exact;
use crate::thread::signal;
use crate::thread::tally;

/// How long the daemon may take to start a worker.
const START: Duration = Duration::from_secs(60);
/// Between two attempts to begin, while the session is being checkpointed.
const TURN: Duration = Duration::from_millis(20);
/// How long one checkpoint after the other may keep a process from beginning.
const TURN_TIME: Duration = Duration::from_secs(600);

/// Begins the session if this is the first call.
///
/// # Errors
/// The same error at every call if the session could not begin.
pub fn begin() -> Result {
    session::begin(start)
}

fn start() -> core::result::Result<Session, CUresult> {
    let visible = visible().devices;
    if names_none(&visible) {
        // As natively; a program that sees no GPU needs no worker.
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    let (Ok(path), Ok(token)) = (std::env::var(ENV_SOCKET), std::env::var(ENV_TOKEN)) else {
        return Err(CUDA_ERROR_SYSTEM_NOT_READY);
    };
    signal::asked().map_err(|wrong| {
        notice::write(&format!("the session does not begin: {wrong}"));
        CUDA_ERROR_SYSTEM_NOT_READY
    })?;
    wake::prepare();
    let connect = || -> core::result::Result<_, NotWelcome> {
        let control = Attached::connect(&path).map_err(|error| error.to_string())?;
        let (ends, _) = attach(&control, &token, false, START)?;
        link::install(ends).map_err(|error| error.to_string())?;
        Ok(control)
    };
    let control = in_turn(connect).map_err(|refusal| {
        // A list may name devices that do not exist; that is no failure of the system.
        let is_listed = matches!(visible, Visible::Listed(_));
        let no_device = is_listed && matches!(refusal, NotWelcome::NoDevice(_));
        let reason = String::from(refusal);
        notice::write(&format!("the session could not begin: {reason}"));
        match no_device {
            true => CUDA_ERROR_NO_DEVICE,
            false => CUDA_ERROR_SYSTEM_NOT_READY,
        }
    })?;
    let nothing = |_: &str| ();
    let devices = link::ask_long(&Op::Devices, nothing, |body| match body {
        ReplyBody::Devices(devices) => Ok(devices),
        _ => Err(CUDA_ERROR_UNKNOWN),
    })?;
    let devices = Devices::new(devices);
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
    Ok(Session::new(devices))
}

/// Whether a list begins with an entry that names no device, which hides all devices.
fn names_none(visible: &Visible) -> bool {
    match visible {
        Visible::All => false,
        Visible::Listed(list) => {
            let first = list.split(',').next().unwrap_or_default().trim();
            first.is_empty() || first.starts_with('-')
        }
    }
}

/// Connects as soon as no checkpoint of the session is under way, and it is not paused. Between two attempts no connection
/// is open, because CRIU cannot dump one.
fn in_turn<T>(
    connect: impl Fn() -> core::result::Result<T, NotWelcome>,
) -> core::result::Result<T, NotWelcome> {
    let mut until = Instant::now() + TURN_TIME;
    loop {
        match connect() {
            Ok(connected) => return Ok(connected),
            Err(refusal @ (NotWelcome::Because(_) | NotWelcome::NoDevice(_))) => {
                return Err(refusal);
            }
            Err(NotWelcome::Later) if Instant::now() > until => {
                return Err("checkpoints of the session do not end".to_owned().into());
            }
            Err(NotWelcome::Later) => {}
            // A pause ends when the user resumes the session.
            Err(NotWelcome::Paused) => until = Instant::now() + TURN_TIME,
        }
        // Polled: without a connection the daemon cannot notify this process.
        std::thread::sleep(TURN);
    }
}
