//! Modes of the daemon's executable that run as helper processes.
//!
//! ```text
//!  daemon ─spawn─► __outer   (new mount namespace; children in a new PID namespace): brings pages, unless eager
//!                    └─spawn─► __init  pid 1: mounts /proc, starts CRIU, reaps, holds what brings the pages
//!                                ├─ criu swrk 3 ◄── request ── daemon
//!                                └─ the program            (restored as CRIU's sibling)
//! ```
//! `__init` ends with the program's status, and the kernel then ends what is left in the namespace;
//! `__outer` hands the status on. A new daemon finds it in the file `exit` of the session's folder.
//! While pages are missing, neither of the two outlives the other, so that the program never finds zeros in place of them
//! (`crate::host::pages`).
//! Until the daemon has noted down where the program is, `__outer` holds a lifeline: when the daemon dies, the
//! namespace ends, for no later daemon would know of it.
//! `__enter` starts CRIU inside the namespaces that its starter has set for its children; `__kerndat` has it
//! ask the kernel what it can do.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use fermata_control::wait;
use fermata_hostmem::demand::{Server, Turn};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal,
};

use crate::criu;
use crate::criu::{kerndat, pstree};
use crate::helpers::modes::{ENTER, HelperReport, INIT, Job, KERNDAT, OUTER, TRACK, status_code};
use crate::host;
use crate::host::pages;
use crate::sys::{self, Extra};

/// Descriptor of CRIU's socket in all three.
const SOCKET: i32 = 3;
/// Descriptor of the pipe to the daemon in `__outer`.
const REPORT: i32 = 4;
/// Descriptor of the lifeline in `__outer`: a byte comes when the program is to live without the daemon, and the end when nothing else
/// of the program comes from its image, or the daemon has died. Without that byte before it the program ends.
const LIFELINE: i32 = 5;
/// Descriptor in `__init` of its socket to `__outer`, for what brings pages.
const HOLD: i32 = 4;
/// Descriptor of the program's input in `__outer` and in `__init`, if [`Job::input`].
const INPUT: [i32; 2] = [6, 5];
/// How long CRIU may take to end once the program that it restores has.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The number where the kernel goes on when it has given the highest.
const LEAST: u32 = 300;
/// How many numbers are kept free for what runs beside the program while CRIU restores it.
const APART: u32 = 256;
/// Status when the program could not be restored.
const NOT_RESTORED: i32 = 125;

/// Runs the helper mode that `arguments` ask for; none if they ask for none. Returns the exit status.
pub fn helper(arguments: &[std::ffi::OsString]) -> Option<i32> {
    let mode = arguments.first()?.to_str()?;
    let job = || -> Option<Job> { serde_json::from_str(arguments.get(1)?.to_str()?).ok() };
    let done = match mode {
        ENTER => enter(arguments.get(1..)?),
        KERNDAT => kerndat::helper(arguments.get(1..)?),
        TRACK => host::helper(arguments.get(1..)?),
        OUTER => outer(&job()?, arguments.get(1)?.to_str()?),
        INIT => init(&job()?),
        _ => return None,
    };
    Some(done.unwrap_or(NOT_RESTORED))
}

/// `__enter CRIU ARGUMENTS`.
fn enter(arguments: &[std::ffi::OsString]) -> io::Result<i32> {
    let socket = inherited(SOCKET)?;
    let (program, rest) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(rest);
    sys::die_with_parent();
    sys::prepare(&mut command, on_the_way(vec![socket]));
    let mut child = command.spawn()?;
    drop(command);
    Ok(status_code(child.wait()?))
}

