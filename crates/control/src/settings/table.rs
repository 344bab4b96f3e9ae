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
    /// An address with a port, or the path of a Unix socket.
    Endpoint,
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
    /// Allowed or denied.
    Permission,
}

/// Who reads a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Each command, and the daemon that it starts.
    All,
    /// The daemon, when it starts.
    Daemon,
    /// A session's worker; set for `fermata run`, which passes it on.
    Worker,
    /// The library in the program; set for `fermata run`.
    Program,
    /// The daemon, when it starts a program; set for `fermata run`.
    Start,
    /// The Python package.
    Python,
    /// Fermata sets it for its own processes.
    Fermata,
    /// Builds, tests and benchmarks.
    Build,
}

impl Reader {
    /// In words, for the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "commands, daemon",
            Self::Daemon => "daemon",
            Self::Worker => "a session's worker",
            Self::Program => "the library in the program",
            Self::Start => "`fermata run`",
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
    /// What holds if it is not set.
    pub default: &'static str,
}

const fn setting(
    name: &'static str,
    reader: Reader,
    kind: Kind,
    purpose: &'static str,
    default: &'static str,
) -> Setting {
    Setting {
        name,
        reader,
        kind,
        purpose,
        default,
    }
}

/// A setting of Fermata's own processes, builds or tests.
const fn internal(name: &'static str, reader: Reader, purpose: &'static str) -> Setting {
    setting(name, reader, Kind::Any, purpose, "")
}

use Kind::{
    AbsolutePath, Any, Bytes, Capability, Count, Endpoint, Number, Path, Permission, Signal,
};
use Reader::{All, Build, Daemon, Fermata, Program, Python, Start, Worker};

/// The setting that says whether programs get io_uring.
pub const IO_URING: &str = "FERMATA_IO_URING";
/// The setting that says whether programs get the System V memory of the machine.
pub const SYSTEM_V: &str = "FERMATA_SYSTEM_V";
/// What such a setting says for yes.
pub const ALLOW: &str = "allow";

