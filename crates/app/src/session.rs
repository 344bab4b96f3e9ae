//! A job's session: what is protected, what has been checkpointed, what can be recovered.
//!
//! ```text
//!  init ─► protect ... ─► recover? ─► work, snapshot | checkpoint ... ─► finalize
//!    └ integrity of the newest checkpoint, by all ranks together
//! ```
//! The calls named collective must be made by all ranks in the same order. No call takes the program down,
//! and a failed checkpoint leaves the program and the older checkpoints as they were.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::capture::Target;
use crate::comm::{Comm, numbers, together};
use crate::costs::Measured;
use crate::gpu::{Gpu, Place, locate};
use crate::job::{Job, Outcome, Progress};
use crate::layout::Lock;
use crate::maps::Maps;
use crate::memory::Memory;
use crate::partner::{Keeper, push};
use crate::record::{Record, VariableRecord};
use crate::restore::{Source, restore};
use crate::ring::Ring;
use crate::search::{Found, search};
use crate::site::Site;
use crate::staging::PlainPool;
use crate::status::{CheckpointReport, RecoveryReport, Status};
use crate::variable::{ElementType, Variable, VariableId};
use crate::{AppError, Config, Level, Result};

/// A checkpoint that is being made.
struct Running {
    thread: JoinHandle<Result<()>>,
    /// Says how far it is, and closes when the thread ends.
    progress: Receiver<Progress>,
    sequence: u64,
    /// Whether it is there; what follows is the removal of old ones.
    complete: bool,
    report: CheckpointReport,
}

/// A session; see the top of this file.
pub struct Session {
    pub(crate) config: Config,
    pub(crate) comm: Box<dyn Comm>,
    local: Site,
    /// Our place among the ranks; `None` if there is one only.
    ring: Option<Ring>,
    further: Vec<Site>,
    gpu: Option<Arc<Gpu>>,
    plain: PlainPool,
    variables: BTreeMap<VariableId, Variable>,
    /// Number of the newest checkpoint begun, by any run of the job.
    sequence: u64,
    /// Number of the newest that this rank has completed in this run.
    committed: u64,
    running: Option<Running>,
    found: Option<Found>,
    refused: Vec<String>,
    pub(crate) measured: Measured,
    status: Status,
    /// The program's number of the newest checkpoint begun or found.
    newest_id: Option<i64>,
    pub(crate) clock: crate::snapshot::Clock,
    _lock: Lock,
}

impl Session {
    /// Begins a session: locks the rank's folder, and checks the newest checkpoint if the configuration
    /// asks for recovery. Collective.
    ///
    /// # Errors
    /// `Busy` when another process uses the folder, `Mismatch` when the checkpoints are of a job of
    /// another size, `Io` and `Store`.
    pub fn init(config: Config, comm: Box<dyn Comm>) -> Result<Self> {
        let opened = Self::open(&config, &*comm);
        let (lock, local, further) = together(&*comm, opened)?;
        let ring = Ring::new(&*comm, &node(&config))?;
        let listed = newest(std::iter::once(&local).chain(&further));
        let listed = together(&*comm, listed)?;
        let newest = numbers(&*comm, listed)?.into_iter().max().unwrap_or(0);
        let mut session = Self {
            plain: PlainPool::new(config.staging_bytes),
            config,
            comm,
            local,
            ring,
            further,
            gpu: None,
            variables: BTreeMap::new(),
            sequence: newest,
            committed: 0,
            running: None,
            found: None,
            refused: Vec::new(),
            measured: Measured::default(),
            status: Status::default(),
            newest_id: None,
            clock: crate::snapshot::Clock::new(),
            _lock: lock,
        };
        if session.config.recover {
            session.look()?;
        }
        Ok(session)
    }

