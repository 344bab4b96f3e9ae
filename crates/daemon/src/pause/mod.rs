//! Pauses a session: releases its GPU memory; its processes stay, parked.
//!
//! ```text
//!            pause                                            resume
//!  Running ─► quiesce, detach ─► Save, Finish ─► checked ─► Paused ─► Load ─► reattach ─► Running
//!                 └─────────────────┴──── a failure: the processes go on with their workers
//! ```
//! A pause is the stop of a checkpoint without CRIU. The workers end only when all data that they held is in the session's
//! [`Entry`], checked and recorded; after a failure before that, the program goes on as before. The command waits until the
//! workers have released the GPU's memory, but not for their end. `resume` reverses a pause.

pub mod data;
mod plan;
mod resume;

use std::sync::Arc;

use fermata_control::user::{self, SessionState};
use fermata_control::worker::FailureKind;
use fermata_store::moments;
use parking_lot::Mutex;
use tracing::{info, warn};

pub use self::resume::{park_again, resume, revive, waits, watch};
use crate::agent::attach::share_chunks;
use crate::agent::bring_back::{Parked, bring_back};
use crate::checkpoint::{Halt, devices_of, finished};
use crate::parallel::each_at_once;
use crate::progress::Report;
use crate::turn::{ATTEMPTS, Others, Patience, Present, Turn};

use self::data::Entry;
use crate::daemon::{Daemon, check_running};
use crate::failure::{Failure, Hint, OrFail, Result, fail, lacks_memory};
use crate::phases::Phases;
use crate::session::{Served, Session};
use crate::worker::Worker;

/// Pauses a session as `request` says, once it has its turn.
///
/// # Errors
/// The reason; the program goes on, and no entry is left.
pub fn pause(
    daemon: &Arc<Daemon>,
    request: &user::Pause,
    patience: Patience,
    report: &mut Report<'_>,
) -> Result<user::Paused> {
    let session = daemon.session_or_pid(&request.session)?;
    if let Some(paused) = keep_paused(&session, request) {
        return Ok(paused);
    }
    refuse_paused(&session)?;
    let mut turn = Turn::take_settled_with(&session, patience)?;
    refuse_paused(&session)?;
    check_running(&session)?;
    let _quiet = daemon.cache.as_ref().map(|cache| cache.busy());
    let mut attempts = 1;
    let paused = loop {
        // Also that of an attempt that failed.
        remove_last(&session)?;
        let present = Present::of(&session);
        let failure = match attempt(daemon, &session, request, report) {
            Ok(paused) => break paused,
            Err(failure) => failure,
        };
        let others = present.since(&session, &failure);
        if others == Others::Same || attempts == ATTEMPTS || check_running(&session).is_err() {
            return Err(failure);
        }
        if others == Others::Come {
            turn = turn.let_in()?;
            refuse_paused(&session)?;
        }
        attempts += 1;
    };
    info!(
        session = %session.name,
        "`{}` is paused, its data is in `{}`",
        session.name,
        paused.data.folder.display()
    );
    Ok(paused)
}

/// If the session is paused for another one, keeps it paused from now on until its user resumes it.
fn keep_paused(session: &Session, request: &user::Pause) -> Option<user::Paused> {
    let data = {
        let mut inner = session.lock();
        let data = inner.paused().map(|it| it.data.clone())?;
        let yielded = request.to.is_none() && inner.yielded.take().is_some();
        yielded.then_some(data)?
    };
    session.save();
    Some(user::Paused {
        session: session.name.clone(),
        data,
        seconds: 0.0,
        phases: Vec::new(),
        waited: None,
    })
}

fn refuse_paused(session: &Session) -> Result<()> {
    if session.lock().state != SessionState::Paused {
        return Ok(());
    }
    let message = format!("session `{}` is paused already", session.name);
    Err(fail(FailureKind::User, message)
        .hint(format!("`fermata resume {}` lets it go on", session.name)))
}

