//! Restores whose data comes while the program runs: how far they are, and the way back when one goes wrong.
//!
//! ```text
//!  Coming ─┬─► Complete
//!          └─ data used before it was there, damage, worker gone ─► RollingBack ─► RolledBack
//!               program ended, log cut back, everything read,          └─ fails ─► Exited, with the failure
//!               then the program starts again from the image
//! ```
//! A program is rolled back once: the second time everything is there before it runs. A daemon that dies meanwhile
//! leaves that to the next one.

use std::fs::{self, OpenOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Arrival, ArrivalStand, SessionState};
use fermata_control::worker::{FailureKind, FromWorker, Miss, Pace, Restoring, Stand, ToWorker};
use parking_lot::Mutex;
use rustix::process::Signal;

use crate::daemon::{Daemon, remove_folder};
use crate::failure::{Failure, Hint, OrFail, Result, fail};
use crate::namespace::work_folder;
use crate::phases::{self, Phases};
use crate::proc::ProcessId;
use crate::restore::{How, Source};
use crate::session::{Behind, EXIT_FILE, Member, Part, Session};
use crate::worker::{STEP_TIME, Worker, unexpected};

/// How long the end of a program that is rolled back may take.
const END_TIME: Duration = Duration::from_secs(15);
/// How long a checkpoint waits for the data of an earlier restore.
const SETTLE_TIME: Duration = Duration::from_secs(300);
/// Between two questions to the worker, at first and later.
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

/// Why data was used too early, as well as it is known.
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

/// Notes that data of `session` is coming, if it is, so many seconds after its restore began. From here on a failure
/// leads to a rollback; in a session that was `resumed` it cannot.
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

/// Looks after a restored session until its data is there; then the next spare worker is made.
pub(crate) fn follow(source: &Arc<Source>, session: &Arc<Session>) {
    let first = {
        let inner = session.lock();
        let part = inner.behind.as_ref().and_then(|it| it.parts.first());
        part.map(|it| it.worker.driver.clone())
    };
    let Some(driver) = first else {
        used(source);
        return;
    };
    let (source, followed) = (Arc::clone(source), Arc::clone(session));
    let busy = source.daemon.cache.as_ref().map(|cache| cache.busy());
    let work = move || {
        let watched = watch(&followed);
        let pool = &source.daemon.pool;
        let refill = || pool.refill(driver.clone(), followed.variables.clone());
        refill();
        if let Err(reason) = watched {
            roll_back(&source, &followed, &reason);
            refill();
        }
        drop(busy);
        used(&source);
    };
    let spawned = std::thread::Builder::new()
        .name("restore-watch".into())
        .spawn(work);
    if spawned.is_err() {
        // Unwatched it is only reported as coming for ever; the worker goes on.
        session.lock().note = Some("its restore is not looked after: no thread".into());
    }
}

/// What an image's next restore needs is kept in memory from now on, where that is asked for.
fn used(source: &Source) {
    if let Some(cache) = &source.daemon.cache {
        cache.used(source.image.dir());
    }
}

/// Returns when everything is there or the session is over; fails with the reason for a rollback, where there is a way back.
pub(crate) fn watch(session: &Session) -> std::result::Result<(), String> {
    let begun = Instant::now();
    loop {
        let workers: Vec<_> = {
            let inner = session.lock();
            let behind = inner.behind.as_ref().filter(|_| inner.is_coming());
            let Some(behind) = behind else { return Ok(()) };
            behind.parts.iter().map(|it| it.worker.clone()).collect()
        };
        let mut complete = true;
        for worker in workers {
            complete &= look(session, &worker)?;
        }
        if let (true, Some(behind)) = (complete, &mut session.lock().behind) {
            if behind.stand == ArrivalStand::Coming {
                behind.stand = ArrivalStand::Complete;
            }
            return Ok(());
        }
        std::thread::sleep(TURNS[usize::from(begun.elapsed() > Duration::from_secs(1))]);
    }
}

/// Asks how far a worker is; true if it brings nothing any more.
fn look(session: &Session, worker: &Arc<Worker>) -> std::result::Result<bool, String> {
    let restoring = ask(worker).map_err(|failure| failure.message)?;
    let mut inner = session.lock();
    let Some(behind) = &mut inner.behind else {
        return Ok(true);
    };
    let Some(part) = behind
        .parts
        .iter_mut()
        .find(|it| Arc::ptr_eq(&it.worker, worker))
    else {
        // Its process has ended.
        return Ok(true);
    };
    if !restoring.misses.is_empty() {
        part.arrival.misses.clone_from(&restoring.misses);
    }
    let stand = match &restoring.stand {
        Stand::Missed(why) => {
            let otherwise = format!("it used data that was not there yet ({why})");
            return Err(misuse(&restoring.misses, otherwise));
        }
        Stand::Failed(failure) => {
            return Err(misuse(&restoring.misses, failure.message.clone()));
        }
        Stand::GivenUp => {
            behind.parts.retain(|it| !Arc::ptr_eq(&it.worker, worker));
            if behind.parts.is_empty() {
                inner.behind = None;
            }
            return Ok(true);
        }
        Stand::Coming => ArrivalStand::Coming,
        Stand::Complete => ArrivalStand::Complete,
    };
    part.arrival = arrival(&restoring, stand, part.arrival.start);
    Ok(stand == ArrivalStand::Complete)
}

