//! Saves a session's record at each change, and makes the session from it in the next daemon.
//!
//! [`SessionMeta`] is the format. A session whose folder is being removed is not saved again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fermata_control::agent::ENV_TOKEN;
use fermata_control::user::SessionState;

use super::output::LOG;
use super::{EXIT_FILE, Inner, Member, Plan, Session};
use crate::persist::SessionMeta;
use crate::proc::{self, ProcessId};
use crate::worker::{texts, variables_of};

impl Session {
    /// The session of an earlier daemon, from its record.
    pub fn found(meta: SessionMeta, dir: PathBuf) -> Arc<Self> {
        let root = meta.root.or_else(|| unnoted(&meta));
        let alive = root.filter(ProcessId::alive);
        let recorded = fs::read_to_string(dir.join(EXIT_FILE)).ok();
        let status = meta.exit_status.or_else(|| recorded?.trim().parse().ok());
        let mut inner = Inner::new(meta.token);
        let members: Vec<_> = meta.members.into_iter().filter_map(Member::found).collect();
        inner.again = meta.again.filter(|_| meta.image.is_some());
        inner.state = match (alive, meta.state) {
            _ if inner.again.is_some() => SessionState::Restoring,
            (None, _) => SessionState::Exited,
            (Some(_), state @ (SessionState::Restoring | SessionState::Lost)) => state,
            (Some(_), SessionState::Paused) => SessionState::Paused,
            // A program that has not used CUDA yet has no connection to the daemon that started it.
            (Some(_), _) if members.is_empty() => SessionState::Running,
            (Some(_), _) => SessionState::Orphaned,
        };
        inner.root = alive;
        inner.init = meta.init.filter(ProcessId::alive);
        inner.exit_status = status.filter(|_| inner.state == SessionState::Exited);
        inner.soft = meta.soft;
        inner.devices = meta.devices;
        inner.input = meta.input;
        inner.members = members;
        inner.entry = meta.entry;
        inner.yielded = meta.yielded;
        inner.loading = meta.loading.into_iter().filter(ProcessId::alive).collect();
        inner.leaving = meta.leaving.into_iter().filter(ProcessId::alive).collect();
        inner.note = match (alive, meta.state) {
            (Some(_), _) if inner.state == SessionState::Orphaned => {
                Some("the daemon that started it has ended".to_owned())
            }
            _ if inner.state != SessionState::Exited => meta.note,
            (None, SessionState::Exited) => meta.note,
            _ => Some("it ended while no daemon ran".to_owned()),
        };
        let plan = Plan {
            name: meta.name,
            dir,
            argv: meta.argv,
            cwd: meta.cwd,
            device: meta.device,
            variables: variables_of(meta.variables),
            gpus: meta.gpus,
            image: meta.image,
            own_network: meta.own_network,
            priority: meta.priority,
            foreign: meta.foreign,
            state: inner.state,
        };
        let session = Self::assemble(plan, meta.started, inner);
        session.save();
        Arc::new(session)
    }

    /// Ends saving: the session's folder is about to be removed, and no thread may write to it.
    pub fn retire(&self) {
        self.lock().retired = true;
    }

    /// As [`Session::note_down`], but ignores errors such as a full disk.
    pub fn save(&self) {
        let _ = self.note_down();
    }

    /// Saves the session's record for a later daemon.
    ///
    /// # Errors
    /// The folder is gone or full.
    pub fn note_down(&self) -> io::Result<()> {
        let inner = self.lock();
        if inner.retired {
            return Ok(());
        }
        let meta = SessionMeta {
            version: 0,
            name: self.name.clone(),
            token: inner.token.clone(),
            state: inner.state,
            root: inner.root,
            init: inner.init.or(inner.former),
            members: inner.members.iter().map(Member::meta).collect(),
            loading: inner.loading.clone(),
            leaving: inner.leaving.clone(),
            exit_status: inner.exit_status,
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            started: self.started,
            soft: inner.soft,
            devices: inner.devices.clone(),
            image: self.image.clone(),
            own_network: self.own_network,
            priority: self.priority,
            foreign: self.foreign,
            entry: inner.entry.clone(),
            yielded: inner.yielded.clone(),
            again: inner.again.clone(),
            input: inner.input,
            note: inner.note.clone(),
            device: self.device,
            variables: texts(&self.variables),
            gpus: self.gpus.clone(),
        };
        // Still locked, so that two threads save in the order of their changes.
        meta.save(&self.dir)
    }
}

/// The program of a session whose daemon died before it could save that: the first of its processes.
fn unnoted(meta: &SessionMeta) -> Option<ProcessId> {
    if meta.state != SessionState::Running || meta.image.is_some() {
        return None;
    }
    let marked = proc::marked(ENV_TOKEN, &meta.token).into_iter();
    let processes = marked.filter_map(ProcessId::of);
    processes.min_by_key(|process| process.start)
}

/// Whether a session's folder has a record, and output of a program.
pub fn has_printed(dir: &Path) -> bool {
    SessionMeta::is_in(dir) && fs::metadata(dir.join(LOG)).is_ok_and(|log| log.len() > 0)
}
