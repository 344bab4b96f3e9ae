//! Takes over the sessions of a daemon that has ended.

pub mod returning;

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use fermata_control::user::SessionState;
use tracing::{info, warn};

use crate::daemon::Daemon;
use crate::persist::SessionMeta;
use crate::proc::{self, ProcessId};
use crate::restore::rollback;
use crate::session::{self, Session, output};

/// How often the daemon looks at a program that is not its child.
const TURN: Duration = Duration::from_millis(100);
/// How long ending a session may take.
const END_TIME: Duration = Duration::from_secs(15);

impl Daemon {
    /// Takes over sessions of a daemon that has ended. The sockets for agents and workers must already exist.
    pub fn adopt(self: &Arc<Self>) {
        let Ok(entries) = fs::read_dir(session::folder(&self.paths.runtime)) else {
            return;
        };
        for entry in entries.flatten() {
            let dir = entry.path();
            let Some(meta) = SessionMeta::load(&dir) else {
                if session::has_printed(&dir) {
                    // From a release that this one cannot read, or left by a crash: only the user can decide.
                    warn!("`{}` is of no session that is known", dir.display());
                } else {
                    output::displace(&dir);
                    let _ = fs::remove_dir_all(&dir);
                }
                continue;
            };
            let over = meta.state == SessionState::Exited;
            let session = Session::found(meta, dir);
            self.found(&session);
            if session.live() {
                info!(session = %session.name, "found session `{}`, still running", session.name);
                if session.lock().again.is_none() {
                    let watched = session.clone();
                    // Without the watch, it is only reported as running for too long.
                    let _ = std::thread::Builder::new()
                        .name("orphan-watch".into())
                        .spawn(move || watch(&watched));
                }
                let (daemon, left) = (self.clone(), session.clone());
                let (claims, claimed) = channel();
                // Without this thread, it stays parked until it is killed.
                let _ = std::thread::Builder::new()
                    .name("orphan-release".into())
                    .spawn(move || daemon.release(&left, claims));
                // A command that asks for it must come after this thread.
                let _ = claimed.recv();
            } else if !over {
                session.ended(None);
            } else {
                remove_entry(session);
            }
        }
    }

    /// Continues a session of an earlier daemon. A half restored program is ended, unless it is being rolled back; all others go
    /// on. Drops `claims` once no command for the session can come before this.
    fn release(self: &Arc<Self>, session: &Arc<Session>, claims: Sender<()>) {
        let (state, again) = {
            let inner = session.lock();
            (inner.state, inner.again.clone())
        };
        if state == SessionState::Paused {
            // Workers that the dead daemon had still to end, or that had begun to load, share memory with each other. Those of a
            // resumption would find what they share.
            let _busy = session.busy.lock();
            drop(claims);
            session.end_workers();
            return;
        }
        drop(claims);
        match (state, again) {
            (SessionState::Restoring, Some(reason)) => {
                rollback::start_again(self, session, &reason);
            }
            (SessionState::Restoring, None) => {
                // Fails only when it has just ended.
                let _ = session.signal(rustix::process::Signal::KILL.as_raw());
            }
            (SessionState::Orphaned, _) => returning::join(self, session),
            _ => {}
        }
    }
}

/// Removes, in the background, the entry of a session that has ended: the last daemon could not, or died before that.
fn remove_entry(session: Arc<Session>) {
    let entry = session.lock().entry.clone();
    let Some(entry) = entry else { return };
    // Without this thread, the next daemon removes it.
    let _ = std::thread::Builder::new()
        .name("entry-removal".into())
        .spawn(move || session.drop_entry(&entry));
}

