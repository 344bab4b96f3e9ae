//! The conversation between the daemon and the agent thread inside the program.
//!
//! ```text
//!   agent                          daemon
//!     │ Hello ──────────────────────► │   (first use of CUDA, or after Wake)
//!     │ ◄──────────────────── Welcome │   + descriptors: ring, side socket
//!     │            running            │
//!     │ ◄──────────────────── Prepare │   memory for what is staged, while the program still runs; not answered
//!     │ ◄──────────────────── Quiesce │
//!     │ Quiesced / Refused ─────────► │   every thread parked, ring drained, GPU idle
//!     │ ◄──────── Detach   or  Resume │
//!     │ Detached ───────────────────► │   then no descriptor, no mapping, no socket is left
//!     │        (CRIU dumps)           │
//!     │ ◄─ wake block written through /proc/PID/mem ─┘
//!     │ Hello { reattach } ─────────► │
//!     │ ◄──────────────────── Welcome │
//!     │ Mapped ─────────────────────► │   where several processes of a session are to go on at one moment
//!     │ ◄───────────────────── Resume │
//!     │ Resumed ────────────────────► │
//! ```

use serde::{Deserialize, Serialize};

/// The device with which a worker begins: variable of a worker whose process is not the first rank of its host.
pub const FIRST_DEVICE: &str = "FERMATA_FIRST_DEVICE";

/// The GPUs that a process is to see, by its `CUDA_VISIBLE_DEVICES`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Visible {
    /// It is not set: all.
    All,
    /// Its value: ordinals or UUIDs, in the order of the process's own numbers for them.
    Listed(String),
}

/// What a process is to see, and where it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenSight", into = "WrittenSight")]
pub struct Sight {
    /// Its GPUs.
    pub devices: Visible,
    /// The one that it is expected to use, by its own numbers: a launcher has given it this place among the ranks of the host. If
    /// there are not so many, its worker begins with the first, and this is 0 once that is known.
    pub first: u32,
}

/// The GPU, of so many, with which a worker begins that is to begin with this one.
pub fn first_among(first: u32, gpus: usize) -> u32 {
    match (first as usize) < gpus {
        true => first,
        false => 0,
    }
}

/// As it is written; earlier releases know the first form only.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenSight {
    Plain(Visible),
    Ranked { devices: Visible, first: u32 },
}

impl From<WrittenSight> for Sight {
    fn from(written: WrittenSight) -> Self {
        let (devices, first) = match written {
            WrittenSight::Plain(devices) => (devices, 0),
            WrittenSight::Ranked { devices, first } => (devices, first),
        };
        Self { devices, first }
    }
}

impl From<Sight> for WrittenSight {
    fn from(Sight { devices, first }: Sight) -> Self {
        match first {
            0 => Self::Plain(devices),
            _ => Self::Ranked { devices, first },
        }
    }
}

/// From the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// The first message on a connection.
    Hello {
        /// [`crate::PROTOCOL`].
        protocol: u32,
        /// The process id as the program sees it.
        pid: u32,
        /// The session's token, from the environment or the wake block.
        token: String,
        /// Address of the [`wake_block`] in the program.
        wake_block: u64,
        /// Whether this follows a detachment (checkpoint or restore).
        reattach: bool,
        /// Whether it says [`FromAgent::Mapped`] after a Welcome that does not resume.
        #[serde(default)]
        says_mapped: bool,
        /// Whether it knows [`ToAgent::Prepare`].
        #[serde(default)]
        prepares: bool,
        /// What it is to see; one that comes back has said it before.
        #[serde(default)]
        visible: Option<Sight>,
    },
    /// All threads are parked, the ring is drained, the GPU idle.
    Quiesced {
        /// Threads parked.
        threads: u32,
        /// Nanoseconds from the request.
        nanoseconds: u64,
        /// Of these, until every thread was parked; then what they had launched came to its end.
        #[serde(default)]
        parking_nanoseconds: u64,
    },
    /// The program cannot be stopped now, and goes on as before.
    Refused {
        /// Why, naming the thread or object.
        reason: String,
        /// What the user can do.
        hint: String,
    },
    /// Nothing of ours that CRIU cannot dump is left. The connection ends here.
    Detached,
    /// Everything shared is mapped again; the threads wait for Resume.
    Mapped,
    /// The threads run from now on. It is said just before they do: the program may end as soon as it runs.
    Resumed,
    /// The first message on a connection to a daemon that has taken an ended one's place: the program is
    /// attached to its worker and runs. It is not answered; a daemon that does not know the session closes the
    /// connection.
    Back {
        /// [`crate::PROTOCOL`].
        protocol: u32,
        /// The process id as the program sees it.
        pid: u32,
        /// The session's token.
        token: String,
        /// Address of the [`wake_block`] in the program.
        wake_block: u64,
        /// Whether it knows [`ToAgent::Prepare`].
        #[serde(default)]
        prepares: bool,
    },
}

