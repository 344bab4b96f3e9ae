//! The loss of a worker: the session is lost with it, unless it is rolled back, or its data is elsewhere.
//!
//! A loss may be noted while the session is stopped or restored. So when it runs again, its workers are asked.

use std::sync::{Arc, Weak};

use fermata_control::user::SessionState;

use super::{Inner, Locked, Session};
use crate::proc::ProcessId;
use crate::worker::Worker;

impl Session {
    /// Notes that a worker is lost, for `reason`. One that the session does not have any more, because its process has ended, is no
    /// loss.
    pub fn loses(&self, worker: &Weak<Worker>, reason: &str) {
        let inner = self.lock();
        let is_lost = |it: &Arc<Worker>| std::ptr::eq(Arc::as_ptr(it), worker.as_ptr());
        if inner.workers().iter().any(is_lost) {
            self.note_loss(inner, reason);
        }
    }

    /// Notes that a process of the session, which lives, cannot be served any more, for `reason`. The session is lost as long as it has
    /// that process.
    pub fn process_lost(&self, process: ProcessId, reason: &str) {
        let mut inner = self.lock();
        if process.alive() {
            inner.member_or_new(process).unserved = true;
        }
        self.note_loss(inner, reason);
    }

    /// Notes that the session cannot be served any more, for `reason`.
    pub fn worker_lost(&self, reason: &str) {
        self.note_loss(self.lock(), reason);
    }

    fn note_loss(&self, mut inner: Locked<'_>, reason: &str) {
        inner.lose(reason);
        drop(inner);
        self.save();
        self.announce();
    }

    /// Marks the session as running, whose processes have their workers again; as lost if one of these was lost meanwhile.
    pub fn goes_on(&self) {
        let mut inner = self.lock();
        if inner.state != SessionState::Exited {
            inner.state = SessionState::Running;
        }
        inner.note_losses();
        drop(inner);
        self.save();
        self.announce();
    }
}

impl Inner {
    /// Notes the loss of a worker that was not noted when it happened, or was overwritten since.
    pub fn note_losses(&mut self) {
        let lost = self.workers().iter().find_map(|it| it.lost());
        if let Some(reason) = lost {
            self.lose(&reason);
        }
    }

    fn lose(&mut self, reason: &str) {
        if self.rolls_back() {
            // The thread that watches the restore rolls the program back, or notes the loss when all data is present.
            return;
        }
        // The data of a paused session is in its entry, not in its workers.
        if !matches!(self.state, SessionState::Exited | SessionState::Paused) {
            self.losses += u32::from(self.state != SessionState::Lost);
            self.state = SessionState::Lost;
            self.note = Some(reason.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::daemon::scene;
    use crate::worker::scene::played;

    #[test]
    fn a_worker_that_is_lost_while_its_process_comes_back_stays_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let (worker, other) = played();
        let process = ProcessId::of(std::process::id()).expect("it runs");
        session.lock().member_or_new(process).worker = Some(worker.clone());
        session.goes_on();
        assert_eq!(session.lock().state, SessionState::Running);
        drop(other);
        while worker.lost().is_none() {
            worker.pause(Duration::from_secs(60));
        }
        session.goes_on();
        let inner = session.lock();
        assert_eq!(inner.state, SessionState::Lost);
        assert_eq!(inner.note, worker.lost());
    }

    #[test]
    fn a_worker_that_ends_after_its_process_is_no_loss() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let (worker, _other) = played();
        let process = ProcessId::of(std::process::id()).expect("it runs");
        session.lock().member_or_new(process).worker = Some(worker.clone());
        session.process_gone(process);
        session.loses(&Arc::downgrade(&worker), "its process has ended");
        assert_eq!(session.lock().state, SessionState::Running);
        session.lock().member_or_new(process).worker = Some(worker.clone());
        session.loses(&Arc::downgrade(&worker), "a fault");
        assert_eq!(session.lock().state, SessionState::Lost);
        session.ended(None);
    }

    #[test]
    fn a_session_stays_lost_as_long_as_it_has_the_process_that_cannot_be_served() {
        let folder = tempfile::tempdir().expect("a folder");
        let session = scene::session(folder.path());
        let process = ProcessId::of(std::process::id()).expect("it runs");
        session.lock().member_or_new(process);
        session.lock().member_or_new(ProcessId::ENDED);
        session.process_lost(process, "it does not come back");
        session.process_gone(ProcessId::ENDED);
        assert_eq!(session.lock().state, SessionState::Lost);
        session.process_gone(process);
        assert_eq!(session.lock().state, SessionState::Running);
        session.ended(None);
    }
}
