//! Rolls back a restored program that met a mis-speculation: starts it again from its image, with all data read first.
//!
//! ```text
//!  RollingBack: the program is ended, its log cut back, everything read, the program started again ─┬─► RolledBack
//!                                                                                                   └─► Exited, with the failure
//! ```
//! A program is rolled back at most once, because all data is then present before it runs. If the daemon dies meanwhile, the
//! next daemon continues the rollback ([`start_again`]).

use std::fs::{self, OpenOptions};
use std::sync::Arc;
use std::time::Duration;

use fermata_control::user::{ArrivalStand, SessionState};
use fermata_control::worker::{FailureKind, Pace};
use parking_lot::Mutex;
use rustix::process::Signal;
use tracing::warn;

use crate::daemon::Daemon;
use crate::failure::{Failure, Hint, OrFail, Result, fail};
use crate::helpers::namespace::work_folder;
use crate::host::stored;
use crate::phases::Phases;
use crate::proc::ProcessId;
use crate::removal::remove_folder;
use crate::restore::on_demand::{watch, wrote_common};
use crate::restore::{How, Source};
use crate::session::{EXIT_FILE, Member, Session};
use crate::sys;

/// How long a program that is rolled back, or whose restore has failed, may take to end.
const END_TIME: Duration = Duration::from_secs(15);

/// Watches a restored session until its data is present; then has the next spare worker made.
pub(crate) fn follow(source: &Arc<Source>, session: &Arc<Session>) {
    let first = {
        let inner = session.lock();
        let part = inner.behind.as_ref().and_then(|it| it.parts.first());
        part.map(|it| it.worker.driver.clone())
    };
    let Some(driver) = first else {
        hurry(session);
        used(source);
        return;
    };
    let (source, followed) = (Arc::clone(source), Arc::clone(session));
    let busy = source.daemon.cache.as_ref().map(|cache| cache.busy());
    let work = move || {
        let watched = watch(&followed);
        hurry(&followed);
        let refill = || source.refill(&driver);
        refill();
        match watched {
            Err(reason) => {
                roll_back(&source, &followed, &reason);
                refill();
            }
            Ok(()) => {
                source.let_go();
                if source.may_share() {
                    watch_common(&source, &followed);
                }
            }
        }
        drop(busy);
        used(&source);
    };
    let spawned = std::thread::Builder::new()
        .name("restore-watch".into())
        .spawn(work);
    if spawned.is_err() {
        // Without a watch the worker goes on; the session is only reported as still loading for ever.
        session.lock().note = Some("its restore is not looked after: no thread".into());
        hurry(session);
    }
}

/// No device data comes from the disk any more: host memory has it for itself.
fn hurry(session: &Session) {
    if let Some(pages) = &session.lock().pages {
        pages.hurry();
    }
}

/// From now on the cache, if there is one, keeps the data for the image's next restore in memory.
fn used(source: &Source) {
    // The memory of a foreign program is read once, before it runs.
    if let Some(cache) = &source.daemon.cache
        && source.foreign.is_none()
    {
        cache.used(source.image.dir());
    }
}

/// Watches for mis-speculations that write to common memory. The session then starts again from its image, however long after
/// its data has come.
fn watch_common(source: &Arc<Source>, session: &Arc<Session>) {
    let workers = session.lock().workers();
    for worker in workers {
        let (source, session) = (Arc::clone(source), Arc::downgrade(session));
        let missed = move |reason: String| {
            let Some(session) = session.upgrade() else {
                return;
            };
            let again = move || start_over(&source, &session, &wrote_common(&reason));
            // If no thread can be started, the program waits, and its worker gives it up.
            let _ = std::thread::Builder::new()
                .name("rollback".into())
                .spawn(again);
        };
        worker.watch_misses(missed);
    }
}

fn start_over(source: &Source, session: &Arc<Session>, reason: &str) {
    {
        // A checkpoint under way fails by itself, because its worker no longer has a context.
        let _busy = session.busy.lock();
        let mut inner = session.lock();
        let runs = inner.state == SessionState::Running && !inner.has_ended();
        match &mut inner.behind {
            // As if its data were still coming.
            Some(behind) if runs && !behind.resumed => behind.stand = ArrivalStand::Coming,
            _ => return,
        }
    }
    roll_back(source, session, reason);
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
        // If this daemon dies before it ends the workers, the next one does.
        inner.loading = inner
            .members
            .iter()
            .filter_map(Member::worker_process)
            .collect();
        std::mem::take(&mut inner.members)
    };
    session.save();
    warn!(session = %session.name, "`{}` is rolled back: {reason}", session.name);
    let _busy = session.busy.lock();
    let former = session.lock().former;
    former.iter().for_each(end);
    for worker in members.into_iter().filter_map(|it| it.worker) {
        worker.end();
    }
    session.lock().loading.clear();
    fill_again(source, session, reason);
}

/// Continues a rollback that an earlier daemon has begun by [`roll_back`].
pub(crate) fn start_again(daemon: &Arc<Daemon>, session: &Arc<Session>, reason: &str) {
    warn!(session = %session.name, "`{}` is rolled back: {reason}", session.name);
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
pub(super) fn end(process: &ProcessId) {
    process.signal(Signal::KILL);
    process.ends_within(END_TIME);
}

fn fill_again(source: &Source, session: &Arc<Session>, reason: &str) {
    let _busy = source.daemon.cache.as_ref().map(|cache| cache.busy());
    let how = How {
        lazy: stored::is_large(&source.image) && sys::userfaultfd_permitted(),
        pace: Pace::Eager,
    };
    let phases = Phases::start();
    let mut silent = |_: &str, _, _| {};
    let again = clean(source, session)
        .and_then(|()| source.hold_again())
        .and_then(|()| source.fill(session, how, &phases, &Mutex::new(&mut silent)))
        .and_then(|()| session.check_wanted());
    match again {
        Ok(()) => {
            let seconds = phases.seconds();
            let text = format!("rolled back to its image, in {seconds:.1} s: {reason}");
            warn!(session = %session.name, "`{}` {text}", session.name);
            let mut inner = session.lock();
            inner.phases = phases.list();
            inner.note = Some(text);
            (inner.again, inner.former) = (None, None);
            if let Some(behind) = &mut inner.behind {
                behind.stand = ArrivalStand::RolledBack;
            }
            // A loss is not noted as long as a rollback is possible.
            inner.note_losses();
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

/// Returns the session's folder to its state before the program was restored from the image.
fn clean(source: &Source, session: &Session) -> Result<()> {
    let what = || format!("cannot clean the folder `{}`", session.dir.display());
    remove_folder(&work_folder(&session.dir))?;
    match fs::remove_file(session.dir.join(EXIT_FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).or_fail(FailureKind::User, what);
        }
        _ => {}
    }
    // `fill` then writes the image's log over this file.
    OpenOptions::new()
        .write(true)
        .open(session.log())
        .and_then(|file| file.set_len(source.record.log_length))
        .or_fail(FailureKind::User, what)
}
