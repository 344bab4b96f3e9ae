//! The right to work on a session, held by one checkpoint, pause or resume at a time; and whether an attempt failed because
//! processes have started or ended meanwhile.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_control::user::SessionState;
use fermata_control::worker::FailureKind;
use parking_lot::MutexGuard;

use crate::failure::{Failure, Hint, Result, fail};
use crate::restore::on_demand;
use crate::session::{Inner, Session};

/// How often a checkpoint or pause is tried while processes of the session start and end.
pub(crate) const ATTEMPTS: u32 = 10;
/// How long a program may take to get its first worker.
const ATTACH_TIME: Duration = Duration::from_secs(60);
/// How long to wait between two attempts for a process that is let in, or for an end to become known.
const LET_IN_TIME: Duration = Duration::from_millis(500);

/// How long an operation waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until the session has started and its data is present, within limits.
    Usual,
    /// Not at all: the caller holds the lock of priorities, for which a process that holds the turn may wait.
    None,
}

impl Patience {
    /// The deadline of a wait that begins now and usually takes up to `usual`.
    fn deadline(self, usual: Duration) -> Instant {
        match self {
            Self::Usual => Instant::now() + usual,
            Self::None => Instant::now(),
        }
    }
}

/// The right to work on a session, held while it is checkpointed, paused or resumed.
pub(crate) struct Turn<'s> {
    session: &'s Session,
    patience: Patience,
    _busy: MutexGuard<'s, ()>,
}

impl<'s> Turn<'s> {
    /// Takes the turn. Fails at once if another operation has it; waits for a session that is still starting, or comes back to this
    /// daemon.
    ///
    /// # Errors
    /// `Locked`.
    pub(crate) fn take(session: &'s Session) -> Result<Self> {
        Self::take_by(session, Patience::Usual)
    }

    fn take_by(session: &'s Session, patience: Patience) -> Result<Self> {
        let end = patience.deadline(ATTACH_TIME);
        let busy = loop {
            if let Some(busy) = session.busy.try_lock_for(Duration::from_millis(20)) {
                break busy;
            }
            let what = match session.checkpointing.load(Ordering::Acquire) {
                true if !returns(session) => "is being checkpointed, paused or resumed",
                _ if Instant::now() >= end => "is still starting",
                _ => continue,
            };
            let message = format!("session `{}` {what}", session.name);
            return Err(fail(FailureKind::Locked, message).hint("try again when that has ended"));
        };
        session.checkpointing.store(true, Ordering::Release);
        Ok(Self {
            session,
            patience,
            _busy: busy,
        })
    }

    /// As [`Turn::take`], for a stop of the session: once all data of an earlier restore is present, which a stop would cancel.
    ///
    /// # Errors
    /// `Locked`, also when the data takes too long.
    pub(crate) fn take_settled(session: &'s Session) -> Result<Self> {
        Self::take_settled_with(session, Patience::Usual)
    }

    /// As [`Turn::take_settled`], with this patience.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn take_settled_with(session: &'s Session, patience: Patience) -> Result<Self> {
        let until = patience.deadline(on_demand::SETTLE_TIME);
        Self::take_settled_by(session, patience, until)
    }

    fn take_settled_by(session: &'s Session, patience: Patience, until: Instant) -> Result<Self> {
        loop {
            // Not with the turn: a rollback needs it.
            on_demand::settle(session, until)?;
            let turn = Self::take_by(session, patience)?;
            // The operation that had the turn may have been the restore whose data comes now.
            if !session.lock().is_coming() {
                on_demand::check_whole(session)?;
                return Ok(turn);
            }
        }
    }

    /// Lets in a process that asks for a worker and that others may be waiting for, and takes the turn again.
    ///
    /// # Errors
    /// `Locked`: another command has it.
    pub(crate) fn let_in(self) -> Result<Self> {
        let (session, patience) = (self.session, self.patience);
        let known = session.lock().members.len();
        drop(self);
        let more = |inner: &Inner| (inner.members.len() > known).then_some(());
        // It may have ended. One that has begun to come in is waited for by `take`.
        let _ = session.wait_for(LET_IN_TIME, more);
        Self::take_settled_with(session, patience)
    }
}

/// Whether the session comes back from an earlier daemon.
fn returns(session: &Session) -> bool {
    session.lock().state == SessionState::Orphaned
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use fermata_control::user::ArrivalStand;
    use fermata_control::worker::Stand;

    use super::*;
    use crate::daemon::scene;
    use crate::proc::ProcessId;
    use crate::session::Behind;
    use crate::worker::scene::{is_asked, played, tell};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_stop_does_not_cut_off_the_data_of_a_restore_that_it_has_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let (asks, asking) = channel();
        let taken = std::thread::scope(|scope| {
            // A restore, which has the turn until its program runs.
            let busy = session.busy.lock();
            let session = &*session;
            let stop = scope.spawn(move || {
                asks.send(()).expect("noticed");
                Turn::take_settled_by(session, Patience::Usual, Instant::now()).map(drop)
            });
            asking.recv_timeout(PATIENCE).expect("a stop is asked for");
            session.lock().behind = Some(Behind {
                stand: ArrivalStand::Coming,
                resumed: false,
                parts: Vec::new(),
            });
            drop(busy);
            stop.join().expect("ended")
        });
        assert_eq!(taken.expect_err("its data comes").kind, FailureKind::Locked);
        assert!(
            session.busy.try_lock().is_some() && !session.checkpointing.load(Ordering::Acquire)
        );
        if let Some(behind) = &mut session.lock().behind {
            behind.stand = ArrivalStand::Complete;
        }
        Turn::take_settled(&session).map(drop).expect("all is here");
    }

    #[test]
    fn a_stop_asks_the_workers_whether_their_data_is_here() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let (worker, other) = played();
        let process = ProcessId::of(std::process::id()).expect("it runs");
        session.lock().member_or_new(process).worker = Some(worker);
        let take = |stand: Stand| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    is_asked(&other);
                    tell(&other, stand);
                });
                Turn::take_settled(&session).map(drop)
            })
        };
        let refused = take(Stand::Coming).expect_err("it would be cut off");
        assert_eq!(refused.kind, FailureKind::Locked);
        take(Stand::Complete).expect("all is here");
    }
}
