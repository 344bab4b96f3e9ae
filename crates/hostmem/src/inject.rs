//! A userfaultfd for the memory of another process.
//!
//! Only a process itself can make one for its memory. Its threads are stopped (`ptrace`), the first is made to call
//! `userfaultfd` and `close`, and all are let go as if nothing had happened; the descriptor is taken over in between
//! (`pidfd_getfd`):
//!
//! ```text
//!  stop all ─► [userfaultfd] ─► pidfd_getfd ─► [close] ─► registers, signal mask ─► detach
//! ```
//! As long as the process has the descriptor none of its threads runs, so that no child inherits it and no thread closes it.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::{Error, Result};
use crate::filter::WITHOUT_IO_URING;
use crate::maps::Maps;
use crate::sys;
use crate::traced::{Borrowed, Traced};
use crate::{maps, scan};

/// How often a process is stopped anew that could not be used where it stood.
const ATTEMPTS: u32 = 20;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(2);
/// The instruction `syscall`.
const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];

/// Why a process is refused whose filter could deny it what is asked of it here.
const FILTERED: &str = "it filters its system calls (seccomp)";

/// Refuses kernels that cannot note writes of programs, saying what they lack.
///
/// # Errors
/// What is missing.
pub fn check_kernel() -> std::result::Result<(), &'static str> {
    if !scan::is_supported() {
        return Err("the kernel is older than Linux 6.7");
    }
    let uffd = sys::userfaultfd().map_err(|_| "userfaultfd is not permitted")?;
    sys::handshake(uffd.as_fd()).map_err(|_| "userfaultfd cannot protect memory from writes")
}

/// Refuses processes in which no system call can be made from outside, or whose memory is written past the page tables.
fn check_trackable(pid: u32) -> Result<()> {
    let refuse = |why: &str| Err(Error::untrackable(pid, why));
    check_kernel().or_else(refuse)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(Error::kernel("read the status", pid))?;
    let field = |name| field(&status, name);
    match () {
        () if field("Seccomp") != Some("0") && field("Seccomp_filters") != Some("1") => {
            refuse(FILTERED)
        }
        () if field("TracerPid") != Some("0") => refuse("a debugger is attached to it"),
        () if !matches!(field("State"), Some("R" | "S" | "D")) => refuse("it is stopped"),
        () if maps::has_direct_io(pid) => refuse(maps::DIRECT_IO),
        () => Ok(()),
    }
}

/// A userfaultfd with asynchronous write protection for the memory of process `pid`.
///
/// # Errors
/// The process cannot be traced, or the kernel gives it none; it runs on.
pub fn acquire(pid: u32) -> Result<OwnedFd> {
    check_trackable(pid)?;
    // A tracer is a thread: at its end it lets go of what it still traces.
    let tracer = std::thread::Builder::new().name("tracer".into());
    let uffd = std::thread::scope(|scope| {
        let traced = tracer.spawn_scoped(scope, || take(pid))?;
        let failed = |_| Err(io::Error::other("the tracing thread has failed"));
        traced.join().unwrap_or_else(failed)
    });
    let uffd = uffd.map_err(Error::kernel("get a userfaultfd", pid))?;
    let uffd = uffd.ok_or_else(|| Error::untrackable(pid, FILTERED))?;
    sys::handshake(uffd.as_fd()).map_err(Error::kernel("set up the userfaultfd", pid))?;
    Ok(uffd)
}

/// None of a process with a filter of its own.
fn take(pid: u32) -> io::Result<Option<OwnedFd>> {
    for _ in 0..ATTEMPTS {
        let traced = Traced::stop(pid)?;
        if !lets_pass(pid)? {
            return Ok(None);
        }
        if shares_memory(pid)? {
            return Err(io::Error::other("it shares its memory with its parent"));
        }
        if let Some(thread) = traced.borrow()? {
            let uffd = make(pid, &thread);
            // Also after a failure.
            thread.give_back()?;
            return uffd.map(Some);
        }
        drop(traced);
        // The process needs this time to leave the sequence; nothing tells when it has.
        std::thread::sleep(PAUSE);
    }
    Err(io::Error::other("it is always in a restartable sequence"))
}

/// Whether every filter of a process, which stands still, is [`WITHOUT_IO_URING`].
fn lets_pass(pid: u32) -> io::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let filters = field(&status, "Seccomp_filters").and_then(|it| it.parse().ok());
    for number in 0..filters.unwrap_or(0) {
        match sys::filter(pid, number, WITHOUT_IO_URING.len()) {
            Ok(Some(program)) if program == WITHOUT_IO_URING => {}
            Ok(_) => return Ok(false),
            // This process is filtered itself, and may not ask.
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Makes the descriptor in the process, and moves it here.
fn make(pid: u32, thread: &Borrowed<'_>) -> io::Result<OwnedFd> {
    let entry = entry(pid)?;
    let number = thread.call(entry, libc::SYS_userfaultfd as u64, sys::USERFAULTFD_FLAGS)?;
    let moved = Pid::from_raw(pid as i32)
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .and_then(|process| pidfd_getfd(process, number as i32, PidfdGetfdFlags::empty()));
    thread.call(entry, libc::SYS_close as u64, number)?;
    Ok(moved?)
}

/// Whether a process, which stands still, has the same memory as its parent, as between `vfork` and `exec`. A descriptor
/// would be one for that memory, and outlive the process's use of it.
fn shares_memory(pid: u32) -> io::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = field(&status, "PPid").and_then(|it| it.parse().ok());
    match parent {
        // It has no parent in this namespace.
        None | Some(0) => Ok(false),
        Some(parent) => match sys::same_memory(pid, parent) {
            // The parent has ended just now.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            other => other,
        },
    }
}

/// The first word of a field of `/proc/PID/status`.
fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    let line = status.lines().find_map(|it| it.strip_prefix(name))?;
    line.strip_prefix(':')?.split_whitespace().next()
}

/// The address of a `syscall` instruction: every vDSO has one.
fn entry(pid: u32) -> io::Result<u64> {
    let maps = Maps::of(pid)?;
    let none = || io::Error::from(io::ErrorKind::NotFound);
    let vdso = maps.entries().find(|it| it.name == "[vdso]");
    let Range { start, end } = vdso.ok_or_else(none)?.range;
    let mut code = vec![0; (end - start) as usize];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut code, start)?;
    let at = code.windows(2).position(|it| it == SYSTEM_CALL);
    at.map(|at| start + at as u64).ok_or_else(none)
}
