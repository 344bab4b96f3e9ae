//! Brings the parked processes of a session back to their workers, all at one moment: after a checkpoint, after a pause that
//! failed, and when a daemon has taken the place of one that ended in a stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::error;

use crate::agent::attach::{go_on, reject, rejoin};
use crate::agent::wake;
use crate::daemon::Daemon;
use crate::failure::{Failure, Result};
use crate::parallel::each_at_once;
use crate::proc::ProcessId;
use crate::session::{Detached, Session};
use crate::worker::Worker;

/// How long a process that is ending may take to end: its connections end before it does.
pub(crate) const LAST_MOMENT: Duration = Duration::from_millis(500);

/// A process that stands still, and its worker.
pub(crate) struct Parked {
    /// The worker.
    pub(crate) worker: Arc<Worker>,
    /// Where the process waits.
    pub(crate) detached: Detached,
}

/// The outcome for processes that were to go on. A process that is in neither list goes on.
pub(crate) struct Awakening<'p> {
    /// They have ended.
    pub(crate) ended: Vec<(&'p Parked, Failure)>,
    /// They live, and cannot be served.
    pub(crate) failed: Vec<Failed<'p>>,
}

/// A process that lives and cannot be served.
pub(crate) struct Failed<'p> {
    /// The process.
    pub(crate) parked: &'p Parked,
    /// Why.
    pub(crate) failure: Failure,
    /// Whether it had reattached to its worker before.
    came: bool,
}

impl Failed<'_> {
    /// Tells the process that it is no longer served, so that it does not wait for ever; the session is lost.
    pub(crate) fn give_up(&self, daemon: &Arc<Daemon>, session: &Arc<Session>) {
        let message = &self.failure.message;
        error!(session = %session.name, "`{}` cannot go on: {message}", session.name);
        let Detached {
            process,
            wake_block,
        } = self.parked.detached;
        // One that has come may have failed afterwards, and then waits to be woken again.
        let waits = || wake::waits(process.pid, wake_block) == Some(true);
        match self.came && !waits() {
            true => session.process_lost(process, message),
            false => reject(daemon, session, self.parked.detached, message),
        }
    }
}

/// Lets these processes go on, all at one moment. A process that has ended meanwhile is removed from the session.
pub(crate) fn awaken<'p>(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    parked: &'p [Parked],
) -> Awakening<'p> {
    let back = |it: &Parked| rejoin(daemon, session, &it.worker, it.detached);
    let come = each_at_once(parked.iter().collect(), "reattach", back);
    let came: Vec<bool> = come.iter().map(Result::is_ok).collect();
    sort(session, parked, &came, go_on(come))
}

/// Tells the processes that have ended from those that live, of those that do not run according to the results of [`go_on`]. Their
/// last moment begins now: `go_on` may have waited long for others.
fn sort<'p>(
    session: &Session,
    parked: &'p [Parked],
    came: &[bool],
    results: Vec<Result<()>>,
) -> Awakening<'p> {
    let until = Instant::now() + LAST_MOMENT;
    let mut awakening = Awakening {
        ended: Vec::new(),
        failed: Vec::new(),
    };
    for ((parked, runs), &came) in parked.iter().zip(results).zip(came) {
        let Err(failure) = runs else { continue };
        if has_ended(session, parked.detached.process, until) {
            awakening.ended.push((parked, failure));
        } else {
            awakening.failed.push(Failed {
                parked,
                failure,
                came,
            });
        }
    }
    awakening
}

/// Whether a process that could not go on has ended, or does until then; it is then removed from the session.
pub(crate) fn has_ended(session: &Session, process: ProcessId, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let ended = process.is_ending_within(left);
    if ended {
        session.process_gone(process);
    }
    ended
}

/// Brings the processes of a stopped session back. The session runs then, without those that have ended in the stop.
///
/// # Errors
/// The program has ended; or a process that lives cannot go on: the session is lost.
pub(crate) fn bring_back(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    parked: &[Parked],
) -> Result<()> {
    let Awakening { ended, failed } = awaken(daemon, session, parked);
    session.goes_on();
    failed.iter().for_each(|it| it.give_up(daemon, session));
    if let Some(first) = failed.into_iter().next() {
        return Err(first.failure);
    }
    // A program whose first process lives goes on without the others.
    let runs = session.lock().root.is_some_and(|root| !root.is_ending());
    match ended.into_iter().next() {
        Some((_, failure)) if !runs => Err(failure),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use fermata_control::worker::FailureKind;

    use super::*;
    use crate::daemon::scene;
    use crate::failure::fail;
    use crate::proc::scene::reader;
    use crate::worker::scene::played;

    #[test]
    fn a_process_that_ends_as_it_comes_back_leaves_its_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let mut program = reader();
        let own = ProcessId::of(std::process::id()).expect("it runs");
        let other = ProcessId::of(program.id()).expect("it runs");
        for process in [own, other] {
            session.lock().member_or_new(process);
        }
        assert!(!has_ended(&session, own, Instant::now()));
        // It lives when it fails, and ends then, for it has no input any more.
        drop(program.stdin.take());
        assert!(has_ended(
            &session,
            other,
            Instant::now() + Duration::from_secs(60)
        ));
        let left: Vec<_> = session.lock().members.iter().map(|it| it.process).collect();
        assert_eq!(left, [own]);
        program.wait().expect("it has ended");
    }

    #[test]
    fn a_process_that_fails_after_a_long_wait_for_others_has_its_last_moment() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let mut program = reader();
        let own = ProcessId::of(std::process::id()).expect("it runs");
        let other = ProcessId::of(program.id()).expect("it runs");
        let parked = [own, other].map(|process| {
            session.lock().member_or_new(process);
            let (worker, _) = played();
            let detached = Detached {
                process,
                wake_block: 0,
            };
            Parked { worker, detached }
        });
        // It has no input any more, and is about to end.
        drop(program.stdin.take());
        let failed = || Err(fail(FailureKind::NotFound, "its connection has ended"));
        let results = vec![failed(), failed()];
        // All of the last moment is used for the first one, which lives.
        let sorted = sort(&session, &parked, &[true, true], results);
        let processes = |it: &[&Parked]| -> Vec<ProcessId> {
            it.iter().map(|it| it.detached.process).collect()
        };
        let ended: Vec<&Parked> = sorted.ended.iter().map(|it| it.0).collect();
        let failed: Vec<&Parked> = sorted.failed.iter().map(|it| it.parked).collect();
        assert_eq!(processes(&ended), [other]);
        assert_eq!(processes(&failed), [own]);
        program.wait().expect("it has ended");
    }
}
