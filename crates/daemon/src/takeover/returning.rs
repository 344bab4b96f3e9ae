//! Brings sessions of a daemon that has ended back to this one.
//!
//! ```text
//!  worker ── Back ──► known by its process ──────────┬─ agent too ─────► joined
//!  agent  ── Back ──► known by its token and process ┘
//!                     process parked ──────────────────► woken and reattached
//! ```
//! A session runs again when all its processes that use CUDA have come back.
//! Program and worker go on without a daemon; they look for one repeatedly. A program that was stopped for a checkpoint is
//! parked without any connection. It is woken as after a checkpoint, all its processes at one moment, once CRIU, which may have
//! outlived the daemon, no longer traces it, and the workers have come back. The next checkpoint to the same folder removes the
//! draft.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_control::PROTOCOL;
use fermata_control::user::SessionState;
use fermata_control::wait;
use fermata_control::worker::{FromWorker, ToWorker};
use tracing::{error, info, warn};

use crate::agent::Arrival;
use crate::agent::attach;
use crate::agent::bring_back::{LAST_MOMENT, Parked, awaken};
use crate::agent::wake as block;
use crate::daemon::Daemon;
use crate::failure::Result;
use crate::parallel::each_at_once;
use crate::pause;
use crate::proc::{self, ProcessId};
use crate::restore::Source;
use crate::restore::on_demand;
use crate::restore::rollback;
use crate::session::{Detached, Inner, Member, Session};
use crate::worker::{STEP_TIME, Wire, Worker};

/// How long a worker or an agent may take to introduce itself.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// How long worker and agent take to come back, unless they have something to end; both look several times a second.
const RETURN_TIME: Duration = Duration::from_secs(20);
/// How long parked processes wait for the worker of another one, which may be writing what the other daemon has asked for.
const TOGETHER_TIME: Duration = Duration::from_secs(3600);
/// How long a CRIU that has outlived its daemon may hold a program.
const TRACE_TIME: Duration = Duration::from_secs(600);
/// Between two looks, at first and later.
const TURN: Duration = Duration::from_millis(20);
const LATE_TURN: Duration = Duration::from_millis(200);
/// Why a session is lost whose process cannot go on.
const LOST: &str = "its worker has ended while no daemon ran";
/// How long a program of an earlier release takes to say Back.
const BACK_TIME: Duration = Duration::from_millis(500);

/// Serves a connection to the workers' socket.
pub fn worker(daemon: &Arc<Daemon>, link: Wire) {
    let Some(process) = link.peer_pid().ok().and_then(ProcessId::of) else {
        return;
    };
    let Ok((FromWorker::Back(back), _)) = link.recv(HELLO_TIME) else {
        return warn!("a worker came back and did not say so");
    };
    if back.protocol != PROTOCOL {
        // It goes on serving its program, and asks again: perhaps a daemon of its own release.
        return warn!("a worker of another release came back");
    }
    let its = |session: &Arc<Session>| {
        let inner = session.lock();
        let mut waiting = inner.members.iter().filter(|it| it.worker.is_none());
        let member = waiting.find(|it| it.living_worker() == Some(process))?;
        Some((Arc::clone(session), member.process))
    };
    let mut live = daemon.sessions().into_iter().filter(|it| it.live());
    let Some((session, served)) = live.find_map(|it| its(&it)) else {
        // Its session has ended, or has another worker; a program that it serves is left alone.
        if !back.serving {
            let _ = link.send(&ToWorker::Exit, &[]);
        }
        return warn!("a worker came back that belongs to no session");
    };
    match Worker::returned(link, process, back) {
        Ok(worker) => {
            if let Some(member) = session.lock().member(served) {
                member.returned.worker = Some(worker);
            }
        }
        Err(failure) => warn!(session = %session.name, "{}", failure.message),
    }
}

/// Receives an agent that has come back.
pub fn agent(session: &Session, arrival: Arrival) {
    let mut inner = session.lock();
    let process = arrival.process;
    let name = &session.name;
    match inner.member(process) {
        Some(member) if member.agent.is_none() => member.returned.agent = Some(arrival),
        Some(_) => {
            warn!(
                session = %name,
                "process {} of session `{name}` came back twice",
                process.pid
            );
        }
        None => {
            warn!(
                session = %name,
                "process {} of session `{name}` came back without a worker",
                process.pid
            );
            // It is not waited for any more.
            if inner.state == SessionState::Running {
                drop(inner);
                session.worker_lost(LOST);
            }
        }
    }
}

