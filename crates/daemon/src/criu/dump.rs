//! A dump by CRIU in three parts, of which only the middle one keeps the program from running.
//!
//! ```text
//!  begin   CRIU starts and asks the kernel what it has to know ─► "pre-dump": it waits for an answer
//!  go      answer ─► CRIU stops all processes and dumps them ─► "post-dump": it waits, and they stand still
//!          `still` ─► answer ─► CRIU lets them go on ─► done
//!                └► [`HeldTree`]: no answer yet, and they stand still until it is dropped
//! ```
//! Until [`Dumping::go`] nothing of the program has been touched, and a dump that is dropped leaves nothing. At "post-dump" all
//! of CRIU's files are complete and its code has left the program. CRIU lets the processes go on when it reads the end of its
//! socket instead of an answer, so a daemon that ends leaves none of them still.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use fermata_control::worker::FailureKind;
use rustix::process::Signal;

use crate::criu::end;
use crate::criu::made_ahead::MadeAhead;
use crate::criu::mappings::Tree;
use crate::criu::rpc::{CriuOpts, CriuReq, CriuReqType, CriuResp};
use crate::criu::{self, Criu, DUMP_LOG};
use crate::failure::{OrFail, Result, fail};
use crate::proc::{self, ProcessId};

/// How long CRIU may take to start.
const START_TIME: Duration = Duration::from_secs(60);
/// How long a program that is ending may take to end.
const LAST_MOMENT: Duration = Duration::from_millis(100);
/// How long CRIU may take to let go of a program that has been killed.
const LET_GO: Duration = Duration::from_secs(30);
/// Names of the steps.
const BEFORE: &str = "pre-dump";
const BEHIND: &str = "post-dump";
/// It traces all processes by then.
const STILL: &str = "query-ext-files";

/// What is special about a dump.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dump {
    /// Connections that the program has not accepted yet are left out; else they are an error.
    pub tcp_close: bool,
    /// Memory that is tracked is left out, and what CRIU is told beyond that.
    pub filtered: bool,
    /// The program may be of the session of the shell that has started it.
    pub shell_job: bool,
    /// After the dump the program stands still until [`HeldTree`] is dropped.
    pub held: bool,
}

/// A dump under way.
#[derive(Debug)]
pub struct Dumping {
    target: ProcessId,
    dir: PathBuf,
    socket: Option<OwnedFd>,
    child: Option<Child>,
    ready: bool,
    held: bool,
    /// Whether it asks for the mappings of processes.
    filtered: bool,
    tree: Tree,
    made: MadeAhead,
}

/// A dumped tree that CRIU keeps from running. When this is dropped, CRIU lets it go, and only then the drop returns.
#[derive(Debug)]
pub struct HeldTree(Dumping);

/// The outcome of a dump.
#[derive(Debug)]
pub struct Done {
    /// How long the program stood still because of CRIU, until the dump was complete.
    pub stopped: Duration,
    /// The program, if it was to stand still after the dump.
    pub held: Option<HeldTree>,
}

impl Criu {
    /// Dumps the tree whose root is process `pid` into `dir`, and lets it run on.
    ///
    /// # Errors
    /// CRIU cannot be started, or why it could not dump the tree; that runs on then, too.
    pub fn dump(&self, pid: u32, dir: &Path, tcp_close: bool) -> Result<()> {
        let how = Dump {
            tcp_close,
            ..Dump::default()
        };
        let dumping = Dumping::begin(self, pid, dir, how)?;
        dumping.go(&mut || Ok(())).map(drop)
    }
}

