//! The conversation between a user's tool (`fermata`) and the daemon.
//!
//! ```text
//!   tool                                   daemon
//!     │ Request { protocol, verb } ──────────► │   (+ standard input for Run)
//!     │ ◄──────────────────────── Progress *   │
//!     │ ◄─────────────── one answer, or Failed │
//!     │ Request ...                            │
//! ```
//! A connection carries one request at a time; closing it does not undo what was asked for, except
//! that a `Wait` ends.

use std::path::PathBuf;

pub use fermata_terms::{Mode, Then};
use serde::{Deserialize, Serialize};

pub use crate::memory::{DeviceMemory, HostMemory, SessionMemory};
pub use crate::pause::{Pause, PausedData, Resume};
pub use crate::spare::{SpareKind, SpareWorker, SpareWorkers};
pub use crate::text::Text;
pub use crate::worker::{
    Device, Failure, FailureKind, LoadCheck, Miss, PrefetchOrder, Stall, Timeline, Totals,
    Validate, Validation,
};

/// Name of the daemon's socket for users in its runtime folder.
pub const SOCKET: &str = "fermatad.sock";
/// Exit status of a daemon that finds another one in its folder, or the rest of one: the command that started it looks again
/// (`EX_TEMPFAIL` of sysexits.h).
pub const STATUS_TAKEN: u8 = 75;
/// Environment variable: the daemon's runtime folder.
pub const ENV_RUNTIME_DIR: &str = "FERMATA_RUNTIME_DIR";
/// Environment variable: the folder of images.
pub const ENV_IMAGE_DIR: &str = "FERMATA_IMAGE_DIR";
/// Environment variable: the folder Fermata is installed in.
pub const ENV_HOME: &str = "FERMATA_HOME";
/// Environment variable: the folder of what sessions print.
pub const ENV_LOG_DIR: &str = "FERMATA_LOG_DIR";

/// From the tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// What to do.
    pub verb: Verb,
}

impl Request {
    /// A request of this version.
    pub fn new(verb: Verb) -> Self {
        Self {
            protocol: crate::PROTOCOL,
            verb,
        }
    }
}

/// What the tool asks for, and in brackets what the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Start a program [`FromDaemon::Session`]. A descriptor sent along becomes its standard input, if it is a file, a
    /// pipe or a device without a terminal; otherwise that is `/dev/null`.
    Run(Run),
    /// List sessions [`FromDaemon::Sessions`].
    Ps,
    /// What memory the sessions take that have not ended [`FromDaemon::Memory`].
    Memory,
    /// The workers that wait for sessions [`FromDaemon::SpareWorkers`].
    SpareWorkers,
    /// One session, with the path of its log [`FromDaemon::Session`].
    Session {
        /// Its name.
        name: String,
    },
    /// Send a signal to the session's program and its children [`FromDaemon::Done`]. With
    /// SIGKILL the answer comes when nothing of the session is left.
    Kill {
        /// The session's name.
        name: String,
        /// Signal number.
        signal: i32,
    },
    /// Wait until the program has ended [`FromDaemon::Session`].
    Wait {
        /// The session's name.
        name: String,
    },
    /// Take an image [`FromDaemon::Checkpointed`].
    Checkpoint(Checkpoint),
    /// Start sessions from an image [`FromDaemon::Restored`]. The reading end of a pipe sent along becomes the standard
    /// input of the one session, if that was an open pipe at the checkpoint.
    Restore(Restore),
    /// Give back the GPU memory of a session, whose program stands still from then on [`FromDaemon::Paused`].
    Pause(Pause),
    /// Let a paused session go on [`FromDaemon::Resumed`].
    Resume(Resume),
    /// Where a session's processes listen [`FromDaemon::Listening`].
    Listening {
        /// The session's name.
        name: String,
    },
    /// Make ready for an image's next restore [`FromDaemon::Warmed`].
    Warm {
        /// As [`Checkpoint::output`].
        image: Text,
        /// As [`Restore::trust_owner`].
        #[serde(default)]
        trust_owner: bool,
        /// As [`Restore::gpus`].
        #[serde(default)]
        gpus: Option<String>,
    },
    /// What this host, or one session, can and cannot do [`FromDaemon::Report`].
    Doctor {
        /// A session; none for the host.
        name: Option<String>,
    },
    /// The daemon itself [`FromDaemon::Status`].
    Status,
    /// End the daemon [`FromDaemon::Done`]. Refused while sessions run, unless `force`, which kills
    /// them.
    Shutdown {
        /// Kill running sessions.
        force: bool,
    },
    /// End the daemon, and leave its sessions to the next one [`FromDaemon::Done`]. Refused while a session is being checkpointed,
    /// restored, paused or resumed.
    Leave,
}