/// Waits for agents and workers of a session that another daemon has left, and joins them. What does not come
/// back is told in the session's note; the program is never ended for it. A worker that lives is waited for as
/// long as it takes: it may be writing what the other daemon has asked for, and a parked program needs it.
pub fn join(daemon: &Arc<Daemon>, session: &Arc<Session>) {
    join_within(daemon, session, RETURN_TIME);
}

fn join_within(daemon: &Arc<Daemon>, session: &Arc<Session>, limit: Duration) {
    let mut busy = Some(session.busy.lock());
    let until = Instant::now() + limit;
    let together = Instant::now() + TOGETHER_TIME;
    let mut missing: Vec<ProcessId> = session.lock().members.iter().map(|it| it.process).collect();
    let mut lost = false;
    // Parked processes that nothing is missing of: with their workers, and with data that a pause has put aside.
    let (mut parked, mut paused) = (Vec::new(), Vec::new());
    let mut vain = Vec::new();
    while !missing.is_empty() {
        if !session.live() {
            return;
        }
        let mut still = Vec::new();
        let late = Instant::now() > until;
        for process in missing {
            let mut found = stand(session, process);
            if late && busy.is_none() && matches!(found, Stand::Unserved) {
                // A thread with the right to work on the session may just be giving it a worker.
                busy = Some(session.busy.lock());
                found = stand(session, process);
            }
            match found {
                Stand::Served => dismiss(session, process),
                Stand::Unserved if late => session.forget(process),
                Stand::Gone => {
                    dismiss(session, process);
                    session.forget(process);
                }
                Stand::Missing | Stand::Unserved => still.push(process),
                // It has given up what it was loading.
                Stand::Here(worker, Half::Parked(detached)) if has_part(session, detached) => {
                    worker.end();
                    paused.push(detached);
                }
                Stand::Here(worker, Half::Parked(detached)) => {
                    parked.push(Parked { worker, detached });
                }
                Stand::Here(worker, Half::Agent(arrival)) => {
                    busy.get_or_insert_with(|| session.busy.lock());
                    lost |= !adopt(session, &worker, arrival);
                }
                Stand::Lost(Some(detached)) if has_part(session, detached) => {
                    paused.push(detached);
                }
                Stand::Lost(_) if process.ends_within(LAST_MOMENT) => session.forget(process),
                Stand::Lost(detached) => {
                    lost = true;
                    give_up(daemon, session, process, detached);
                }
            }
        }
        missing = still;
        let any = !parked.is_empty() || !paused.is_empty();
        if any && (!is_any_parked(session, &missing) || Instant::now() > together) {
            busy.get_or_insert_with(|| session.busy.lock());
            // The end of a connection does not end a worker now: the process is woken once more.
            session.checkpointing.store(true, Ordering::Release);
            lost |= !wake(daemon, session, &std::mem::take(&mut parked));
            revive(daemon, session, std::mem::take(&mut paused), &mut vain);
            session.checkpoint_is_over();
        }
        match busy {
            _ if missing.is_empty() => {}
            // What comes back is noted in the session; the end of a process is not.
            None => session.pause(LATE_TURN),
            Some(_) if late => {
                // Who wants something of it meanwhile is told how it is.
                busy = None;
                warn!(
                    session = %session.name,
                    "session `{}` has not come back yet: it goes on without this daemon",
                    session.name
                );
            }
            Some(_) => session.pause(TURN),
        }
    }
    busy.get_or_insert_with(|| session.busy.lock());
    if !vain.is_empty() {
        if pause::park_again(session) {
            // If it has yielded, it is resumed when there is room for it.
            daemon.priorities.tell();
            return;
        }
        lost = true;
        for detached in vain {
            give_up(daemon, session, detached.process, Some(detached));
        }
    }
    if !lost {
        running(daemon, session);
    }
}

