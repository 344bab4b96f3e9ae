//! Connects a program with a worker by ring and side socket. The messages, in their order:
//!
//! ```text
//!  first use of CUDA     Hello ─► worker from the pool ─► Attach ─► Welcome
//!  after a detachment    wake block ─► Hello { reattach } ─► Welcome ─► Attach ┬► regions ─► Attached
//!                                                                             └─────────────► Resumed
//!     several processes                                                       └► Mapped ─► all have ─► Resume ─► Resumed
//!  after a daemon's end  Back: see `returning`
//! ```
//! On reattachment the worker sends the program's host memory while it attaches, so the daemon does not wait for
//! `Attached` before the agent listens. The program is welcomed first: whenever this daemon dies, either both have
//! an end of the ring, or the worker has not been asked to attach. A worker whose program does not come gives up its session.
//! Processes of one session go on when all of them have their memory: one may read that of another at once (MPI does, with
//! `process_vm_readv`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};

use fermata_control::PROTOCOL;
use fermata_control::agent::ToAgent;
use fermata_control::worker::{FailureKind, FromWorker, ToWorker};
use fermata_store::moments;
use fermata_wire::{Side, claims};
use tracing::warn;

use crate::agent::wake;
use crate::agent::{Agent, Arrival, Link};
use crate::daemon::Daemon;
use crate::failure::{OrFail, Result, fail, from_control};
use crate::parallel::all_at_once;
use crate::proc::ProcessId;
use crate::session::{Detached, Session};
use crate::worker::{Worker, unexpected};

/// `CUresult` for programs that cannot be served.
pub(crate) const INITIALIZATION_ERROR: u32 = 3;

/// How long the reattachment of a parked program may take. After that the session is lost, so this is as long as a machine may
/// stall that swaps, is paused, or waits for a disk.
const BACK_TIME: Duration = Duration::from_secs(600);
/// How long a worker may take to complete an earlier request, during which a file server may be unavailable.
const DONE_TIME: Duration = Duration::from_secs(3600);
/// How long workers may take to ask each other for what they share.
const SHARE_TIME: Duration = Duration::from_secs(120);
/// Chunks for which workers have claims at most; they take 16 MiB when all are used. Of more each worker stores its own.
const CLAIMS: u64 = 1 << 20;
/// After this time an agent that has not come is woken again: its first attempt may have failed.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a rejected program may take to connect for the message.
const REJECT_TIME: Duration = Duration::from_secs(30);

/// Tells a worker where it finds the workers of the session's other processes.
///
/// # Errors
/// Its process has mapped memory of a process that has ended or has freed that memory.
pub fn share(session: &Session, worker: &Worker) -> Result<()> {
    tell_share(session, worker, None)
}

/// As [`share`], for the workers whose parts become one image. `once`: a chunk that several of them have is stored by one of them; that
/// it was must be checked when all have stored theirs. Else each stores all of its own.
///
/// # Errors
/// As there.
pub fn share_chunks(session: &Session, workers: Vec<Arc<Worker>>, once: bool) -> Result<()> {
    // Without a table each stores all of its own.
    let table = (once && workers.len() > 1)
        .then(|| claims::create(CLAIMS).ok())
        .flatten();
    let each = |(number, worker): (u16, Arc<Worker>)| {
        let table = table.as_ref().map(|it| (number, it.as_fd()));
        tell_share(session, &worker, table)
    };
    all_at_once((1..).zip(workers).collect(), "share", each).map(drop)
}

