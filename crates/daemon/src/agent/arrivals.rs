//! Receives agents that connect to the daemon: of programs that use CUDA for the first time, that were woken, or whose daemon
//! has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fermata_control::PROTOCOL;
use fermata_control::agent::{FromAgent, ToAgent, first_among};
use fermata_control::user::SessionState;
use tracing::warn;

use crate::agent::attach::{AttachmentEnds, INITIALIZATION_ERROR, adopt, offer, share, welcome};
use crate::agent::{Arrival, Link};
use crate::daemon::Daemon;
use crate::failure::{Failure, Result, from_control};
use crate::gpu::driver::Driver;
use crate::priority::{self, Gpu, Need};
use crate::proc::ProcessId;
use crate::session::{Inner, Session};
use crate::takeover::returning;
use crate::worker::Worker;

/// `CUresult`s for programs that cannot be served.
mod status {
    pub const NO_DEVICE: u32 = 100;
    pub const SYSTEM_DRIVER_MISMATCH: u32 = 803;
    pub const NOT_PERMITTED: u32 = 800;
}

/// How long an agent may take to say Hello once connected.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// How often the daemon looks why a session is busy, while a new process waits for it.
const TURN: Duration = Duration::from_millis(2);
/// How long the daemon may take to notice the end of a program.
const GONE_TIME: Duration = Duration::from_secs(60);

/// Why an agent connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coming {
    /// Its program uses CUDA for the first time.
    First,
    /// It was woken.
    Woken,
    /// Its daemon has ended, and this is the next one.
    Back,
}

impl Coming {
    fn of(reattach: bool) -> Self {
        if reattach { Self::Woken } else { Self::First }
    }
}

/// Serves a connection to the agents' socket up to Welcome or Reject.
pub fn receive(daemon: &Arc<Daemon>, link: Link) {
    let refuse = |link: &Link, status: u32, reason: &str| {
        warn!("refused a program: {reason}");
        // The program may have ended, which is fine.
        let _ = link.send(
            &ToAgent::Reject {
                status,
                reason: reason.into(),
            },
            &[],
        );
    };
    let hello = match link.recv(HELLO_TIME) {
        Ok((
            FromAgent::Hello {
                protocol,
                pid,
                token,
                wake_block,
                reattach,
                says_mapped,
                prepares,
                visible,
            },
            _,
        )) => {
            if protocol != PROTOCOL {
                let reason =
                    format!("the library speaks protocol {protocol}, the daemon {PROTOCOL}");
                return refuse(&link, status::SYSTEM_DRIVER_MISMATCH, &reason);
            }
            (
                pid,
                token,
                (wake_block, says_mapped, prepares, visible),
                Coming::of(reattach),
            )
        }
        Ok((
            FromAgent::Back {
                protocol: PROTOCOL,
                pid,
                token,
                wake_block,
                prepares,
            },
            _,
        )) => (
            pid,
            token,
            (wake_block, false, prepares, None),
            Coming::Back,
        ),
        Ok(_) => {
            return refuse(
                &link,
                INITIALIZATION_ERROR,
                "the first message is not Hello",
            );
        }
        Err(e) => return warn!("{}", from_control(&e).message),
    };
    let (inner_pid, token, (wake_block, says_mapped, prepares, visible), coming) = hello;
    let process = link.peer_pid().ok().and_then(ProcessId::of);
    let Some(process) = process else {
        return refuse(&link, INITIALIZATION_ERROR, "its process has ended");
    };
    let found = daemon.session_of(&token, process.pid);
    if found.is_none() && coming == Coming::Back {
        // The program goes on, and its agent asks again.
        return;
    }
    let Some(session) = found else {
        return refuse(&link, status::NOT_PERMITTED, "no session has this token");
    };
    let arrival = Arrival {
        link,
        process,
        inner_pid,
        wake_block,
        says_mapped,
        prepares,
        visible,
    };
    if coming == Coming::Back {
        return returning::agent(&session, arrival);
    }
    if coming == Coming::Woken {
        let waiting = {
            let mut inner = session.lock();
            let member = inner.member(arrival.process);
            member.and_then(|it| it.expected.take())
        };
        let unwanted = match waiting {
            Some(sender) => sender.send(arrival).err().map(|lost| lost.0),
            None => Some(arrival),
        };
        let Some(late) = unwanted else { return };
        if session.lock().state == SessionState::Lost {
            // The session was given up before this agent came: it must not wait for ever.
            let reason = "its session has lost its worker";
            return refuse(&late.link, INITIALIZATION_ERROR, reason);
        }
        // It waits to be woken again.
        return warn!(session = %session.name, "session `{}` came back unasked", session.name);
    }
    session.arrivals.fetch_add(1, Ordering::Relaxed);
    if !has_parted(&session, arrival.process) {
        let reason = format!(
            "process {} has begun to execute another program, and its end as the one before is not known yet",
            arrival.process.pid
        );
        return refuse(&arrival.link, INITIALIZATION_ERROR, &reason);
    }
    let _busy = loop {
        if let Some(busy) = session.busy.try_lock_for(TURN) {
            break busy;
        }
        if session.checkpointing.load(Ordering::Acquire) {
            // Its connection would prevent the checkpoint. It connects again later, or has ended.
            let _ = arrival.link.send(&ToAgent::Later, &[]);
            return;
        }
    };
    if session.lock().state == SessionState::Paused {
        // It gets a worker when the session is resumed.
        let _ = arrival.link.send(&ToAgent::Paused, &[]);
        return;
    }
    if let Err((link, failure)) = first(daemon, &session, arrival) {
        refuse(&link, status::NO_DEVICE, &failure.message);
    }
}