/// Ends what has come back of a process that does not need it.
fn dismiss(session: &Session, process: ProcessId) {
    let returned = {
        let mut inner = session.lock();
        let member = inner.member(process);
        member.map(|it| std::mem::take(&mut it.returned))
    };
    if let Some(worker) = returned.and_then(|it| it.worker) {
        worker.end();
    }
}

/// Whether a process waits to be woken and its data is in a complete entry.
fn has_part(session: &Session, detached: Detached) -> bool {
    let entry = session.lock().entry.clone();
    entry.is_some_and(|it| it.has(detached.process)) && pause::waits(detached)
}

/// Whether one of these processes is parked: then those that could go on wait for it.
fn is_any_parked(session: &Session, missing: &[ProcessId]) -> bool {
    let inner = session.lock();
    let mut parked = inner.members.iter().filter(|it| it.detached.is_some());
    parked.any(|it| missing.contains(&it.process))
}

/// Continues a resumption: the workers of these processes have ended with the daemon that had begun it.
fn revive(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    parked: Vec<Detached>,
    vain: &mut Vec<Detached>,
) {
    if parked.is_empty() {
        return;
    }
    for (detached, failure) in pause::revive(daemon, session, parked) {
        warn!(session = %session.name, "{}", failure.message);
        session.lock().member_or_new(detached.process).detached = Some(detached);
        vain.push(detached);
    }
}

/// The state of a process whose daemon has ended.
enum Stand {
    /// It has ended.
    Gone,
    /// This daemon has given it a worker: it executes another program now.
    Served,
    /// It lives without agent and worker: it has begun to execute another program, or was not connected with its worker yet. It asks
    /// for a worker when it uses CUDA again.
    Unserved,
    /// Its agent or its worker has not come back.
    Missing,
    /// Its worker has come back, and what else there is.
    Here(Arc<Worker>, Half),
    /// Its worker has ended, and it is parked or its agent has come back.
    Lost(Option<Detached>),
}

/// The state of a process whose worker has come back.
enum Half {
    Agent(Arrival),
    Parked(Detached),
}

fn stand(session: &Session, process: ProcessId) -> Stand {
    let (worker, detached) = {
        let mut inner = session.lock();
        let Some(member) = inner.member(process) else {
            return Stand::Gone;
        };
        if member.agent.is_some() {
            return Stand::Served;
        }
        let lost = |worker: &Arc<Worker>| worker.lost().is_some();
        if member.returned.worker.as_ref().is_some_and(lost) {
            member.returned.worker = None;
        }
        let Some(worker) = member.returned.worker.clone() else {
            return match member.living_worker().filter(|it| !it.is_ending()) {
                Some(_) => Stand::Missing,
                None if member.detached.is_some() || member.returned.agent.is_some() => {
                    Stand::Lost(member.detached)
                }
                None if process.alive() => Stand::Unserved,
                None => Stand::Gone,
            };
        };
        if let Some(arrival) = member.returned.agent.take() {
            member.returned.worker = None;
            return Stand::Here(worker, Half::Agent(arrival));
        }
        (worker, member.detached)
    };
    let Some(detached) = detached.filter(|it| is_free(session, *it)) else {
        return if process.is_ending() {
            Stand::Gone
        } else {
            Stand::Missing
        };
    };
    if let Some(member) = session.lock().member(process) {
        member.returned.worker = None;
    }
    Stand::Here(worker, Half::Parked(detached))
}

/// Gives up a checkpoint that the earlier daemon has begun.
fn abandon(worker: &Worker) {
    // A lost worker has nothing to give up.
    let _ = worker.request(&ToWorker::Abandon, &[], STEP_TIME, &mut |_, _| {});
}

/// Joins agent and worker of a process; false if it is lost.
fn adopt(session: &Arc<Session>, worker: &Arc<Worker>, arrival: Arrival) -> bool {
    abandon(worker);
    let process = arrival.process;
    let Err(failure) = attach::adopt(session, arrival, worker) else {
        return true;
    };
    warn!(session = %session.name, "{}", failure.message);
    session.process_lost(process, &failure.message);
    false
}

