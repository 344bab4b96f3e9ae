//! Sessions of a daemon that has ended come back to this one.
//!
//! ```text
//!  worker ── Back ──► known by its process ─┬─ agent too ─────► joined: Running
//!  agent  ── Back ──► known by its token  ──┘
//!                     program parked ────────► woken and reattached: Running
//! ```
//! Program and worker need no daemon to go on; they look for one again and again. A program that was stopped
//! for a checkpoint is parked without any connection: it is woken as after a checkpoint, once CRIU, which may
//! have outlived the daemon, has let go of it. The half image goes with the next checkpoint of its folder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::PROTOCOL;
use fermata_control::user::SessionState;
use fermata_control::worker::{FromWorker, ToWorker};

use crate::agent::Arrival;
use crate::attach::{self, Detached};
use crate::behind;
use crate::daemon::Daemon;
use crate::proc::{self, ProcessId};
use crate::restore::Source;
use crate::session::Session;
use crate::wake as block;
use crate::worker::{STEP_TIME, Wire, Worker};

/// How long a worker or an agent may take to introduce itself.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// How long worker and agent take to come back, unless they have something to end; both look several times a second.
const RETURN_TIME: Duration = Duration::from_secs(20);
/// How long a CRIU that has outlived its daemon may hold a program.
const TRACE_TIME: Duration = Duration::from_secs(600);
/// Between two looks, at first and later.
const TURN: Duration = Duration::from_millis(20);
const LATE_TURN: Duration = Duration::from_millis(200);

/// Who has come back so far.
#[derive(Default)]
pub struct Returned {
    /// The agent.
    pub agent: Option<Arrival>,
    /// The worker.
    pub worker: Option<Arc<Worker>>,
}

/// Serves a connection to the workers' socket.
pub fn worker(daemon: &Arc<Daemon>, link: Wire) {
    let Some(process) = link.peer_pid().ok().and_then(ProcessId::of) else {
        return;
    };
    let Ok((FromWorker::Back(back), _)) = link.recv(HELLO_TIME) else {
        return daemon.log.line("a worker came back and did not say so");
    };
    if back.protocol != PROTOCOL {
        // It goes on serving its program, and asks again: perhaps a daemon of its own release.
        return daemon.log.line("a worker of another release came back");
    }
    let its = |session: &Arc<Session>| {
        let inner = session.lock();
        inner.worker.is_none() && inner.worker_seen() == Some(process)
    };
    let mut live = daemon.sessions().into_iter().filter(|it| it.live());
    let Some(session) = live.find(its) else {
        // Its session has ended, or has another worker; a program that it serves is left alone.
        if !back.serving {
            let _ = link.send(&ToWorker::Exit, &[]);
        }
        return daemon
            .log
            .line("a worker came back that belongs to no session");
    };
    match Worker::returned(link, process, back, &session.variables) {
        Ok(worker) => session.lock().returned.worker = Some(worker),
        Err(failure) => daemon.log.line(&failure.message),
    }
}

/// Takes an agent that has come back.
pub fn agent(daemon: &Arc<Daemon>, session: &Arc<Session>, arrival: Arrival) {
    let mut inner = session.lock();
    if inner.agent.is_some() {
        return daemon
            .log
            .line(&format!("session `{}` came back twice", session.name));
    }
    inner.returned.agent = Some(arrival);
}