fn outer(job: &Job, text: &str) -> io::Result<i32> {
    let (socket, report) = (inherited(SOCKET)?, inherited(REPORT)?);
    let lifeline = File::from(inherited(LIFELINE)?);
    let mut reporter = File::from(report);
    let input = input_at(INPUT[0], job)?;
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // CRIU connects at once.
    let listen = || pages::listen(&job.dir, job.memory.as_ref(), job.share, ours);
    let mut pages = match job.lazy.then(listen).transpose() {
        Ok(pages) => pages,
        Err(reason) => {
            tell(
                &mut reporter,
                &HelperReport::PagesFailed(reason.to_string()),
            );
            return Ok(NOT_RESTORED);
        }
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args([INIT, text]).arg(&job.agents);
    let mut fds = vec![socket, theirs];
    fds.extend(input);
    sys::prepare(
        &mut command,
        Extra {
            own_network: job.own_network,
            setsid: job.shell_job,
            ..on_the_way(fds)
        },
    );
    let mut child = command.spawn()?;
    drop(command);
    tell(&mut reporter, &HelperReport::Init(child.id()));
    if let Some(pages) = &mut pages {
        pages.prepare();
    }
    let code = status_code(outlive(lifeline, &mut child, pages, &mut reporter, job)?);
    // The folder may be gone already, when the session was removed.
    let _ = fs::write(&job.exit_file, format!("{code}\n"));
    Ok(code)
}

/// Waits for `init`'s end, and brings pages meanwhile; ends it, and the namespace with it, when the lifeline breaks or
/// pages cannot be brought. Without a thread: the kernel starts none in a process whose children live in another PID
/// namespace.
fn outlive(
    mut lifeline: File,
    init: &mut Child,
    mut pages: Option<Server>,
    reporter: &mut File,
    job: &Job,
) -> io::Result<ExitStatus> {
    let process = pidfd_open(Pid::from_child(init), PidfdFlags::empty())?;
    let (mut kept, mut over) = (false, false);
    loop {
        let all = [process.as_fd(), lifeline.as_fd()];
        let watched = if over { &all[..1] } else { &all[..] };
        let turn = match &mut pages {
            Some(server) => pages::turn(server, watched),
            None => wait(watched).map_err(|error| error.to_string()),
        };
        match turn {
            Ok(Turn::Worked) => continue,
            Ok(Turn::Complete) => {
                let over = pages.take().map(|server| (server.waits(), server.learnt()));
                let ((time, faults), learnt) = over.unwrap_or_default();
                pages::finished(&job.dir);
                let seconds = time.as_secs_f64();
                tell(reporter, &HelperReport::PagesThere { seconds, faults });
                if let Some(memory) = &job.memory {
                    pages::keep(&learnt, &job.dir, memory);
                }
                continue;
            }
            Ok(Turn::Ready(0)) => break,
            Ok(Turn::Ready(_)) => {
                over = lifeline.read_exact(&mut [0]).is_err();
                kept |= !over;
                if over && let Some(server) = &mut pages {
                    server.take_disk();
                }
                if kept {
                    continue;
                }
            }
            Err(reason) => tell(reporter, &HelperReport::PagesFailed(reason)),
        }
        // Fails only when it has just ended.
        let _ = pidfd_send_signal(&process, Signal::KILL);
        break;
    }
    // Every process of the namespace has ended before it has; only then is the server dropped.
    init.wait()
}

fn wait(fds: &[BorrowedFd<'_>]) -> io::Result<Turn> {
    let mut set: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    match poll(&mut set, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ready = set.iter().position(|it| !it.revents().is_empty());
    Ok(ready.map_or(Turn::Worked, Turn::Ready))
}

fn init(job: &Job) -> io::Result<i32> {
    let (socket, holder) = (inherited(SOCKET)?, inherited(HOLD)?);
    let input = input_at(INPUT[1], job)?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    let _ = keep_numbers_apart(&job.dir, job.root);
    if job.own_network {
        sys::raise_loopback()?;
    }
    if job.lazy {
        pages::hold(holder, NOT_RESTORED)?;
    }
    let log = OpenOptions::new().append(true).open(&job.log)?;
    let mut fds = vec![socket, log.into()];
    for file in &job.nameless {
        fds.push(file.nameless(&job.dir)?);
    }
    fds.extend(input);
    reap(job.root, start_criu(job, fds)?)
}

/// CRIU, the processes that it starts and the threads of this one must not get numbers of processes or threads that it restores:
/// those that the image in `dir` has.
fn keep_numbers_apart(dir: &Path, root: u32) -> io::Result<()> {
    let most: u32 = fs::read_to_string("/proc/sys/kernel/pid_max")?
        .trim()
        .parse()
        .unwrap_or(32768);
    let first = if root > most / 2 {
        LEAST
    } else {
        root + most / 4
    };
    let last = before_free(&pstree::numbers(dir)?, first, most);
    let last = last.ok_or(io::ErrorKind::NotFound)?;
    fs::write("/proc/sys/kernel/ns_last_pid", last.to_string())
}

/// The number before the first [`APART`] below `most` of which none is taken, from `first` on, and then from [`LEAST`] on.
fn before_free(taken: &BTreeSet<u32>, first: u32, most: u32) -> Option<u32> {
    let is_free = |before: &u32| {
        let end = before + APART;
        end < most && taken.range(before + 1..=end).next().is_none()
    };
    let step = APART as usize;
    let mut all = (first..most)
        .step_by(step)
        .chain((LEAST..first).step_by(step));
    all.find(is_free)
}

fn start_criu(job: &Job, fds: Vec<OwnedFd>) -> io::Result<Child> {
    let mut command = criu::command(&job.criu);
    command.args(["swrk", "3"]);
    quiet(&mut command);
    sys::prepare(&mut command, on_the_way(fds));
    command.spawn()
}

/// What a CRIU gets, or the next helper on the way to one.
fn on_the_way(fds: Vec<OwnedFd>) -> Extra {
    Extra {
        hands_on: true,
        ..Extra::fds(fds)
    }
}

fn quiet(command: &mut Command) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    criu::environment::clean(command);
}

/// Waits for children until the program has ended, or CRIU has without making it. A program may end before CRIU has said
/// that it is there: CRIU would end with this process. But CRIU does not always hear of a program that is killed while it
/// makes it, and waits for it then.
fn reap(root: u32, criu: Child) -> io::Result<i32> {
    let mut criu_ended = false;
    let number = |pid: Pid| u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0);
    loop {
        let Some((pid, status)) = rustix::process::wait(WaitOptions::empty())? else {
            continue;
        };
        let pid = number(pid);
        if pid == root {
            if !criu_ended {
                wait::child_ends(&criu, LAST_WORDS);
            }
            return Ok(wait_code(status));
        }
        if pid == criu.id() {
            criu_ended = true;
            if !Path::new(&format!("/proc/{root}")).exists() {
                return Ok(NOT_RESTORED);
            }
        }
    }
}

fn tell(report: &mut File, what: &HelperReport) {
    if let Ok(mut line) = serde_json::to_vec(what) {
        line.push(b'\n');
        // The daemon may be gone; the program goes on without it.
        let _ = report.write_all(&line);
    }
}

fn inherited(number: i32) -> io::Result<OwnedFd> {
    sys::inherited(number).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

fn input_at(number: i32, job: &Job) -> io::Result<Option<OwnedFd>> {
    job.input.then(|| inherited(number)).transpose()
}

fn wait_code(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beside_the_program_are_none_of_its_own() {
        let most = 32768;
        let before =
            |taken: &[u32], first| before_free(&taken.iter().copied().collect(), first, most);
        assert_eq!(before(&[], 8292), Some(8292));
        // That is not given any more.
        assert_eq!(before(&[100, 8292], 8292), Some(8292));
        // A thread that was made after an earlier restore.
        assert_eq!(before(&[100, 8293], 8292), Some(8292 + APART));
        assert_eq!(
            before(&[8292 + APART, 8293 + 2 * APART], 8292),
            Some(8292 + APART)
        );
        // The highest numbers are too few.
        assert_eq!(before(&[], most - APART), Some(LEAST));
        let every: Vec<u32> = (1..most).step_by(100).collect();
        assert_eq!(before(&every, 8292), None);
    }
}