/// All settings.
pub const SETTINGS: &[Setting] = &[
    setting(
        "FERMATA_CONFIG",
        All,
        AbsolutePath,
        "the configuration file to read, and no other; `/dev/null`: none",
        "`$XDG_CONFIG_HOME/fermata/fermata.toml` or `~/.config/fermata/fermata.toml`, then `/etc/fermata/fermata.toml`",
    ),
    setting(
        "FERMATA_RUNTIME_DIR",
        All,
        Path,
        "folder of the daemon's sockets and sessions",
        "`$XDG_RUNTIME_DIR/fermata`, else `/run/fermata` for root and `/tmp/fermata-UID` for others",
    ),
    setting(
        "FERMATA_IMAGE_DIR",
        All,
        Path,
        "folder of images",
        "`$XDG_DATA_HOME/fermata/images`, else `~/.local/share/fermata/images`; `/var/lib/fermata/images` where there is no `HOME`",
    ),
    setting(
        "FERMATA_HOME",
        All,
        Path,
        "folder of the installation",
        "the folder above that of the command",
    ),
    setting(
        "FERMATA_CRIU",
        Daemon,
        AbsolutePath,
        "CRIU to use",
        "the installation's",
    ),
    setting(
        "FERMATA_REAL_LIBCUDA",
        Daemon,
        AbsolutePath,
        "NVIDIA's driver library",
        "found where drivers are installed",
    ),
    setting(
        "FERMATA_SPARE_WORKERS",
        Daemon,
        Count(64),
        "workers of a kind (driver and variables) that are started ahead of the programs",
        "1",
    ),
    setting(
        "FERMATA_SPARE_PRELOADED",
        Daemon,
        Count(64),
        "workers that are started ahead for each process (the first eight) of an image that was restored, with the process's modules loaded; 0: none",
        "1; 0 if `FERMATA_SPARE_WORKERS` is 0",
    ),
    setting(
        "FERMATA_SPARE_IDLE",
        Daemon,
        Count(604_800),
        "seconds after which a worker that was started ahead, and that no program has used, is ended; 0: never",
        "3600",
    ),
    setting(
        "FERMATA_PRIORITY_WAIT",
        Daemon,
        Count(600),
        "seconds for which an allocation waits until a session of lower priority may be paused for it; the time of the pause comes on top",
        "60",
    ),
    setting(
        "FERMATA_PRIORITY_REST",
        Daemon,
        Count(86_400),
        "seconds for which a session that was resumed is not paused for another one, and one that was paused so is not resumed",
        "10",
    ),
    setting(
        "FERMATA_COMMON_MEMORY",
        Daemon,
        Count(1),
        "1: sessions restored from equal data share device memory until they write it, where the driver can map memory for reading; 0: each session has its own",
        "0",
    ),
    setting(
        "FERMATA_DEVICE_WAIT",
        Daemon,
        Count(86_400),
        "seconds that a checkpoint or a pause waits, while the program runs, for kernels to end that take long or wait for others",
        "300",
    ),
    setting(
        "FERMATA_HOST_AHEAD",
        Daemon,
        Count(1),
        "1: checkpoints copy host memory while the program runs, where the kernel can track it; 0: CRIU dumps all of it in the stop",
        "1",
    ),
    setting(
        "FERMATA_AWAKE",
        Daemon,
        Count(1),
        "1: the machine's processors do not sleep while a program stands still for a checkpoint, and while one is restored and for the first second after, where the kernel allows it; 0: they do",
        "1",
    ),
    setting(
        "FERMATA_CRIU_LOG",
        Daemon,
        Count(1),
        "1: CRIU's logs say everything that it does, which makes stops and restores longer; 0: they have warnings and errors",
        "0",
    ),
    setting(
        "FERMATA_LOG_DIR",
        All,
        Path,
        "folder of what sessions print, such as one on a disk",
        "the runtime folder, which is often in memory",
    ),
    setting(
        "FERMATA_LOG_LIMIT",
        Daemon,
        Bytes,
        "what is kept of the output of each session; the oldest is dropped; 0: no limit",
        "64M",
    ),
    setting(
        "FERMATA_MEMORY_TIER",
        Daemon,
        Bytes,
        "memory that is kept ready for images in memory, as long as a sixteenth of the host's memory stays available",
        "none",
    ),
    setting(
        "FERMATA_MEMORY_TIER_LIMIT",
        Daemon,
        Bytes,
        "the most memory that images in memory may take",
        "chosen by the memory that is kept ready",
    ),
    setting(
        "FERMATA_CACHE",
        Daemon,
        Bytes,
        "memory in which images of a disk that were used last are kept",
        "none",
    ),
    setting(
        "FERMATA_METRICS",
        Daemon,
        Endpoint,
        "where `GET /metrics` is answered with what memory sessions take, as Prometheus text",
        "nowhere",
    ),
    setting(
        "FERMATA_NVML",
        All,
        Any,
        "NVIDIA's management library for `plan` and for programs",
        "the system's",
    ),
    setting(
        "FERMATA_HOST_BUFFER",
        Worker,
        Bytes,
        "host memory in which copied data waits to be written during a checkpoint",
        "512M",
    ),
    setting(
        "FERMATA_WRITE_RATE",
        Worker,
        Bytes,
        "the most bytes that a session's checkpoints write to storage in a second; 0: no limit",
        "no limit",
    ),
    setting(
        "FERMATA_PARK_SIGNAL",
        Program,
        Signal,
        "the signal that stops threads for a checkpoint",
        "SIGRTMIN + 12",
    ),
    setting(
        "FERMATA_TALLY",
        Program,
        Path,
        "folder in which the library counts the program's calls and the time they take; `FERMATA_WORKER_FERMATA_TALLY`, set for `fermata run`, is the folder in which the worker counts its operations",
        "none",
    ),
    setting(
        IO_URING,
        Start,
        Permission,
        "`deny`: programs find no io_uring, which no checkpoint can hold, and use other calls; `allow`: the checkpoint of a program that holds one is refused",
        "deny",
    ),
    setting(
        SYSTEM_V,
        Start,
        Permission,
        "`deny`: a program shares System V memory, semaphores and message queues with its children only, and images hold them; `allow`: with all of the machine, and the checkpoint of a program that has such memory is refused",
        "deny",
    ),
    setting(
        "FERMATA_SOFTGPU_DEVICES",
        Worker,
        Count(64),
        "devices of the software GPU",
        "1",
    ),
    setting(
        "FERMATA_SOFTGPU_VISIBLE_DEVICES",
        Worker,
        Any,
        "the devices of the software GPU that a program sees, in this order: ordinals or UUIDs",
        "all",
    ),
    setting(
        "FERMATA_SOFTGPU_THREADS",
        Worker,
        Count(1024),
        "threads that run a kernel of the software GPU; 0: one for each CPU",
        "one for each CPU",
    ),
    setting(
        "FERMATA_SOFTGPU_MEMORY",
        Worker,
        Bytes,
        "memory of each device of the software GPU",
        "4G",
    ),
    setting(
        "FERMATA_SOFTGPU_SHARED",
        Worker,
        AbsolutePath,
        "folder by which sessions on the software GPU count what they take of a device's memory together",
        "each session has all of it",
    ),
    setting(
        "FERMATA_SOFTGPU_NAME",
        Worker,
        Any,
        "name of the software GPU's devices",
        "a name of its own",
    ),
    setting(
        "FERMATA_SOFTGPU_COMPUTE_CAPABILITY",
        Worker,
        Capability,
        "compute capability of the software GPU's devices",
        "9.0",
    ),
    setting(
        "FERMATA_SOFTGPU_CUDA_VERSION",
        Worker,
        Capability,
        "CUDA version that the software GPU reports, as `major.minor`",
        "13.0",
    ),
    setting(
        "FERMATA_SOFTGPU_HOST_LINK",
        Worker,
        Bytes,
        "bytes a second that the software GPU copies to and from the host; 0: no limit",
        "no limit",
    ),
    setting(
        "FERMATA_SOFTGPU_PEER_LINK",
        Worker,
        Bytes,
        "bytes a second between two devices of the software GPU; 0: no limit",
        "no limit",
    ),
    setting(
        "FERMATA_SOFTGPU_KERNEL_LIMIT",
        Worker,
        Number,
        "seconds after which a kernel of the software GPU is stopped; 0: never",
        "never",
    ),
    setting(
        "FERMATA_SOFTGPU_BLOCK_WAIT",
        Worker,
        Number,
        "seconds without an end of a block after which a kernel of the software GPU is stopped whose blocks poll memory while others cannot begin; 0: never",
        "300",
    ),
    setting(
        "FERMATA_SOFTGPU_QUEUE",
        Worker,
        Number,
        "work that a stream of the software GPU holds before calls wait; 0: no limit",
        "no limit",
    ),
    setting(
        "FERMATA_SOFTGPU_PLACES",
        Worker,
        Any,
        "how many pairs of multiprocessors each cluster of processors of the software GPU has, 8 together: `3,5`",
        "programs are not told where multiprocessors lie",
    ),
    setting(
        "FERMATA_SOFTGPU_GROUP",
        Worker,
        Number,
        "multiprocessors of the software GPU that groups of a split for green contexts are multiples of, 1 to 16",
        "8",
    ),
    setting(
        "FERMATA_SOFTGPU_FAIL_ALLOC",
        Worker,
        Number,
        "tests: the number of the allocation that fails on the software GPU",
        "never",
    ),
    setting(
        "FERMATA_SOFTGPU_FAIL_COPY",
        Worker,
        Number,
        "tests: the number of the copy that fails on the software GPU",
        "never",
    ),
    setting(
        "FERMATA_SOFTGPU_FLIP_COPIES",
        Worker,
        Number,
        "tests: how many long copies of the software GPU arrive with a wrong bit",
        "none",
    ),
    setting(
        "FERMATA_SOFTGPU_DIRTY_ARRAYS",
        Worker,
        Number,
        "tests: anything but 0: new arrays of the software GPU are not zero",
        "0",
    ),
    setting(
        "FERMATA_SOFTGPU_NO_PEERS",
        Worker,
        Number,
        "tests: anything but 0: no device of the software GPU reaches the memory of another",
        "0",
    ),
    setting(
        "FERMATA_SOFTGPU_LOSE_DEVICE",
        Worker,
        Number,
        "tests: the number of the launch at which the software GPU is lost",
        "never",
    ),
    setting(
        "FERMATA_SOFTGPU_QUIET",
        Worker,
        Any,
        "anything but 0: the software GPU does not say why it refuses a kernel or a call",
        "0",
    ),
    setting(
        "FERMATA_SOFTGPU_HOLD",
        Worker,
        Path,
        "tests: folder whose files hold up the software GPU",
        "none",
    ),
    setting(
        "FERMATA_LIBRARY",
        Python,
        Path,
        "`libfermata.so` to load",
        "beside the package",
    ),
    // Fermata sets these for its own processes.
    internal("FERMATA_AGENT_SOCKET", Fermata, "a program's socket"),
    internal("FERMATA_SESSION_TOKEN", Fermata, "a program's token"),
    internal("FERMATA_NOTICE_FILE", Fermata, "a program's messages"),
    internal("FERMATA_DAEMON_SOCKET", Fermata, "a worker's socket"),
    internal("FERMATA_FIRST_DEVICE", Fermata, "a worker's first device"),
    internal(
        "FERMATA_NEXT_DAEMON",
        Fermata,
        "how a worker starts a daemon",
    ),
    internal("FERMATA_TRACE", Fermata, "a traced worker's record"),
    // Builds, tests and benchmarks.
    internal("FERMATA_BUILD", Build, "the tree under test"),
    internal("FERMATA_CRIU_SUITE", Build, "release of the build's CRIU"),
    internal("FERMATA_FILETEST", Build, "which PTX files are tested"),
    internal("FERMATA_FTI", Build, "a build of FTI to compare with"),
    internal("FERMATA_GOLDEN", Build, "whether golden images are made"),
    internal("FERMATA_INCLUDE", Build, "headers of a build"),
    internal("FERMATA_LIB", Build, "libraries of a build"),
    internal("FERMATA_MPI", Build, "where the MPIs of a bench are"),
    internal(
        "FERMATA_MPI_SUITE",
        Build,
        "release of the build's CUDA-aware MPI",
    ),
    internal("FERMATA_NVCC", Build, "NVIDIA's compiler"),
    internal("FERMATA_REVISION", Build, "revision of a build"),
];
