//! Connecting a program with a worker: ring, side socket, and who says what when.
//!
//! ```text
//!  first use of CUDA     Hello ─► worker from the pool ─► Attach ─► Welcome
//!  after a detachment    wake block ─► Hello { reattach } ─► Welcome ─► Attach ┬► regions ─► Attached
//!                                                                             └─────────────► Resumed
//!  after a daemon's end  Back: see `returning`
//! ```
//! On reattachment the worker sends the program's host memory while it attaches, so nobody waits for
//! `Attached` before the agent listens. The program is welcomed first: whenever this daemon dies, either both have
//! an end of the ring or the worker is still asked for nothing. A worker that attaches to nobody gives its session up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use fermata_control::PROTOCOL;
use fermata_control::agent::{FromAgent, ToAgent};
use fermata_control::user::SessionState;
use fermata_control::worker::{FailureKind, FromWorker, ToWorker};
use fermata_wire::Side;
use serde::{Deserialize, Serialize};

use crate::agent::{Agent, Arrival, Link};
use crate::daemon::Daemon;
use crate::driver::Driver;
use crate::failure::{Failure, OrFail, Result, fail, from_control};
use crate::proc::{ProcessId, name_of};
use crate::returning;
use crate::session::Session;
use crate::wake;
use crate::worker::{STEP_TIME, Worker, unexpected};

/// `CUresult`s for programs that cannot be served.
mod status {
    pub const INITIALIZATION_ERROR: u32 = 3;
    pub const NO_DEVICE: u32 = 100;
    pub const SYSTEM_DRIVER_MISMATCH: u32 = 803;
    pub const NOT_PERMITTED: u32 = 800;
}

/// How long an agent may take to say Hello once connected.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// How long the end of a program may take to be noticed.
const GONE_TIME: Duration = Duration::from_secs(10);
/// How long a woken agent may take to come.
const REATTACH_TIME: Duration = Duration::from_secs(30);

/// Why an agent comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coming {
    /// Its program uses CUDA for the first time.
    First,
    /// It was woken.
    Woken,
    /// Its daemon has ended, and this is the next.
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
        daemon.log.line(&format!("refused a program: {reason}"));
        // The program may be gone, which is as good.
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
            },
            _,
        )) => {
            if protocol != PROTOCOL {
                let reason =
                    format!("the library speaks protocol {protocol}, the daemon {PROTOCOL}");
                return refuse(&link, status::SYSTEM_DRIVER_MISMATCH, &reason);
            }
            (pid, token, wake_block, Coming::of(reattach))
        }
        Ok((
            FromAgent::Back {
                protocol: PROTOCOL,
                pid,
                token,
                wake_block,
            },
            _,
        )) => (pid, token, wake_block, Coming::Back),
        Ok(_) => {
            return refuse(
                &link,
                status::INITIALIZATION_ERROR,
                "the first message is not Hello",
            );
        }
        Err(e) => return daemon.log.line(&from_control(&e).message),
    };
    let (inner_pid, token, wake_block, coming) = hello;
    let process = link.peer_pid().ok().and_then(ProcessId::of);
    let Some(process) = process else {
        return refuse(&link, status::INITIALIZATION_ERROR, "its process has ended");
    };
    let found = daemon.session_of(&token, process.pid);
    if found.is_none() && coming == Coming::Back {
        // It goes on, and asks again.
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
    };
    if coming == Coming::Back {
        return returning::agent(daemon, &session, arrival);
    }
    if coming == Coming::Woken {
        let waiting = session.lock().expected.take();
        let unwanted = match waiting {
            Some(sender) => sender.send(arrival).err().map(|lost| lost.0),
            None => Some(arrival),
        };
        let Some(late) = unwanted else { return };
        if session.lock().state == SessionState::Lost {
            // Given up while it was slow to come: it must not wait for ever.
            let reason = "its session has lost its GPU side";
            return refuse(&late.link, status::INITIALIZATION_ERROR, reason);
        }
        // It waits for the next summons.
        let text = format!("session `{}` came back unasked", session.name);
        return daemon.log.line(&text);
    }
    if let Some(reason) = another_uses_cuda(&session, arrival.process) {
        return refuse(&arrival.link, status::INITIALIZATION_ERROR, &reason);
    }
    let _busy = session.busy.lock();
    if let Err((link, failure)) = first(daemon, &session, arrival) {
        refuse(&link, status::NO_DEVICE, &failure.message);
    }
}

