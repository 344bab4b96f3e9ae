//! The host process in a checkpoint: copies memory ahead, has CRIU dump, and records what is known only after the dump.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fermata_control::settings;
use fermata_control::worker::FailureKind;
use fermata_store::moments;
use tracing::{info, warn};

use super::taking::Taking;
use crate::criu;
use crate::criu::DUMP_LOG;
use crate::criu::core::clear_registrations;
use crate::criu::dump::{Done, Dump, Dumping, HeldTree};
use crate::criu::kept_logs::keep_hint;
use crate::failure::{Failure, Hint, OrFail, Result, fail};
use crate::host::HostCopy;
use crate::images::record::{self, AgentRecord, Record};
use crate::open_files::folders;
use crate::open_files::input;
use crate::open_files::tcp::dumped::{self, Unusable};
use crate::open_files::tcp::live;
use crate::open_files::temporary;
use crate::proc;
use crate::progress::Report;
use crate::session::{Served, output};
use crate::worker::texts;

/// How often memory is copied again while the checkpoint waits for the devices.
const AGAIN: Duration = Duration::from_millis(500);

/// What CRIU says when the bytes of a connection that it reads are acknowledged meanwhile: it gets fewer than the kernel has counted.
const RECV_FAILED: &str = "recv failed (";
/// What it says of a process that is ending: of its threads the first has ended, and another has not.
const ZOMBIE: &str = "Zombies with threads";
/// The ends of such failures' messages.
const ON_THEIR_WAY: &str = "were on their way";
const IS_ENDING: &str = "was about to end";
pub(super) const NOT_STORED: &str = "which the process that was to store it has not";

/// What has been prepared before the stop: a CRIU that is ready to dump, and copied memory.
pub(super) struct Ahead {
    dumping: Dumping,
    copy: Option<HostCopy>,
    /// When memory was last copied.
    since: Instant,
}

/// The results of a dump.
pub(super) struct Dumped {
    /// How long CRIU kept the program from running.
    pub(super) stopped: Duration,
    /// Memory that CRIU has left out.
    pub(super) copy: Option<HostCopy>,
    /// The program, if CRIU keeps it from running.
    pub(super) held: Option<HeldTree>,
}

/// Records the folders of sockets and temporary files in the image.
pub(crate) fn note_folders(host: &Path) -> io::Result<()> {
    let files = temporary::list(host)?;
    folders::note_down(host, files.into_iter().map(|it| it.path))
}

/// The failure for TCP connections that make the dump unusable as an image.
pub(crate) fn no_connection(why: &Unusable) -> Failure {
    let message = format!("the program cannot be checkpointed: {why}");
    let failure = fail(FailureKind::NotCheckpointable, message);
    match why {
        Unusable::Outside(_) => failure.hint(live::CLOSE_HINT),
        Unusable::Moving(_) => failure.hint("try again"),
        Unusable::Files(_) => failure,
    }
}

/// Whether an attempt has failed because of its moment, so that the next may succeed: bytes of a TCP connection inside the session were
/// between its ends, a process was about to end, or one has not stored what others counted on.
pub(super) fn is_passing(failure: &Failure) -> bool {
    let ends = [ON_THEIR_WAY, IS_ENDING, NOT_STORED];
    ends.iter().any(|it| failure.message.ends_with(it))
}

impl Ahead {
    /// Copies memory that was written meanwhile, unless that was done just now.
    pub(super) fn again(&mut self) {
        if let Some(copy) = &mut self.copy
            && self.since.elapsed() >= AGAIN
        {
            copy.pass();
            self.since = Instant::now();
        }
    }
}

