//! What a foreign program is, found out before anything of it is touched, and what stands in the way of its image.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use fermata_control::foreign::DriverStand;
use fermata_control::user::DeviceChoice;
use fermata_control::worker::{Device, FailureKind};

use super::helper::Helper;
use super::under_way::Claim;
use super::{memory, outside};
use crate::checkpoint::preflight;
use crate::criu::Criu;
use crate::daemon::Daemon;
use crate::failure::{Failure, Hint as _, Result, fail};
use crate::gpu::driver::Driver;
use crate::looks::settles;
use crate::proc::{self, ProcessId};
use crate::session::{Processes, Session};
use crate::worker::Variables;

/// What the paths of the drivers end with: the software GPU's, and that of programs that Fermata has started.
const SOFT: &str = "softgpu/libcuda.so.1";
const CLIENT: &str = "lib/client/libcuda.so.1";
/// Variables of the software GPU that say which devices there are.
const SOFT_DEVICES: [&str; 4] = [
    "FERMATA_SOFTGPU_DEVICES",
    "FERMATA_SOFTGPU_MEMORY",
    "FERMATA_SOFTGPU_NAME",
    "FERMATA_SOFTGPU_COMPUTE_CAPABILITY",
];

/// Where users find the obstacles after the first.
const OTHERS: &str = "the next attempt names the next";

/// A foreign program that can be checkpointed, as far as can be known beforehand.
pub(super) struct Target {
    /// Its first process.
    pub root: ProcessId,
    /// What users call it, and images are named after.
    pub name: String,
    /// The session that it is of, if it was restored.
    pub session: Option<Arc<Session>>,
    /// What calls the driver for it.
    pub helper: Helper,
    /// Its processes that use CUDA.
    pub using: Vec<u32>,
    /// All GPUs of the driver.
    pub devices: Vec<Device>,
    /// The driver's CUDA version.
    pub version: i32,
    /// What the driver has of variables.
    pub variables: Variables,
    /// Bytes of device memory, as far as they are known.
    pub device_bytes: u64,
    /// Keeps every other checkpoint from its processes.
    _claim: Claim,
}

impl Target {
    /// The program whose first process is `pid`, which no session has.
    ///
    /// # Errors
    /// The first thing that stands in the way.
    pub fn of_process(daemon: &Daemon, pid: u32, tcp_close: bool) -> Result<Self> {
        let root = ProcessId::of(pid).filter(|it| !it.is_ending());
        let root = root.ok_or_else(|| {
            fail(FailureKind::NotFound, format!("there is no process {pid}"))
                .hint("`fermata ps` lists sessions, `nvidia-smi` processes that use a GPU")
        })?;
        check_whose(daemon, root)?;
        Self::examine(daemon, root, None, tcp_close)
    }

    /// The program of a session that was restored from such an image.
    ///
    /// # Errors
    /// The first thing that stands in the way.
    pub fn of_session(daemon: &Daemon, session: &Arc<Session>, tcp_close: bool) -> Result<Self> {
        let root = session.lock().root.filter(|it| !it.is_ending());
        let root = root.ok_or_else(|| {
            let message = format!("session `{}` has ended", session.name);
            fail(FailureKind::NotFound, message)
        })?;
        Self::examine(daemon, root, Some(session), tcp_close)
    }

    fn examine(
        daemon: &Daemon,
        root: ProcessId,
        session: Option<&Arc<Session>>,
        tcp_close: bool,
    ) -> Result<Self> {
        Criu::check_permitted()?;
        daemon.criu()?;
        let claim = daemon.foreign.claim(root.pid)?;
        let tree = proc::tree(root.pid);
        let driver = driver_of(daemon, root.pid, &tree)?;
        let variables = match driver.soft {
            true => variables_of(root.pid),
            false => [("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".into())].into(),
        };
        let helper = Helper::start(daemon, &driver, &variables)?;
        let described = helper.describe()?;
        let look = || {
            let tree = proc::tree(root.pid);
            match helper.stands(&tree) {
                Ok(stands) => Uses::of(root.pid, &tree, stands, tcp_close).map(Ok),
                // Another look finds no other driver.
                Err(failure) => Ok(Err(failure)),
            }
        };
        let Uses {
            using,
            device_bytes,
        } = settles(look)??;
        memory::check(device_bytes)?;
        Ok(Self {
            root,
            name: match session {
                Some(session) => session.name.clone(),
                None => proc::name(root.pid).unwrap_or_default(),
            },
            session: session.cloned(),
            helper,
            using,
            devices: described.devices,
            version: described.version,
            variables,
            device_bytes,
            _claim: claim,
        })
    }

