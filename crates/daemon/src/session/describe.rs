//! Describes a session to users: its state, and the notes of the daemon and of the library in the program.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use fermata_control::user;

use super::{Behind, Inner, Member, Session};

/// Name of the file in which the library in the program leaves messages for the user.
const NOTICES: &str = "notices";
/// Bytes of that file that are shown.
const NOTICE_BYTES: u64 = 4096;

impl Session {
    /// The session as users see it.
    pub fn describe(&self) -> user::Session {
        let inner = self.lock();
        let workers: Vec<_> = inner.members.iter().filter_map(described).collect();
        let loading = inner.loading.first().map(|it| it.pid);
        let paused = inner.entry.as_ref().filter(|it| it.complete);
        user::Session {
            name: self.name.clone(),
            state: inner.state,
            pid: inner.root.map(|p| p.pid),
            worker_pid: workers.first().map(|it| it.worker_pid).or(loading),
            processes: workers,
            exit_status: inner.exit_status,
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            started: self.started,
            log: self.log(),
            soft: inner.soft,
            devices: inner.devices.clone(),
            image: self.image.clone(),
            note: self.note(&inner),
            losses: inner.losses,
            phases: inner.phases.clone(),
            arrival: inner.behind.as_ref().map(Behind::arrival),
            paused: paused.map(|it| it.data.clone()),
            failure: inner.failure.clone(),
            ready: inner.ready,
            killed: inner.killed,
            priority: self.priority,
            paused_for: inner
                .paused()
                .and(inner.yielded.as_ref())
                .map(|it| it.to.clone()),
        }
    }

    /// File for messages of the library in the program.
    pub fn notices(&self) -> PathBuf {
        self.dir.join(NOTICES)
    }

    /// The daemon's note and the library's messages in one line.
    fn note(&self, inner: &Inner) -> Option<String> {
        let mut text = String::new();
        if let Ok(file) = File::open(self.notices()) {
            // Messages that are not UTF-8 are not shown.
            let _ = file.take(NOTICE_BYTES).read_to_string(&mut text);
        }
        let lines = inner.note.iter().map(String::as_str).chain(text.lines());
        let mut parts: Vec<&str> = Vec::new();
        for line in lines.filter(|line| !line.trim().is_empty()) {
            if !parts.contains(&line) {
                parts.push(line);
            }
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

fn described(member: &Member) -> Option<user::GpuProcess> {
    Some(user::GpuProcess {
        pid: member.process.pid,
        worker_pid: member.worker_process()?.pid,
    })
}
