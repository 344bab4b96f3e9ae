//! Programs that Fermata did not start: their images, by the CUDA driver's own interface and CRIU.
//!
//! ```text
//!  checkpoint   examine ─► CRIU gets ready ─► lock ─► driver: device memory to host memory ─► CRIU dumps ─┬─► restore, unlock ─► commit
//!                                              └── any failure: restore what is moved, unlock ────────────┘   (or commit, end)
//!  restore      CRIU restores ─► driver: host memory to device memory ─► unlock
//! ```
//! The driver is called by a helper process (`helper`), which brings back what is locked when the daemon ends in the middle.
//! `examine`: what a process is, and what stands in the way. `take`: the checkpoint. `back`: the restore. `gpus`: which
//! GPU takes the place of which. `under_way`: which programs are being checkpointed. `words`: what the driver's refusals mean.

pub(crate) mod back;
mod examine;
mod gpus;
mod helper;
mod memory;
mod outside;
mod take;
pub(crate) mod under_way;
mod words;

use std::sync::Arc;

use fermata_control::user::{Checkpoint, Checkpointed, Mode, SessionState};
use fermata_control::worker::FailureKind;

use self::examine::Target;
use self::take::ByDriver;
use crate::daemon::{Daemon, check_running};
use crate::failure::{Hint, Result, fail};
use crate::progress::Report;
use crate::session::Session;
use crate::turn::Turn;

/// Takes an image as `request` says, if it is of a foreign program: a process that no session has, or a session that was
/// restored from the image of one. None if it is not.
///
/// # Errors
/// The reason; the program runs as before, and there is no image.
pub(crate) fn checkpoint(
    daemon: &Arc<Daemon>,
    request: &Checkpoint,
    report: &mut Report<'_>,
) -> Result<Option<Checkpointed>> {
    match daemon.session_or_pid(&request.session) {
        Ok(session) if session.foreign => of_session(daemon, &session, request, report).map(Some),
        Ok(_) => Ok(None),
        Err(_) => match request.session.parse() {
            Ok(pid) => of_process(daemon, pid, request, report).map(Some),
            Err(_) => Ok(None),
        },
    }
}

fn of_process(
    daemon: &Arc<Daemon>,
    pid: u32,
    request: &Checkpoint,
    report: &mut Report<'_>,
) -> Result<Checkpointed> {
    check_mode(request.mode)?;
    let target = Target::of_process(daemon, pid, request.tcp_close)?;
    ByDriver::prepare(daemon, &target, request)?.take(request, report)
}

fn of_session(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    request: &Checkpoint,
    report: &mut Report<'_>,
) -> Result<Checkpointed> {
    check_mode(request.mode)?;
    let _busy = Turn::take(session)?;
    check_running(session)?;
    let target = Target::of_session(daemon, session, request.tcp_close)?;
    let taking = ByDriver::prepare(daemon, &target, request)?;
    session.set_state(SessionState::Stopped);
    let taken = taking.take(request, report);
    // Of one that has ended this changes nothing.
    session.set_state(SessionState::Running);
    taken
}

/// Device memory of a foreign program can only be copied while that stands still.
fn check_mode(mode: Mode) -> Result<()> {
    match mode {
        Mode::Auto | Mode::Stop => Ok(()),
        other => {
            let message = format!(
                "a program that Fermata did not start cannot be copied by `{}`: the driver copies it while it stands still",
                other.name()
            );
            Err(fail(FailureKind::User, message).hint(
                "leave out `--mode`; programs started with `fermata run` are copied while they run",
            ))
        }
    }
}