/// Removes the entry of an earlier pause, unless that has been done. Its session runs, so its data is no longer needed.
fn remove_last(session: &Session) -> Result<()> {
    let Some(entry) = session.lock().entry.clone() else {
        return Ok(());
    };
    session.drop_entry(&entry);
    if session.lock().entry.is_none() {
        return Ok(());
    }
    let folder = entry.data.folder.display();
    let message = format!(
        "the data of the last pause of session `{}`, in `{folder}`, cannot be removed",
        session.name
    );
    Err(fail(FailureKind::User, message).hint("remove that folder, then try again"))
}

fn attempt(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    request: &user::Pause,
    report: &mut Report<'_>,
) -> Result<user::Paused> {
    let served = session.lock().served();
    if session.foreign {
        let message = format!(
            "session `{}` cannot be paused: Fermata has not started its program, which holds the GPU itself",
            session.name
        );
        return Err(fail(FailureKind::User, message)
            .hint("`fermata checkpoint NAME --then stop` frees the GPU"));
    }
    if served.is_empty() {
        let message = format!(
            "session `{}` does not use a GPU: it has no GPU memory to give back",
            session.name
        );
        return Err(fail(FailureKind::User, message)
            .hint("pause it once it has; `kill -STOP` stops a program without"));
    }
    let workers = served.iter().map(|it| Arc::clone(&it.worker));
    share_chunks(session, workers.collect(), true)?;
    let entry = Entry::plan(daemon, session, request.to.as_ref())?;
    entry.check_room(daemon, session, bytes_of(&served)?)?;
    // Recorded first: if this daemon dies, the next one knows of the folder.
    session.lock().entry = Some(entry.clone());
    let taken = session
        .note_down()
        .or_fail(FailureKind::User, || {
            format!("cannot note down session `{}`", session.name)
        })
        .and_then(|()| take(daemon, session, &served, entry.clone(), report));
    if taken.is_err() {
        discard(session, &entry);
    }
    taken
}

/// Removes the entry of a pause that has failed. The end of the program removes it from the session, perhaps before its folder is
/// made.
fn discard(session: &Session, entry: &Entry) {
    session.drop_entry(entry);
    let is_it = |it: &Entry| it.data.folder == entry.data.folder;
    // One that is still recorded could not be removed, which has been said.
    if session.lock().entry.as_ref().is_some_and(is_it) {
        return;
    }
    if let Err(failure) = entry.remove() {
        warn!(session = %session.name, "{}", failure.message);
    }
}

/// Bytes that the workers hold.
fn bytes_of(served: &[Served]) -> Result<u64> {
    served
        .iter()
        .try_fold(0, |bytes, it| Ok(bytes + it.worker.held_bytes()?))
}

fn take(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    served: &[Served],
    entry: Entry,
    report: &mut Report<'_>,
) -> Result<user::Paused> {
    // No collection of garbage runs until all is recorded.
    let made = entry.make(served.len())?;
    let phases = Phases::start();
    let halt = Halt {
        session,
        phases: &phases,
    };
    report("quiesce", 0, 0);
    let settled = halt.quiesce(served, &mut || {}, report)?;
    let parked = halt.park(served)?;
    let store = entry.data.folder.clone();
    let kept = halt.let_go(served).and_then(|()| {
        {
            let report = Mutex::new(&mut *report);
            phases.time("device", || {
                halt.save(served, (store, &made.parts), &report)
            })?;
        }
        let totals = phases.time("finish", || finished(&parked, report))?;
        phases.moved("device", totals.device_bytes + totals.host_bytes);
        let processes: Vec<_> = parked
            .iter()
            .map(|it| (it.detached.process, it.worker.kernels_first))
            .collect();
        let devices = devices_of(parked.iter().map(|it| &*it.worker));
        let entry = phases.time("check", || {
            entry.complete(&made, &processes, (totals, devices))
        })?;
        moments::pass("pause-checked");
        keep(session, &parked, &entry)?;
        Ok(entry)
    });
    let entry = match kept {
        Ok(entry) => entry,
        Err(failure) => {
            // The first failure is the one to report; what this one means is in `ps`.
            let _ = bring_back(daemon, session, &parked);
            return Err(failure);
        }
    };
    moments::pass("pause-noted");
    phases.time("give back", || {
        drop(each_at_once(parked, "vacate", |it| {
            give_back(session, it.worker)
        }));
    });
    Ok(user::Paused {
        session: session.name.clone(),
        data: entry.data,
        seconds: phases.seconds(),
        phases: phases.list(),
        waited: settled.waited,
    })
}