    fn open(config: &Config, comm: &dyn Comm) -> Result<(Lock, Site, Vec<Site>)> {
        let rank = comm.rank();
        let folders = &config.local;
        let folder = folders
            .get(rank as usize % folders.len().max(1))
            .ok_or_else(|| AppError::Config {
                from: "session".into(),
                what: "`local.folders` names no folder".into(),
            })?;
        let layout = crate::layout::Layout::new(folder, &config.name, rank);
        let lock = Lock::take(&layout.rank)?;
        let local = Site::open(Level::Local, folder, config, rank)?;
        let mut further = Vec::new();
        if let Some(shared) = &config.shared {
            further.push(Site::open(Level::Shared, shared, config, rank)?);
        }
        Ok((lock, local, further))
    }

    /// Searches for the checkpoint to recover from, unless the one at hand is the newest.
    fn look(&mut self) -> Result<()> {
        let newest = self.found.as_ref().map(|f| f.record.sequence);
        if newest.is_some() && newest >= Some(self.committed) {
            return Ok(());
        }
        let sites: Vec<_> = std::iter::once(&self.local)
            .chain(&self.further)
            .cloned()
            .collect();
        let search = search(&*self.comm, &sites)?;
        self.found = search.found;
        self.refused = search.refused;
        self.status.recoverable = self.found.as_ref().map(|f| f.record.id);
        self.newest_id = self.newest_id.or(self.status.recoverable);
        Ok(())
    }

    /// Protects a variable, or protects it anew with another address, count or type. Device and managed
    /// memory is told from host memory by the driver.
    ///
    /// # Errors
    /// `Variable` when not all of it is there.
    pub fn protect(&mut self, id: u32, memory: Memory, element: ElementType) -> Result<()> {
        if self.gpu.is_none() {
            self.gpu = Gpu::of_process(self.config.staging_bytes)?;
        }
        let mut variable = Variable {
            id: VariableId(id),
            element,
            memory,
            on_device: false,
        };
        let place = locate(self.gpu.as_deref(), &Maps::now()?, &variable, true)?;
        variable.on_device = place != Place::Host;
        self.variables.insert(variable.id, variable);
        Ok(())
    }

    /// Ends the protection of a variable, whose memory may be freed then. What is being written of it was
    /// captured before.
    ///
    /// # Errors
    /// `Variable` when it is not protected.
    pub fn unprotect(&mut self, id: u32) -> Result<()> {
        match self.variables.remove(&VariableId(id)) {
            Some(_) => Ok(()),
            None => Err(AppError::Variable {
                id,
                what: "it is not protected".into(),
            }),
        }
    }

    /// Makes a checkpoint with the program's number `id`. Returns when all data is captured, or when all
    /// of it is written if the configuration says so. One that is still being written is waited for.
    /// Collective.
    ///
    /// # Errors
    /// Any; there is no new checkpoint then, and the older ones are intact.
    pub fn checkpoint(&mut self, id: i64, level: Level) -> Result<()> {
        self.config.offers(level)?;
        if level == Level::Partner && self.ring.is_none() {
            return Err(AppError::Level {
                level: level.number(),
                name: level.name(),
                what: "needs a job of two ranks or more",
            });
        }
        self.settle_all()?;
        let complete = match self.comm.size() {
            1 => None,
            _ => numbers(&*self.comm, self.committed)?.into_iter().min(),
        };
        self.sequence += 1;
        self.newest_id = Some(id);
        let begun = Instant::now();
        let mut made = self.start(id, level, complete);
        if let (Level::Partner, Some(ring)) = (level, self.ring) {
            made = self.copy_to_partner(made, ring, complete.unwrap_or(0), begun);
        }
        if let Err(e) = &made {
            self.failure(e);
        }
        made
    }

    /// Waits for the local checkpoint on all ranks and copies each to its partner, before the program goes
    /// on: message passing belongs to the program's thread.
    fn copy_to_partner(
        &mut self,
        started: Result<()>,
        ring: Ring,
        complete: u64,
        begun: Instant,
    ) -> Result<()> {
        let limit = Duration::from_secs_f64(self.config.deadline);
        let local = started.and_then(|()| self.join(limit));
        together(&*self.comm, local)?;
        let keeper = Keeper::beside(&self.local);
        push(&*self.comm, &ring, &keeper, self.sequence)?;
        let keep = self.config.keep_last as usize;
        keeper.prune(self.comm.size(), complete, keep)?;
        self.held_since(begun);
        Ok(())
    }