/// Waits until the earlier connection of `process` has ended: a process that executes another program gets another worker once
/// that is noticed. False if it is not noticed in time.
fn has_parted(session: &Session, process: ProcessId) -> bool {
    let parted = |inner: &Inner| {
        let member = inner.members.iter().find(|it| it.process == process);
        member.is_none_or(|it| it.agent.is_none()).then_some(())
    };
    session.wait_for(GONE_TIME, parted).is_some()
}

/// Gives a process its first worker.
fn first(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    arrival: Arrival,
) -> std::result::Result<(), (Link, Failure)> {
    let prepared = Driver::find(session.device, &daemon.paths.home).and_then(|driver| {
        let need = || {
            let gpu = Gpu::of(driver.soft, &session.variables)?;
            Some(Need::to_start(&session.name, session.priority, gpu, 0))
        };
        let variables = session.variables_of_process(driver.soft, arrival.visible.as_ref());
        let start = || daemon.pool.take(&driver, &variables);
        let take = || priority::retried(daemon, need, start);
        let (worker, ends) = ready(session, &arrival, take)?;
        Ok((worker, ends, variables))
    });
    let (worker, ends, variables) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return Err((arrival.link, failure)),
    };
    match welcome(&arrival.link, false, &ends) {
        Ok(()) => {
            // From here on the program is attached, whatever happens.
            if let Err(failure) = adopt(session, arrival, &worker) {
                warn!(session = %session.name, "{}", failure.message);
                worker.end();
            }
            daemon.pool.refill(&worker.driver, &variables);
            Ok(())
        }
        Err(failure) => {
            worker.end();
            session.forget(arrival.process);
            Err((arrival.link, failure))
        }
    }
}

/// A worker that serves a process from now on, of those that `take` gives. The first may have been killed while it waited, which its
/// connection tells late: then there is a second. Neither has anything of the process yet.
fn ready(
    session: &Session,
    arrival: &Arrival,
    take: impl Fn() -> Result<Arc<Worker>>,
) -> Result<(Arc<Worker>, AttachmentEnds)> {
    let mut again = true;
    loop {
        let worker = take()?;
        // Saved first: a later daemon must know which process the worker serves.
        let mut sight = arrival.visible.clone();
        if let Some(it) = &mut sight {
            it.first = first_among(it.first, worker.devices.len());
        }
        session.expect(arrival.process, worker.process, sight);
        let failure = match share(session, &worker).and_then(|()| offer(session, &worker)) {
            Ok(ends) => return Ok((worker, ends)),
            Err(failure) => failure,
        };
        let is_lost = worker.lost().is_some() || worker.process.is_ending();
        worker.end();
        session.forget(arrival.process);
        if !is_lost || !std::mem::take(&mut again) {
            return Err(failure);
        }
        warn!(session = %session.name, "another worker is taken: {}", failure.message);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use fermata_control::worker::{FailureKind, FromWorker, ToWorker};

    use super::*;
    use crate::agent::scene::arrival;
    use crate::daemon::scene;
    use crate::failure::fail;
    use crate::worker::scene::played;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_worker_that_was_killed_while_it_waited_does_not_cost_the_program_its_gpu() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let (arrival, _program) = arrival(0);
        let killed = || {
            let (worker, other) = played();
            drop(other);
            worker
        };
        let none = || fail(FailureKind::Host, "none is left");
        let taken_of = |workers: Vec<Arc<Worker>>| {
            let left = RefCell::new(workers.into_iter());
            let take = || left.borrow_mut().next().ok_or_else(none);
            let found = ready(&session, &arrival, take).map(|(worker, _)| worker.process);
            (found.map_err(|it| it.kind), left.into_inner().len())
        };
        let (found, left) = taken_of(vec![killed(), killed(), killed()]);
        assert!(found.is_err() && left == 1, "{found:?}");
        assert!(session.lock().members.is_empty());
        let (worker, other) = played();
        let process = worker.process;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    let (message, _) = other.recv(PATIENCE).expect("asked");
                    let answer = match message {
                        ToWorker::Share { .. } => FromWorker::Sharing,
                        _ => FromWorker::Attached,
                    };
                    other.send(&answer, &[]).expect("sent");
                }
            });
            assert_eq!(taken_of(vec![killed(), worker]), (Ok(process), 0));
        });
        let member = session.lock().member(arrival.process).map(|it| it.process);
        assert_eq!(member, Some(arrival.process));
    }
}