    /// Refuses where the driver has left something of a GPU open.
    ///
    /// # Errors
    /// `NotCheckpointable`, naming it.
    pub fn check_closed(&self) -> Result<()> {
        let obstacles = preflight::obstacles(self.root.pid, || users(&self.using), |it| it.gpu);
        preflight::refuse(obstacles, OTHERS)
    }
}

/// What uses CUDA of a program that can be checkpointed.
struct Uses {
    using: Vec<u32>,
    device_bytes: u64,
}

impl Uses {
    /// That of the processes `tree` below `root`, which stand so with the driver, at one look.
    ///
    /// # Errors
    /// The first thing that stands in the way.
    fn of(root: u32, tree: &[u32], stands: Vec<DriverStand>, tcp_close: bool) -> Result<Self> {
        let mut using = Vec::new();
        let mut device_bytes = 0;
        for (pid, stand) in tree.iter().copied().zip(stands) {
            match stand {
                DriverStand::Running { device_bytes: has } => {
                    using.push(pid);
                    device_bytes += has.unwrap_or(0);
                }
                other => check_stand(pid, &other)?,
            }
        }
        if using.is_empty() {
            return Err(no_cuda(root));
        }
        let mut obstacles = preflight::look(tree, &users(&using));
        obstacles.retain(|it| !(it.connection && tcp_close || it.gpu && using.contains(&it.pid)));
        obstacles.extend(outside::obstacles(tree));
        preflight::refuse(obstacles, OTHERS)?;
        Ok(Self {
            using,
            device_bytes,
        })
    }
}

/// The processes of a program, of which these use CUDA.
fn users(using: &[u32]) -> Processes {
    Processes {
        agents: using.to_vec(),
        ..Processes::default()
    }
}

/// Refuses processes that are not the user's own, or not of this machine as the daemon sees it.
fn check_whose(daemon: &Daemon, root: ProcessId) -> Result<()> {
    let pid = root.pid;
    let name = proc::name_of(pid);
    let no = |what: String| fail(FailureKind::User, what);
    let owner = fs::metadata(format!("/proc/{pid}")).map(|it| it.uid());
    let own = rustix::process::geteuid().as_raw();
    if let Ok(owner) = owner
        && own != 0
        && owner != own
    {
        return Err(
            no(format!("process {pid} ({name}) belongs to user {owner}"))
                .hint("only its owner or root can checkpoint it: `sudo fermata checkpoint PID`"),
        );
    }
    let tree = proc::tree(pid);
    if tree.contains(&std::process::id()) {
        return Err(no(format!(
            "process {pid} ({name}) has started Fermata's daemon, which would be part of its image"
        ))
        .hint("name the process that does the work on the GPU: `nvidia-smi` lists them"));
    }
    if proc::executable(pid).is_none() {
        return Err(no(format!(
            "process {pid} ({name}) is no program: it is the kernel's"
        ))
        .hint("name the process that does the work on the GPU: `nvidia-smi` lists them"));
    }
    let sessions = daemon.sessions();
    let within = |it: &&Arc<Session>| {
        let root = it.lock().root;
        it.live() && root.is_some_and(|root| tree.contains(&root.pid))
    };
    if let Some(session) = sessions.iter().find(within) {
        return Err(no(format!(
            "process {pid} ({name}) has started the program of session `{}`",
            session.name
        ))
        .hint(format!(
            "`fermata checkpoint {}` takes its image",
            session.name
        )));
    }
    if tree
        .iter()
        .any(|it| outside::maps(*it, |path| path.ends_with(CLIENT)))
    {
        return Err(no(format!(
            "process {pid} ({name}) is of a session of another daemon of Fermata's"
        ))
        .hint(
            "checkpoint that by its name, with the FERMATA_RUNTIME_DIR, or as the user, that it was started with",
        ));
    }
    for kind in ["mnt", "pid", "user"] {
        let of = |which: &str| fs::read_link(format!("/proc/{which}/ns/{kind}")).ok();
        if of("self") != of(&pid.to_string()) {
            return Err(no(format!(
                "process {pid} ({name}) lives in a container: its `{kind}` namespace is another than the daemon's"
            ))
            .hint("run Fermata inside the container: `fermata checkpoint` with the process's number there"));
        }
    }
    Ok(())
}

