//! How a session ends: signals to its program, the end of its agent or its processes, and the wait for it.
//!
//! If the program ends while its data is still coming, that counts only once it is known that no rollback follows. No process
//! of a session outlives it, except a worker that still finishes an image. The entry of a pause is removed, too.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_control::agent::ENV_TOKEN;
use fermata_control::user::{ArrivalStand, SessionState};
use fermata_control::worker::FailureKind;
use rustix::process::{Pid, Signal};

use super::{Inner, Locked, Member, Session};
use crate::agent::{Agent, Link};
use crate::criu::dump::HeldTree;
use crate::failure::{Result, fail};
use crate::proc::{self, ProcessId};
use crate::worker::Worker;

/// How long a signal waits for a program that is being rolled back.
const ROLLBACK_TIME: Duration = Duration::from_secs(60);
/// How long a worker takes from releasing its program to its end, and from its last data until the daemon asks for its
/// progress, on a busy machine.
const LOSS_TIME: Duration = Duration::from_secs(1);
/// How long the end of a worker may take to be noticed.
const NOTICE_TIME: Duration = Duration::from_secs(60);
/// How often the daemon looks which of worker and program has ended.
const TURN: Duration = Duration::from_millis(5);
/// How long processes may take to go once they are killed.
const END_TIME: Duration = Duration::from_secs(30);

impl Session {
    /// Notes that an agent's connection has ended: its process has ended or no longer uses CUDA, unless it is parked, or has
    /// reattached by another connection since.
    pub fn agent_gone(&self, process: ProcessId, link: &Arc<Link>) {
        let is_at = |agent: &Arc<Agent>| agent.is_at(link);
        self.part_from(process, |member| !member.agent.as_ref().is_some_and(is_at));
    }

    /// Notes that a process has ended, parked or not.
    pub fn process_gone(&self, process: ProcessId) {
        self.part_from(process, |_| false);
    }

    /// Removes a process and its worker from the session, unless `stays` is true.
    fn part_from(&self, process: ProcessId, stays: impl Fn(&Member) -> bool) {
        let other = |inner: &Inner| {
            let member = inner.members.iter().find(|it| it.process == process);
            member.is_none_or(&stays)
        };
        let Some(mut inner) = self.unless_lost(other) else {
            return;
        };
        let at = inner.members.iter().position(|it| it.process == process);
        let worker = at.and_then(|at| inner.members.remove(at).worker);
        // Data that is still coming for it is not needed.
        if let Some(worker) = worker.as_ref().filter(|_| inner.is_coming()) {
            inner.brings_no_more(worker);
        }
        let worker = worker.and_then(|worker| self.part_with(worker, &mut inner));
        if inner.state == SessionState::Lost && !inner.members.iter().any(Member::is_lost) {
            // It was lost because of that process.
            inner.state = SessionState::Running;
            inner.note = None;
        }
        drop(inner);
        if let Some(worker) = worker {
            worker.end();
        }
        self.save();
    }

    /// Notes that the tree below `init`, process 1 of a restored program's namespace, has ended. If it is rolled back, the
    /// session goes on.
    pub fn tree_ended(&self, init: ProcessId, status: Option<i32>) {
        if let Some(mut inner) = self.unless_lost(|inner| inner.init != Some(init)) {
            // A rollback that begins now finds that it is too late.
            inner.ending = true;
            drop(inner);
            self.ended(status);
        }
    }