/// Lets parked processes go on with their workers, all at one moment; false if one of them is lost.
fn wake(daemon: &Arc<Daemon>, session: &Arc<Session>, parked: &[Parked]) -> bool {
    let end_of_checkpoint = |it: &Parked| {
        abandon(&it.worker);
        Ok(())
    };
    drop(each_at_once(
        parked.iter().collect(),
        "abandon",
        end_of_checkpoint,
    ));
    let woken = awaken(daemon, session, parked);
    woken.ended.iter().for_each(|(it, _)| it.worker.end());
    for failed in &woken.failed {
        failed.give_up(daemon, session);
        failed.parked.worker.end();
    }
    woken.failed.is_empty()
}

fn give_up(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    process: ProcessId,
    detached: Option<Detached>,
) {
    match detached {
        Some(detached) => attach::reject(daemon, session, detached, LOST),
        None => session.process_lost(process, LOST),
    }
    error!(session = %session.name, "session `{}` is lost: {LOST}", session.name);
}

/// Waits until the program is not traced by any process; returns whether it is parked, not just about to be.
fn is_free(session: &Session, detached: Detached) -> bool {
    let root = session.lock().root;
    let free = || !root.is_some_and(|root| proc::is_traced(root.pid));
    // Polled: the kernel tells only the tracer of its end.
    wait::until(TRACE_TIME, TURN, || free().then_some(()));
    if let Some(waits) = block::waits(detached.process.pid, detached.wake_block) {
        return waits && !detached.process.is_ending();
    }
    // A program of an earlier release: one that was not detached any more says Back; one that was waits for ever.
    let still_parked = |inner: &Inner| {
        let member = inner
            .members
            .iter()
            .find(|it| it.process == detached.process);
        member.is_some_and(|it| it.returned.agent.is_none())
    };
    let says_back = |inner: &Inner| (!still_parked(inner)).then_some(());
    session.wait_for(BACK_TIME, says_back).is_none() && !detached.process.is_ending()
}

fn running(daemon: &Arc<Daemon>, session: &Arc<Session>) {
    {
        let mut inner = session.lock();
        // A pause for another session that the last daemon was at, or a resumption after one, is over.
        (inner.note, inner.yielded) = (None, None);
    }
    session.goes_on();
    info!(session = %session.name, "session `{}` has come back", session.name);
    let (workers, resumed) = {
        let inner = session.lock();
        let resumed = inner.entry.as_ref().map(|it| it.complete);
        (inner.workers(), resumed)
    };
    // Its data may still be coming.
    let begun = match (resumed, &session.image) {
        (None, None) => return,
        // The pause was not completed: the workers still hold the data.
        (Some(false), _) => Ok(()),
        (resumed, _) => begin(session, &workers, resumed.is_some()),
    };
    let followed = begun.and_then(|()| match (resumed, &session.image) {
        (None, Some(image)) if session.lock().rolls_back() => {
            let source = Arc::new(Source::of_session(daemon, session, image)?);
            rollback::follow(&source, session);
            Ok(())
        }
        (None, _) => Ok(()),
        (Some(_), _) => {
            pause::watch(daemon, session);
            Ok(())
        }
    });
    if let Err(failure) = followed {
        // The workers go on, and the entry of a pause stays, which they may still read; only a rollback is not possible.
        {
            let mut inner = session.lock();
            inner.behind = None;
            // A loss is not noted as long as a rollback is possible.
            inner.note_losses();
        }
        session.save();
        session.announce();
        warn!(session = %session.name, "{}", failure.message);
    }
}

/// Notes which data still comes from these workers. A process that has ended meanwhile needs none, and is not to run again.
///
/// # Errors
/// A worker of a process that lives does not answer: whether its data has come is not known.
fn begin(session: &Session, workers: &[Arc<Worker>], resumed: bool) -> Result<()> {
    let mut first = Ok(());
    for worker in workers {
        let Err(failure) = on_demand::begin(session, worker, 0.0, resumed) else {
            continue;
        };
        let served = || served_by(&session.lock(), worker);
        // It may have ended, or executed another program.
        if served().is_some_and(|it| !it.ends_within(LAST_MOMENT)) && served().is_some() {
            first = first.and(Err(failure));
        }
    }
    let mut inner = session.lock();
    for worker in workers {
        if served_by(&inner, worker).is_none() {
            inner.brings_no_more(worker);
        }
    }
    first
}

