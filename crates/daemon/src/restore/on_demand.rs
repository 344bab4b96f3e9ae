//! Follows on-demand restores, whose data comes while the program runs: how far each worker is, and when all data is present.
//!
//! ```text
//!  Coming ─┬─► Complete
//!          └─ mis-speculation, damage, worker gone ─► RollingBack (`rollback`) ─► RolledBack
//!                                                          └─ fails ─► Exited, with the failure
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Arrival, ArrivalStand};
use fermata_control::worker::{FailureKind, FromWorker, Miss, Restoring, Stand, ToWorker};

use crate::awake::Awake;
use crate::failure::{Failure, Hint, Result, fail};
use crate::parallel::each_at_once;
use crate::phases::{self};
use crate::session::{Behind, Part, Session};
use crate::worker::{STEP_TIME, Worker, unexpected};

/// How long a checkpoint waits for the data of an earlier restore.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(300);
/// The time between two questions to the worker, at first and later.
const TURNS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];

fn ask(worker: &Worker) -> Result<Restoring> {
    match worker.request(&ToWorker::Restoring, &[], STEP_TIME, &mut |_, _| {})? {
        FromWorker::Restoring(restoring) => Ok(restoring),
        other => Err(unexpected(&other)),
    }
}

fn arrival(restoring: &Restoring, stand: ArrivalStand, start: f64) -> Arrival {
    Arrival {
        stand,
        done: restoring.done,
        total: restoring.total,
        start,
        seconds: restoring.seconds,
        steps: restoring
            .steps
            .iter()
            .map(|it| phases::part(it, "", 0.0))
            .collect(),
        misses: restoring.misses.clone(),
    }
}

/// The reason why data was used before it was present, as far as it is known.
fn misuse(misses: &[Miss], otherwise: String) -> String {
    let Some(miss) = misses.first() else {
        return otherwise;
    };
    let place = match miss.buffer {
        0 => "which is in no buffer of the image".to_owned(),
        buffer => format!("in buffer {buffer}"),
    };
    format!(
        "kernel `{}` used {} bytes at {:#x}, {place}, before they were there",
        miss.kernel, miss.bytes, miss.address
    )
}

/// The reason for a rollback after a write to common memory, with the driver's error `why`.
pub(crate) fn wrote_common(why: &str) -> String {
    format!("it wrote to memory that other sessions have, too ({why})")
}

/// Notes that data of `session` is coming, if so; its restore began `seconds` ago. From here on a failure leads to a rollback,
/// unless the session was `resumed`.
///
/// # Errors
/// The worker does not answer.
pub(crate) fn begin(
    session: &Session,
    worker: &Arc<Worker>,
    seconds: f64,
    resumed: bool,
) -> Result<()> {
    let restoring = ask(worker)?;
    let start = seconds - restoring.seconds;
    if restoring.total > 0 {
        let part = Part {
            worker: Arc::clone(worker),
            arrival: arrival(&restoring, ArrivalStand::Coming, start.max(0.0)),
        };
        let mut inner = session.lock();
        match &mut inner.behind {
            Some(behind) if behind.stand == ArrivalStand::Coming => behind.parts.push(part),
            other => {
                *other = Some(Behind {
                    stand: ArrivalStand::Coming,
                    resumed,
                    parts: vec![part],
                });
            }
        }
    }
    Ok(())
}

