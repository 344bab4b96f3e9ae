//! Where text goes: the driver's to the program's output, the worker's own to the worker's log.
//!
//! ```text
//!  driver ── 1: device printf ─┐
//!         ── 2: assert, notes ─┴─► the program's output, once there is a program
//!  worker ── panics, errors ─────► the worker's log, which was descriptor 2 when it started
//! ```

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Stdio;
use std::sync::OnceLock;
use std::{fs, io};

/// What descriptor 2 was at the start.
static LOG: OnceLock<fs::File> = OnceLock::new();

/// Keeps the worker's log apart from descriptor 2, and has panics written to it.
///
/// # Errors
/// There is no descriptor 2, or no descriptors are left.
pub fn keep_log() -> io::Result<()> {
    let log: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    if LOG.set(log.into()).is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            let trace = std::backtrace::Backtrace::capture();
            tell(&format!("{panic}\n{trace}"));
        }));
    }
    Ok(())
}

/// Writes a line to the worker's log.
pub fn tell(line: &str) {
    if let Some(mut log) = LOG.get() {
        // If the log cannot be written, there is no other place to report it.
        let _ = writeln!(log, "{line}");
    }
}

/// The worker's log, for the output of a process that it starts.
pub fn log() -> Stdio {
    let log = LOG.get().and_then(|log| log.try_clone().ok());
    log.map_or_else(Stdio::null, Stdio::from)
}

/// From now on the driver writes to the program's output.
///
/// # Errors
/// The system refuses.
pub fn to_program(output: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(output)?;
    Ok(())
}