    fn start(&mut self, id: i64, level: Level, complete: Option<u64>) -> Result<()> {
        let begun = Instant::now();
        let targets = self.locate_all(false)?;
        let record = Record {
            job: self.config.name.clone(),
            sequence: self.sequence,
            id,
            rank: self.comm.rank(),
            ranks: self.comm.size(),
            level: level.number(),
            block_bytes: self.config.block_bytes,
            variables: targets.iter().map(describe).collect(),
        };
        let bytes = record.variables.iter().map(|v| v.bytes).sum();
        let abandoned = Arc::new(AtomicBool::new(false));
        let job = Job {
            config: self.config.clone(),
            record,
            targets,
            local: self.local.clone(),
            further: self
                .further
                .iter()
                .filter(|s| s.level == level)
                .cloned()
                .collect(),
            gpu: self.gpu.clone(),
            plain: self.plain.clone(),
            abandoned: Arc::clone(&abandoned),
            complete,
        };
        let (captured, progress) = channel();
        let thread = std::thread::Builder::new()
            .name("fermata-ckpt".into())
            .spawn(move || job.run(&captured))
            .map_err(|source| AppError::Io {
                op: "start a thread for",
                path: self.local.layout.rank.clone(),
                source,
            })?;
        self.running = Some(Running {
            thread,
            progress,
            sequence: self.sequence,
            complete: false,
            report: CheckpointReport {
                id,
                level: level.number(),
                bytes,
                ..CheckpointReport::default()
            },
        });
        let limit = Duration::from_secs_f64(self.config.deadline);
        let running = self.running.as_ref();
        let captured = running.map_or(Ok(Progress::Captured), |r| r.progress.recv_timeout(limit));
        if matches!(captured, Err(RecvTimeoutError::Timeout)) {
            abandoned.store(true, Ordering::Release);
            return Err(AppError::Deadline {
                what: "capturing the program's data",
                seconds: self.config.deadline,
            });
        }
        if let Some(running) = &mut self.running {
            running.report.blocked_seconds = begun.elapsed().as_secs_f64();
        }
        if captured.is_err() {
            // The thread has ended without capturing: it has failed.
            return self.join(limit);
        }
        if !self.config.background {
            self.complete(limit)?;
            self.held_since(begun);
        }
        Ok(())
    }

    /// The program was held since `begun` for the newest checkpoint.
    fn held_since(&mut self, begun: Instant) {
        if let Some(last) = &mut self.status.last {
            last.blocked_seconds = begun.elapsed().as_secs_f64();
            last.total_seconds = last.total_seconds.max(last.blocked_seconds);
        }
    }

    fn locate_all(&self, write: bool) -> Result<Vec<Target>> {
        let maps = Maps::now()?;
        self.variables
            .values()
            .map(|variable| {
                Ok(Target {
                    place: locate(self.gpu.as_deref(), &maps, variable, write)?,
                    variable: variable.clone(),
                })
            })
            .collect()
    }

    /// Waits until nothing is at work on any rank; where it takes too long, all are told.
    fn settle_all(&mut self) -> Result<()> {
        let settled = self.settle(Duration::from_secs_f64(self.config.deadline));
        together(&*self.comm, settled)
    }