/// To the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Answer to Hello; with it come two descriptors: the ring's memory and the side socket.
    Welcome {
        /// [`crate::PROTOCOL`].
        protocol: u32,
        /// Whether the program's threads are to be woken once attached.
        resume: bool,
    },
    /// The session cannot start; every CUDA call of the program fails with this `CUresult`.
    Reject {
        /// A `CUresult`.
        status: u32,
        /// Why.
        reason: String,
    },
    /// A checkpoint of the session is under way, in which no process may hold this connection: close it, and say Hello
    /// again in some milliseconds.
    Later,
    /// As [`Self::Later`], because the session is paused, for as long as its user wants.
    Paused,
    /// A stop is about to begin: make ready what takes time, as far as it is known. Not answered. For agents that say that they
    /// know it.
    Prepare,
    /// Park every thread, drain, synchronise.
    Quiesce {
        /// Give up after this many milliseconds.
        deadline_ms: u64,
    },
    /// Let go of everything shared.
    Detach,
    /// Wake the threads without having detached.
    Resume,
}

/// `WakeBlock::state`: nothing to do.
pub const WAKE_IDLE: u32 = 0;
/// `WakeBlock::state`: connect to `socket` and say Hello with `token`.
pub const WAKE_REATTACH: u32 = 1;
/// `WakeBlock::state`: the agent has been told to detach, and waits for [`WAKE_REATTACH`].
pub const WAKE_WAITING: u32 = 2;
/// `WakeBlock::says`: the agent says [`WAKE_WAITING`]; 0 in programs of earlier releases.
pub const WAKE_SAYS: u32 = 1;

/// A static in the program through which the daemon reaches a detached agent: it writes `socket`
/// and `token`, then `state`, through `/proc/PID/mem`; the agent polls `state` once a millisecond.
///
/// | offset | bytes | field |
/// | --- | --- | --- |
/// | 0 | 8 | magic `FERMATAW` |
/// | 8 | 4 | state |
/// | 12 | 4 | says |
/// | 16 | 108 | socket path, NUL-terminated |
/// | 124 | 68 | token, NUL-terminated |
pub mod wake_block {
    /// First eight bytes.
    pub const MAGIC: &[u8; 8] = b"FERMATAW";
    /// Offset of the state word.
    pub const STATE: u64 = 8;
    /// Offset of the word that tells what the agent says by itself.
    pub const SAYS: u64 = 12;
    /// Offset of the socket path.
    pub const SOCKET: u64 = 16;
    /// Room for the socket path, its NUL included.
    pub const SOCKET_BYTES: usize = 108;
    /// Offset of the token.
    pub const TOKEN: u64 = 124;
    /// Room for the token, its NUL included.
    pub const TOKEN_BYTES: usize = 68;
    /// Bytes of the block.
    pub const BYTES: usize = 192;
}

/// Environment variable: path of the daemon's agent socket.
pub const ENV_SOCKET: &str = "FERMATA_AGENT_SOCKET";
/// Environment variable: the session's token.
pub const ENV_TOKEN: &str = "FERMATA_SESSION_TOKEN";
/// First argument of the process 1 that the daemon starts for a restored program. Its third is the path of the daemon's
/// agent socket: the program's environment names that of the daemon that had started it first.
pub const INIT_ARGUMENT: &str = "__init";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_sees_is_written_as_before_unless_it_has_a_rank() {
        let sight = |devices, first| Sight { devices, first };
        for (sight, json) in [
            (sight(Visible::All, 0), r#""All""#),
            (
                sight(Visible::Listed("2,3".into()), 0),
                r#"{"Listed":"2,3"}"#,
            ),
            (sight(Visible::All, 3), r#"{"devices":"All","first":3}"#),
            (
                sight(Visible::Listed("1".into()), 1),
                r#"{"devices":{"Listed":"1"},"first":1}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&sight).expect("encoded"), json);
            let back: Sight = serde_json::from_str(json).expect("decoded");
            assert_eq!(back, sight);
        }
    }
}
