//! The table of settings. `cargo xtask check` refuses a name in the crates' sources that is not here.

/// What values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Any,
    /// A path; a relative one counts from the working folder of the command.
    Path,
    /// A path that does not depend on anybody's working folder.
    AbsolutePath,
    /// Bytes.
    Bytes,
    /// A whole number, with the letters that bytes have.
    Number,
    /// A whole number, at most this one.
    Count(u64),
    /// A signal's number.
    Signal,
    /// A compute capability.
    Capability,
}

/// Who reads a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Each command, and the daemon that it starts.
    All,
    /// The command.
    Command,
    /// The daemon, when it starts.
    Daemon,
    /// A session's worker; set for `fermata run`, which passes it on.
    Worker,
    /// The library in the program; set for `fermata run`.
    Program,
    /// The Python package.
    Python,
    /// Fermata sets it for its own processes.
    Fermata,
    /// Builds, tests and benchmarks.
    Build,
}

impl Reader {
    /// In words, for the documentation.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::All => "commands, daemon",
            Self::Command => "commands",
            Self::Daemon => "daemon",
            Self::Worker => "a session's worker",
            Self::Program => "the library in the program",
            Self::Python => "the Python package",
            Self::Fermata => "Fermata",
            Self::Build => "builds and tests",
        }
    }
}

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The variable's name.
    pub name: &'static str,
    /// Who reads it.
    pub reader: Reader,
    /// What values it takes.
    pub kind: Kind,
    /// What it does, in a sentence without its end.
    pub purpose: &'static str,
}

const fn setting(name: &'static str, reader: Reader, kind: Kind, purpose: &'static str) -> Setting {
    Setting {
        name,
        reader,
        kind,
        purpose,
    }
}

use Kind::{AbsolutePath, Any, Bytes, Capability, Count, Number, Path, Signal};
use Reader::{All, Build, Command, Daemon, Fermata, Program, Python, Worker};