/// The process that a worker of the session serves.
fn served_by(inner: &Inner, worker: &Arc<Worker>) -> Option<ProcessId> {
    let its = |it: &&Member| it.worker.as_ref().is_some_and(|it| Arc::ptr_eq(it, worker));
    inner.members.iter().find(its).map(|it| it.process)
}

#[cfg(test)]
mod tests {
    use fermata_control::agent::FromAgent;
    use fermata_control::worker::Stand as DataStand;

    use super::*;
    use crate::agent::scene::{self as agents, Block};
    use crate::daemon::scene;
    use crate::pause::data::{Entry, EntryPart};
    use crate::priority::yielded::Yielded;
    use crate::proc::scene::reader;
    use crate::worker::scene::{is_asked, played, tell};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn yielded() -> Yielded {
        Yielded {
            to: "high".to_owned(),
            since: 0,
        }
    }

    /// A process that has ended.
    fn ended() -> ProcessId {
        let mut program = reader();
        let process = ProcessId::of(program.id()).expect("it runs");
        drop(program.stdin.take());
        program.wait().expect("it has ended");
        process
    }

    #[test]
    fn a_process_that_has_ended_or_needs_no_worker_does_not_cost_the_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let parked = ended();
        let own = ProcessId::of(std::process::id()).expect("it runs");
        {
            let mut inner = session.lock();
            inner.state = SessionState::Orphaned;
            // It was just resumed.
            inner.yielded = Some(yielded());
            inner.member_or_new(ended());
            inner.member_or_new(parked).detached = Some(Detached {
                process: parked,
                wake_block: 0,
            });
            // Executes another program, which has not used CUDA yet.
            inner.member_or_new(own);
        }
        join_within(&daemon, &session, Duration::ZERO);
        {
            let inner = session.lock();
            assert_eq!(inner.state, SessionState::Running);
            assert!(inner.members.is_empty());
            assert!(inner.yielded.is_none(), "its next pause is its user's");
        }
        session.ended(None);
    }

    #[test]
    fn a_session_is_lost_whose_process_comes_back_without_its_worker() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let (arrival, _program) = agents::arrival(0);
        {
            let mut inner = session.lock();
            inner.state = SessionState::Orphaned;
            inner.member_or_new(arrival.process);
        }
        agent(&session, arrival);
        join_within(&daemon, &session, Duration::ZERO);
        assert_eq!(session.lock().state, SessionState::Lost);
        // The same if it comes later than it is waited for.
        let late = daemon.add(Some("y"), "", scene::plan).expect("added");
        agent(&late, agents::arrival(0).0);
        assert_eq!(late.lock().state, SessionState::Lost);
        session.ended(None);
        late.ended(None);
    }

    #[test]
    fn the_data_of_a_process_stays_while_it_comes_although_another_process_has_just_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let mut entry = Entry::plan(&daemon, &session, None).expect("planned");
        entry.make(2).expect("made");
        entry.complete = true;
        let own = ProcessId::of(std::process::id()).expect("it runs");
        let ending = ended();
        let ((first, of_first), (second, of_second)) = (played(), played());
        {
            let mut inner = session.lock();
            inner.entry = Some(entry.clone());
            inner.member_or_new(ending).worker = Some(first);
            inner.member_or_new(own).worker = Some(second.clone());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                is_asked(&of_first);
                // Its process and it end instead of an answer.
                session.process_gone(ending);
                drop(of_first);
            });
            scope.spawn(|| {
                is_asked(&of_second);
                tell(&of_second, DataStand::Coming);
            });
            running(&daemon, &session);
        });
        let bring = {
            let inner = session.lock();
            let behind = inner.behind.as_ref().expect("data is coming");
            behind.parts.iter().map(|it| it.worker.clone()).collect()
        };
        let bring: Vec<Arc<Worker>> = bring;
        assert!(bring.len() == 1 && Arc::ptr_eq(&bring[0], &second));
        assert!(entry.data.folder.exists(), "it is read from there");
        session.ended(None);
    }

    #[test]
    fn the_data_of_a_pause_stays_if_a_worker_does_not_say_whether_it_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let mut entry = Entry::plan(&daemon, &session, None).expect("planned");
        entry.make(1).expect("made");
        entry.complete = true;
        let own = ProcessId::of(std::process::id()).expect("it runs");
        let (worker, other) = played();
        drop(other);
        {
            let mut inner = session.lock();
            inner.entry = Some(entry.clone());
            inner.member_or_new(own).worker = Some(worker);
        }
        running(&daemon, &session);
        let kept = session.lock().entry.clone();
        assert!(kept.is_some_and(|it| it.complete) && entry.data.folder.exists());
        session.ended(None);
    }

    #[test]
    fn a_process_that_comes_back_at_the_second_attempt_keeps_its_worker() {
        static BLOCK: Block = Block::new();
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let detached = BLOCK.wait();
        let own = detached.process;
        // Another process of the session, which has come back.
        let (mut other, _program) = agents::arrival(0);
        other.process.start = 1;
        let (of_other, _its_worker) = played();
        attach::adopt(&session, other, &of_other).expect("adopted");
        let (worker, played_worker) = played();
        {
            let mut inner = session.lock();
            inner.state = SessionState::Orphaned;
            let member = inner.member_or_new(own);
            member.detached = Some(detached);
            member.returned.worker = Some(worker.clone());
        }
        let agent_of = |inner: &Inner| {
            let member = inner.members.iter().find(|it| it.process == own);
            member.is_some_and(|it| it.agent.is_some())
        };
        let session = &session;
        let until = |has_agent: bool| {
            let look = |inner: &Inner| (agent_of(inner) == has_agent).then_some(());
            session.wait_for(PATIENCE, look).expect("in time");
        };
        let attachments = std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let first = BLOCK.come(session);
                first.recv(PATIENCE).expect("welcomed");
                until(true);
                // It lacks a resource, and waits to be woken again.
                drop(first);
                let second = BLOCK.come(session);
                second.recv(PATIENCE).expect("welcomed");
                second.send(&FromAgent::Mapped, &[]).expect("sent");
                second.recv(PATIENCE).expect("let go on");
                second.send(&FromAgent::Resumed, &[]).expect("sent");
                second
            });
            let worker = scope.spawn(|| {
                let mut attachments = 0;
                loop {
                    let answer = match played_worker.recv(PATIENCE).expect("asked").0 {
                        ToWorker::Attach => {
                            attachments += 1;
                            FromWorker::Attached
                        }
                        ToWorker::Exit => return attachments,
                        // The end of its first connection has been noted when it is woken again.
                        _ => {
                            until(false);
                            FromWorker::Detached
                        }
                    };
                    played_worker.send(&answer, &[]).expect("sent");
                }
            });
            join_within(&daemon, session, PATIENCE);
            let state = session.lock().state;
            assert_eq!(state, SessionState::Running);
            assert!(!session.checkpointing.load(Ordering::Acquire));
            let second = program.join().expect("it goes on");
            session.ended(None);
            drop(second);
            worker.join().expect("told to end")
        });
        assert_eq!(attachments, 2);
    }

    #[test]
    fn a_session_that_has_yielded_and_is_paused_again_is_known_to_wait() {
        static BLOCK: Block = Block::new();
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let detached = BLOCK.wait();
        let mut entry = Entry::plan(&daemon, &session, None).expect("planned");
        entry.make(1).expect("made");
        entry.complete = true;
        entry.parts.push(EntryPart {
            process: detached.process,
            kernels_first: false,
            state: String::new(),
            chunks: String::new(),
        });
        {
            let mut inner = session.lock();
            inner.state = SessionState::Orphaned;
            inner.entry = Some(entry);
            inner.yielded = Some(yielded());
            inner.member_or_new(detached.process).detached = Some(detached);
        }
        let seen = daemon.priorities.changes();
        // There is no driver for its resumption.
        join_within(&daemon, &session, Duration::ZERO);
        assert_eq!(session.lock().state, SessionState::Paused);
        assert!(daemon.priorities.changes() > seen, "it is not looked for");
        session.ended(None);
    }
}