impl Dumping {
    /// Has CRIU make ready to dump the tree whose root is process `pid` into `dir`, with both ends of its TCP connections.
    ///
    /// # Errors
    /// CRIU cannot be started, or the process has ended.
    pub fn begin(criu: &Criu, pid: u32, dir: &Path, how: Dump) -> Result<Self> {
        let (ours, theirs) = criu::channel()?;
        let inner = proc::inner_pid(pid).ok_or_else(|| ended(pid))?;
        let foreign = match proc::foreign_namespaces(pid) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(ended(pid)),
            other => other.or_fail(FailureKind::Host, || {
                format!("cannot read the namespaces of process {pid}")
            })?,
        };
        let target = ProcessId::of(pid).ok_or_else(|| ended(pid))?;
        let tree = Tree::new(pid);
        let filtered = how.filtered.then(|| tree.clone());
        let child = criu.start(foreign, theirs, filtered)?;
        let options = CriuOpts {
            pid: i32::try_from(inner).ok(),
            leave_running: Some(true),
            notify_scripts: Some(true),
            tcp_established: Some(true),
            tcp_skip_in_flight: how.tcp_close.then_some(true),
            shell_job: how.shell_job.then_some(true),
            log_file: Some(DUMP_LOG.into()),
            ..criu::options(dir)
        };
        let request = CriuReq {
            r#type: CriuReqType::Dump.into(),
            opts: Some(options),
            notify_success: None,
        };
        let mut dumping = Self {
            target,
            dir: dir.into(),
            socket: Some(ours),
            child: Some(child),
            ready: false,
            held: how.held,
            filtered: how.filtered,
            tree,
            made: MadeAhead::default(),
        };
        // If CRIU has ended already, the next call says why.
        let _ = criu::send(dumping.socket()?, &request);
        // While CRIU starts.
        dumping.made = MadeAhead::of(pid, dir);
        Ok(dumping)
    }

    /// What CRIU is told.
    pub(crate) fn tree(&self) -> Tree {
        self.tree.clone()
    }

    /// Waits until CRIU is about to stop the program.
    ///
    /// # Errors
    /// With CRIU's reason; the program runs on.
    pub fn ready(&mut self) -> Result<()> {
        let answer = self.until(BEFORE, Some(START_TIME))?;
        self.ready = answer.is_none();
        match answer {
            None => Ok(()),
            Some(answer) => self.checked(Ok(answer)),
        }
    }

    /// Dumps the tree; `still` is called while all its processes stand still, and a failure of it is one of the dump. The
    /// program runs on, unless it is to be held, and always after a failure. That takes as long as it takes: a CRIU that is
    /// killed leaves its code in the program, which does not survive that.
    ///
    /// # Errors
    /// `NotCheckpointable` with CRIU's reason, `Host` when CRIU cannot run here.
    pub fn go(mut self, still: &mut dyn FnMut() -> Result<()>) -> Result<Done> {
        if !self.ready {
            self.ready()?;
        }
        // Its number may be another process's by now.
        if self.target.is_ending() {
            return Err(ended(self.target.pid));
        }
        let begun = Instant::now();
        self.answer(true)?;
        let behind = self.until(BEHIND, None)?;
        // What there is tells from now on what CRIU has dumped.
        drop(std::mem::take(&mut self.made));
        let (answer, failed) = match behind {
            Some(answer) => (Ok(answer), None),
            None if self.held => {
                let held = HeldTree(self);
                still()?;
                return Ok(Done {
                    stopped: begun.elapsed(),
                    held: Some(held),
                });
            }
            None => {
                let failed = still().err();
                self.answer(failed.is_none())?;
                (self.receive(None), failed)
            }
        };
        let stopped = begun.elapsed();
        let checked = self.checked(answer);
        match failed {
            Some(failure) => Err(failure),
            None => checked.map(|()| Done {
                stopped,
                held: None,
            }),
        }
    }

    /// Waits for a step, and lets others pass; the answer if the dump has ended instead.
    fn until(&self, step: &str, limit: Option<Duration>) -> Result<Option<CriuResp>> {
        loop {
            let answer = match self.receive(limit) {
                Ok(answer) => answer,
                Err(error) => return self.checked(Err(error)).map(|()| None),
            };
            match &answer.notify {
                _ if answer.r#type() != CriuReqType::Notify => return Ok(Some(answer)),
                Some(it) if it.script.as_deref() == Some(step) => return Ok(None),
                Some(it) if it.script.as_deref() == Some(STILL) && self.filtered => {
                    self.answer(true)?;
                    self.tree.stands_still();
                }
                _ => self.answer(true)?,
            }
        }
    }

    /// Waits for CRIU's last answer, and lets every step pass, whether the program lives or not.
    fn end(&self) -> Result<()> {
        let socket = self.socket()?;
        let runs = || self.child.as_ref().is_some_and(proc::runs);
        loop {
            match criu::receive(socket, Some(LET_GO), &runs) {
                Ok(it) if it.r#type() == CriuReqType::Notify => self.answer(true)?,
                _ => return Ok(()),
            }
        }
    }

    fn receive(&self, limit: Option<Duration>) -> io::Result<CriuResp> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let runs = || self.child.as_ref().is_some_and(proc::runs);
        criu::receive(socket, limit, &|| !self.target.is_ending() && runs())
    }

    fn answer(&self, go_on: bool) -> Result<()> {
        let request = CriuReq {
            r#type: CriuReqType::Notify.into(),
            opts: None,
            notify_success: Some(go_on),
        };
        criu::send(self.socket()?, &request).or_else(|error| self.checked(Err(error)))
    }

    fn checked(&self, answer: io::Result<CriuResp>) -> Result<()> {
        // A program that is ending makes CRIU fail before it has ended.
        if !matches!(&answer, Ok(it) if it.success) && self.target.is_ending_within(LAST_MOMENT) {
            return Err(ended(self.target.pid));
        }
        let log = self.dir.join(DUMP_LOG);
        let kind = FailureKind::NotCheckpointable;
        criu::check(answer, "dump the program", &log, kind)
    }

    fn socket(&self) -> Result<&OwnedFd> {
        let closed = || fail(FailureKind::Internal, "CRIU's socket is closed");
        self.socket.as_ref().ok_or_else(closed)
    }
}

impl HeldTree {
    /// Kills every process of the tree before CRIU lets it go, so that none runs on. CRIU closes their connections. Returns the
    /// processes, which may not have ended yet.
    pub fn kill(self) -> Vec<ProcessId> {
        let root = self.0.target;
        // Its number may be another process's by now.
        let tree = match root.alive() {
            true => proc::still_tree(root.pid),
            false => Vec::new(),
        };
        let killed: Vec<_> = tree.into_iter().filter_map(ProcessId::of).collect();
        killed.iter().for_each(|it| it.signal(Signal::KILL));
        killed
    }
}

impl Drop for HeldTree {
    fn drop(&mut self) {
        // CRIU writes nothing more to the image when it is told that this step has failed. A CRIU that does not answer any
        // more has ended, and holds nothing.
        let _ = self.0.answer(false).and_then(|()| self.0.end());
    }
}

impl Drop for Dumping {
    fn drop(&mut self) {
        // A CRIU that still waits for an answer ends at the end of its socket.
        self.socket = None;
        let Some(mut child) = self.child.take() else {
            return;
        };
        let wait = move || end::end(&mut child, criu::END_TIME);
        // The program may be waiting for the thread that drops this. Without a thread CRIU is reaped with the daemon.
        let _ = std::thread::Builder::new().name("reap".into()).spawn(wait);
    }
}

fn ended(pid: u32) -> crate::failure::Failure {
    fail(FailureKind::NotFound, format!("process {pid} has ended"))
}