fn roll_back(source: &Source, session: &Arc<Session>, reason: &str) {
    let members = {
        let mut inner = session.lock();
        if !inner.rolls_back() {
            return;
        }
        inner.state = SessionState::Restoring;
        if let Some(behind) = &mut inner.behind {
            behind.stand = ArrivalStand::RollingBack;
        }
        (inner.pages, inner.root) = (None, None);
        inner.note = Some(format!("being rolled back: {reason}"));
        inner.again = Some(reason.to_owned());
        inner.former = inner.init.take();
        // The next daemon is to end the workers, should this one not come to it.
        inner.loading = inner
            .members
            .iter()
            .filter_map(Member::worker_process)
            .collect();
        std::mem::take(&mut inner.members)
    };
    session.save();
    let log = &source.daemon.log;
    log.line(&format!("`{}` is rolled back: {reason}", session.name));
    let _busy = session.busy.lock();
    let former = session.lock().former;
    former.iter().for_each(end);
    for worker in members.into_iter().filter_map(|it| it.worker) {
        worker.end();
    }
    session.lock().loading.clear();
    fill_again(source, session, reason);
}

/// Goes on with what another daemon has begun by [`roll_back`].
pub(crate) fn start_again(daemon: &Arc<Daemon>, session: &Arc<Session>, reason: &str) {
    let log = &daemon.log;
    log.line(&format!("`{}` is rolled back: {reason}", session.name));
    let _busy = session.busy.lock();
    let former = {
        let mut inner = session.lock();
        inner.root = None;
        inner.take_former()
    };
    former.iter().for_each(end);
    let image = session.image.clone().unwrap_or_default();
    match Source::of_session(daemon, session, &image) {
        Ok(source) => fill_again(&source, session, reason),
        Err(failure) => give_up(session, reason, failure),
    }
    session.save();
}

/// Ends a process, and waits until it has.
fn end(process: &ProcessId) {
    process.signal(Signal::KILL);
    let until = Instant::now() + END_TIME;
    while process.alive() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn fill_again(source: &Source, session: &Arc<Session>, reason: &str) {
    let log = &source.daemon.log;
    let _busy = source.daemon.cache.as_ref().map(|cache| cache.busy());
    let how = How {
        lazy: false,
        pace: Pace::Eager,
    };
    let phases = Phases::start();
    let mut silent = |_: &str, _, _| {};
    let again = clean(source, session)
        .and_then(|()| source.fill(session, how, &phases, &Mutex::new(&mut silent)))
        .and_then(|()| session.check_wanted());
    match again {
        Ok(()) => {
            let seconds = phases.seconds();
            let text = format!("rolled back to its image, in {seconds:.1} s: {reason}");
            log.line(&format!("`{}` {text}", session.name));
            let mut inner = session.lock();
            inner.phases = phases.list();
            inner.note = Some(text);
            (inner.again, inner.former) = (None, None);
            if let Some(behind) = &mut inner.behind {
                behind.stand = ArrivalStand::RolledBack;
            }
            let lost = inner.workers().iter().find_map(|worker| worker.lost());
            drop(inner);
            // Nobody was told while it could still have been rolled back.
            if let Some(reason) = lost {
                session.worker_lost(&reason);
            }
        }
        Err(failure) => give_up(session, reason, failure),
    }
    session.save();
}

/// Ends a session that cannot be brought back.
fn give_up(session: &Session, reason: &str, failure: Failure) {
    let init = {
        let mut inner = session.lock();
        inner.note = Some(format!("could not be rolled back ({reason})"));
        (inner.again, inner.former) = (None, None);
        let hint = failure.hint.clone();
        let message = format!("session `{}` has ended: {}", session.name, failure.message);
        inner.failure = Some(fail(failure.kind, message).hint(hint));
        inner.init
    };
    if let Some(init) = init {
        init.signal(Signal::KILL);
    }
    session.ended(None);
}

/// Makes the session's folder as it was before the program ran from the image.
fn clean(source: &Source, session: &Session) -> Result<()> {
    let what = || format!("cannot clean the folder `{}`", session.dir.display());
    remove_folder(&work_folder(&session.dir))?;
    match fs::remove_file(session.dir.join(EXIT_FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).or_fail(FailureKind::User, what);
        }
        _ => {}
    }
    // `fill` writes the image's log over what is left.
    OpenOptions::new()
        .write(true)
        .open(session.log())
        .and_then(|file| file.set_len(source.record.log_length))
        .or_fail(FailureKind::User, what)
}

/// Waits until the data of an earlier restore is there.
///
/// # Errors
/// `Locked` when it takes too long.
pub(crate) fn settle(session: &Session) -> Result<()> {
    let until = Instant::now() + SETTLE_TIME;
    while session.lock().is_coming() {
        if Instant::now() > until {
            let message = format!(
                "the device data of session `{}` is still coming from its image",
                session.name
            );
            return Err(fail(FailureKind::Locked, message)
                .hint("try again later, or restore with `--eager`"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
