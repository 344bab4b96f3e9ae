//! Talking to the user's daemon, and starting it when there is none.
//!
//! A daemon that is killed leaves its socket and its lock for the moment that its last threads take to go: it is not
//! talked to any more, and the next one is started once it is gone. What only asks is asked again then; what does
//! something is not, for it may have been done.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_control::user::{FromDaemon, Request, STATUS_TAKEN, Session, Verb};
use fermata_control::{Connection, ControlError, Paths, private_folder, wait};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use crate::failure::{ANOTHER_FOLDER, Failure, INTERNAL, USER, sentence};
use crate::printer::Printer;
use crate::progress::Progress;

/// How the control group of a daemon ends that systemd has started.
const SERVICE: &str = "/fermata.service";
const PEER: &str = "the daemon";
/// A daemon that has started and does not listen for this long hangs.
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How often a question is asked again of the next daemon.
const ASKED_AGAIN: u32 = 3;
/// A daemon that says nothing for this long during a request hangs.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);

/// A connection to the daemon.
pub struct Daemon {
    connection: Connection<FromDaemon, Request>,
}

impl Daemon {
    /// Connects if a daemon runs that is to be trusted.
    pub fn find() -> Option<Self> {
        connect(&Paths::find()).ok().flatten()
    }

    /// Connects, starting the daemon when there is none.
    pub fn reach(printer: &Printer) -> Result<Self, Failure> {
        let paths = Paths::find();
        match connect(&paths)? {
            Some(daemon) => Ok(daemon),
            None => start(&paths, printer),
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
        self.answer(SILENCE_LIMIT, progress)
    }

    /// Waits for the answer as long as there is progress at least every `silence`.
    fn answer(&self, silence: Duration, progress: &Progress) -> Result<FromDaemon, Failure> {
        loop {
            match self.hear(silence, progress)? {
                Heard::Answer(answer) => return Ok(*answer),
                Heard::Progress => {}
                Heard::Nothing => {
                    let text = format!("the daemon has not answered for {silence:?}");
                    return Err(Failure::new(INTERNAL, text).hint(
                        "it goes on with what it was asked for; `fermata ps` says how the sessions are",
                    ));
                }
            }
        }
    }

    /// Whether its process has ended but for threads that are still about to: they hold the socket until then.
    fn is_dead(&self) -> bool {
        self.stat().is_some_and(|stat| has_ended(&stat))
    }

    /// What `/proc` says of its process.
    fn stat(&self) -> Option<String> {
        let pid = self.connection.peer_pid().ok()?;
        fs::read_to_string(format!("/proc/{pid}/stat")).ok()
    }

    /// Waits until its process has ended, which holds its socket until then; false if it has not within `limit`.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let pid = self.connection.peer_pid().ok();
        let pid = pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let lives = || self.stat().is_some_and(|stat| !has_ended(&stat));
        pid.is_none_or(|pid| wait::process_ends(pid, limit, lives))
    }

    /// Whether it belongs to one of Fermata's systemd units, which starts the next.
    pub fn is_service(&self) -> bool {
        let pid = self.connection.peer_pid().ok();
        let group = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
        group.is_some_and(|it| it.trim_end().ends_with(SERVICE))
    }

    /// It has closed the connection: lets it end, for a moment at most.
    fn await_end(&self) {
        // What comes next looks whether it has ended.
        let _ = self.ends_within(POLL);
    }

    /// Lets `turn` pass between two questions. Its end ends the pause.
    pub fn pause(&self, turn: Duration) {
        wait::becomes_readable(&self.connection, turn);
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
        match self.hear(limit, progress)? {
            Heard::Answer(answer) => Ok(Some(*answer)),
            Heard::Progress | Heard::Nothing => Ok(None),
        }
    }

    fn hear(&self, limit: Duration, progress: &Progress) -> Result<Heard, Failure> {
        match self.connection.recv(limit) {
            Err(e) if e.is_timeout() => Ok(Heard::Nothing),
            Err(e) => Err(e.into()),
            Ok((FromDaemon::Progress(p), _)) => {
                progress.update(&p.phase, p.done, p.total);
                Ok(Heard::Progress)
            }
            Ok((FromDaemon::Failed(failure), _)) => Err(failure.into()),
            Ok((answer, _)) => Ok(Heard::Answer(Box::new(answer))),
        }
    }
}

/// Whether a process has ended, by its line in `/proc/PID/stat`.
fn has_ended(stat: &str) -> bool {
    let state = stat.rsplit_once(") ");
    state.is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// What has come within a limit.
enum Heard {
    Answer(Box<FromDaemon>),
    Progress,
    Nothing,
}

/// Waits for a session's end, with whichever daemon there is.
pub struct Waiting<'a> {
    daemon: Daemon,
    name: String,
    printer: &'a Printer,
}

impl<'a> Waiting<'a> {
    /// Begins to wait.
    pub fn new(name: &str, printer: &'a Printer) -> Result<Self, Failure> {
        let daemon = Daemon::reach(printer)?;
        let waiting = Self {
            daemon,
            name: name.to_owned(),
            printer,
        };
        waiting.ask()?;
        Ok(waiting)
    }

    fn ask(&self) -> Result<(), Failure> {
        let name = self.name.clone();
        self.daemon.send(Verb::Wait { name }, &[])
    }

