//! A userfaultfd for the memory of another process.
//!
//! Only a process itself can make one for its memory. One thread of it is stopped (`ptrace`), made to call `userfaultfd`
//! and `close`, and let go as if nothing had happened; the descriptor is taken over in between (`pidfd_getfd`):
//!
//! ```text
//!  seize ─► interrupt ─► [userfaultfd] ─► pidfd_getfd ─► [close] ─► interrupt ─► registers, signal mask ─► detach
//! ```
//! The second stop is of the same kind as the first, so that the kernel restarts the system call in which the thread was
//! interrupted by its own rules. A thread's tracer is a thread: a process of its own should call [`acquire`], so that a
//! parent that waits for the process is not told of these stops.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::{Error, Result};
use crate::sys::{self, Event, Registers};
use crate::{maps, scan};

/// How long a thread may take to stop. One in an uninterruptible system call does not.
const STOP_TIME: Duration = Duration::from_secs(5);
/// Between two looks at it.
const LOOK: Duration = Duration::from_micros(100);
/// `PTRACE_EVENT_STOP`.
const TRAP: i32 = 128;
/// The code segment of 64-bit programs.
const LONG_MODE: u64 = 0x33;
/// `O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY`: the last needs no privilege, and suffices, for nothing is waited for.
const FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK | 1) as u64;
/// The instruction `syscall`.
const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];

/// Refuses processes in which no system call can be made from outside, or whose memory is written past the page tables.
///
/// # Errors
/// `Untrackable`, saying why.
pub fn check_trackable(pid: u32) -> Result<()> {
    let refuse = |why: &str| Err(Error::untrackable(pid, why));
    if !scan::is_supported() {
        return refuse("the kernel is older than Linux 6.7");
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(Error::kernel("read the status", pid))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|it| it.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()
    };
    match () {
        () if field("Seccomp") != Some("0") => refuse("it filters its system calls (seccomp)"),
        () if field("TracerPid") != Some("0") => refuse("a debugger is attached to it"),
        () if !matches!(field("State"), Some("R" | "S" | "D")) => refuse("it is stopped"),
        () if maps::has_direct_io(pid) => {
            refuse("it has a file open with O_DIRECT, an io_uring or a userfaultfd")
        }
        () => Ok(()),
    }
}

/// A userfaultfd with asynchronous write protection for the memory of process `pid`.
///
/// # Errors
/// The process cannot be traced, or the kernel gives it none; it runs on.
pub fn acquire(pid: u32) -> Result<OwnedFd> {
    check_trackable(pid)?;
    let entry = entry(pid).map_err(Error::kernel("read the vDSO", pid))?;
    let traced = Traced::stop(pid).map_err(Error::kernel("stop a thread", pid))?;
    let uffd = traced
        .take(entry)
        .map_err(Error::kernel("get a userfaultfd", pid));
    traced
        .release()
        .map_err(Error::kernel("let go a thread", pid))?;
    let uffd = uffd?;
    sys::handshake(uffd.as_fd()).map_err(Error::kernel("set up the userfaultfd", pid))?;
    Ok(uffd)
}

/// The address of a `syscall` instruction: every vDSO has one.
fn entry(pid: u32) -> io::Result<u64> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    let none = || io::Error::from(io::ErrorKind::NotFound);
    let line = maps
        .lines()
        .find(|it| it.ends_with("[vdso]"))
        .ok_or_else(none)?;
    let range = line.split(' ').next().and_then(|it| it.split_once('-'));
    let (start, end) = range.ok_or_else(none)?;
    let number = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
    let (start, end) = (number(start)?, number(end)?);
    let mut code = vec![0; (end - start) as usize];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut code, start)?;
    let at = code.windows(2).position(|it| it == SYSTEM_CALL);
    at.map(|at| start + at as u64).ok_or_else(none)
}

/// A thread that stands still, and what it was at.
struct Traced {
    tid: u32,
    registers: Registers,
    blocked: u64,
}

impl Traced {
    fn stop(tid: u32) -> io::Result<Self> {
        sys::seize(tid)?;
        sys::interrupt(tid)?;
        await_trap(tid)?;
        let known = sys::registers(tid).and_then(|it| Ok((it, sys::blocked(tid)?)));
        match known {
            Ok((registers, blocked)) if registers.cs == LONG_MODE => Ok(Self {
                tid,
                registers,
                blocked,
            }),
            other => {
                sys::detach(tid)?;
                other?;
                Err(io::Error::other("it is a 32-bit program"))
            }
        }
    }

    /// Makes the descriptor in the thread's process, and moves it here.
    fn take(&self, entry: u64) -> io::Result<OwnedFd> {
        // Not one signal may be handled with the registers of the calls below.
        sys::block(self.tid, u64::MAX)?;
        let number = self.call(entry, libc::SYS_userfaultfd as u64, FLAGS)?;
        let moved = Pid::from_raw(self.tid as i32)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .and_then(|process| pidfd_getfd(process, number as i32, PidfdGetfdFlags::empty()));
        self.call(entry, libc::SYS_close as u64, number)?;
        Ok(moved?)
    }

    /// Has the thread make a system call with one argument.
    fn call(&self, entry: u64, number: u64, argument: u64) -> io::Result<u64> {
        let registers = Registers {
            rip: entry,
            rax: number,
            rdi: argument,
            // It is in no system call, as far as restarting goes.
            orig_rax: u64::MAX,
            ..self.registers
        };
        sys::set_registers(self.tid, &registers)?;
        for _ in ["begin", "end"] {
            sys::to_system_call(self.tid)?;
            await_stop(self.tid, |signal, _| signal == libc::SIGTRAP | 0x80)?;
        }
        let result = sys::registers(self.tid)?.rax as i64;
        match result {
            -4095..=-1 => Err(io::Error::from_raw_os_error(-result as i32)),
            _ => Ok(result as u64),
        }
    }

    /// Lets the thread go on where it was.
    fn release(self) -> io::Result<()> {
        sys::interrupt(self.tid)?;
        sys::go_on(self.tid, 0)?;
        await_trap(self.tid)?;
        sys::set_registers(self.tid, &self.registers)?;
        sys::block(self.tid, self.blocked)?;
        sys::detach(self.tid)
    }
}

/// Waits for the stop that an interruption makes.
fn await_trap(tid: u32) -> io::Result<()> {
    await_stop(tid, |signal, event| {
        signal == libc::SIGTRAP && event == TRAP
    })
}

/// Waits for a certain stop. Other signals are the thread's own.
fn await_stop(tid: u32, wanted: impl Fn(i32, i32) -> bool) -> io::Result<()> {
    let until = Instant::now() + STOP_TIME;
    loop {
        match sys::event(tid)? {
            Event::Stopped(signal, event) if wanted(signal, event) => return Ok(()),
            Event::Stopped(_, TRAP) => {
                // A signal has stopped the whole process; it can be tracked another time.
                sys::detach(tid)?;
                return Err(io::Error::other("a signal has stopped it"));
            }
            Event::Stopped(signal, _) => sys::go_on(tid, signal)?,
            Event::Ended => return Err(io::ErrorKind::NotFound.into()),
            Event::None if Instant::now() > until => return Err(io::ErrorKind::TimedOut.into()),
            Event::None => std::thread::sleep(LOOK),
        }
    }
}
