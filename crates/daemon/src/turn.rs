//! The right to work on a session, held by one checkpoint, pause or resume at a time; and whether an attempt failed because
//! processes have started or ended meanwhile.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_control::worker::FailureKind;
use parking_lot::MutexGuard;

use crate::failure::{Failure, Hint, Result, fail};
use crate::session::{Inner, Session};

/// How often a checkpoint or pause is tried while processes of the session start and end.
pub(crate) const ATTEMPTS: u32 = 10;
/// How long a program may take to get its first worker.
const ATTACH_TIME: Duration = Duration::from_secs(60);
/// How long to wait between two attempts for a process that is let in, or for an end to become known.
const LET_IN_TIME: Duration = Duration::from_millis(500);

/// The right to work on a session, held while it is checkpointed, paused or resumed.
pub(crate) struct Turn<'s> {
    session: &'s Session,
    _busy: MutexGuard<'s, ()>,
}

impl<'s> Turn<'s> {
    /// Takes the turn. Fails at once if another operation has it; waits for a session that is still starting.
    ///
    /// # Errors
    /// `Locked`.
    pub(crate) fn take(session: &'s Session) -> Result<Self> {
        let end = Instant::now() + ATTACH_TIME;
        let busy = loop {
            if let Some(busy) = session.busy.try_lock_for(Duration::from_millis(20)) {
                break busy;
            }
            let what = match session.checkpointing.load(Ordering::Acquire) {
                true => "is being checkpointed, paused or resumed",
                false if Instant::now() >= end => "is still starting",
                false => continue,
            };
            let message = format!("session `{}` {what}", session.name);
            return Err(fail(FailureKind::Locked, message).hint("try again when that has ended"));
        };
        session.checkpointing.store(true, Ordering::Release);
        Ok(Self {
            session,
            _busy: busy,
        })
    }

    /// Lets in a process that asks for a worker and that others may be waiting for, and takes the turn again.
    ///
    /// # Errors
    /// `Locked`: another command has it.
    pub(crate) fn let_in(self) -> Result<Self> {
        let session = self.session;
        let known = session.lock().members.len();
        drop(self);
        let more = |inner: &Inner| (inner.members.len() > known).then_some(());
        // It may have ended. One that has begun to come in is waited for by `take`.
        let _ = session.wait_for(LET_IN_TIME, more);
        Self::take(session)
    }
}

/// The processes that a session had when an attempt began.
pub(crate) struct Present {
    agents: Vec<u32>,
    arrivals: u64,
}

/// How the processes have changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// Nothing: the attempt failed for another reason.
    Same,
    /// A process has ended.
    Left,
    /// A process has begun to use CUDA, was sent away, and connects again.
    Come,
}

impl Present {
    /// The processes of this moment.
    pub(crate) fn of(session: &Session) -> Self {
        Self {
            agents: session.processes().agents,
            arrivals: session.arrived(),
        }
    }

    /// Whether a change of the processes may be the reason of `failure`.
    pub(crate) fn since(&self, session: &Session, failure: &Failure) -> Others {
        if session.arrived() != self.arrivals {
            return Others::Come;
        }
        let is_not_found = failure.kind == FailureKind::NotFound;
        // A worker may know of an end before the session does: another attempt would find it there again.
        let limit = if is_not_found {
            LET_IN_TIME
        } else {
            Duration::ZERO
        };
        let fewer = |inner: &Inner| {
            let left: Vec<u32> = inner.agents().collect();
            self.agents
                .iter()
                .any(|it| !left.contains(it))
                .then_some(())
        };
        match session.wait_for(limit, fewer).is_some() || is_not_found {
            true => Others::Left,
            false => Others::Same,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.session.checkpoint_is_over();
    }
}