    /// The session when it has ended; `None` after `limit`, or when the next daemon has to be asked.
    pub fn poll(&mut self, limit: Duration) -> Result<Option<Session>, Failure> {
        match self.daemon.poll(limit, &Progress::new(self.printer)) {
            Ok(None) => Ok(None),
            Ok(Some(FromDaemon::Session(session))) => Ok(Some(session)),
            Ok(Some(other)) => Err(unexpected(&other)),
            Err(failure) if failure.hung_up => {
                self.daemon.await_end();
                *self = Self::new(&self.name, self.printer)?;
                Ok(None)
            }
            Err(failure) => Err(failure),
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
    .hint(
        "the daemon may be of another release: end it with `fermata shutdown`, and try again; `--keep` leaves its sessions to \
         the next daemon, `--force` ends them",
    )
}

/// Asks what changes nothing, starting the daemon when there is none, and the next one when the daemon ends
/// before it has answered.
pub fn question(verb: &Verb, printer: &Printer) -> Result<FromDaemon, Failure> {
    let mut again = 0..ASKED_AGAIN;
    loop {
        let daemon = Daemon::reach(printer)?;
        match daemon.ask(verb.clone(), &Progress::new(printer)) {
            Err(failure) if failure.hung_up && again.next().is_some() => daemon.await_end(),
            answer => return answer,
        }
    }
}

/// Connects, if a daemon runs that has not been killed.
fn connect(paths: &Paths) -> Result<Option<Daemon>, ControlError> {
    match Connection::connect(&paths.socket(), PEER) {
        Ok(connection) => {
            let daemon = Daemon { connection };
            Ok(Some(daemon).filter(|it| !it.is_dead()))
        }
        Err(ControlError::Connect { source, .. }) if nobody_there(&source) => Ok(None),
        Err(e) => Err(e),
    }
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
    private_folder(&paths.runtime).map_err(|e| {
        let text = format!("cannot start the daemon: {}", sentence(&e));
        Failure::new(USER, text).hint(ANOTHER_FOLDER)
    })?;
    let spawn = || {
        spawn(&executable, paths, &log).map_err(|e| {
            let text = format!("cannot start `{}`: {e}", executable.display());
            Failure::new(USER, text).hint("FERMATA_HOME names the folder of the installation")
        })
    };
    let mut child = spawn()?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let connected = connect(paths);
        if let Ok(Some(daemon)) = connected {
            if matches!(child.try_wait(), Ok(None)) {
                printer.note(&format!(
                    "started the daemon `{}` (process {}, log `{}`)",
                    executable.display(),
                    child.id(),
                    log.display()
                ));
            }
            return Ok(daemon);
        }
        if Instant::now() > deadline {
            let text = match connected {
                Err(e) => Failure::from(e).message,
                _ => format!("no daemon answers within {START_LIMIT:?}"),
            };
            let hint = format!("see its log `{}`", log.display());
            return Err(Failure::new(USER, text).hint(hint));
        }
        // Its end ends the pause. Polled: what it has bound before it listens looks the same in the folder.
        wait::child_ends(&child, POLL);
        match child.try_wait() {
            // One that somebody else has just started is about to listen, or one that was killed about to go.
            Ok(Some(status)) if status.code() == Some(STATUS_TAKEN.into()) => child = spawn()?,
            Ok(Some(status)) => {
                let text = format!("the daemon ended at its start ({status})");
                return Err(Failure::new(USER, text).hint(last_words(&log)));
            }
            _ => {}
        }
    }
}

/// Starts the daemon with nothing of this command but the folders. It closes what descriptors it gets beyond these.
fn spawn(executable: &Path, paths: &Paths, log: &Path) -> io::Result<Child> {
    let flags = OFlags::CREATE | OFlags::APPEND | OFlags::WRONLY | OFlags::CLOEXEC;
    let log = rustix::fs::open(log, flags | OFlags::NOFOLLOW, Mode::RUSR | Mode::WUSR)?;
    Command::new(executable)
        .envs(paths.variables())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .current_dir("/")
        .process_group(0)
        .spawn()
}

fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    match text.lines().rev().find(|l| !l.trim().is_empty()) {
        Some(line) => format!("its log ends with: {line}"),
        None => format!("its log `{}` is empty", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use fermata_control::user;

    use super::*;

    const SILENCE: Duration = Duration::from_millis(400);

    /// Progress for longer than [`SILENCE`], then the end; the longest silence that the machine has made of it.
    fn tell(tool: &Connection<Request, FromDaemon>, begun: Instant) -> Duration {
        let (mut last, mut longest) = (begun, Duration::ZERO);
        for done in 0..=6 {
            let progress = user::Progress {
                phase: "device".to_owned(),
                done,
                total: 6,
            };
            let told = match done {
                6 => FromDaemon::Done,
                _ => FromDaemon::Progress(progress),
            };
            tool.send(&told, &[]).expect("sent");
            longest = longest.max(last.elapsed());
            last = Instant::now();
            std::thread::sleep(SILENCE / 4);
        }
        longest
    }

    #[test]
    fn a_daemon_that_tells_its_progress_is_not_given_up() {
        let printer = Printer::new(false, true);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let (ours, theirs) = UnixStream::pair().expect("sockets");
            let daemon = Daemon {
                connection: Connection::new(ours.into(), PEER),
            };
            let other: Connection<Request, FromDaemon> = Connection::new(theirs.into(), "the tool");
            let begun = Instant::now();
            let (answer, longest) = std::thread::scope(|scope| {
                let told = scope.spawn(|| tell(&other, begun));
                let answer = daemon.answer(SILENCE, &Progress::new(&printer));
                (answer, told.join().expect("told"))
            });
            // A machine that lets the other thread stand still makes a silence of its own.
            if longest >= SILENCE && Instant::now() < until {
                continue;
            }
            assert_eq!(answer.expect("answered"), FromDaemon::Done);
            let nothing = daemon.answer(SILENCE / 8, &Progress::new(&printer));
            assert!(!nothing.expect_err("silence").hint.is_empty());
            return;
        }
    }
}
