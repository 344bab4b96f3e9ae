//! Staying with a session: what its program prints goes to the terminal, signals go to the program,
//! until it ends.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use fermata_control::printed;
use fermata_control::user::{Session, SessionState, Verb};
use fermata_report::units;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::daemon::{Daemon, Waiting};
use crate::failure::{Failure, INTERNAL, INTERRUPTED, USER};
use crate::printer::Printer;
use crate::progress::Progress;

const POLL: Duration = Duration::from_millis(20);
/// How many interrupts an answer that does not come is worth.
const PATIENCE: u32 = 3;

/// Reads a log as it grows.
#[derive(Debug)]
pub struct Follower {
    file: File,
    position: u64,
}

impl Follower {
    /// Follows the log at `path` from its beginning.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path)
            .map_err(|e| Failure::io(&format!("open log `{}`", path.display()), &e))?;
        Ok(Self { file, position: 0 })
    }

    /// Prints what has come since the last call.
    pub fn copy(&mut self, printer: &Printer) -> Result<(), Failure> {
        let length = self.file.metadata().map_or(0, |m| m.len());
        // A rollback cuts the log; what comes then is new.
        self.position = self.position.min(length);
        let mut piece = [0; 64 << 10];
        let read = |e: &std::io::Error| Failure::io("read the session's log", e);
        loop {
            let kept = printed::next_kept(&self.file, self.position).map_err(|e| read(&e))?;
            let Some(kept) = kept else { return Ok(()) };
            if kept > self.position {
                printer.note(&format!(
                    "{} of the output are missing here: a log keeps its last part (FERMATA_LOG_LIMIT)",
                    units::bytes(kept - self.position)
                ));
                self.position = kept;
            }
            match self.file.read_at(&mut piece, self.position) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    printer.program_output(&piece[..n])?;
                    self.position += n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(read(&e)),
            }
        }
    }
}

/// Catches interrupts from the moment it is made.
pub fn catch() -> Result<Signals, Failure> {
    Signals::new([SIGINT, SIGTERM])
        .map_err(|e| Failure::new(INTERNAL, format!("cannot catch signals: {e}")))
}

/// Stays with a session until its program has ended; returns the session as it was then.
pub fn attend(
    session: &Session,
    mut signals: Signals,
    printer: &Printer,
) -> Result<Session, Failure> {
    let mut log = Follower::open(&session.log)?;
    let mut waiting = Waiting::new(&session.name, printer)?;
    let mut interrupts = 0;
    loop {
        let ended = waiting.poll(POLL)?;
        log.copy(printer)?;
        if let Some(ended) = ended {
            return Ok(ended);
        }
        for signal in signals.pending() {
            interrupts += 1;
            if interrupts > PATIENCE {
                let text = format!("session `{}` does not end", session.name);
                return Err(Failure::new(INTERRUPTED, text)
                    .hint(format!("`fermata kill {}` ends it", session.name)));
            }
            forward(&session.name, signal, printer);
        }
    }
}

fn forward(name: &str, signal: i32, printer: &Printer) {
    let sent = Daemon::find().map(|daemon| {
        let verb = Verb::Kill {
            name: name.into(),
            signal,
        };
        daemon.ask(verb, &Progress::new(printer))
    });
    match sent {
        Some(Ok(_)) => {}
        Some(Err(e)) => printer.warn(&format!("signal {signal} was not passed on: {}", e.message)),
        None => printer.warn(&format!(
            "signal {signal} was not passed on: no daemon answers"
        )),
    }
}

/// Prints a session's log until the session ends.
pub fn follow(session: &Session, printer: &Printer) -> Result<(), Failure> {
    let mut log = Follower::open(&session.log)?;
    let mut waiting = Waiting::new(&session.name, printer)?;
    loop {
        let ended = waiting.poll(POLL)?;
        log.copy(printer)?;
        if ended.is_some() {
            return Ok(());
        }
    }
}

/// The exit status that tells how a session's program ended, with a word on what the user should
/// know.
pub fn status(ended: &Session, printer: &Printer) -> Result<u8, Failure> {
    if let Some(note) = ended.note.as_deref().filter(|n| !n.is_empty()) {
        printer.warn(&format!("session `{}`: {note}", ended.name));
    }
    if let Some(failure) = &ended.failure {
        return Err(failure.clone().into());
    }
    match (ended.exit_status, ended.state) {
        (Some(status), _) => Ok(u8::try_from(status).unwrap_or(u8::MAX)),
        (None, SessionState::Orphaned) => {
            let text = format!(
                "the daemon of session `{}` is gone; its program goes on",
                ended.name
            );
            let hint = format!(
                "`fermata ps` starts a daemon that takes the session over; `fermata wait {}` waits for it",
                ended.name
            );
            Err(Failure::new(USER, text).hint(hint))
        }
        (None, state) => {
            let text = format!("session `{}` gave no exit status ({state:?})", ended.name);
            let hint = format!(
                "a daemon cannot learn the exit status of a program that an earlier daemon has started; `fermata logs {}` shows \
                 what the program has printed",
                ended.name
            );
            Err(Failure::new(INTERNAL, text).hint(hint))
        }
    }
}