/// Which driver a session uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// The GPU if there is one, softgpu else; at restore as it was at the checkpoint.
    #[default]
    Auto,
    /// The GPU.
    Gpu,
    /// softgpu.
    Soft,
}

/// Phase of a [`Progress`] that comes again and again while a checkpoint waits for the program's threads to stop; with
/// ` for ` and more words behind it while it waits for what the device is at, and the program goes on.
pub const WAITING: &str = "waiting";

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Program and arguments; the program is looked up in the `PATH` of `env`.
    pub argv: Vec<Text>,
    /// Working folder.
    pub cwd: Text,
    /// The whole environment.
    pub env: Vec<(Text, Text)>,
    /// The session's name; else one is made from the program's.
    pub name: Option<String>,
    /// Which driver.
    pub device: DeviceChoice,
    /// File mode creation mask of the program.
    #[serde(default)]
    pub umask: Option<u32>,
    /// Sessions of more priority get device memory from those of less.
    #[serde(default)]
    pub priority: i32,
}

/// An image to take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// A session's name, or a process id: inside a session, or of a program that Fermata has not started.
    pub session: String,
    /// The image's folder: a path if it contains a slash, else a name in the daemon's folder of
    /// images; none for SESSION-1, SESSION-2, ...
    pub output: Option<Text>,
    /// Protocol.
    pub mode: Mode,
    /// What then.
    pub then: Then,
    /// Bytes of each device's memory that `cow` may set aside (PhoenixOS, section 4.2); none for a part of what is free.
    #[serde(default)]
    pub pool_bytes: Option<u64>,
    /// How mis-speculations are found.
    #[serde(default)]
    pub validate: Validate,
    /// TCP connections whose other end is outside the session are closed in the image, instead of refused.
    #[serde(default)]
    pub tcp_close: bool,
}

/// The most sessions that one [`Restore`] starts.
pub const MOST_COPIES: u32 = 256;

/// An image to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// As [`Checkpoint::output`].
    pub image: Text,
    /// The session's name, else that of the recorded one if it is free, else a numbered one. With
    /// `copies` above one the sessions are NAME-1, NAME-2, ...
    pub name: Option<String>,
    /// Which driver.
    pub device: DeviceChoice,
    /// How many sessions; at least 1.
    pub copies: u32,
    /// Read everything before the program runs.
    pub eager: bool,
    /// Else the order of device data that no operation waits for.
    #[serde(default)]
    pub order: PrefetchOrder,
    /// What names kernels that use data before it is there.
    #[serde(default)]
    pub check: LoadCheck,
    /// Go on although regular files of the program have changed since.
    pub ignore_changed_files: bool,
    /// Go on although the multiprocessors of a device lie elsewhere than the program was told.
    #[serde(default)]
    pub ignore_places: bool,
    /// Take an image and a store that others own, or can write to.
    #[serde(default)]
    pub trust_owner: bool,
    /// Each session gets a network of its own, in which there is nothing but itself.
    #[serde(default)]
    pub own_network: bool,
    /// The sessions are ended when the connection closes that has asked for them, and forgotten if they have not ended
    /// before by themselves. Files that the program has open for writing may have changed: earlier ones have written to them.
    #[serde(default)]
    pub leased: bool,
    /// As [`Run::priority`]; none for that of the session at its checkpoint.
    #[serde(default)]
    pub priority: Option<i32>,
    /// The GPUs that it gets, as `CUDA_VISIBLE_DEVICES` names them, in the order of the program's numbers for them; none for those
    /// named so at its checkpoint.
    #[serde(default)]
    pub gpus: Option<String>,
}