impl Taking<'_> {
    /// Begins to copy host memory while the program runs, until little is left.
    pub(super) fn copy_memory(&self, report: &mut Report<'_>) -> Option<HostCopy> {
        let wanted = settings::is_on("FERMATA_HOST_AHEAD");
        if !wanted || !self.copies_memory || !self.criu.has_filter() {
            return None;
        }
        self.phases.time("host ahead", || {
            let (helper, draft) = (self.criu.helper(), self.draft.path());
            let note = |text| self.note(text);
            let mut copy = HostCopy::begin(helper, self.root.pid, draft, self.needed_bytes, &note)?;
            copy.ahead(&mut |bytes| report("host ahead", bytes, bytes));
            Some(copy)
        })
    }

    /// Tells the session's log why memory is not copied ahead.
    fn note(&self, text: String) {
        warn!(session = %self.session.name, "{text}");
    }

    /// Has CRIU prepare the dump, and meanwhile copies memory that was written since [`Self::copy_memory`].
    pub(super) fn ahead(
        &self,
        mut copy: Option<HostCopy>,
        report: &mut Report<'_>,
    ) -> Result<Ahead> {
        report("host ready", 0, 0);
        moments::pass("ahead");
        self.phases.time("host ready", || {
            if let Some(copy) = &mut copy {
                copy.outlast_growth(self.root.pid);
                self.take_in(copy);
                copy.converge_and_settle();
            }
            let mut dumping = self.begin(copy.is_some())?;
            let mut again = || copy.as_mut().map(HostCopy::pass);
            // Once while CRIU starts, and once for memory that was written until it was ready.
            again();
            dumping.ready().map_err(|failure| self.explained(failure))?;
            let served = self.session.lock().served();
            served.iter().for_each(|it| it.agent.prepare());
            again();
            moments::pass("ready");
            // A pool of processes is made in as long as CRIU takes.
            if let Some(copy) = &mut copy
                && self.take_in(copy) > 0
            {
                copy.converge_and_settle();
            }
            let since = Instant::now();
            Ok(Ahead {
                dumping,
                copy,
                since,
            })
        })
    }

    /// Has processes tracked and copied that have come since; how many.
    fn take_in(&self, copy: &mut HostCopy) -> usize {
        let (helper, draft) = (self.criu.helper(), self.draft.path());
        let new = copy.take_in(helper, self.root.pid, draft, &|text| self.note(text));
        let served = self.session.lock().served();
        copy.note_staged(|process| {
            let served = served.iter().find(|it| it.agent.process == process);
            served.map_or(0, |it| it.worker.staged_bytes())
        });
        if new > 0 {
            info!(session = %self.session.name, new, "memory of processes that have just begun is copied ahead, too");
        }
        new
    }

    fn begin(&self, filtered: bool) -> Result<Dumping> {
        let host = self.draft.host();
        let how = Dump {
            tcp_close: self.tcp_close,
            filtered,
            held: self.ends,
            ..Dump::default()
        };
        Dumping::begin(&self.criu, self.root.pid, &host, how)
            .map_err(|failure| self.explained(failure))
    }

    /// Has CRIU dump the program. Processes that do not use CUDA run until CRIU stops them, so the dump may have more
    /// processes than the record.
    pub(super) fn host(&self, record: &Record, ahead: Ahead) -> Result<Dumped> {
        let host = self.draft.host();
        let root = self.root.pid;
        let Ahead {
            dumping, mut copy, ..
        } = ahead;
        let files = || {
            let copied = temporary::copy(&host, &proc::still_tree(root), &record.log);
            copied.or_fail(FailureKind::User, || {
                "cannot copy the temporary files of the program".into()
            })
        };
        let tree = dumping.tree();
        if let Some(copy) = &copy {
            tree.know(copy.known());
        }
        let follow = || {
            if let Some(copy) = &copy {
                copy.follow(&tree);
            }
        };
        let last = || {
            tree.end();
            copy.as_ref()
                .map_or(Ok(()), |copy| copy.last(root, &host, &tree))
        };
        let mut still = || {
            std::thread::scope(|scope| {
                // Meanwhile, if there is a thread.
                let copying = std::thread::Builder::new().spawn_scoped(scope, files);
                let last = self.phases.time("host last", last);
                let panicked = |_| Err(fail(FailureKind::Internal, "a thread has panicked"));
                let copied = match copying {
                    Ok(thread) => thread.join().unwrap_or_else(panicked),
                    Err(_) => files(),
                };
                last.and(copied)
            })
        };
        moments::pass("dump");
        let dump = || {
            std::thread::scope(|scope| {
                let ends = tree.ends();
                // Without a thread all is left for the end.
                let named = std::thread::Builder::new().name("host last".into());
                let following = named.spawn_scoped(scope, follow);
                let dumped = dumping.go(&mut still);
                drop(ends);
                // If it has panicked, `last` has failed.
                let _ = following.map(std::thread::ScopedJoinHandle::join);
                dumped
            })
        };
        let mut dumped = self.phases.time("host dump", dump);
        if copy.as_ref().is_some_and(HostCopy::has_failed)
            && let Err(failure) = &dumped
        {
            let why = &failure.message;
            warn!(session = %self.session.name, "memory is dumped by CRIU after all: {why}");
            copy = None;
            dumped = self.empty_host().and_then(|()| {
                let dumping = self.begin(false)?;
                dumping.go(&mut || files())
            });
        }
        // After a failure below, the program runs on before this returns.
        let Done { stopped, held } = dumped.map_err(|failure| self.explained(failure))?;
        let bytes = copy.as_ref().map_or(0, HostCopy::inherited_bytes);
        if bytes > 0 {
            info!(session = %self.session.name, bytes, "memory of processes that began meanwhile is that of their parents");
        }
        let bytes = copy.as_ref().map_or(0, HostCopy::common_bytes);
        if bytes > 0 {
            info!(session = %self.session.name, bytes, "memory that forked processes have in common is copied once");
        }
        note_folders(&host).or_fail(FailureKind::User, || {
            format!("cannot write to `{}`", host.display())
        })?;
        Ok(Dumped {
            stopped,
            copy,
            held,
        })
    }

    /// Makes CRIU's files a part of the image, and enters in the record what they say. The program may run again: on a machine with
    /// much memory the kernel takes tens of milliseconds to list its connections.
    pub(super) fn complete(&self, record: &mut Record) -> Result<()> {
        let (host, root) = (self.draft.host(), self.root.pid);
        // An end that a process outside the session has closed since the dump counts as closed.
        let elsewhere = |ends| live::is_held_elsewhere(ends, &proc::tree(root));
        let connections = dumped::settle(&host, self.tcp_close, elsewhere);
        record.connections = Some(connections.map_err(|e| no_connection(&e))?);
        clear_registrations(&host).or_fail(FailureKind::Internal, || {
            format!("cannot change `{}`", host.display())
        })?;
        // CRIU's log is no part of the image; the session keeps that of the last dump.
        self.keep_log();
        fs::remove_file(host.join(DUMP_LOG))
            .or_fail(FailureKind::Internal, || "cannot remove CRIU's log".into())?;
        let dumped = criu::files::length_of(&host, &record.log);
        let dumped = dumped.or_fail(FailureKind::Internal, || {
            format!("cannot read `{}`", host.display())
        })?;
        record.log_length = dumped.unwrap_or(record.log_length);
        let log = self.draft.path().join(record::LOG);
        output::keep(&self.session.log(), &log, record.log_length)
            .or_fail(FailureKind::User, || "cannot copy the session's log".into())
    }

    /// Keeps CRIU's log, and puts CRIU's reason in words that users know.
    fn explained(&self, failure: Failure) -> Failure {
        self.keep_log();
        explain(keep_hint(failure, &self.session.dir.join(DUMP_LOG)))
    }

    /// Removes CRIU's files.
    pub(super) fn empty_host(&self) -> Result<()> {
        let host = self.draft.host();
        let empty = || -> std::io::Result<()> {
            for entry in fs::read_dir(&host)? {
                fs::remove_file(entry?.path())?;
            }
            Ok(())
        };
        empty().or_fail(FailureKind::Internal, || {
            format!("cannot empty `{}`", host.display())
        })
    }

    /// Copies CRIU's log to the session's folder, because the draft is removed after a failure.
    fn keep_log(&self) {
        let copy = self.session.dir.join(DUMP_LOG);
        // The log of an earlier dump must not be taken for this one's. Both steps fail if there is no log.
        let _ = fs::remove_file(&copy);
        let _ = fs::copy(self.draft.host().join(DUMP_LOG), &copy);
    }

    /// The data that the daemon needs for a restore.
    pub(super) fn record(&self, served: &[Served]) -> Record {
        let log = self.session.log();
        let (input, sees) = {
            let inner = self.session.lock();
            let sees = served.iter().map(|it| inner.sees(it.agent.process));
            (inner.input, sees.collect::<Vec<_>>())
        };
        let agent = |(it, visible): (&Served, _)| AgentRecord {
            pid: it.agent.inner_pid,
            wake_block: it.agent.wake_block,
            kernels_first: it.worker.kernels_first,
            visible,
        };
        let mut agents = served.iter().zip(sees).map(agent);
        let first = served.first().map(|it| &it.worker);
        let open = |pipe: &u64| input::is_open(&proc::tree(self.root.pid), *pipe);
        Record {
            root: proc::inner_pid(self.root.pid).unwrap_or(self.root.pid),
            log_length: log.metadata().map_or(0, |m| m.len()),
            log,
            folder: proc::working_folder(self.root.pid)
                .filter(|it| it.to_str().is_none())
                .map(|it| it.as_path().into()),
            agent: agents.next(),
            others: agents.collect(),
            connections: None,
            // CRIU shortens it.
            input: input.filter(open).map(|pipe| pipe as u32),
            soft: first.map(|worker| worker.driver.soft),
            kernels_first: first.is_some_and(|worker| worker.kernels_first),
            priority: self.session.priority,
            variables: texts(&self.session.variables),
            gpus: self.session.gpus.clone(),
        }
    }
}