/// Has a worker that this daemon has started take the whole disk for its data: all host memory of its program is there.
///
/// # Errors
/// The worker does not answer.
pub(crate) fn give_disk(worker: &Worker) -> Result<()> {
    match worker.request(&ToWorker::HostMemoryThere, &[], STEP_TIME, &mut |_, _| {})? {
        FromWorker::Noted => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Returns when all data is present or the session has ended. Processors stay awake for the first second of it. Fails with the reason for a rollback, if one is possible.
pub(crate) fn watch(session: &Session) -> std::result::Result<(), String> {
    let begun = Instant::now();
    let mut awake = Some(Awake::new());
    // None of one that an earlier daemon has restored.
    let mut pages = session.lock().pages.clone();
    loop {
        let workers: Vec<_> = {
            let inner = session.lock();
            let behind = inner.behind.as_ref().filter(|_| inner.is_coming());
            let Some(behind) = behind else {
                drop(inner);
                return completed(session);
            };
            behind.parts.iter().map(|it| it.worker.clone()).collect()
        };
        if pages.take_if(|it| it.wait(Duration::ZERO)).is_some() {
            // One that does not answer is found out below.
            workers.iter().for_each(|it| drop(give_disk(it)));
        }
        let mut complete = true;
        for worker in &workers {
            complete &= look(session, worker)?;
        }
        if complete {
            return completed(session);
        }
        let is_late = begun.elapsed() > Duration::from_secs(1);
        awake = awake.filter(|_| !is_late);
        let turn = TURNS[usize::from(is_late)];
        // A worker reports its progress only when asked. The loss of the first worker ends the pause.
        if let Some(worker) = workers.first() {
            worker.pause(turn);
        }
    }
}

/// Notes that all data is present, and the losses that were not noted while a rollback was possible. Fails if a worker that has
/// brought data is lost: who has noticed that before now expects a rollback.
fn completed(session: &Session) -> std::result::Result<(), String> {
    let mut inner = session.lock();
    let rolls_back = inner.rolls_back();
    let is_coming = inner.is_coming();
    if let Some(behind) = inner.behind.as_mut().filter(|_| is_coming) {
        let lost = behind.parts.iter().find_map(|it| it.worker.lost());
        if let Some(reason) = lost.filter(|_| rolls_back) {
            return Err(format!("the session's worker is lost: {reason}"));
        }
        if behind.stand == ArrivalStand::Coming {
            behind.stand = ArrivalStand::Complete;
        }
    }
    inner.note_losses();
    drop(inner);
    session.save();
    session.announce();
    Ok(())
}

/// Asks a worker for its progress; true if no more data comes from it.
fn look(session: &Session, worker: &Arc<Worker>) -> std::result::Result<bool, String> {
    let asked = ask(worker);
    let mut inner = session.lock();
    if !inner.is_coming() {
        return Ok(true);
    }
    let Some(behind) = &mut inner.behind else {
        return Ok(true);
    };
    let Some(part) = behind
        .parts
        .iter_mut()
        .find(|it| Arc::ptr_eq(&it.worker, worker))
    else {
        // Its process has ended, and the worker with it: that it does not answer is no failure.
        return Ok(true);
    };
    let restoring = asked.map_err(|failure| failure.message)?;
    if !restoring.misses.is_empty() {
        part.arrival.misses.clone_from(&restoring.misses);
    }
    let stand = match &restoring.stand {
        // Its data had all come.
        Stand::Missed(why) if restoring.done == restoring.total => return Err(wrote_common(why)),
        Stand::Missed(why) => {
            let otherwise = format!("it used data that had not been loaded yet ({why})");
            return Err(misuse(&restoring.misses, otherwise));
        }
        Stand::Failed(failure) => {
            return Err(misuse(&restoring.misses, failure.message.clone()));
        }
        Stand::GivenUp => {
            inner.brings_no_more(worker);
            return Ok(true);
        }
        Stand::Coming => ArrivalStand::Coming,
        Stand::Complete => ArrivalStand::Complete,
    };
    part.arrival = arrival(&restoring, stand, part.arrival.start);
    Ok(stand == ArrivalStand::Complete)
}

/// Waits until the data of an earlier restore is present.
///
/// # Errors
/// `Locked` when it is not until then.
pub(crate) fn settle(session: &Session, until: Instant) -> Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let settled = session.wait_for(left, |inner| (!inner.is_coming()).then_some(()));
    settled.ok_or_else(|| still_coming(session))
}

/// Refuses while a worker still loads data of an earlier restore, also if the session does not know of it: the next daemon may have
/// failed to ask the worker.
///
/// # Errors
/// `Locked`.
pub(crate) fn check_whole(session: &Session) -> Result<()> {
    let workers = session.lock().workers();
    let stands = each_at_once(workers, "whole", |it| ask(&it));
    // The steps of the stop tell about a worker that does not answer.
    let mut stands = stands.into_iter().flatten();
    match stands.any(|it| it.stand == Stand::Coming) {
        true => Err(still_coming(session)),
        false => Ok(()),
    }
}

fn still_coming(session: &Session) -> Failure {
    let message = format!(
        "the device data of session `{}` is still coming from its image",
        session.name
    );
    fail(FailureKind::Locked, message).hint("try again later, or restore with `--eager`")
}

#[cfg(test)]
mod tests {
    use fermata_control::user::SessionState;

    use super::*;
    use crate::daemon::scene;
    use crate::proc::ProcessId;
    use crate::worker::scene::{is_asked, played, restoring, tell};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// The process with this number in a test; no process has it.
    fn process(number: u64) -> ProcessId {
        ProcessId {
            start: number,
            ..ProcessId::ENDED
        }
    }

    /// A session with these members, to whose workers data is coming.
    fn coming(session: &Session, workers: &[&Arc<Worker>], resumed: bool) {
        let mut inner = session.lock();
        let mut parts = Vec::new();
        for (worker, number) in workers.iter().zip(0..) {
            let worker = Arc::clone(worker);
            inner.member_or_new(process(number)).worker = Some(Arc::clone(&worker));
            let arrival = arrival(&restoring(Stand::Complete), ArrivalStand::Coming, 0.0);
            parts.push(Part { worker, arrival });
        }
        inner.behind = Some(Behind {
            stand: ArrivalStand::Coming,
            resumed,
            parts,
        });
    }

    #[test]
    fn a_process_that_ends_while_data_comes_does_not_cost_the_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let ((first, end), (second, _second_end)) = (played(), played());
        coming(&session, &[&first, &second], true);
        let watched = std::thread::scope(|scope| {
            scope.spawn(|| {
                is_asked(&end);
                // The second worker, which is asked next, has ended then.
                session.process_gone(process(1));
                tell(&end, Stand::Complete);
            });
            watch(&session)
        });
        watched.expect("the process of the second worker has ended");
        assert!(!session.lock().is_coming());
        assert_eq!(session.lock().workers().len(), 1);
    }

    /// Returns when the session's daemon has noticed the loss of that worker.
    fn is_lost(worker: &Worker) {
        while worker.lost().is_none() {
            worker.pause(PATIENCE);
        }
    }

    #[test]
    fn a_worker_that_brings_no_data_and_is_lost_meanwhile_is_a_loss_once_all_data_is_here() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let ((first, end), (later, later_end)) = (played(), played());
        coming(&session, &[&first], false);
        session.lock().member_or_new(process(1)).worker = Some(Arc::clone(&later));
        drop(later_end);
        is_lost(&later);
        session.loses(&Arc::downgrade(&later), "a fault");
        let watched = std::thread::scope(|scope| {
            scope.spawn(|| {
                is_asked(&end);
                tell(&end, Stand::Complete);
            });
            watch(&session)
        });
        watched.expect("all data is here");
        let inner = session.lock();
        assert_eq!(inner.state, SessionState::Lost);
        assert_eq!(inner.note, later.lost());
    }

    #[test]
    fn a_worker_that_is_lost_after_its_last_data_and_before_that_of_the_others_leads_to_a_rollback()
    {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let ((first, end), (second, second_end)) = (played(), played());
        coming(&session, &[&first, &second], false);
        let watched = std::thread::scope(|scope| {
            let first = &first;
            scope.spawn(move || {
                is_asked(&end);
                tell(&end, Stand::Complete);
                is_asked(&second_end);
                drop(end);
                is_lost(first);
                tell(&second_end, Stand::Complete);
                // Its connection outlives the watch.
                second_end
            });
            watch(&session)
        });
        watched.expect_err("the program is to start again");
        assert!(session.lock().rolls_back());
    }
}
