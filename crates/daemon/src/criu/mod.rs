//! CRIU as a process of its own: `criu swrk 3`, one request, one answer.
//!
//! ```text
//!  dump     daemon ─► [enter: the target's namespaces] ─► criu swrk   (images_dir: the draft's host/; see `dump`)
//!  restore  daemon ─► init (pid 1 of a new namespace) ─► criu swrk   (images_dir: links to the image)
//!                                                     ▲
//!                              `crate::host::pages` ──┘ brings memory on demand
//! ```
//! The log of CRIU stays in the folder that it worked in; errors carry its first error line.

pub(crate) mod core;
pub(crate) mod dump;
pub(crate) mod end;
pub(crate) mod environment;
pub(crate) mod files;
pub(crate) mod kept_logs;
pub(crate) mod kerndat;
mod made_ahead;
pub(crate) mod mappings;
pub(crate) mod pstree;
pub(crate) mod rpc;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::worker::FailureKind;
use fermata_control::{privileges, settings};
use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use self::kerndat::Kerndat;
use self::mappings::Tree;
use self::rpc::{
    CriuCgMode, CriuNetworkLockMethod, CriuOpts, CriuReq, CriuReqType, CriuResp, InheritFd,
};
use crate::failure::{Hint, OrFail, Result, fail};
use crate::images::space::free_bytes;
use crate::proc;
use crate::sys::{self, Extra};

/// Where an installation has the library for CRIU.
const FILTER: &str = "lib/pagefilter.so";
/// Name of the log of a dump.
pub const DUMP_LOG: &str = "dump.log";
/// Name of the log of a restore.
pub const RESTORE_LOG: &str = "restore.log";
/// CRIU's logs have warnings and errors (`LOG_WARN`). With more, CRIU writes several lines for each mapping while the program stands still, in parts of
/// lines in a restore, and there one for each page that processes have in common.
const WARNINGS: i32 = 2;
/// Everything (`LOG_DEBUG`), if `FERMATA_CRIU_LOG` says so.
const ALL: i32 = 4;
/// How long a restore may take, and the bytes of memory that it reads in each second beyond.
const WORK_TIME: Duration = Duration::from_secs(600);
const LEAST_RATE: u64 = 4 << 20;
/// How long CRIU may take to say its version.
const VERSION_TIME: Duration = Duration::from_secs(60);
/// How often CRIU's target is looked at while CRIU works.
const LOOK: Duration = Duration::from_millis(200);
/// How long a CRIU that has answered may take to end.
pub(crate) const END_TIME: Duration = Duration::from_secs(2);
/// How long an answer may take when CRIU has ended, or its target, which CRIU has to notice.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Seconds CRIU may take to freeze the tree.
const FREEZE_SECONDS: u32 = 30;
/// Deleted files up to this size are kept in images.
const GHOST_BYTES: u32 = 256 << 20;

/// How a program comes back.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// Its memory comes on demand.
    pub lazy: bool,
    /// Its TCP connections are whole; else they come back closed.
    pub connected: bool,
    /// It was of the session of a shell that is not in the image.
    pub shell_job: bool,
}

/// The CRIU of this installation.
#[derive(Debug, Clone)]
pub struct Criu {
    program: PathBuf,
    command: Vec<PathBuf>,
    helper: PathBuf,
    filter: Option<PathBuf>,
    kernel: Option<Kerndat>,
}

impl Criu {
    /// The CRIU of the installation in `home`; `FERMATA_CRIU` names another one. `helper` is the
    /// daemon's own executable.
    ///
    /// # Errors
    /// `Host` when there is none.
    pub fn find(home: &Path, helper: &Path) -> Result<Self> {
        let program = match settings::value("FERMATA_CRIU") {
            Some(path) => PathBuf::from(path),
            None => home.join("lib/criu/criu"),
        };
        if program.is_file() {
            return Ok(Self::at(program, helper).filtered_by(home.join(FILTER)));
        }
        Err(fail(
            FailureKind::Host,
            format!("CRIU is missing: no `{}`", program.display()),
        )
        .hint("run `make deps`, or set FERMATA_CRIU to a CRIU 4.2 or newer"))
    }