    /// Waits until nothing is at work any more, at most `limit`, and notes how it ended.
    fn settle(&mut self, limit: Duration) -> Result<()> {
        match self.join(limit) {
            Err(e @ AppError::Deadline { .. }) if self.running.is_some() => Err(e),
            Err(e) => {
                self.failure(&e);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Waits until the checkpoint that is being written is there.
    fn complete(&mut self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        while let Some(running) = self.running.as_ref().filter(|r| !r.complete) {
            let left = until.saturating_duration_since(Instant::now());
            match running.progress.recv_timeout(left) {
                Ok(Progress::Captured) => {}
                Ok(Progress::Complete(outcome)) => self.enter(outcome),
                Err(RecvTimeoutError::Disconnected) => return self.join(limit),
                Err(RecvTimeoutError::Timeout) => return Err(late(limit)),
            }
        }
        Ok(())
    }

    /// Waits until the running checkpoint's thread has ended: it is there, and old ones are gone.
    fn join(&mut self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        while let Some(running) = &self.running {
            let left = until.saturating_duration_since(Instant::now());
            match running.progress.recv_timeout(left) {
                Ok(Progress::Captured) => {}
                Ok(Progress::Complete(outcome)) => self.enter(outcome),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(late(limit)),
            }
        }
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        let ended = running.thread.join();
        match ended.unwrap_or(Err(AppError::Fault("the checkpoint's thread"))) {
            // The checkpoint is there, only old ones could not be removed: the next one tries again.
            Err(e) if running.complete => {
                self.status.last_failure = Some(e.text());
                Ok(())
            }
            other => other,
        }
    }

    /// A checkpoint is complete.
    fn enter(&mut self, outcome: Outcome) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.complete = true;
        let mut report = running.report;
        report.written_bytes = outcome.totals.new_bytes;
        report.total_seconds = outcome.seconds;
        self.committed = running.sequence;
        let held = match self.config.background {
            true => report.blocked_seconds,
            false => report.total_seconds,
        };
        self.measured.checkpoint(held, report.total_seconds);
        self.status.checkpoints += 1;
        self.status.recoverable = Some(report.id);
        self.status.last = Some(report);
    }

    fn failure(&mut self, error: &AppError) {
        self.status.failed += 1;
        self.status.last_failure = Some(error.text());
    }

    /// Waits until the checkpoint that is being written is complete, at most `limit`.
    ///
    /// # Errors
    /// Why it failed; `Deadline` when it is not complete yet.
    pub fn wait(&mut self, limit: Duration) -> Result<()> {
        let joined = self.join(limit);
        if let Err(e) = &joined
            && self.running.is_none()
        {
            self.failure(e);
        }
        joined
    }

    /// Fills all protected variables from the newest sound checkpoint and returns its number. Everything
    /// is checked before the first byte is written. Collective.
    ///
    /// # Errors
    /// `Nothing`, `Mismatch`, `Variable`: nothing was written. `Mixed`: the variables hold a mixture.
    pub fn recover(&mut self) -> Result<i64> {
        let wanted: Vec<_> = self.variables.keys().copied().collect();
        self.recover_these(&wanted, true)
    }

    /// As [`Session::recover`], for one variable. Collective.
    ///
    /// # Errors
    /// As [`Session::recover`].
    pub fn recover_variable(&mut self, id: u32) -> Result<i64> {
        self.recover_these(&[VariableId(id)], false)
    }

    fn recover_these(&mut self, wanted: &[VariableId], all: bool) -> Result<i64> {
        self.settle_all()?;
        self.look()?;
        let prepared = self.prepare(wanted, all);
        let targets = together(&*self.comm, prepared)?;
        let start = Instant::now();
        let filled = self.fill(&targets);
        let data_seconds = start.elapsed().as_secs_f64();
        together(&*self.comm, filled)?;
        let Some(found) = &self.found else {
            return Err(self.nothing());
        };
        let report = RecoveryReport {
            id: found.record.id,
            level: found.level().number(),
            bytes: targets.iter().map(|t| t.variable.memory.bytes()).sum(),
            integrity_seconds: found.seconds,
            data_seconds,
        };
        self.measured
            .recovery(report.integrity_seconds + report.data_seconds);
        self.status.recovery = Some(report);
        self.clock.recovered();
        Ok(report.id)
    }

    /// Checks everything that can be checked before memory is touched.
    fn prepare(&self, wanted: &[VariableId], all: bool) -> Result<Vec<Target>> {
        let found = self.found.as_ref().ok_or_else(|| self.nothing())?;
        for id in wanted {
            let variable = self.variables.get(id).ok_or_else(|| AppError::Variable {
                id: id.0,
                what: "it is not protected".into(),
            })?;
            found.record.fits(variable)?;
        }
        let missing = |v: &&VariableRecord| all && !self.variables.contains_key(&v.id);
        if let Some(stored) = found.record.variables.iter().find(missing) {
            return Err(AppError::Mismatch {
                what: format!(
                    "variable {} was stored and is not protected now",
                    stored.id.0
                ),
            });
        }
        let mut targets = self.locate_all(true)?;
        targets.retain(|t| wanted.contains(&t.variable.id));
        Ok(targets)
    }

    fn fill(&self, targets: &[Target]) -> Result<()> {
        let found = self.found.as_ref().ok_or_else(|| self.nothing())?;
        let chunks = found.chunks()?;
        let sources: Vec<_> = targets
            .iter()
            .map(|target| Source {
                target,
                chunks: chunks.get(&target.variable.id).copied().unwrap_or(&[]),
            })
            .collect();
        let reader = found
            .site
            .store
            .reader()
            .map_err(AppError::store("read the checkpoint"))?;
        let limit = Duration::from_secs_f64(self.config.deadline);
        restore(&sources, &reader, self.gpu.as_deref(), &self.plain, limit)
    }

    fn nothing(&self) -> AppError {
        AppError::Nothing {
            folder: self.local.layout.rank.clone(),
            why: match self.refused.is_empty() {
                true => String::new(),
                false => format!(": {}", self.refused.join("; ")),
            },
        }
    }

    /// Bytes that a variable has in the checkpoint that a recovery would use: what a program must allocate
    /// before it protects it. `None` if there is no such checkpoint or variable.
    pub fn stored_bytes(&self, id: u32) -> Option<u64> {
        let record = &self.found.as_ref()?.record;
        record.variable(VariableId(id)).map(|v| v.bytes)
    }

    /// The number that a snapshot's checkpoint gets: one more than the newest.
    pub(crate) fn next_id(&self) -> i64 {
        self.newest_id.map_or(1, |id| id.saturating_add(1))
    }

    /// Whether there were checkpoints of which none can be used.
    pub(crate) fn only_unusable(&self) -> Option<AppError> {
        (self.found.is_none() && !self.refused.is_empty()).then(|| self.nothing())
    }

    /// Where the session stands.
    pub fn status(&self) -> Status {
        let interval = self.measured.interval(&self.config);
        Status {
            busy: self
                .running
                .as_ref()
                .is_some_and(|r| !r.complete && !r.thread.is_finished()),
            interval_seconds: interval,
            waste: interval.and_then(|t| self.measured.waste(&self.config, t)),
            ..self.status.clone()
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Ends the session: waits for what is being written, and removes the job's checkpoints if `remove`
    /// and the configuration does not keep them, for a job that is done. Collective.
    ///
    /// # Errors
    /// Why the last checkpoint failed, or why checkpoints could not be removed.
    pub fn finalize(mut self, remove: bool) -> Result<()> {
        let limit = Duration::from_secs_f64(self.config.deadline);
        let waited = self.join(limit);
        together(&*self.comm, waited)?;
        if remove && !self.config.keep_at_end {
            for site in std::iter::once(&self.local).chain(&self.further) {
                site.prune(u64::MAX, 0)?;
            }
            Keeper::beside(&self.local).prune(self.comm.size(), u64::MAX, 0)?;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A thread that is still writing is let finish: its checkpoint is good.
        if let Some(running) = self.running.take() {
            let _ = running.thread.join();
        }
    }
}

/// The number of the newest checkpoint in any of these places, sound or not.
fn newest<'s>(sites: impl Iterator<Item = &'s Site>) -> Result<u64> {
    let mut newest = 0;
    for site in sites {
        newest = newest.max(site.layout.sequences()?.last().copied().unwrap_or(0));
    }
    Ok(newest)
}

/// Where this rank is, as far as the choice of partners is concerned.
fn node(config: &Config) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    config.node.clone().unwrap_or_else(host)
}

fn late(limit: Duration) -> AppError {
    AppError::Deadline {
        what: "writing the checkpoint",
        seconds: limit.as_secs_f64(),
    }
}

fn describe(target: &Target) -> VariableRecord {
    VariableRecord {
        id: target.variable.id,
        element: target.variable.element,
        bytes: target.variable.memory.bytes(),
    }
}
