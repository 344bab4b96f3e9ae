//! Has the workers of a session load their parts, all at the same time. A worker waits for memory that another one shares, so one
//! that cannot load tells the others not to wait; the first failure is the session's.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use fermata_control::worker::{FromWorker, LOAD_FAILED, ToWorker};

use crate::agent::attach::share;
use crate::failure::{Failure, Result};
use crate::phases::Phases;
use crate::session::Session;
use crate::worker::{STALL_TIME, STEP_TIME, Worker, unexpected};

/// Gives a worker that is about to load the socket by which it finds common memory of other workers.
///
/// # Errors
/// The worker does not answer.
pub fn share_common(worker: &Worker, socket: OwnedFd) -> Result<()> {
    let answer = worker.request(
        &ToWorker::Common,
        &[socket.as_fd()],
        STEP_TIME,
        &mut |_, _| {},
    )?;
    match answer {
        FromWorker::Common => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Has a worker load its part as `request` says, with the others of its session; records the times in `phases`.
///
/// # Errors
/// The reason; the worker has then ended, and the others no longer wait for memory that its process shares.
pub fn load(
    session: &Session,
    worker: &Worker,
    request: &ToWorker,
    phases: &Phases,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let loaded = share(session, worker).and_then(|()| ask(worker, request, phases, progress));
    loaded.map_err(|failure| {
        let first = cannot_load(session, failure);
        worker.end();
        first
    })
}

fn ask(
    worker: &Worker,
    request: &ToWorker,
    phases: &Phases,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let begun = Instant::now();
    let ring = worker.ring();
    let ring: Vec<_> = ring.iter().map(|ring| ring.as_fd()).collect();
    match worker.request(request, &ring, STALL_TIME, progress)? {
        FromWorker::Loaded { steps, .. } => {
            phases.parts("device", begun, &steps);
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

/// Notes that the part of a process cannot be loaded: the workers of the others do not wait for its memory. Returns the session's
/// first failure, because later workers may have failed since they waited for that one.
pub fn cannot_load(session: &Session, failure: Failure) -> Failure {
    let first = session.lock().load_failure.get_or_insert(failure).clone();
    // If this fails, they wait longer.
    let _ = fs::write(session.dir.join(LOAD_FAILED), "");
    first
}

/// Lets workers that load from now on wait for each other.
pub fn let_wait(session: &Session) {
    session.lock().load_failure = None;
    // The file exists only after a failure.
    let _ = fs::remove_file(session.dir.join(LOAD_FAILED));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fermata_control::worker::FailureKind;

    use super::*;
    use crate::daemon::scene;
    use crate::failure::fail;
    use crate::worker::scene::played;

    #[test]
    fn a_worker_that_cannot_begin_to_load_keeps_no_other_one_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let waits = || !session.dir.join(LOAD_FAILED).exists();
        let (worker, other) = played();
        let failure = std::thread::scope(|scope| {
            scope.spawn(|| {
                let asked = other.recv(Duration::from_secs(60)).expect("asked").0;
                assert!(matches!(asked, ToWorker::Share { .. }), "{asked:?}");
                let refused = fail(FailureKind::User, "out of memory");
                other.send(&FromWorker::Failed(refused), &[]).expect("sent");
            });
            // It is not even asked to load.
            let phases = Phases::start();
            load(
                &session,
                &worker,
                &ToWorker::Finish,
                &phases,
                &mut |_, _| {},
            )
        });
        assert_eq!(failure.expect_err("refused").message, "out of memory");
        assert!(!waits());
        // That of a worker which would have needed the first one's memory.
        let later = cannot_load(&session, fail(FailureKind::Internal, "nobody shares"));
        assert_eq!(later.message, "out of memory");
        let_wait(&session);
        assert!(waits());
        let next = cannot_load(&session, fail(FailureKind::Internal, "another"));
        assert_eq!(next.message, "another");
    }
}