/// Why process `new` cannot use CUDA: one process of a session can, until it ends or executes another program.
fn another_uses_cuda(session: &Session, new: ProcessId) -> Option<String> {
    let until = Instant::now() + GONE_TIME;
    loop {
        let process = session.lock().agent.as_ref()?.process;
        // The end of the one before may not have been noticed yet.
        let lives = process != new && process.alive();
        if lives || Instant::now() > until {
            return Some(format!(
                "process {} `{}` uses CUDA, and process {} `{}` of its session does already: a session has one; \
                 start the other as a session of its own, `fermata run --detach -- PROGRAM`",
                new.pid,
                name_of(new.pid),
                process.pid,
                name_of(process.pid)
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Gives a program its first worker.
fn first(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    arrival: Arrival,
) -> std::result::Result<(), (Link, Failure)> {
    let prepared = Driver::find(session.device, &daemon.paths.home)
        .and_then(|driver| daemon.pool.take(&driver, &session.variables));
    let worker = match prepared {
        Ok(worker) => worker,
        Err(failure) => return Err((arrival.link, failure)),
    };
    // A later daemon must know whose the worker is.
    session.expect(worker.process);
    let joined = offer(session, &worker).and_then(|ends| welcome(&arrival.link, false, &ends));
    match joined {
        Ok(()) => {
            // From here on the program is attached, whatever happens.
            if let Err(failure) = adopt(session, arrival, &worker) {
                daemon.log.line(&failure.message);
                worker.end();
            }
            daemon
                .pool
                .refill(worker.driver.clone(), session.variables.clone());
            Ok(())
        }
        Err(failure) => {
            worker.end();
            Err((arrival.link, failure))
        }
    }
}

/// A detached program that must be brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// The process with the agent.
    pub process: ProcessId,
    /// Address of its wake block.
    pub wake_block: u64,
}

/// Has `worker` serve before its program is there: what it registers with the driver for that takes longer than
/// everything else of an attachment.
///
/// # Errors
/// The worker does not answer.
pub fn offer(session: &Session, worker: &Worker) -> Result<Ends> {
    let ends = join(session, worker)?;
    serve(worker, &ends)?;
    Ok(ends)
}

/// Wakes a detached program and connects it with `worker`; it then runs. `offered` are the ends of a worker
/// that serves already.
///
/// # Errors
/// The program or the worker does not answer; the program stays parked and can be woken again.
pub fn reattach(
    daemon: &Daemon,
    session: &Arc<Session>,
    worker: &Arc<Worker>,
    detached: Detached,
    offered: Option<Ends>,
) -> Result<()> {
    let (sender, arrivals) = sync_channel(1);
    let token = {
        let mut inner = session.lock();
        inner.expected = Some(sender);
        inner.token.clone()
    };
    wake::wake(
        detached.process.pid,
        detached.wake_block,
        &daemon.agent_socket(),
        &token,
    )?;
    let come = loop {
        match arrivals.recv_timeout(REATTACH_TIME) {
            // It comes when whoever has stopped it lets it go on.
            Err(RecvTimeoutError::Timeout) if detached.process.is_stopped() => {}
            other => break other,
        }
    };
    session.lock().expected = None;
    let arrival = come.map_err(|_| {
        let message = format!(
            "process {} does not come back after the stop",
            detached.process.pid
        );
        fail(FailureKind::Internal, message)
    })?;
    match offered {
        Some(ends) => welcome(&arrival.link, true, &ends)?,
        None => {
            let ends = join(session, worker)?;
            welcome(&arrival.link, true, &ends)?;
            serve(worker, &ends)?;
        }
    }
    let agent = adopt(session, arrival, worker)?;
    agent.resumed(STEP_TIME)?;
    session.set_state(SessionState::Running);
    Ok(())
}

/// Tells a parked program that there is nothing for it any more: its CUDA calls fail, it runs.
pub fn reject(daemon: &Daemon, session: &Arc<Session>, detached: Detached, reason: &str) {
    let (sender, arrivals) = sync_channel(1);
    let token = {
        let mut inner = session.lock();
        inner.expected = Some(sender);
        inner.token.clone()
    };
    let woken = wake::wake(
        detached.process.pid,
        detached.wake_block,
        &daemon.agent_socket(),
        &token,
    );
    if woken.is_ok()
        && let Ok(arrival) = arrivals.recv_timeout(REATTACH_TIME)
    {
        let status = status::INITIALIZATION_ERROR;
        // The program may be gone, which is as good.
        let _ = arrival.link.send(
            &ToAgent::Reject {
                status,
                reason: reason.into(),
            },
            &[],
        );
    }
    {
        let mut inner = session.lock();
        inner.expected = None;
        inner.detached = None;
    }
    session.worker_lost(reason);
}

/// What connects one program with one worker. Nobody else may keep a copy of the side socket's ends.
pub struct Ends {
    ring: OwnedFd,
    program: OwnedFd,
    worker: OwnedFd,
    output: OwnedFd,
}

impl Ends {
    fn worker_fds(&self) -> [std::os::fd::BorrowedFd<'_>; 3] {
        [self.ring.as_fd(), self.worker.as_fd(), self.output.as_fd()]
    }
}

fn join(session: &Session, worker: &Worker) -> Result<Ends> {
    if let Some(reason) = worker.lost() {
        return Err(fail(
            FailureKind::Internal,
            format!("the worker is lost: {reason}"),
        ));
    }
    let what = || "cannot connect program and worker".to_owned();
    let ring = worker.ring().or_fail(FailureKind::Internal, what)?;
    let (program, theirs) = Side::pair().or_fail(FailureKind::Internal, what)?;
    Ok(Ends {
        ring,
        program,
        worker: theirs,
        output: session.open_log()?.into(),
    })
}

fn welcome(link: &Link, resume: bool, ends: &Ends) -> Result<()> {
    let message = ToAgent::Welcome {
        protocol: PROTOCOL,
        resume,
    };
    link.send(&message, &[ends.ring.as_fd(), ends.program.as_fd()])
        .map_err(|e| from_control(&e))
}

fn serve(worker: &Worker, ends: &Ends) -> Result<()> {
    let fds = ends.worker_fds();
    match worker.request(&ToWorker::Attach, &fds, STEP_TIME, &mut |_, _| {})? {
        FromWorker::Attached => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Takes the agent and the worker of a program that are connected with each other.
///
/// # Errors
/// No thread can be started.
pub fn adopt(session: &Arc<Session>, arrival: Arrival, worker: &Arc<Worker>) -> Result<Arc<Agent>> {
    let gone = Arc::downgrade(session);
    let agent = Agent::start(arrival, move |process| {
        if let Some(session) = gone.upgrade() {
            session.agent_gone(process);
        }
    })?;
    session.attached(agent.clone(), worker.clone());
    let watched = Arc::downgrade(session);
    worker.watch(move |reason| {
        if let Some(session) = watched.upgrade() {
            session.worker_lost(&reason);
        }
    });
    Ok(agent)
}