/// Replaces a message of CRIU that users often meet by one that names the cause.
pub(crate) fn explain(failure: Failure) -> Failure {
    let passing = [
        (
            RECV_FAILED,
            "bytes of one of its TCP connections",
            ON_THEIR_WAY,
        ),
        (ZOMBIE, "one of its processes", IS_ENDING),
    ];
    let said = |it: &&(&str, &str, &str)| failure.message.contains(it.0);
    if let Some((_, what, end)) = passing.iter().find(said) {
        let message = format!("the program cannot be checkpointed: {what} {end}");
        let hint = format!("try again; {}", failure.hint);
        return fail(FailureKind::NotCheckpointable, message).hint(hint);
    }
    if !failure.message.contains("External socket is used") {
        return failure;
    }
    let message = "the program cannot be checkpointed: it holds a Unix socket whose other end is outside the session";
    let hint = format!(
        "close it before the checkpoint (`ss -xp` lists them); {}",
        failure.hint
    );
    fail(FailureKind::NotCheckpointable, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_a_reason_to_try_again_and_nothing_else_is() {
        let ends = || crate::open_files::tcp::Ends {
            own: ([127, 0, 0, 1], 7).into(),
            other: ([127, 0, 0, 1], 8).into(),
        };
        let criu = |said: &str| explain(fail(FailureKind::NotCheckpointable, said).hint("its log"));
        let passing = [
            criu("CRIU cannot dump the program: Zombies with threads are not supported"),
            criu(
                "CRIU cannot dump the program: recv failed (1750048, want 3000312): Resource temporarily unavailable",
            ),
            no_connection(&Unusable::Moving(ends())),
        ];
        for failure in passing {
            assert!(is_passing(&failure), "{failure:?}");
            assert!(failure.hint.starts_with("try again"), "{failure:?}");
        }
        let others = [
            criu("CRIU cannot dump the program: no memory"),
            criu("External socket is used"),
            no_connection(&Unusable::Outside(ends())),
        ];
        assert!(!others.iter().any(is_passing));
    }
}