fn tell_share(
    session: &Session,
    worker: &Worker,
    table: Option<(u16, BorrowedFd<'_>)>,
) -> Result<()> {
    let share = ToWorker::Share {
        folder: session.dir.clone(),
        number: table.map(|it| it.0),
    };
    let fds: Vec<_> = table.into_iter().map(|it| it.1).collect();
    match worker.request(&share, &fds, SHARE_TIME, &mut |_, _| {})? {
        FromWorker::Sharing => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Has `worker` serve before its program is restored, because registering the ring with the driver takes longer than the rest
/// of an attachment.
///
/// # Errors
/// The worker does not answer.
pub fn offer(session: &Session, worker: &Worker) -> Result<AttachmentEnds> {
    let ends = join(session, worker)?;
    serve(worker, &ends)?;
    Ok(ends)
}

/// A process that has its worker and its memory again.
#[must_use]
pub struct Reattached {
    agent: Arc<Agent>,
    /// Whether it waits for the others of its session. If not, it is about to run.
    waits: bool,
}

/// Lets reattached processes of a session run, all at one moment; returns the result of each. If some could not be reattached,
/// the others run nevertheless.
pub fn go_on(processes: Vec<Result<Reattached>>) -> Vec<Result<()>> {
    let tell = |it: Reattached| match it.waits {
        true => it.agent.go_on().map(|()| it),
        false => Ok(it),
    };
    let told: Vec<_> = processes.into_iter().map(|it| it.and_then(tell)).collect();
    let runs = |it: Result<Reattached>| {
        it?.agent.resumed(BACK_TIME)?;
        moments::pass("resumed");
        Ok(())
    };
    told.into_iter().map(runs).collect()
}

/// Wakes a detached process and connects it with `worker`; [`go_on`] lets it run. `offered` are the ends of a worker that
/// already serves; any other worker must first complete its earlier requests.
///
/// # Errors
/// The program or the worker does not answer; the program stays parked and can be woken again.
pub fn reattach(
    daemon: &Daemon,
    session: &Arc<Session>,
    worker: &Arc<Worker>,
    detached: Detached,
    offered: Option<AttachmentEnds>,
) -> Result<Reattached> {
    if offered.is_none() {
        // One that still writes, or has not noticed that its program is gone, could not attach.
        match worker.request(&ToWorker::Detach, &[], DONE_TIME, &mut |_, _| {})? {
            FromWorker::Detached => {}
            other => return Err(unexpected(&other)),
        }
    }
    moments::pass("reattach");
    let arrival = summon(daemon, session, detached, AGAIN)?;
    moments::pass("welcome");
    let waits = arrival.says_mapped && session.lock().members.len() > 1;
    match offered {
        Some(ends) => welcome(&arrival.link, !waits, &ends)?,
        None => {
            let ends = join(session, worker)?;
            welcome(&arrival.link, !waits, &ends)?;
            moments::pass("serve");
            serve(worker, &ends)?;
        }
    }
    let agent = adopt(session, arrival, worker)?;
    if waits {
        agent.mapped(BACK_TIME)?;
    }
    Ok(Reattached { agent, waits })
}

/// As [`reattach`], with a second attempt if the first fails although program and worker live: the machine may have lacked
/// resources. After a second failure the program is lost.
///
/// # Errors
/// As there.
pub fn rejoin(
    daemon: &Daemon,
    session: &Arc<Session>,
    worker: &Arc<Worker>,
    detached: Detached,
) -> Result<Reattached> {
    // The end of a connection that failed may remove the process from the session.
    let visible = session.lock().sees(detached.process);
    reattach(daemon, session, worker, detached, None).or_else(|failure| {
        if detached.process.is_ending() || worker.lost().is_some() {
            return Err(failure);
        }
        warn!(
            session = %session.name,
            "`{}` is woken once more: {}",
            session.name, failure.message
        );
        let come = reattach(daemon, session, worker, detached, None)?;
        session.lock().member_or_new(detached.process).visible = visible;
        Ok(come)
    })
}

/// Wakes a parked program, again after each `again`, until its agent comes.
fn summon(
    daemon: &Daemon,
    session: &Session,
    detached: Detached,
    again: Duration,
) -> Result<Arrival> {
    let Detached {
        process,
        wake_block,
    } = detached;
    let (token, arrivals) = expect_arrival(session, process);
    let call = || wake::wake(process.pid, wake_block, &daemon.agent_socket(), &token);
    call().map_err(|failure| match process.is_ending() {
        false => failure,
        true => fail(
            FailureKind::NotFound,
            format!("the program, process {}, has ended", process.pid),
        ),
    })?;
    let begun = Instant::now();
    let mut called_again = false;
    let come = loop {
        match arrivals.recv_timeout(again) {
            // It was stopped by a signal, and comes when it is continued.
            Err(RecvTimeoutError::Timeout) if process.is_stopped() => {}
            Err(RecvTimeoutError::Timeout)
                if !process.is_ending() && begun.elapsed() < BACK_TIME =>
            {
                // Fails if the program has just ended, or the machine lacks a resource for now.
                called_again |= call().is_ok();
            }
            other => break other,
        }
    };
    stop_expecting(session, process);
    let arrival = come.map_err(|_| {
        let message = format!("process {} does not come back after the stop", process.pid);
        fail(FailureKind::Internal, message)
    })?;
    if called_again {
        // The agent would answer this second call at its next stop, without having been called.
        wake::calm(process.pid, wake_block)?;
    }
    Ok(arrival)
}

/// Expects the agent of `process` from now on; returns the token for its wake-up, and the receiver of its connection. The end of
/// its earlier connection, which may become known later than this, then does not remove it from the session.
fn expect_arrival(session: &Session, process: ProcessId) -> (String, Receiver<Arrival>) {
    let (sender, arrivals) = sync_channel(1);
    let mut inner = session.lock();
    let member = inner.member_or_new(process);
    (member.agent, member.expected) = (None, Some(sender));
    (inner.token.clone(), arrivals)
}

fn stop_expecting(session: &Session, process: ProcessId) {
    if let Some(member) = session.lock().member(process) {
        member.expected = None;
    }
}

/// Rejects a parked program: it runs on, and its CUDA calls fail.
pub fn reject(daemon: &Daemon, session: &Arc<Session>, detached: Detached, reason: &str) {
    let (token, arrivals) = expect_arrival(session, detached.process);
    let woken = wake::wake(
        detached.process.pid,
        detached.wake_block,
        &daemon.agent_socket(),
        &token,
    );
    if woken.is_ok()
        && let Ok(arrival) = arrivals.recv_timeout(REJECT_TIME)
    {
        let status = INITIALIZATION_ERROR;
        // The program may have ended, which is fine.
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
        if let Some(member) = inner.member(detached.process) {
            (member.expected, member.detached) = (None, None);
        }
    }
    session.process_lost(detached.process, reason);
}

/// The ring and the ends of the side socket that connect one program with one worker. No other process may keep copies of
/// these ends.
pub struct AttachmentEnds {
    ring: OwnedFd,
    program: OwnedFd,
    worker: OwnedFd,
    output: OwnedFd,
}

impl AttachmentEnds {
    fn worker_fds(&self) -> [std::os::fd::BorrowedFd<'_>; 3] {
        [self.ring.as_fd(), self.worker.as_fd(), self.output.as_fd()]
    }
}

fn join(session: &Session, worker: &Worker) -> Result<AttachmentEnds> {
    if let Some(reason) = worker.lost() {
        return Err(fail(
            FailureKind::Internal,
            format!("the worker is lost: {reason}"),
        ));
    }
    let what = || "cannot connect program and worker".to_owned();
    let ring = worker.ring().or_fail(FailureKind::Internal, what)?;
    let (program, theirs) = Side::pair().or_fail(FailureKind::Internal, what)?;
    Ok(AttachmentEnds {
        ring,
        program,
        worker: theirs,
        output: session.open_log()?.into(),
    })
}

pub(crate) fn welcome(link: &Link, resume: bool, ends: &AttachmentEnds) -> Result<()> {
    let message = ToAgent::Welcome {
        protocol: PROTOCOL,
        resume,
    };
    link.send(&message, &[ends.ring.as_fd(), ends.program.as_fd()])
        .map_err(|e| from_control(&e))
}

fn serve(worker: &Worker, ends: &AttachmentEnds) -> Result<()> {
    let fds = ends.worker_fds();
    match worker.request(&ToWorker::Attach, &fds, BACK_TIME, &mut |_, _| {})? {
        FromWorker::Attached => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Adds to the session the agent and the worker of a program, which are connected with each other.
///
/// # Errors
/// No thread can be started.
pub fn adopt(session: &Arc<Session>, arrival: Arrival, worker: &Arc<Worker>) -> Result<Arc<Agent>> {
    let gone = Arc::downgrade(session);
    let (attaching, attached) = channel::<()>();
    let agent = Agent::start(arrival, move |process, link| {
        // A process may end at once. The session cannot note that before it has it.
        let _ = attached.recv();
        if let Some(session) = gone.upgrade() {
            session.agent_gone(process, link);
        }
    })?;
    session.attached(agent.clone(), worker.clone());
    drop(attaching);
    let (watched, lost) = (Arc::downgrade(session), Arc::downgrade(worker));
    worker.watch(move |reason| {
        if let Some(session) = watched.upgrade() {
            session.loses(&lost, &reason);
        }
    });
    Ok(agent)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use fermata_control::agent::{WAKE_IDLE, WAKE_SAYS, WAKE_WAITING, wake_block};
    use fermata_control::user::SessionState;

    use super::*;
    use crate::agent::scene::{self as agents, Block};
    use crate::daemon::scene;
    use crate::session::Inner;
    use crate::worker::scene::played;

    #[test]
    fn a_parked_program_is_woken_until_it_comes() {
        static BLOCK: Block = Block::new();
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let detached = BLOCK.begin();
        let (pid, at) = (detached.process.pid, detached.wake_block);
        assert_eq!(wake::waits(pid, at), None, "an older program does not say");
        BLOCK
            .word(wake_block::SAYS)
            .store(WAKE_SAYS, Ordering::SeqCst);
        assert_eq!(wake::waits(pid, at), Some(false));
        BLOCK
            .word(wake_block::STATE)
            .store(WAKE_WAITING, Ordering::SeqCst);
        assert_eq!(wake::waits(pid, at), Some(true));
        let come = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Its first attempts fail.
                BLOCK.woken();
                BLOCK.come(&session)
            });
            summon(&daemon, &session, detached, Duration::from_millis(10))
        });
        assert_eq!(come.expect("it has come").process, detached.process);
        // Nobody is called at the next stop.
        let state = BLOCK.word(wake_block::STATE).load(Ordering::SeqCst);
        assert_eq!(state, WAKE_IDLE);
        session.ended(None);
    }

    #[test]
    fn the_end_of_a_connection_does_not_part_a_process_that_has_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let (worker, other) = played();
        let process = ProcessId::of(std::process::id()).expect("it runs");
        let attach = || {
            let (arrival, program) = agents::arrival(0);
            (adopt(&session, arrival, &worker).expect("adopted"), program)
        };
        let served = || session.lock().workers().len();
        // A stop has failed, and the process is brought back.
        session.checkpointing.store(true, Ordering::SeqCst);
        let (first, _first_end) = attach();
        let (second, _second_end) = attach();
        session.agent_gone(process, &first.link);
        assert_eq!(served(), 1, "it has come back by the second connection");
        session.agent_gone(process, &second.link);
        assert_eq!(served(), 0, "it has no connection");
        let (_third, _third_end) = attach();
        session.checkpoint_is_over();
        assert_eq!(served(), 1);
        let asked = other.recv(Duration::from_millis(1));
        asked.expect_err("the worker that serves the process is not to end");
        session.ended(None);
    }

    #[test]
    fn the_late_end_of_a_connection_does_not_part_a_process_that_is_expected_by_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let (worker, _other) = played();
        let process = ProcessId::of(std::process::id()).expect("it runs");
        let (arrival, _program) = agents::arrival(0);
        let first = adopt(&session, arrival, &worker).expect("adopted");
        // The first attempt to bring it back has failed.
        let (_token, _arrivals) = expect_arrival(&session, process);
        session.agent_gone(process, &first.link);
        let mut inner = session.lock();
        assert_eq!(inner.workers().len(), 1, "its worker waits for it");
        let member = inner.member(process).expect("it comes back");
        assert!(member.expected.is_some());
        drop(inner);
        session.ended(None);
    }

    #[test]
    fn a_process_that_ends_as_it_attaches_leaves_its_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        for _ in 0..100 {
            let (worker, _other) = played();
            let (arrival, program) = agents::arrival(0);
            drop(program);
            // Its end and its arrival meet here.
            let held = session.lock();
            std::thread::scope(|scope| {
                let come = scope.spawn(|| adopt(&session, arrival, &worker));
                std::thread::sleep(Duration::from_millis(1));
                drop(held);
                come.join().expect("ended").expect("adopted");
            });
            let is_gone = |inner: &Inner| inner.members.is_empty().then_some(());
            let gone = session.wait_for(Duration::from_secs(60), is_gone);
            assert!(gone.is_some(), "a process that has ended is served");
        }
        assert_eq!(session.lock().state, SessionState::Running);
        session.ended(None);
    }
}