/// Waits for the two halves of a session that another daemon has left, and joins them. What does not come
/// back is told in the session's note; the program is never ended for it. A worker that lives is waited for as
/// long as it takes: it may be writing what the other daemon has asked for, and a parked program needs it.
pub fn join(daemon: &Arc<Daemon>, session: &Arc<Session>) {
    let mut busy = Some(session.busy.lock());
    let until = Instant::now() + RETURN_TIME;
    loop {
        if !session.live() {
            return;
        }
        let (worker, agent, detached) = {
            let inner = session.lock();
            let returned = &inner.returned;
            (
                returned.worker.clone(),
                returned.agent.is_some(),
                inner.detached,
            )
        };
        match (worker, detached) {
            (Some(worker), _) if worker.lost().is_some() => session.lock().returned.worker = None,
            (Some(worker), _) if agent => {
                busy.get_or_insert_with(|| session.busy.lock());
                return attach_again(daemon, session, &worker);
            }
            (Some(worker), Some(detached)) if is_free(session, detached) => {
                busy.get_or_insert_with(|| session.busy.lock());
                return wake(daemon, session, &worker, detached);
            }
            (None, _) if session.lock().worker_seen().is_none() => break,
            _ if busy.is_none() => std::thread::sleep(LATE_TURN),
            _ if Instant::now() > until => {
                // Who wants something of it meanwhile is told how it is.
                busy = None;
                daemon.log.line(&format!(
                    "session `{}` has not come back yet: it goes on without this daemon",
                    session.name
                ));
            }
            _ => std::thread::sleep(TURN),
        }
    }
    let detached = session.lock().detached;
    let reason = "its worker has ended while no daemon ran";
    match detached {
        Some(detached) => attach::reject(daemon, session, detached, reason),
        None => session.worker_lost(reason),
    }
    daemon
        .log
        .line(&format!("session `{}` is lost: {reason}", session.name));
}

/// Whether the program is parked in earnest: not stopped on its way there, and in nobody's hands.
fn is_free(session: &Session, detached: Detached) -> bool {
    let root = session.lock().root;
    let until = Instant::now() + TRACE_TIME;
    while root.is_some_and(|root| proc::is_traced(root.pid)) && Instant::now() < until {
        std::thread::sleep(TURN);
    }
    if let Some(waits) = block::waits(detached.process.pid, detached.wake_block) {
        return waits && detached.process.alive();
    }
    // A program of an earlier release: one that was not detached any more says Back; one that was waits for ever.
    std::thread::sleep(Duration::from_millis(500));
    session.lock().returned.agent.is_none() && detached.process.alive()
}

fn attach_again(daemon: &Arc<Daemon>, session: &Arc<Session>, worker: &Arc<Worker>) {
    let arrival = session.lock().returned.agent.take();
    session.lock().returned.worker = None;
    // What a checkpoint of the other daemon has begun.
    let _ = worker.request(&ToWorker::Abandon, &[], STEP_TIME, &mut |_, _| {});
    let Some(arrival) = arrival else { return };
    match attach::adopt(session, arrival, worker) {
        Ok(_) => running(daemon, session, worker),
        Err(failure) => session.worker_lost(&failure.message),
    }
}

fn wake(daemon: &Arc<Daemon>, session: &Arc<Session>, worker: &Arc<Worker>, detached: Detached) {
    session.lock().returned.worker = None;
    let _ = worker.request(&ToWorker::Abandon, &[], STEP_TIME, &mut |_, _| {});
    match attach::rejoin(daemon, session, worker, detached) {
        Ok(()) => running(daemon, session, worker),
        Err(failure) => {
            daemon.log.line(&failure.message);
            attach::reject(daemon, session, detached, &failure.message);
            worker.end();
        }
    }
}

fn running(daemon: &Arc<Daemon>, session: &Arc<Session>, worker: &Arc<Worker>) {
    session.lock().note = None;
    session.set_state(SessionState::Running);
    daemon
        .log
        .line(&format!("session `{}` has come back", session.name));
    let Some(image) = &session.image else { return };
    // Its data may still be coming.
    let followed = behind::begin(session, worker, 0.0).and_then(|()| {
        {
            let mut inner = session.lock();
            // A program that has ended meanwhile, and its worker with it, is not to run again.
            if inner.agent.is_none() {
                inner.behind = None;
            }
        }
        if session.lock().rolls_back() {
            let source = Arc::new(Source::of_session(daemon, session, image)?);
            behind::follow(&source, session);
        }
        Ok(())
    });
    if let Err(failure) = followed {
        // The worker goes on; only a rollback is not possible.
        session.lock().behind = None;
        daemon.log.line(&failure.message);
    }
}