impl Restore {
    /// One session from `image`, with no option set.
    pub fn of(image: impl Into<Text>) -> Self {
        Self {
            image: image.into(),
            name: None,
            device: DeviceChoice::Auto,
            copies: 1,
            eager: false,
            order: PrefetchOrder::default(),
            check: LoadCheck::default(),
            ignore_changed_files: false,
            ignore_places: false,
            trust_owner: false,
            own_network: false,
            leased: false,
            priority: None,
            gpus: None,
        }
    }
}

/// A socket at which a program listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    /// A TCP socket.
    Tcp(std::net::SocketAddr),
    /// A Unix socket of the stream type with a path, or with a name that begins with `@` and is no file.
    Unix(Text),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => f.write_str(&path.lossy()),
        }
    }
}

/// From the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// How far a request is.
    Progress(Progress),
    /// A session.
    Session(Session),
    /// All sessions.
    Sessions(Vec<Session>),
    /// An image was taken.
    Checkpointed(Checkpointed),
    /// Sessions were started from an image.
    Restored(Restored),
    /// A session is paused.
    Paused(Paused),
    /// A paused session goes on.
    Resumed(Resumed),
    /// What memory sessions take.
    Memory(Vec<SessionMemory>),
    /// The workers that wait for sessions.
    SpareWorkers(SpareWorkers),
    /// Where a session's processes listen.
    Listening(Vec<Endpoint>),
    /// An image is kept in memory.
    Warmed(Warmed),
    /// Checks.
    Report(Vec<Check>),
    /// The daemon.
    Status(Status),
    /// It is done.
    Done,
    /// It could not be done.
    Failed(Failure),
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The step, such as `quiesce`, `device`, `host`, `commit`.
    pub phase: String,
    /// Bytes done; 0 when the step is not counted in bytes.
    pub done: u64,
    /// Bytes in all; 0 when unknown.
    pub total: u64,
}

/// State of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// The program has been started.
    Running,
    /// A checkpoint holds it.
    Stopped,
    /// It has given its GPU memory back, and stands still until it is resumed.
    Paused,
    /// It is coming back from an image.
    Restoring,
    /// Its GPU side is gone: every CUDA call of the program fails.
    Lost,
    /// The daemon that started it is gone; it goes on, but cannot be checkpointed.
    Orphaned,
    /// The program has ended.
    Exited,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// State.
    pub state: SessionState,
    /// The program's process id as the daemon sees it, while it lives.
    pub pid: Option<u32>,
    /// The process id of the first of its workers, once the program uses CUDA.
    pub worker_pid: Option<u32>,
    /// Its processes that use CUDA, in the order in which they began to.
    #[serde(default)]
    pub processes: Vec<GpuProcess>,
    /// Status as shells count it (128+n for signal n), once it has ended.
    pub exit_status: Option<i32>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working folder.
    pub cwd: String,
    /// Seconds since 1970 when it was started or restored.
    pub started: u64,
    /// File with what the program prints.
    #[serde(with = "crate::text::path")]
    pub log: PathBuf,
    /// Whether it runs on softgpu; none until it uses CUDA.
    pub soft: Option<bool>,
    /// Devices it uses.
    pub devices: Vec<Device>,
    /// The image it was restored from.
    #[serde(default, with = "crate::text::some_path")]
    pub image: Option<PathBuf>,
    /// Why it is lost, or what else a user should know.
    pub note: Option<String>,
    /// How often it was lost since its daemon knows it. A session of several processes is lost until the process whose worker
    /// was lost has ended.
    #[serde(default)]
    pub losses: u32,
    /// Steps of its restore; none if it was not restored, or by a daemon that has ended since.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// How its data has come, if it came while the program ran.
    #[serde(default)]
    pub arrival: Option<Arrival>,
    /// Where its GPU data is while it is paused, and until all of that has come back.
    #[serde(default)]
    pub paused: Option<PausedData>,
    /// Why it could not be brought back, once it has ended for that.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// Whether the program has told this daemon that it is ready (`fermata.ready()`).
    #[serde(default)]
    pub ready: bool,
    /// Whether `fermata kill` has ended it.
    #[serde(default)]
    pub killed: bool,
    /// Its priority.
    #[serde(default)]
    pub priority: i32,
    /// The session that it was paused for, if its user has not paused it: it is resumed when there is memory again.
    #[serde(default)]
    pub paused_for: Option<String>,
}

