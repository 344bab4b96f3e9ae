//! A process whose threads are stopped by `ptrace`, one of which makes system calls for this process.
//!
//! ```text
//!  seize ─► interrupt ─► all stand still ─► borrow: [call] [call] ─► interrupt ─► registers, signal mask ─► detach
//! ```
//! The second stop is of the same kind as the first, so that the kernel restarts the system call in which the thread was
//! interrupted by its own rules. Signals that come meanwhile are blocked, and delivered later; SIGSTOP cannot be blocked,
//! and is passed on at once: the process stays stopped by it after the end.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::sys::{self, Event, Registers};

/// How long the threads may take to stop. One in an uninterruptible system call does not, and the others wait for it.
const STOP_TIME: Duration = Duration::from_secs(1);
/// How long a thread may take for a step of a system call: until that is done it cannot be let go.
const STEP_TIME: Duration = Duration::from_secs(60);
/// Between two looks at it.
const LOOK: Duration = Duration::from_micros(50);
/// `PTRACE_EVENT_STOP`.
const TRAP: i32 = 128;
/// The code segment of 64-bit programs.
const LONG_MODE: u64 = 0x33;

/// A process, all threads of which stand still until this is dropped.
#[derive(Debug)]
pub struct Traced {
    pid: u32,
    threads: BTreeSet<u32>,
}

impl Traced {
    /// Stops all threads of process `pid`.
    pub fn stop(pid: u32) -> io::Result<Self> {
        let mut traced = Self {
            pid,
            threads: BTreeSet::new(),
        };
        let until = Instant::now() + STOP_TIME;
        // Threads that stand still start no others.
        while traced.stop_more(until)? {}
        match traced.threads.contains(&pid) {
            true => Ok(traced),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Stops the threads that are not stopped yet; whether there were some.
    fn stop_more(&mut self, until: Instant) -> io::Result<bool> {
        let mut new = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let tid = entry?.file_name().to_str().and_then(|it| it.parse().ok());
            let tid: u32 = tid.ok_or(io::ErrorKind::InvalidData)?;
            if self.threads.contains(&tid) {
                continue;
            }
            match sys::seize(tid) {
                Ok(()) => new.push(tid),
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        for tid in &new {
            // One that has ended says so below.
            let _ = sys::interrupt(*tid);
        }
        for tid in &new {
            if self.await_trap(*tid, until)? {
                self.threads.insert(*tid);
            }
        }
        Ok(!new.is_empty())
    }

    /// Waits for the stop that an interruption makes; false if the thread has ended.
    fn await_trap(&mut self, tid: u32, until: Instant) -> io::Result<bool> {
        loop {
            match next_event(tid, until)? {
                Event::Stopped(libc::SIGTRAP, TRAP) => return Ok(true),
                Event::Stopped(_, TRAP) => {
                    self.threads.insert(tid);
                    // The whole process; it can be tracked another time.
                    return Err(io::Error::other("a signal has stopped it"));
                }
                Event::Stopped(signal, _) => sys::go_on(tid, signal)?,
                Event::Ended => return Ok(false),
            }
        }
    }

    /// Borrows the first thread for system calls; none if it is where it must not be disturbed.
    pub fn borrow(&self) -> io::Result<Option<Borrowed<'_>>> {
        let tid = self.pid;
        let registers = sys::registers(tid)?;
        if registers.cs != LONG_MODE {
            return Err(io::Error::other("it is a 32-bit program"));
        }
        if sys::dispatches_system_calls(tid) {
            return Err(io::Error::other("it handles its system calls itself"));
        }
        if self.is_in_sequence(registers.rip)? {
            return Ok(None);
        }
        let blocked = sys::blocked(tid)?;
        // Not one signal may be handled with the registers of the calls.
        sys::block(tid, u64::MAX)?;
        Ok(Some(Borrowed {
            process: self,
            registers,
            blocked,
        }))
    }

    /// Whether the first thread is in a restartable sequence (`rseq(2)`): the kernel would forget to restart it.
    fn is_in_sequence(&self, at: u64) -> io::Result<bool> {
        let Some(area) = sys::restartable_sequences(self.pid) else {
            return Ok(false);
        };
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        let word = |address: u64| -> io::Result<u64> {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, address)?;
            Ok(u64::from_le_bytes(bytes))
        };
        // `rseq_cs` of `struct rseq`, and `start_ip` and `post_commit_offset` of `struct rseq_cs`.
        match word(area + 8)? {
            0 => Ok(false),
            sequence => Ok(at.wrapping_sub(word(sequence + 8)?) < word(sequence + 16)?),
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        for tid in &self.threads {
            // Fails only when it has just been killed.
            let _ = sys::detach(*tid);
        }
    }
}

/// The first thread of a process, with the registers of system calls; it must be given back.
#[derive(Debug)]
#[must_use]
pub struct Borrowed<'p> {
    process: &'p Traced,
    registers: Registers,
    blocked: u64,
}

impl Borrowed<'_> {
    /// Makes system call `number` with one argument; `entry` is the address of a `syscall` instruction.
    pub fn call(&self, entry: u64, number: u64, argument: u64) -> io::Result<u64> {
        let tid = self.process.pid;
        let registers = Registers {
            rip: entry,
            rax: number,
            rdi: argument,
            // It is in no system call, as far as restarting goes.
            orig_rax: u64::MAX,
            ..self.registers
        };
        sys::set_registers(tid, &registers)?;
        for _ in ["begin", "end"] {
            let mut signal = 0;
            loop {
                sys::to_system_call(tid, signal)?;
                signal = match stopped(tid)? {
                    (signal, 0) if signal == libc::SIGTRAP | 0x80 => break,
                    // A stop of the whole process, which this thread leaves until it is detached.
                    (_, TRAP) => 0,
                    (signal, _) => signal,
                };
            }
        }
        match sys::registers(tid)?.rax as i64 {
            error @ -4095..=-1 => Err(io::Error::from_raw_os_error(-error as i32)),
            result => Ok(result as u64),
        }
    }

    /// The thread is where it was.
    pub fn give_back(self) -> io::Result<()> {
        let tid = self.process.pid;
        sys::interrupt(tid)?;
        let mut signal = 0;
        loop {
            sys::go_on(tid, signal)?;
            signal = match stopped(tid)? {
                (_, TRAP) => break,
                // That of a call which was given up.
                (signal, _) if signal == libc::SIGTRAP | 0x80 => 0,
                (signal, _) => signal,
            };
        }
        sys::set_registers(tid, &self.registers)?;
        sys::block(tid, self.blocked)
    }
}

/// Waits for a thread's next stop: the signal, and the event behind it.
fn stopped(tid: u32) -> io::Result<(i32, i32)> {
    match next_event(tid, Instant::now() + STEP_TIME)? {
        Event::Stopped(signal, event) => Ok((signal, event)),
        Event::Ended => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Waits for what a thread comes to next.
///
/// # Errors
/// `TimedOut` when it has come to nothing by `until`.
fn next_event(tid: u32, until: Instant) -> io::Result<Event> {
    loop {
        match sys::event(tid)? {
            Some(event) => return Ok(event),
            None if Instant::now() > until => return Err(io::ErrorKind::TimedOut.into()),
            // Polled: `waitpid` has no deadline, a pidfd tells of a thread's end and not of its stops, and SIGCHLD belongs to
            // the process that this library is part of.
            None => std::thread::sleep(LOOK),
        }
    }
}