    /// The CRIU at `program`.
    pub fn at(program: PathBuf, helper: &Path) -> Self {
        Self {
            command: unpacked(&program),
            program,
            helper: helper.into(),
            filter: None,
            kernel: None,
        }
    }

    /// The same, with a library that has it pass over memory that is tracked, if there is one at `path`.
    pub fn filtered_by(self, path: PathBuf) -> Self {
        let filter = Some(path).filter(|it| it.is_file());
        Self { filter, ..self }
    }

    /// Whether dumps can pass over memory that is tracked.
    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// The same, told what it would have to ask the kernel.
    pub fn knowing(self, kernel: Option<Kerndat>) -> Self {
        Self { kernel, ..self }
    }

    /// Its executable, or the script that starts it.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// What starts it: a program and its first arguments.
    pub fn command(&self) -> &[PathBuf] {
        &self.command
    }

    /// What it knows of the kernel, for its process.
    pub(crate) fn kernel(&self) -> Option<Arc<OwnedFd>> {
        self.kernel.as_ref().and_then(Kerndat::file)
    }

    /// The daemon's executable, whose helper modes start CRIU in other namespaces.
    pub fn helper(&self) -> &Path {
        &self.helper
    }

    /// Refuses where it could not dump or restore processes.
    ///
    /// # Errors
    /// `Host`, with the way to permit it.
    pub fn check_permitted() -> Result<()> {
        match privileges::lacking() {
            None => Ok(()),
            Some(it) => Err(fail(FailureKind::Host, it.what).hint(it.hint)),
        }
    }

    /// Its version, such as `4.2.1`.
    ///
    /// # Errors
    /// `Host` when it cannot be started.
    pub fn version(&self) -> Result<String> {
        let (ours, theirs) = channel()?;
        let mut child = self.start(None, theirs, None)?;
        let answer = call(
            &ours,
            &CriuReq {
                r#type: CriuReqType::Version.into(),
                ..CriuReq::default()
            },
            Some(VERSION_TIME),
            &|| proc::runs(&child),
        );
        end::end(&mut child, END_TIME);
        let answer = answer.or_fail(FailureKind::Host, || "cannot start CRIU".into())?;
        let version = answer
            .version
            .ok_or_else(|| fail(FailureKind::Host, "CRIU does not say its version"))?;
        let sublevel = version.sublevel.unwrap_or(0);
        let (major, minor) = (version.major_number, version.minor_number);
        Ok(format!("{major}.{minor}.{sublevel}"))
    }

    /// Asks the CRIU behind `channel` to restore from `dir`; `inherit` replaces files of the image by
    /// descriptors of that CRIU. Returns the root's process id as its namespace has it.
    ///
    /// # Errors
    /// `Host` with CRIU's reason.
    pub fn restore(
        channel: &OwnedFd,
        dir: &Path,
        how: Way,
        inherit: Vec<InheritFd>,
    ) -> Result<u32> {
        let options = CriuOpts {
            rst_sibling: Some(true),
            inherit_fd: inherit,
            lazy_pages: Some(how.lazy),
            tcp_established: Some(how.connected),
            tcp_close: Some(!how.connected),
            shell_job: how.shell_job.then_some(true),
            log_file: Some(RESTORE_LOG.into()),
            ..options(dir)
        };
        let request = CriuReq {
            r#type: CriuReqType::Restore.into(),
            opts: Some(options),
            notify_success: None,
        };
        let seconds = memory_bytes(dir) / LEAST_RATE;
        let limit = WORK_TIME + Duration::from_secs(seconds);
        let answer = call(channel, &request, Some(limit), &|| true);
        let pid = answer
            .as_ref()
            .ok()
            .and_then(|a| a.restore.as_ref())
            .map_or(0, |r| r.pid);
        check(
            answer,
            "restore the program",
            &dir.join(RESTORE_LOG),
            FailureKind::Host,
        )?;
        u32::try_from(pid).or_fail(FailureKind::Internal, || "CRIU restored no process".into())
    }

