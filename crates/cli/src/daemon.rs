//! Talking to the user's daemon, and starting it when there is none.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_control::user::{FromDaemon, Request, Verb};
use fermata_control::{Connection, ControlError, Paths};

use crate::failure::{Failure, INTERNAL, USER};
use crate::printer::Printer;
use crate::progress::Progress;

const PEER: &str = "the daemon";
const START_LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);
/// A daemon that says nothing for this long during a request hangs.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);

/// A connection to the daemon.
pub struct Daemon {
    connection: Connection<FromDaemon, Request>,
}

impl Daemon {
    /// Connects if a daemon runs.
    pub fn find() -> Option<Self> {
        let connection = Connection::connect(&Paths::find().socket(), PEER).ok()?;
        Some(Self { connection })
    }

    /// Connects, starting the daemon when there is none.
    pub fn reach(printer: &Printer) -> Result<Self, Failure> {
        let paths = Paths::find();
        match Connection::connect(&paths.socket(), PEER) {
            Ok(connection) => Ok(Self { connection }),
            Err(ControlError::Connect { source, .. }) if nobody_there(&source) => {
                start(&paths, printer)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Asks, and waits for the answer; progress goes to the terminal. A `Failed` answer is an error.
    pub fn ask(&self, verb: Verb, progress: &Progress) -> Result<FromDaemon, Failure> {
        self.ask_with(verb, &[], progress)
    }

    /// As [`Self::ask`], sending descriptors along.
    pub fn ask_with(
        &self,
        verb: Verb,
        fds: &[BorrowedFd<'_>],
        progress: &Progress,
    ) -> Result<FromDaemon, Failure> {
        self.send(verb, fds)?;
        let deadline = Instant::now() + SILENCE_LIMIT;
        loop {
            match self.poll(deadline.saturating_duration_since(Instant::now()), progress)? {
                Some(answer) => return Ok(answer),
                None if Instant::now() < deadline => {}
                None => {
                    let text = format!("the daemon has not answered for {SILENCE_LIMIT:?}");
                    return Err(Failure::new(INTERNAL, text));
                }
            }
        }
    }

    /// Sends a request without waiting.
    pub fn send(&self, verb: Verb, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        Ok(self.connection.send(&Request::new(verb), fds)?)
    }

    /// Waits up to `limit` for the answer; `None` when there is none yet.
    pub fn poll(
        &self,
        limit: Duration,
        progress: &Progress,
    ) -> Result<Option<FromDaemon>, Failure> {
        match self.connection.recv(limit) {
            Err(e) if e.is_timeout() => Ok(None),
            Err(e) => Err(e.into()),
            Ok((FromDaemon::Progress(p), _)) => {
                progress.update(&p.phase, p.done, p.total);
                Ok(None)
            }
            Ok((FromDaemon::Failed(failure), _)) => Err(failure.into()),
            Ok((answer, _)) => Ok(Some(answer)),
        }
    }
}

/// An answer of the wrong kind.
pub fn unexpected(answer: &FromDaemon) -> Failure {
    let text = format!("{answer:?}");
    let kind: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
    Failure::new(
        INTERNAL,
        format!("the daemon gave an answer that does not fit: {kind}"),
    )
    .hint("the daemon may be of another release: end it and try again")
}

fn nobody_there(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// The daemon's executable: beside this one, or in the installation.
pub fn executable(paths: &Paths) -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|e| Some(e.parent()?.join("fermatad")));
    beside
        .filter(|p| p.exists())
        .unwrap_or_else(|| paths.daemon())
}

fn start(paths: &Paths, printer: &Printer) -> Result<Daemon, Failure> {
    let executable = executable(paths);
    let log = paths.runtime.join("fermatad.log");
    let mut child = spawn(&executable, &paths.runtime, &log).map_err(|e| {
        Failure::new(
            USER,
            format!("cannot start `{}`: {e}", executable.display()),
        )
    })?;
    printer.note(&format!(
        "started the daemon `{}` (process {}, log `{}`)",
        executable.display(),
        child.id(),
        log.display()
    ));
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let error = match Connection::connect(&paths.socket(), PEER) {
            Ok(connection) => return Ok(Daemon { connection }),
            Err(e) => e,
        };
        if let Ok(Some(status)) = child.try_wait() {
            // Somebody else's daemon may have been faster.
            if let Some(daemon) = Daemon::find() {
                return Ok(daemon);
            }
            let text = format!("the daemon ended at its start ({status})");
            return Err(Failure::new(USER, text).hint(last_words(&log)));
        }
        if Instant::now() > deadline {
            let failure = Failure::from(error);
            return Err(failure.hint(format!("see its log `{}`", log.display())));
        }
        std::thread::sleep(POLL);
    }
}

fn spawn(executable: &Path, runtime: &Path, log: &Path) -> io::Result<Child> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(runtime)?;
    let log: File = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)?;
    Command::new(executable)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .current_dir("/")
        .process_group(0)
        .spawn()
}

fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    match text.lines().rev().find(|l| !l.trim().is_empty()) {
        Some(line) => format!("its log ends with: {line}"),
        None => format!("its log `{}` is empty", log.display()),
    }
}