/// A process of a session that uses CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its process id as the daemon sees it.
    pub pid: u32,
    /// The process id of its worker.
    pub worker_pid: u32,
}

/// Data of a restored session that comes while the program runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// How it stands.
    pub stand: ArrivalStand,
    /// Bytes that are there.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Seconds after the restore's begin at which the first were asked for.
    #[serde(default)]
    pub start: f64,
    /// Seconds since the first were asked for, until the last were there.
    pub seconds: f64,
    /// What they were spent on; steps overlap.
    #[serde(default)]
    pub steps: Vec<Phase>,
    /// Where kernels were caught using data before it was there, if they were made to check themselves.
    #[serde(default)]
    pub misses: Vec<Miss>,
}

/// How an [`Arrival`] stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalStand {
    /// Data is coming.
    Coming,
    /// Everything is there.
    Complete,
    /// The program is being brought back again, with everything there before it runs.
    RollingBack,
    /// It was brought back again so.
    RolledBack,
}

/// A step of a checkpoint or restore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name.
    pub name: String,
    /// Seconds after the first step's begin at which it began; steps may overlap.
    #[serde(default)]
    pub start: f64,
    /// Seconds it took.
    pub seconds: f64,
    /// Bytes moved, or 0.
    pub bytes: u64,
}

/// An image that was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpointed {
    /// The session.
    pub session: String,
    /// The image's folder.
    #[serde(with = "crate::text::path")]
    pub image: PathBuf,
    /// Protocol used.
    pub mode: Mode,
    /// Whether the program goes on.
    pub running: bool,
    /// Whether it was paused, and is.
    #[serde(default)]
    pub paused: bool,
    /// Device part.
    pub device: Totals,
    /// Bytes of the host part.
    pub host_bytes: u64,
    /// Seconds the program stood still.
    pub stopped_seconds: f64,
    /// Seconds in all.
    pub seconds: f64,
    /// Steps.
    pub phases: Vec<Phase>,
    /// Buffers that the program wrote before they were copied, by mis-speculation; a stop has
    /// then taken them.
    #[serde(default)]
    pub overtaken: u64,
    /// What the device had to end before the program could be stopped, if that took long; the program ran on meanwhile.
    #[serde(default)]
    pub waited: Option<Waited>,
    /// The process, if Fermata has not started it: it was copied by the driver's own interface.
    #[serde(default)]
    pub foreign: Option<u32>,
}

/// Work that a checkpoint has waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    /// The kernel or other work, and its stream.
    pub what: String,
    /// How long.
    pub seconds: f64,
}

/// Sessions started from an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    /// The image's folder.
    #[serde(with = "crate::text::path")]
    pub image: PathBuf,
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Seconds until the last of them ran.
    pub seconds: f64,
    /// Steps, of the slowest session.
    pub phases: Vec<Phase>,
    /// What was done otherwise than asked for, such as "eager: userfaultfd is not permitted".
    pub notes: Vec<String>,
    /// Whether the program reads from the pipe that was sent along.
    #[serde(default)]
    pub reads: bool,
}

/// A session that was paused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Paused {
    /// Its name.
    pub session: String,
    /// Where its data is.
    pub data: PausedData,
    /// Seconds in all; from then on its GPU memory is free.
    pub seconds: f64,
    /// Steps.
    pub phases: Vec<Phase>,
    /// What the device had to end before the program could be stopped, if that took long.
    #[serde(default)]
    pub waited: Option<Waited>,
}

