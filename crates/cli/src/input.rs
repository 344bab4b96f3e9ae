//! The standard input of this command, for the program of a session.
//!
//! | it is | the started program gets | a restored program gets |
//! | --- | --- | --- |
//! | a file, a pipe, `/dev/null` and the like | the same; nothing of it is read here | a pipe into which it is copied |
//! | a terminal, a socket | a pipe into which it is copied | likewise |
//!
//! A restored program gets it only where its image says that its input was a pipe that had not ended. Its pipe has what
//! the program had not read at the checkpoint already in it.
//!
//! Copying takes nothing that the pipe has no room for: what the program does not read stays where it was. A terminal is
//! read only while this command is in its foreground.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use fermata_control::user::{ArrivalStand, FromDaemon, SessionState, Verb};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::progress::Progress;

/// So many bytes fit into a pipe that has room (`PIPE_BUF`).
const PIECE: usize = 4096;
/// Between two looks at a terminal in whose background this command is, and at data that a restored program waits for.
const TURN: Duration = Duration::from_millis(100);

/// What a program is given.
#[derive(Debug)]
pub enum Input {
    /// Nothing: it gets `/dev/null`.
    Nothing,
    /// What this command has.
    Own,
    /// The reading end of a pipe.
    Copied(PipeReader, PipeWriter),
}

impl Input {
    /// For a program that is started, and `attended` by this command or not.
    ///
    /// # Errors
    /// No pipe can be made.
    pub fn for_start(attended: bool) -> Result<Self, Failure> {
        let kind = rustix::fs::fstat(io::stdin()).map(|it| FileType::from_raw_mode(it.st_mode));
        let Ok(kind) = kind else {
            return Ok(Self::Nothing);
        };
        match kind {
            FileType::RegularFile => Ok(Self::Own),
            _ if !attended => Ok(Self::Nothing),
            FileType::Socket => Self::copied(),
            FileType::CharacterDevice if io::stdin().is_terminal() => Self::copied(),
            _ => Ok(Self::Own),
        }
    }

    /// For a program that is restored, and `attended` by this command or not.
    ///
    /// # Errors
    /// No pipe can be made.
    pub fn for_restore(attended: bool) -> Result<Self, Failure> {
        match attended {
            true => Self::copied(),
            false => Ok(Self::Nothing),
        }
    }

    fn copied() -> Result<Self, Failure> {
        let (ours, theirs) = io::pipe().map_err(|e| Failure::io("make a pipe", &e))?;
        Ok(Self::Copied(ours, theirs))
    }

    /// The descriptor that goes to the daemon.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Nothing => None,
            // Standard input is open as long as this process lives.
            Self::Own => Some(rustix::stdio::stdin()),
            Self::Copied(reader, _) => Some(reader.as_fd()),
        }
    }

    /// The program of session `name` has it.
    pub fn given(self, name: &str) {
        match self {
            Self::Nothing => {}
            Self::Own => {
                // The writer is to notice when the program does not read any more.
                let its =
                    rustix::fs::fstat(io::stdin()).map(|it| FileType::from_raw_mode(it.st_mode));
                if matches!(its, Ok(FileType::Fifo))
                    && let Ok(null) = File::open("/dev/null")
                {
                    // Otherwise the writer notices when this command ends.
                    let _ = rustix::stdio::dup2_stdin(&null);
                }
            }
            Self::Copied(reader, writer) => {
                drop(reader);
                let name = name.to_owned();
                // Without a thread the program's input ends at once, which is better than not to start it.
                let _ = std::thread::Builder::new()
                    .name("input".into())
                    .spawn(move || {
                        wait_for_data(&name, &writer);
                        copy(writer)
                    });
            }
        }
    }
}

/// Waits until no restored program of session `name` will be taken back to its image, it would read its input twice, or
/// nobody reads from its pipe any more.
fn wait_for_data(name: &str, to: &PipeWriter) {
    let silent = Printer::new(false, true);
    loop {
        let verb = Verb::Session {
            name: name.to_owned(),
        };
        let answer = Daemon::find().map(|it| it.ask(verb, &Progress::new(&silent)));
        let comes = match answer {
            Some(Ok(FromDaemon::Session(session))) => {
                let stand = session.arrival.map(|it| it.stand);
                let coming = [ArrivalStand::Coming, ArrivalStand::RollingBack];
                session.state != SessionState::Exited
                    && stand.is_some_and(|it| coming.contains(&it))
            }
            Some(Ok(_)) => false,
            // The next daemon will know.
            Some(Err(failure)) => failure.hung_up,
            None => true,
        };
        // Polled: no message of the daemon tells that data has come.
        if !comes || closes_within(to, TURN) {
            return;
        }
    }
}

/// Whether nobody reads from a pipe any more; looks for so long.
fn closes_within(to: &PipeWriter, limit: Duration) -> bool {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    let mut end = [PollFd::new(to, PollFlags::empty())];
    !wait(&mut end, Some(&limit)) || !end[0].revents().is_empty()
}

/// Copies standard input into the program's pipe, to the end of one of them.
fn copy(mut to: PipeWriter) {
    let from = rustix::stdio::stdin();
    let terminal = io::stdin().is_terminal();
    let mut piece = [0; PIECE];
    loop {
        let mut room = [PollFd::new(&to, PollFlags::OUT)];
        if !wait(&mut room, None) || room[0].revents().contains(PollFlags::ERR) {
            return;
        }
        // The program may stop reading meanwhile.
        let mut ready = [
            PollFd::new(&from, PollFlags::IN),
            PollFd::new(&to, PollFlags::empty()),
        ];
        if !wait(&mut ready, None) || !ready[1].revents().is_empty() {
            return;
        }
        if terminal && in_background(from) {
            // Polled: a terminal tells no process of another job that it is in its foreground.
            closes_within(&to, TURN);
            continue;
        }
        match rustix::io::read(from, &mut piece) {
            Ok(0) => return,
            Ok(count) => {
                if to.write_all(&piece[..count]).is_err() {
                    return;
                }
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}

/// Whether something has come; false on an error.
fn wait(set: &mut [PollFd<'_>], limit: Option<&Timespec>) -> bool {
    loop {
        match poll(set, limit) {
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Whether the terminal is another job's just now. One that is not this process's own is no job's.
fn in_background(terminal: BorrowedFd<'_>) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group != rustix::process::getpgrp())
}