/// Releases the GPU memory of a worker, and has the worker end in the background.
///
/// The driver takes seconds to end a worker that has registered tens of GiB of host memory. Meanwhile the worker holds only
/// its context on the GPU, so the pause does not wait for its end.
fn give_back(session: &Arc<Session>, worker: Arc<Worker>) -> Result<()> {
    let end = {
        let (session, worker) = (Arc::clone(session), Arc::clone(&worker));
        move || {
            worker.end();
            session.has_left(worker.process);
        }
    };
    if worker.vacate().is_err() {
        // Its end releases the rest of its memory.
        end();
        return Ok(());
    }
    moments::pass("pause-vacated");
    let named = std::thread::Builder::new().name("paused-worker".into());
    if named.spawn(end.clone()).is_err() {
        end();
    }
    Ok(())
}

/// Marks the session as paused: from here on its data is in its entry, and its workers are not used.
fn keep(session: &Session, parked: &[Parked], entry: &Entry) -> Result<()> {
    {
        let mut inner = session.lock();
        if inner.has_ended() {
            let message = format!("session `{}` has ended", session.name);
            return Err(fail(FailureKind::NotFound, message));
        }
        for it in parked {
            if let Some(member) = inner.member(it.detached.process) {
                member.part();
            }
            // If this daemon dies before it ends the worker, the next one does.
            inner.leaving.push(it.worker.process);
        }
        (inner.entry, inner.note) = (Some(entry.clone()), None);
        inner.state = SessionState::Paused;
    }
    let Err(error) = session.note_down() else {
        session.announce();
        return Ok(());
    };
    let mut inner = session.lock();
    inner.leaving.clear();
    for it in parked {
        if let Some(member) = inner.member(it.detached.process) {
            member.sees(it.worker.process);
            member.worker = Some(Arc::clone(&it.worker));
        }
    }
    if let Some(entry) = &mut inner.entry {
        entry.complete = false;
    }
    if !inner.has_ended() {
        inner.state = SessionState::Stopped;
    }
    drop(inner);
    Err(error).or_fail(FailureKind::User, || {
        format!("cannot note down session `{}`", session.name)
    })
}

/// The failure that tells a user why the session stays paused.
fn stays_paused(session: &Session, failure: Failure) -> Failure {
    let message = format!(
        "session `{}` stays paused: {}",
        session.name, failure.message
    );
    let hint = match lacks_memory(&failure) {
        true => "free memory of the device (`nvidia-smi` shows who has it), or pause another session; then try again"
            .to_owned(),
        false => failure.hint,
    };
    fail(failure.kind, message).hint(hint)
}

/// Ends workers that serve no process.
fn end_all<'w>(workers: impl Iterator<Item = &'w Arc<Worker>>) {
    let end = |it: &Arc<Worker>| {
        it.end();
        Ok(())
    };
    drop(each_at_once(workers.collect(), "end", end));
}

#[cfg(test)]
mod tests {
    use fermata_control::user::Text;

    use super::*;
    use crate::daemon::scene;

    #[test]
    fn a_program_that_ends_as_its_pause_begins_leaves_no_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let to: Text = folder.path().into();
        let entry = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        session.lock().entry = Some(entry.clone());
        session.ended(None);
        entry.make(1).expect("made");
        discard(&session, &entry);
        assert!(!entry.data.folder.exists());
    }
}