/// Refuses a process that does not run as the driver sees it; one that does not use CUDA is CRIU's.
fn check_stand(pid: u32, stand: &DriverStand) -> Result<()> {
    let name = proc::name_of(pid);
    match stand {
        DriverStand::Running { .. } => Ok(()),
        DriverStand::Unknown(why) => {
            let open = proc::descriptors(pid).into_iter().map(|(_, target)| target);
            let holds = |it: std::path::PathBuf| {
                let text = it.to_str().unwrap_or_default().to_owned();
                text.starts_with(crate::open_files::gpu_files::GPU).then_some(text)
            };
            match open.filter_map(holds).next() {
                None => Ok(()),
                Some(device) => Err(fail(
                    FailureKind::NotCheckpointable,
                    format!(
                        "process {pid} ({name}) has `{device}` open, and the driver says of it: {why}"
                    ),
                )
                .hint("it may use the GPU in another way than by CUDA, for graphics or video, which the driver does not checkpoint; or a process that uses CUDA has made it by `fork`, as data loaders are: start those before CUDA, or by `spawn`")),
            }
        }
        DriverStand::Locked | DriverStand::Checkpointed => Err(fail(
            FailureKind::Locked,
            format!("process {pid} ({name}) is being checkpointed by another program"),
        )
        .hint("try again when that has ended; what has been left locked, `cuda-checkpoint --action unlock --pid PID` lets go on")),
        DriverStand::Failed => Err(fail(
            FailureKind::NotCheckpointable,
            format!("process {pid} ({name}) cannot go on: the driver has failed to restore it before"),
        )
        .hint("restore its image, if there is one")),
    }
}

fn no_cuda(pid: u32) -> Failure {
    let message = format!(
        "process {pid} ({}) does not use CUDA, nor does any below it",
        proc::name_of(pid)
    );
    fail(FailureKind::NotCheckpointable, message).hint(
        "name the process that does the work on the GPU: `nvidia-smi` lists them; programs without CUDA are CRIU's alone, \
         or start it with `fermata run`",
    )
}

/// The driver that the processes of a tree have loaded.
fn driver_of(daemon: &Daemon, root: u32, tree: &[u32]) -> Result<Driver> {
    let loads = |is: &dyn Fn(&Path) -> bool| tree.iter().any(|pid| outside::maps(*pid, is));
    if loads(&|path| path.ends_with(SOFT)) {
        return Driver::find(DeviceChoice::Soft, &daemon.paths.home);
    }
    let is_driver = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.as_bytes().starts_with(b"libcuda.so")
    };
    match loads(&is_driver) {
        true => Driver::find(DeviceChoice::Gpu, &daemon.paths.home),
        false => Err(no_cuda(root)),
    }
}

/// Which devices the software GPU of a process has.
fn variables_of(pid: u32) -> Variables {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let all = environment.split(|byte| *byte == 0);
    let text = all.filter_map(|it| std::str::from_utf8(it).ok()?.split_once('='));
    let of_devices = text.filter(|(name, _)| SOFT_DEVICES.contains(name));
    of_devices
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}
