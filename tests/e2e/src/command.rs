//! Runs a command with a deadline.
//!
//! Output goes through files, never through pipes: a daemon that a command
//! starts may keep its output open for ever.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What a command left.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Exit status; a signal counts as 128 plus its number.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Wall time.
    pub took: Duration,
}

impl Finished {
    /// The result, if the status is 0.
    ///
    /// # Errors
    /// With the standard error of the command.
    pub fn success(self, what: &str) -> Result<Self> {
        if self.status != 0 {
            bail!(
                "{what}: status {}, stderr: {}",
                self.status,
                self.stderr.trim()
            );
        }
        Ok(self)
    }
}

/// The exit code as shells count it.
pub fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Runs `command` to its end, or kills it at the deadline.
///
/// # Errors
/// When it cannot be started, or passed the deadline.
pub fn run(mut command: Command, limit: Duration) -> Result<Finished> {
    let what = format!("{command:?}");
    let mut out = tempfile::tempfile().context("temporary file for output")?;
    let mut err = tempfile::tempfile().context("temporary file for errors")?;
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot start {what}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > limit {
            child.kill().ok();
            child.wait().ok();
            bail!(
                "{what} did not end within {limit:?}; stderr: {}",
                read(&mut err)?.trim()
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ok(Finished {
        status: code(status),
        stdout: read(&mut out)?,
        stderr: read(&mut err)?,
        took: begun.elapsed(),
    })
}

fn read(file: &mut File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