/// All settings.
pub const SETTINGS: &[Setting] = &[
    setting(
        "FERMATA_RUNTIME_DIR",
        All,
        Path,
        "folder of the daemon's sockets and sessions; else `$XDG_RUNTIME_DIR/fermata`, `/run/fermata` for root, `/tmp/fermata-UID`",
    ),
    setting(
        "FERMATA_IMAGE_DIR",
        All,
        Path,
        "folder of images; else `$XDG_DATA_HOME/fermata/images`, `~/.local/share/fermata/images`",
    ),
    setting(
        "FERMATA_HOME",
        All,
        Path,
        "folder of the installation; else that of the command",
    ),
    setting(
        "FERMATA_CRIU",
        Daemon,
        AbsolutePath,
        "CRIU to use instead of the installation's",
    ),
    setting(
        "FERMATA_REAL_LIBCUDA",
        Daemon,
        AbsolutePath,
        "NVIDIA's driver library, where it is not found",
    ),
    setting(
        "FERMATA_SPARE_WORKERS",
        Daemon,
        Count(64),
        "workers that are started ahead of the programs; 1 if not set",
    ),
    setting(
        "FERMATA_LOG_DIR",
        All,
        Path,
        "folder of what sessions print, such as one on a disk; else the runtime folder, which is often in memory",
    ),
    setting(
        "FERMATA_LOG_LIMIT",
        Daemon,
        Bytes,
        "what is kept of the output of each session; the oldest is dropped; 64M if not set, 0: no limit",
    ),
    setting(
        "FERMATA_MEMORY_TIER",
        Daemon,
        Bytes,
        "memory that is kept ready for images in memory; none if not set",
    ),
    setting(
        "FERMATA_MEMORY_TIER_LIMIT",
        Daemon,
        Bytes,
        "the most memory that images in memory may take",
    ),
    setting(
        "FERMATA_CACHE",
        Daemon,
        Bytes,
        "memory in which images of a disk that were used last are kept; none if not set",
    ),
    setting(
        "FERMATA_NVML",
        All,
        Any,
        "NVIDIA's management library for `plan` and for programs, instead of the system's",
    ),
    setting(
        "FERMATA_NATIVE_CUDART",
        Command,
        Path,
        "folder of NVIDIA's runtime library, for `bench`",
    ),
    setting(
        "FERMATA_HOST_BUFFER",
        Worker,
        Bytes,
        "host memory in which copied data waits to be written during a checkpoint",
    ),
    setting(
        "FERMATA_WRITE_RATE",
        Worker,
        Bytes,
        "the most bytes that a session's checkpoints write to storage in a second; 0 and not set: no limit",
    ),
    setting(
        "FERMATA_PARK_SIGNAL",
        Program,
        Signal,
        "the signal that stops threads for a checkpoint; SIGRTMIN + 12 if not set",
    ),
    setting(
        "FERMATA_TALLY",
        Program,
        Path,
        "folder in which the library counts the program's calls and the time they take; as FERMATA_WORKER_FERMATA_TALLY: the worker its operations",
    ),
    setting(
        "FERMATA_SOFTGPU_DEVICES",
        Worker,
        Count(64),
        "devices of the software GPU; 1 if not set",
    ),
    setting(
        "FERMATA_SOFTGPU_THREADS",
        Worker,
        Count(1024),
        "threads that run a kernel of the software GPU; 0 and not set: one for each CPU",
    ),
    setting(
        "FERMATA_SOFTGPU_MEMORY",
        Worker,
        Bytes,
        "memory of each device of the software GPU; 4G if not set",
    ),
    setting(
        "FERMATA_SOFTGPU_NAME",
        Worker,
        Any,
        "name of the software GPU's devices",
    ),
    setting(
        "FERMATA_SOFTGPU_COMPUTE_CAPABILITY",
        Worker,
        Capability,
        "compute capability of the software GPU's devices; 9.0 if not set",
    ),
    setting(
        "FERMATA_SOFTGPU_HOST_LINK",
        Worker,
        Bytes,
        "bytes a second that the software GPU copies to and from the host; 0 and not set: no limit",
    ),
    setting(
        "FERMATA_SOFTGPU_PEER_LINK",
        Worker,
        Bytes,
        "bytes a second between two devices of the software GPU; 0 and not set: no limit",
    ),
    setting(
        "FERMATA_SOFTGPU_KERNEL_LIMIT",
        Worker,
        Number,
        "seconds after which a kernel of the software GPU is stopped; 0 and not set: never",
    ),
    setting(
        "FERMATA_SOFTGPU_QUEUE",
        Worker,
        Number,
        "work that a stream of the software GPU holds before calls wait; 0 and not set: no limit",
    ),
    setting(
        "FERMATA_SOFTGPU_FAIL_ALLOC",
        Worker,
        Number,
        "tests: the number of the allocation that fails on the software GPU",
    ),
    setting(
        "FERMATA_SOFTGPU_FAIL_COPY",
        Worker,
        Number,
        "tests: the number of the copy that fails on the software GPU",
    ),
    setting(
        "FERMATA_SOFTGPU_FLIP_COPIES",
        Worker,
        Number,
        "tests: how many long copies of the software GPU arrive with a wrong bit",
    ),
    setting(
        "FERMATA_SOFTGPU_LOSE_DEVICE",
        Worker,
        Number,
        "tests: the number of the launch at which the software GPU is lost",
    ),
    setting(
        "FERMATA_SOFTGPU_QUIET",
        Worker,
        Any,
        "anything but 0: the software GPU does not say why it refuses a kernel or a call",
    ),
    setting(
        "FERMATA_SOFTGPU_HOLD",
        Worker,
        Path,
        "tests: folder whose files hold up the software GPU",
    ),
    setting(
        "FERMATA_LIBRARY",
        Python,
        Path,
        "`libfermata.so` to load, where it is not beside the package",
    ),
    // Fermata sets these for its own processes.
    setting("FERMATA_AGENT_SOCKET", Fermata, Any, "a program's socket"),
    setting("FERMATA_SESSION_TOKEN", Fermata, Any, "a program's token"),
    setting("FERMATA_NOTICE_FILE", Fermata, Any, "a program's messages"),
    setting("FERMATA_DAEMON_SOCKET", Fermata, Any, "a worker's socket"),
    setting(
        "FERMATA_NEXT_DAEMON",
        Fermata,
        Any,
        "how a worker starts a daemon",
    ),
    setting("FERMATA_TRACE", Fermata, Any, "a traced worker's record"),
    // Builds, tests and benchmarks.
    setting("FERMATA_BUILD", Build, Any, "the tree under test"),
    setting(
        "FERMATA_CRIU_SUITE",
        Build,
        Any,
        "release of the build's CRIU",
    ),
    setting("FERMATA_FILETEST", Build, Any, "which PTX files are tested"),
    setting("FERMATA_FTI", Build, Any, "a build of FTI to compare with"),
    setting(
        "FERMATA_GOLDEN",
        Build,
        Any,
        "whether golden images are made",
    ),
    setting("FERMATA_INCLUDE", Build, Any, "headers of a build"),
    setting("FERMATA_LIB", Build, Any, "libraries of a build"),
    setting("FERMATA_NVCC", Build, Any, "NVIDIA's compiler"),
    setting("FERMATA_REVISION", Build, Any, "revision of a build"),
];