    /// Locks the part that changes; `None` if `other` holds, or a worker was lost while data was coming. It may take a moment
    /// until it is known whether the worker or the program has ended first.
    fn unless_lost(&self, other: impl Fn(&Inner) -> bool) -> Option<Locked<'_>> {
        let begun = Instant::now();
        loop {
            let inner = self.lock();
            if other(&inner) || inner.is_lost_behind() {
                return None;
            }
            let limit = match inner.has_ended_behind() {
                true => NOTICE_TIME,
                false => LOSS_TIME,
            };
            if !inner.rolls_back() || begun.elapsed() > limit {
                return Some(inner);
            }
            drop(inner);
            // A worker's end is noted by its own connection, and in `/proc`; only a change here ends the pause.
            self.pause(TURN);
        }
    }

    /// Notes that the program has ended, and ends everything else of the session.
    pub fn ended(&self, status: Option<i32>) {
        let mut inner = self.lock();
        inner.ending = true;
        let mut workers: Vec<_> = inner.loading.drain(..).map(Err).collect();
        workers.extend(inner.leaving.drain(..).map(Err));
        let mut known = std::mem::take(&mut inner.killed_tree);
        for member in std::mem::take(&mut inner.members) {
            known.push(member.process);
            match (member.worker_process(), member.worker) {
                (_, Some(worker)) => workers.extend(self.part_with(worker, &mut inner).map(Ok)),
                (Some(process), None) => workers.push(Err(process)),
                (None, None) => {}
            }
        }
        let init = inner.init.take();
        let token = inner.token.clone();
        drop(inner);
        if let Some(init) = init {
            init.signal(Signal::KILL);
            known.push(init);
        }
        for worker in workers {
            match worker {
                Ok(worker) => worker.end(),
                Err(process) => {
                    process.signal(Signal::KILL);
                    known.push(process);
                }
            }
        }
        self.kill_marked(&token);
        // One that has freed its memory has no mark any more, and may still have files and sockets.
        known.retain(ProcessId::is_ending);
        proc::all_end(&known, Instant::now() + END_TIME);
        let entry = self.lock().entry.clone();
        // An entry that cannot be removed stays recorded, for the next daemon.
        let kept = entry.filter(|entry| entry.remove().is_err());
        let mut inner = self.lock();
        inner.entry = kept;
        inner.state = SessionState::Exited;
        inner.exit_status = status.or(inner.exit_status);
        inner.root = None;
        drop(inner);
        self.save();
        self.changed.notify_all();
    }

    /// Ends workers of an earlier daemon that a paused session does not need, and waits until they are gone, so that later workers
    /// do not find what these share with each other.
    pub fn end_workers(&self) {
        let workers: Vec<ProcessId> = {
            let mut inner = self.lock();
            if inner.state != SessionState::Paused {
                // It has been resumed, or has ended.
                return;
            }
            let members = inner.members.iter_mut();
            let seen: Vec<_> = members
                .filter_map(|it| {
                    let seen = it.living_worker();
                    it.part();
                    seen
                })
                .collect();
            let loading = std::mem::take(&mut inner.loading);
            let leaving = std::mem::take(&mut inner.leaving);
            seen.into_iter().chain(loading).chain(leaving).collect()
        };
        workers.iter().for_each(|it| it.signal(Signal::KILL));
        let until = Instant::now() + END_TIME;
        for worker in workers {
            worker.ends_within(until.saturating_duration_since(Instant::now()));
        }
        self.save();
    }

    /// The worker of an ended process, for the caller to end; `None` if it still has an image to finish.
    fn part_with(&self, worker: Arc<Worker>, inner: &mut Inner) -> Option<Arc<Worker>> {
        if inner.killed || !self.checkpointing.load(Ordering::Acquire) {
            return Some(worker);
        }
        inner.leftover.push(worker);
        None
    }

    /// Notes that a checkpoint has ended, and ends the workers that were kept for it.
    pub fn checkpoint_is_over(&self) {
        let leftover = {
            let mut inner = self.lock();
            self.checkpointing.store(false, Ordering::Release);
            std::mem::take(&mut inner.leftover)
        };
        leftover.iter().for_each(|worker| worker.end());
    }

    /// Ends every process that was started with this session's environment and still runs here, and
    /// waits until they are gone.
    fn kill_marked(&self, token: &str) {
        if self.image.is_some() {
            // Restored processes carry the token of the session that was checkpointed, which may
            // still run; theirs ended with their namespace.
            return;
        }
        let own = fs::read_link("/proc/self/ns/pid").ok();
        let until = Instant::now() + END_TIME;
        loop {
            let mut left: Vec<ProcessId> = Vec::new();
            for pid in proc::marked(ENV_TOKEN, token) {
                let there = fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
                left.extend(ProcessId::of(pid).filter(|_| there == own));
            }
            if left.is_empty() || Instant::now() > until {
                return;
            }
            left.iter().for_each(|process| process.signal(Signal::KILL));
            for process in left {
                process.ends_within(until.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Sends `signal` to the program and its children.
    ///
    /// # Errors
    /// `NotFound` when it has ended.
    pub fn signal(&self, number: i32) -> Result<()> {
        let kills = number == Signal::KILL.as_raw();
        let is_missing =
            |it: &Inner| it.root.is_none() && kills && it.state == SessionState::Restoring;
        self.wait_for(ROLLBACK_TIME, |inner| {
            let comes = inner.rolls_back() || inner.again.is_some();
            (inner.root.is_some() || !comes || is_missing(inner)).then_some(())
        });
        let (root, init) = {
            let mut inner = self.lock();
            if is_missing(&inner) {
                // The restore ends the program, as soon as it exists.
                inner.killed = true;
                return Ok(());
            }
            (inner.root, inner.init)
        };
        let root = root.filter(ProcessId::alive).ok_or_else(|| {
            fail(
                FailureKind::NotFound,
                format!("session `{}` has ended", self.name),
            )
        })?;
        let signal = Signal::from_named_raw(number)
            .ok_or_else(|| fail(FailureKind::User, format!("there is no signal {number}")))?;
        if !kills {
            let group = i32::try_from(root.pid).ok().and_then(Pid::from_raw);
            // A program leads its own group, unless a shell has started it as one of several.
            let sent = group.map(|it| rustix::process::kill_process_group(it, signal));
            if sent == Some(Err(rustix::io::Errno::SRCH)) {
                let tree = proc::tree(root.pid).into_iter().filter_map(ProcessId::of);
                tree.for_each(|it| it.signal(signal));
            }
            return Ok(());
        }
        self.lock().killed = true;
        match init {
            Some(init) => init.signal(Signal::KILL),
            None => {
                let tree = proc::tree(root.pid).into_iter().filter_map(ProcessId::of);
                let tree: Vec<_> = tree.collect();
                self.lock().killed_tree.extend(&tree);
                tree.iter().for_each(|it| it.signal(signal));
            }
        }
        Ok(())
    }

    /// Ends the program, which CRIU may keep from running; false if it has not ended within `limit`.
    pub fn ends_held(&self, held: Option<HeldTree>, limit: Duration) -> bool {
        self.lock().killed = true;
        // A CRIU in the program's PID namespace would end with that, before it has closed the program's connections.
        let until = Instant::now() + limit;
        let killed = held.map(HeldTree::kill).unwrap_or_default();
        // Fails when the program has ended.
        let _ = self.signal(Signal::KILL.as_raw());
        self.wait(limit) && proc::all_end(&killed, until)
    }

    /// Refuses to go on with a program that was killed before it existed.
    ///
    /// # Errors
    /// `NotFound` if it was killed.
    pub fn check_wanted(&self) -> Result<()> {
        if !self.lock().killed {
            return Ok(());
        }
        let message = format!("session `{}` was killed while it was restored", self.name);
        Err(fail(FailureKind::NotFound, message))
    }

    /// Waits until the program has ended; false at the deadline.
    pub fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut inner = self.inner.lock();
        while inner.state != SessionState::Exited {
            if self.changed.wait_until(&mut inner, until).timed_out() {
                return inner.state == SessionState::Exited;
            }
        }
        true
    }
}

impl Inner {
    /// Whether a worker is gone while data was coming, so that a rollback follows.
    fn is_lost_behind(&self) -> bool {
        !self.ending && self.any_coming(|worker| worker.lost().is_some())
    }

    /// Whether a worker's process has ended while data was coming, noticed or not.
    fn has_ended_behind(&self) -> bool {
        self.any_coming(|worker| worker.process.is_ending())
    }

    /// Whether data is coming, and `is` holds for a worker that brings it.
    fn any_coming(&self, is: impl Fn(&Worker) -> bool) -> bool {
        let behind = self.behind.as_ref();
        let coming = behind.filter(|it| it.stand == ArrivalStand::Coming && !it.resumed);
        coming.is_some_and(|it| it.parts.iter().any(|part| is(&part.worker)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Plan;

    #[test]
    fn a_change_wakes_those_who_wait_for_it_and_a_look_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = crate::daemon::scene::plan("x".to_owned(), folder.path().join("x"));
        let session = Session::new(plan).expect("made");
        let ready = |inner: &Inner| inner.ready.then_some(());
        assert!(session.wait_for(Duration::ZERO, ready).is_none());
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let looks = std::cell::Cell::new(0);
            let counted = |inner: &Inner| {
                looks.set(looks.get() + 1);
                // The second look is that of the change.
                ready(inner).map(|()| looks.get())
            };
            let session = &session;
            scope.spawn(move || {
                for _ in 0..100 {
                    drop(session.lock());
                }
                session.lock().ready = true;
            });
            scope.spawn(move || told.send(session.wait_for(Duration::from_secs(600), ready)));
            let woken = session.wait_for(Duration::from_secs(600), counted);
            assert!(woken.expect("ready") <= 2, "a look was taken for a change");
            let other = tell.recv_timeout(Duration::from_secs(300));
            assert_eq!(other.expect("woken"), Some(()));
        });
    }

    #[test]
    fn a_session_can_be_killed_while_it_is_restored() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = Plan {
            state: SessionState::Restoring,
            ..crate::daemon::scene::plan("x".to_owned(), folder.path().join("x"))
        };
        let session = Session::new(plan).expect("made");
        session.check_wanted().expect("nobody has killed it");
        let term = session.signal(Signal::TERM.as_raw());
        assert_eq!(
            term.expect_err("no process yet").kind,
            FailureKind::NotFound
        );
        session.signal(Signal::KILL.as_raw()).expect("noted");
        assert_eq!(
            session.check_wanted().expect_err("killed").kind,
            FailureKind::NotFound
        );
    }
}
