//! Serves a request to restore: starts as many sessions as it asks for, or none.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use fermata_control::user::{MOST_COPIES, Restore, Restored, SessionState};
use fermata_control::worker::{FailureKind, Pace};
use parking_lot::Mutex;

use super::source::{How, Source};
use crate::awake::Awake;
use crate::daemon::Daemon;
use crate::failure::{Hint, Result, fail};
use crate::host::stored;
use crate::parallel::{beside, joined};
use crate::phases::Phases;
use crate::progress::Report;
use crate::restore::rollback;
use crate::session::{Plan, Session};
use crate::sys;

/// Starts sessions as `request` says.
///
/// # Errors
/// The reason; no session of the request is left.
pub fn restore(
    daemon: &Arc<Daemon>,
    request: &Restore,
    pipe: Option<OwnedFd>,
    report: &mut Report<'_>,
) -> Result<Restored> {
    let begun = Instant::now();
    let _busy = daemon.cache.as_ref().map(|cache| cache.busy());
    let source = Arc::new(Source::open(daemon, request, pipe)?);
    if request.copies == 0 || request.copies > MOST_COPIES {
        let message = format!("the number of copies must be 1 to {MOST_COPIES}");
        return Err(fail(FailureKind::User, message));
    }
    if request.copies > 1
        && !request.own_network
        && source.record.connections.is_some_and(|ends| ends > 0)
    {
        let message =
            "the program has TCP connections, whose addresses only one of its copies can have";
        return Err(
            fail(FailureKind::User, message).hint("restore it once, or with `--own-network`")
        );
    }
    let names: Vec<Option<String>> = match (request.copies, &request.name) {
        (1, name) => vec![name.clone()],
        (n, name) => {
            let base = name.as_deref().unwrap_or(&source.image.manifest().session);
            (1..=n).map(|i| Some(format!("{base}-{i}"))).collect()
        }
    };
    let mut notes: Vec<String> = source.image.manifest().warning().into_iter().collect();
    let pace = match request.eager {
        true => Pace::Eager,
        false => Pace::Behind(request.order),
    };
    // The driver's own restore of a foreign program reads its data from host memory before the program runs.
    let on_demand = !request.eager && source.foreign.is_none();
    let large = on_demand && stored::is_large(&source.image);
    let lazy = large && sys::userfaultfd_permitted();
    if large && !lazy {
        notes.push("all host memory was read first: userfaultfd is not permitted here".to_owned());
    }
    let how = How { lazy, pace };
    // Reading all data first takes long, and waits for other things.
    let _awake = on_demand.then(Awake::new);
    let report = Mutex::new(report);
    report.lock()("restore", 0, 0);
    let results: Vec<Result<(Arc<Session>, Phases)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = names
            .iter()
            .map(|name| {
                beside(scope, "instance", || {
                    start(&source, name.as_deref(), how, &report)
                })
            })
            .collect();
        threads.into_iter().map(joined).collect()
    });
    let (started, mut failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    if let Some(Err(failure)) = failed.pop() {
        for (session, _) in started.into_iter().flatten() {
            discard(daemon, &session);
        }
        return Err(failure);
    }
    let started: Vec<_> = started.into_iter().flatten().collect();
    let slowest = started
        .iter()
        .max_by(|a, b| a.1.seconds().total_cmp(&b.1.seconds()));
    Ok(Restored {
        image: source.image.dir().into(),
        seconds: begun.elapsed().as_secs_f64(),
        phases: slowest.map(|(_, phases)| phases.list()).unwrap_or_default(),
        sessions: started
            .iter()
            .map(|(session, _)| session.describe())
            .collect(),
        notes,
        reads: source.input.is_some(),
    })
}

/// Makes a session and starts its program.
fn start(
    source: &Arc<Source>,
    name: Option<&str>,
    how: How,
    report: &Mutex<&mut Report<'_>>,
) -> Result<(Arc<Session>, Phases)> {
    let phases = Phases::start();
    let manifest = source.image.manifest();
    let session = source
        .daemon
        .add(name, &manifest.session, |name, dir| Plan {
            name,
            dir,
            argv: manifest.program.argv.clone(),
            cwd: manifest.program.cwd.clone(),
            device: source.device,
            variables: source.variables.clone(),
            gpus: source.gpus.clone(),
            image: Some(source.image.dir().into()),
            own_network: source.own_network,
            priority: source.priority,
            foreign: source.foreign.is_some(),
            state: SessionState::Restoring,
        })?;
    let _busy = session.busy.lock();
    let filled = source.fill(&session, how, &phases, report);
    match filled.and_then(|()| session.check_wanted()) {
        Ok(()) => {
            drop(_busy);
            session.lock().phases = phases.list();
            rollback::follow(source, &session);
            Ok((session, phases))
        }
        Err(failure) => {
            drop(_busy);
            discard(&source.daemon, &session);
            Err(failure)
        }
    }
}

/// Ends what a failed restore has started, and removes the session. Returns when its processes have ended: they have ports and files
/// that the next attempt needs.
fn discard(daemon: &Daemon, session: &Arc<Session>) {
    let init = session.lock().init;
    init.iter().for_each(rollback::end);
    session.ended(None);
    daemon.remove(session);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::scene;
    use crate::proc::ProcessId;
    use crate::proc::scene::reader;

    #[test]
    fn the_processes_of_a_failed_restore_have_ended_when_it_is_answered() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let mut program = reader();
        let init = ProcessId::of(program.id()).expect("it runs");
        session.lock().init = Some(init);
        discard(&daemon, &session);
        assert!(!init.alive() && !session.dir.exists());
        program.wait().expect("it has ended");
    }
}