    /// Starts CRIU behind `theirs`, in `foreign` namespaces if there are some. With a tree it passes over memory of that tree
    /// that is tracked. It leads a process group, so that [`crate::criu::end::end`] finds the children that it leaves.
    pub(crate) fn start(
        &self,
        foreign: Option<Vec<OwnedFd>>,
        theirs: OwnedFd,
        filtered: Option<Tree>,
    ) -> Result<Child> {
        let mut command = match &foreign {
            None => command(&self.command),
            Some(_) => {
                let mut command = Command::new(&self.helper);
                command
                    .arg(crate::helpers::modes::ENTER)
                    .args(&self.command);
                command
            }
        };
        command
            .args(["swrk", "3"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        environment::clean(&mut command);
        let mut mappings = None;
        if let Some((filter, tree)) = self.filter.as_ref().zip(filtered) {
            command.env("LD_PRELOAD", filter);
            mappings = mappings::serve(tree);
        }
        let namespaces = foreign.unwrap_or_default();
        sys::prepare(
            &mut command,
            Extra {
                namespaces,
                kernel: self.kernel(),
                mappings,
                ..Extra::fds(vec![theirs])
            },
        );
        command.spawn().or_fail(FailureKind::Host, || {
            format!("cannot start CRIU `{}`", self.program.display())
        })
    }
}

/// A command from a program and its first arguments.
pub fn command(parts: &[PathBuf]) -> Command {
    let mut parts = parts.iter();
    let mut command = Command::new(parts.next().map_or(Path::new(""), PathBuf::as_path));
    command.args(parts);
    command
}

/// What the script of a private prefix executes (`tools/pack-criu.sh`), so that no shell has to run;
/// else the program itself.
fn unpacked(program: &Path) -> Vec<PathBuf> {
    let prefix = program.parent().unwrap_or(program);
    let (library, binary) = (prefix.join("lib"), prefix.join("bin/criu"));
    let loader = library.join("ld-linux-x86-64.so.2");
    if program.file_name() == Some("criu".as_ref()) && loader.is_file() && binary.is_file() {
        return vec![loader, "--library-path".into(), library, binary];
    }
    vec![program.into()]
}

/// The two ends of a conversation with CRIU.
///
/// # Errors
/// `Internal` when no descriptors are left.
pub fn channel() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(io::Error::from)
    .or_fail(FailureKind::Internal, || {
        "cannot create CRIU's socket".into()
    })
}

pub(crate) fn options(dir: &Path) -> CriuOpts {
    let all = settings::is_on("FERMATA_CRIU_LOG");
    CriuOpts {
        images_dir_fd: -1,
        images_dir: Some(dir.as_os_str().as_bytes().to_vec()),
        log_level: Some(if all { ALL } else { WARNINGS }),
        file_locks: Some(true),
        manage_cgroups_mode: Some(CriuCgMode::Ignore.into()),
        network_lock: Some(CriuNetworkLockMethod::Skip.into()),
        ghost_limit: Some(GHOST_BYTES),
        timeout: Some(FREEZE_SECONDS),
        ..CriuOpts::default()
    }
}

/// Asks, and waits for the answer as [`receive`] does.
fn call(
    socket: &OwnedFd,
    request: &CriuReq,
    limit: Option<Duration>,
    hope: &dyn Fn() -> bool,
) -> io::Result<CriuResp> {
    send(socket, request)?;
    receive(socket, limit, hope)
}

/// Sends CRIU a request, or an answer to what it has asked.
pub(crate) fn send(socket: &OwnedFd, request: &CriuReq) -> io::Result<()> {
    rustix::net::send(socket, &request.encode_to_vec(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for what CRIU says next while `hope` says that there may be something. CRIU waits for ever for the leader of a
/// process that is killed while it traces it, because it has to take its other threads first; and a CRIU that is killed may
/// leave children with its end of the socket.
pub(crate) fn receive(
    socket: &OwnedFd,
    limit: Option<Duration>,
    hope: &dyn Fn() -> bool,
) -> io::Result<CriuResp> {
    let mut until = limit.map(|limit| Instant::now() + limit);
    let mut hopeless = false;
    loop {
        if !hopeless && !hope() {
            // It may just be saying so.
            (hopeless, until) = (true, Some(Instant::now() + LAST_WORDS));
        }
        let left = until.map_or(LOOK, |it| it.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        let left = left.min(LOOK);
        let wait = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => break,
            Err(e) => return Err(e.into()),
        }
    }
    let mut buffer = vec![0; 64 << 10];
    let (bytes, _) = rustix::net::recv(socket, &mut buffer, RecvFlags::empty())?;
    if bytes == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    CriuResp::decode(&buffer[..bytes]).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

pub(crate) fn check(
    answer: io::Result<CriuResp>,
    what: &str,
    log: &Path,
    kind: FailureKind,
) -> Result<()> {
    let reason = match answer {
        Ok(answer) if answer.success => return Ok(()),
        Ok(answer) => first_error(log).or(answer.cr_errmsg).unwrap_or_else(|| {
            match answer.cr_errno.filter(|e| *e != 0) {
                Some(errno) => io::Error::from_raw_os_error(errno.abs()).to_string(),
                None => "it gives no reason".into(),
            }
        }),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => "it does not answer".to_owned(),
        Err(e) => first_error(log).unwrap_or_else(|| format!("it ended unexpectedly ({e})")),
    };
    // On a full disk CRIU cannot even write its log, and names whatever came before.
    let folder = log.parent().unwrap_or(log);
    if free_bytes(folder).is_some_and(|free| free < LITTLE) {
        let message = format!(
            "CRIU cannot {what}: there is no space left in `{}`",
            folder.display()
        );
        return Err(fail(FailureKind::User, message).hint("free some space, and try again"));
    }
    Err(fail(kind, format!("CRIU cannot {what}: {reason}"))
        .hint(format!("CRIU's log is `{}`", log.display())))
}

/// Bytes of processes' memory in a folder of CRIU's files, or of links to them.
fn memory_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let pages = entries.filter(|it| it.file_name().as_encoded_bytes().starts_with(b"pages-"));
    let bytes = pages.filter_map(|it| fs::metadata(it.path()).ok());
    bytes.map(|it| it.len()).sum()
}

/// A disk with less than this is full.
const LITTLE: u64 = 64 << 10;

/// The first error in a log of CRIU that stops it, without time and place in its source.
fn first_error(log: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(log).ok()?).into_owned();
    condense(&text)
}

fn condense(log: &str) -> Option<String> {
    // CRIU goes on with a lower limit of descriptors, although it calls that an error.
    let fatal = |line: &&str| line.contains("Error (") && !line.contains("rlimit: Can't setup");
    let line = log.lines().find(fatal)?;
    let (_, rest) = line.split_once("Error (")?;
    let (_, message) = rest.split_once("): ")?;
    Some(message.trim().to_owned()).filter(|m| !m.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_condensed_to_its_first_error() {
        let log = "(00.001) Warn  (criu/x.c:1): nothing\n\
                   (00.001) Error (criu/rlimit.c:1): rlimit: Can't setup RLIMIT_NOFILE for self\n\
                   (00.002) Error (criu/files.c:12): Can't dump 3 (anon_inode:[io_uring])\n\
                   (00.003) Error (criu/cr-dump.c:9): Dumping FAILED.\n";
        assert_eq!(
            condense(log).as_deref(),
            Some("Can't dump 3 (anon_inode:[io_uring])")
        );
        assert_eq!(condense("(00.001) fine\n"), None);
    }

    #[test]
    fn requests_are_encoded_with_the_documented_numbers() {
        let request = CriuReq {
            r#type: CriuReqType::Dump.into(),
            opts: Some(CriuOpts {
                images_dir_fd: -1,
                leave_running: Some(true),
                images_dir: Some("d".into()),
                ..CriuOpts::default()
            }),
            notify_success: None,
        };
        let mut expected = vec![0x08, 1, 0x12, 17, 0x08];
        expected.extend([0xff; 9]);
        expected.extend([0x01, 0x18, 1, 0xa2, 0x04, 1, b'd']);
        assert_eq!(request.encode_to_vec(), expected);
    }
}
