//! The handshake with the daemon: the library sends Hello, and receives the descriptors that connect it with a worker.

use std::sync::Arc;
use std::time::Duration;

use fermata_abi::sys::driver::CUDA_ERROR_NO_DEVICE;
use fermata_control::agent::{FromAgent, Sight, ToAgent, Visible};
use fermata_control::{Connection, PROTOCOL};
use fermata_wire::Side;

use crate::link::Ends;
use crate::link::wake;

/// The agent's connection to the daemon.
pub type Control = Connection<ToAgent, FromAgent>;

/// The beginning of the reason when the daemon has rejected the program for good.
pub const REFUSED: &str = "the daemon refused";

/// Why there is no Welcome.
pub enum NotWelcome {
    /// Another process of the session is being checkpointed.
    Later,
    /// The session is paused.
    Paused,
    /// Another reason, in words for the notice file.
    Because(String),
    /// There is no device for it, in words.
    NoDevice(String),
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
            NotWelcome::Because(reason) | NotWelcome::NoDevice(reason) => reason,
        }
    }
}

/// Variables in which launchers give a process its place among the ranks of this host: torchrun and those like it, Open MPI, MPICH
/// and its kin, MVAPICH, Slurm.
const RANKS: [&str; 5] = [
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
];

/// What this process is to see, read at run time because the program may have set the variables itself.
pub fn visible() -> Sight {
    let devices = match std::env::var_os("CUDA_VISIBLE_DEVICES") {
        Some(list) => Visible::Listed(list.to_string_lossy().into_owned()),
        None => Visible::All,
    };
    let mut ranks = RANKS
        .iter()
        .filter_map(|name| std::env::var(name).ok()?.parse().ok());
    let first = ranks.next().unwrap_or(0);
    Sight { devices, first }
}

/// Sends Hello. Returns the link's ends that come with the Welcome, and whether threads are to be woken.
///
/// # Errors
/// The daemon's refusal, or a failure of the connection.
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
        prepares: true,
        visible: (!reattach).then(visible),
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
        ToAgent::Reject { status, reason } => {
            let reason = format!("{REFUSED}: {reason}");
            return Err(match status {
                CUDA_ERROR_NO_DEVICE => NotWelcome::NoDevice(reason),
                _ => NotWelcome::Because(reason),
            });
        }
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