/// Waits for the end of a program that is not a child of this daemon.
fn watch(session: &Session) {
    let init = session.lock().init;
    // `__outer` of a restored session: the parent of its process 1.
    let outer = init.and_then(|it| ProcessId::of(*proc::ancestors(it.pid).get(1)?));
    let root = || session.lock().root.filter(ProcessId::alive);
    while let Some(root) = root() {
        // It may be another meanwhile.
        root.ends_within(TURN);
    }
    // One that is rolled back has ended for that. What starts again is a child of this daemon.
    if session.lock().again.is_some() {
        return;
    }
    // It writes the status after the end, and ends then.
    if let Some(outer) = outer {
        outer.ends_within(END_TIME);
    }
    let recorded = fs::read_to_string(session.dir.join(session::EXIT_FILE)).ok();
    let status = recorded.and_then(|text| text.trim().parse().ok());
    match init {
        // It may be about to be rolled back.
        Some(init) => session.tree_ended(init, status),
        None => session.ended(status),
    }
}

#[cfg(test)]
mod tests {
    use fermata_control::user::Text;
    use fermata_control::worker::Stand;

    use super::*;
    use crate::daemon::scene;
    use crate::pause::data::Entry;
    use crate::proc::scene::{reader, sleeper};
    use crate::restore::on_demand;
    use crate::turn::Turn;
    use crate::worker::scene::{is_asked, played, tell};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn an_entry_that_could_not_be_removed_is_removed_by_the_next_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let to: Text = folder.path().into();
        let mut entry = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        // Nothing can be removed below a file.
        let parent = folder.path().join("parent");
        fs::write(&parent, "").expect("written");
        entry.data.folder = parent.join("entry");
        entry.complete = true;
        session.lock().entry = Some(entry.clone());
        session.drop_entry(&entry);
        let kept = session.lock().entry.clone().expect("it is recorded");
        assert!(!kept.complete, "no daemon resumes the session from it");
        session.ended(None);
        assert!(session.lock().entry.is_some(), "it is recorded still");
        fs::remove_file(&parent).expect("removed");
        entry.make(1).expect("made");
        daemon.adopt();
        let next = daemon.session("x").expect("found");
        let removed = next.wait_for(PATIENCE, |inner| inner.entry.is_none().then_some(()));
        removed.expect("the next daemon removes it");
        assert!(!entry.data.folder.exists());
    }

    #[test]
    fn a_program_that_ends_with_its_worker_while_its_data_comes_is_rolled_back_and_has_not_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let mut program = reader();
        let init = ProcessId::of(program.id()).expect("it runs");
        let (worker, other) = played();
        {
            let mut inner = session.lock();
            (inner.root, inner.init) = (Some(init), Some(init));
            inner.member_or_new(init).worker = Some(worker.clone());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                is_asked(&other);
                tell(&other, Stand::Coming);
            });
            on_demand::begin(&session, &worker, 0.0, false).expect("answered");
        });
        drop((other, program.stdin.take()));
        while worker.lost().is_none() {
            worker.pause(PATIENCE);
        }
        program.wait().expect("it has ended");
        watch(&session);
        assert!(session.live(), "the rollback would find no session");
        session.ended(None);
    }

    #[test]
    fn nobody_resumes_a_session_beside_workers_of_an_earlier_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let (mut program, mut worker) = (sleeper(), sleeper());
        let process = ProcessId::of(worker.id()).expect("it runs");
        {
            let mut inner = session.lock();
            inner.state = SessionState::Paused;
            inner.root = ProcessId::of(program.id());
            inner.leaving.push(process);
            let mut entry = Entry::plan(&daemon, &session, None).expect("planned");
            entry.complete = true;
            inner.entry = Some(entry);
        }
        session.note_down().expect("noted down");
        let next = scene::daemon_again(folder.path());
        next.adopt();
        let found = next.session("x").expect("found");
        let turn = Turn::take(&found).expect("taken");
        assert!(!process.alive(), "a resumption would meet it");
        drop(turn);
        program.kill().expect("killed");
        program.wait().expect("collected");
        worker.wait().expect("collected");
        let ended = found.wait(PATIENCE);
        assert!(ended, "its program has ended");
    }
}