/// A session that was resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    /// Its name.
    pub session: String,
    /// Bytes of device memory that were made again.
    pub device_bytes: u64,
    /// Whether data still comes while the program runs.
    pub coming: bool,
    /// Seconds until the program went on.
    pub seconds: f64,
    /// Steps.
    pub phases: Vec<Phase>,
}

/// What is ready for an image's next restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmed {
    /// The image's folder.
    #[serde(with = "crate::text::path")]
    pub image: PathBuf,
    /// Whether its store is in memory itself, and nothing of it is copied.
    pub in_memory: bool,
    /// Bytes of the packs that hold its data.
    pub bytes: u64,
    /// Of these, bytes of packs in the cache.
    pub cached: u64,
    /// The cache itself; none if the daemon keeps none.
    pub cache: Option<Cache>,
    /// Workers that wait for its restore with its modules loaded.
    pub workers: u32,
    /// How many are kept.
    pub workers_wanted: u32,
}

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// Fine.
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// Does not work.
    Fail,
}

/// One line of `fermata doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// Outcome.
    pub state: CheckState,
    /// What was found.
    pub detail: String,
    /// The fix; may be empty.
    pub hint: String,
}

/// The daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its process id.
    pub pid: u32,
    /// Release.
    pub version: String,
    /// Seconds since 1970 when it started.
    pub started: u64,
    /// Its runtime folder.
    #[serde(with = "crate::text::path")]
    pub runtime_dir: PathBuf,
    /// Its folder of images.
    #[serde(with = "crate::text::path")]
    pub image_dir: PathBuf,
    /// Its chunk store.
    #[serde(with = "crate::text::path")]
    pub store_dir: PathBuf,
    /// Its own log.
    #[serde(with = "crate::text::path")]
    pub log: PathBuf,
    /// Sessions whose program runs.
    pub running: u32,
    /// Workers that wait for a session.
    pub spare_workers: u32,
    /// How the memory tier is, where images are kept in memory: that of the worker, waiting or serving, which has
    /// least ready. None while no worker can tell.
    #[serde(default)]
    pub memory_tier: Option<crate::worker::Tier>,
    /// The cache of images that lie on a disk, if one is kept.
    #[serde(default)]
    pub cache: Option<Cache>,
    /// The settings that it was started with and that were set.
    #[serde(default)]
    pub settings: Vec<SettingValue>,
}

/// A setting of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingValue {
    /// Such as `FERMATA_CACHE`.
    pub name: String,
    /// What it is set to.
    pub value: String,
}

/// The cache of images that lie on a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Where it is.
    #[serde(with = "crate::text::path")]
    pub folder: PathBuf,
    /// Packs it holds.
    pub packs: usize,
    /// Their bytes.
    pub used: u64,
    /// The most bytes it may hold.
    pub limit: u64,
    /// Why the last image could not be kept; else empty.
    pub trouble: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_their_shape_in_json() {
        let request = Request::new(Verb::Checkpoint(Checkpoint {
            session: "heat".into(),
            output: Some("/tmp/image".into()),
            mode: Mode::Stop,
            then: Then::Run,
            pool_bytes: None,
            validate: Validate::Content,
            tcp_close: true,
        }));
        let json = serde_json::to_string(&request).expect("encoded");
        assert!(json.contains(r#""mode":"stop""#), "{json}");
        let back: Request = serde_json::from_str(&json).expect("decoded");
        assert_eq!(back, request);
    }

    #[test]
    fn fields_of_a_later_release_are_ignored() {
        let json = r#"{"protocol":2,"verb":{"Kill":{"name":"a","signal":9,"later":true}}}"#;
        let back: Request = serde_json::from_str(json).expect("decoded");
        assert_eq!(
            back.verb,
            Verb::Kill {
                name: "a".into(),
                signal: 9
            }
        );
    }
}
