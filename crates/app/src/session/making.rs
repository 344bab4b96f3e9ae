//! Making checkpoints: captured and written on a thread of their own, given to other ranks, waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::Session;
use super::job::{Job, Outcome, Progress};
use super::running::Running;
use crate::capture::offers::exchange;
use crate::checkpoint::record::{Record, VariableRecord};
use crate::levels::level::Newest;
use crate::levels::peers::Behind;
use crate::ranks::comm::{together, words};
use crate::ranks::roll::{Call, roll};
use crate::status::CheckpointReport;
use crate::target::Target;
use crate::{AppError, Level, Result};

impl Session {
    /// Makes a checkpoint with the program's number `id`. Returns when all data is captured, or when all
    /// of it is written if the configuration says so. One that is still being written is waited for.
    /// Collective.
    ///
    /// # Errors
    /// Any; there is no new checkpoint then, and the older ones are intact.
    pub fn checkpoint(&mut self, id: i64, level: Level) -> Result<()> {
        self.own("make a checkpoint")?;
        let ready = self.settle(self.deadline());
        let ready = ready.and_then(|()| self.offers(level));
        roll(&*self.comm, Call::Checkpoint { id, level }, 0)?;
        together(&*self.comm, ready)?;
        let complete = self.confirm()?;
        self.sequence += 1;
        self.newest_id = Some(id);
        let begun = Instant::now();
        let behind = self.behind(level);
        let mut made = self.start(id, level, complete, behind.clone());
        if behind.is_none() && matches!(level, Level::Partner | Level::Erasure) {
            made = self.spread(made, level, begun);
        }
        if let Err(e) = &made {
            self.failure(e);
        }
        made
    }

    /// Learns which checkpoints all ranks have, by level, and brings all to the same number. `None` for a single
    /// rank, which has what is there. Collective.
    fn confirm(&mut self) -> Result<Option<Newest>> {
        if let Some(objects) = &self.objects {
            self.sequence = self.sequence.max(objects.highest());
        }
        if self.comm.size() == 1 {
            return Ok(None);
        }
        let [first, second, third, fourth, fifth] = self.done.words();
        let mine = [self.sequence, first, second, third, fourth, fifth];
        let said = words(&*self.comm, mine)?;
        let highest = said.iter().map(|[sequence, ..]| *sequence).max();
        self.sequence = highest.unwrap_or(self.sequence);
        let done = said.into_iter().map(|[_, a, b, c, d, e]| [a, b, c, d, e]);
        let done: Vec<_> = done.map(Newest::from_words).collect();
        self.complete.learn(&done);
        Ok(Some(self.complete))
    }

    /// Whether a checkpoint of this level can be made here.
    fn offers(&self, level: Level) -> Result<()> {
        self.config.offers(level)?;
        match (&self.peers, level) {
            (Some(peers), _) => peers.check(level),
            (None, Level::Partner | Level::Erasure) => Err(AppError::Level {
                level: level.number(),
                name: level.name(),
                what: "needs a job of two ranks or more",
            }),
            (None, _) => Ok(()),
        }
    }

    /// How ranks work together on the next checkpoint behind the program, if they must and can.
    fn behind(&self, level: Level) -> Option<Behind> {
        let (peers, comm) = (self.peers.as_ref()?, self.beside.as_ref()?);
        let together = match level {
            Level::Local => false,
            Level::Partner | Level::Erasure | Level::Shared => self.config.background,
            // Its thread has the second channel to itself while the program waits.
            Level::Object => true,
        };
        together.then(|| Behind {
            peers: Arc::clone(peers),
            comm: Arc::clone(comm),
            level,
            sequence: self.sequence,
        })
    }

    /// Waits for the local checkpoint on all ranks and gives each to other ranks before the program goes on,
    /// for message passing that belongs to the program's thread.
    fn spread(&mut self, started: Result<()>, level: Level, begun: Instant) -> Result<()> {
        let local = started.and_then(|()| self.join(self.deadline()));
        if let Some(peers) = &self.peers {
            peers.spread(&*self.comm, level, self.sequence, local)?;
            self.done.set(level, self.sequence);
        }
        self.held_since(begun);
        Ok(())
    }

    fn start(
        &mut self,
        id: i64,
        level: Level,
        complete: Option<Newest>,
        behind: Option<Behind>,
    ) -> Result<()> {
        let begun = Instant::now();
        let limit = self.deadline();
        let started = self.set_off(id, level, complete, behind.clone());
        let captured = self.until_captured(limit);
        let abandoned = match (started, behind) {
            (Ok(abandoned), _) => abandoned,
            // The other ranks wait for what this one has to say.
            (Err(e), Some(behind)) => return behind.run(Err(e)),
            (Err(e), None) => return Err(e),
        };
        let captured = captured?;
        if captured == Err(RecvTimeoutError::Timeout) {
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

    /// Waits until the program may go on. Meanwhile ranks that share their devices' room tell each other what they
    /// need: every one of them once, whatever becomes of its checkpoint.
    fn until_captured(&self, limit: Duration) -> Result<std::result::Result<(), RecvTimeoutError>> {
        let until = Instant::now() + limit;
        let mut told = !self.shares;
        let captured = loop {
            let Some(running) = &self.running else {
                break Ok(());
            };
            let left = until.saturating_duration_since(Instant::now());
            match running.progress.recv_timeout(left) {
                Ok(Progress::Offers(mine, reply)) => {
                    told = true;
                    // Who has asked may have given up.
                    let _ = reply.send(exchange(&*self.comm, &mine));
                }
                Ok(_) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        if !told {
            exchange(&*self.comm, &[])?;
        }
        Ok(captured)
    }

    /// Starts the thread that makes a checkpoint; what tells it that the program waits no more.
    fn set_off(
        &mut self,
        id: i64,
        level: Level,
        complete: Option<Newest>,
        behind: Option<Behind>,
    ) -> Result<Arc<AtomicBool>> {
        let targets = self.locate_all(false)?;
        let record = Record {
            job: self.config.name.clone(),
            sequence: self.sequence,
            id,
            run: self.run,
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
            objects: self.objects.clone().filter(|_| level == Level::Object),
            shares: self.shares,
            behind,
            gpu: self.gpu.clone(),
            plain: self.plain.clone(),
            abandoned: Arc::clone(&abandoned),
            peers: self.peers.clone(),
            complete,
        };
        let job_behind = job.behind.is_some();
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
            level,
            behind: job_behind,
            abandoned: Arc::clone(&abandoned),
            complete: false,
            report: CheckpointReport {
                id,
                level: level.number(),
                bytes,
                ..CheckpointReport::default()
            },
        });
        Ok(abandoned)
    }

    /// The program was held since `begun` for the newest checkpoint.
    fn held_since(&mut self, begun: Instant) {
        if let Some(last) = &mut self.status.last {
            last.blocked_seconds = begun.elapsed().as_secs_f64();
            last.total_seconds = last.total_seconds.max(last.blocked_seconds);
        }
    }

    /// Waits until nothing is at work any more, at most `limit`, and notes how it ended.
    pub(super) fn settle(&mut self, limit: Duration) -> Result<()> {
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
                Ok(Progress::Captured | Progress::Offers(..)) => {}
                Ok(Progress::Stored) => self.stored(),
                Ok(Progress::Complete(outcome)) => self.enter(outcome),
                Err(RecvTimeoutError::Disconnected) => return self.join(limit),
                Err(RecvTimeoutError::Timeout) => return Err(late(limit)),
            }
        }
        Ok(())
    }

    /// Waits until the running checkpoint's thread has ended: it is there, and old ones are gone.
    pub(super) fn join(&mut self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        while let Some(running) = &self.running {
            let left = until.saturating_duration_since(Instant::now());
            match running.progress.recv_timeout(left) {
                Ok(Progress::Captured | Progress::Offers(..)) => {}
                Ok(Progress::Stored) => self.stored(),
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

    /// A checkpoint is there at the first level.
    fn stored(&mut self) {
        if let Some(running) = &self.running {
            self.done.set(Level::Local, running.sequence);
            self.numbers.insert(running.report.id, running.sequence);
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
        report.moved_seconds = outcome.moved.seconds;
        report.predicted_seconds = outcome.moved.predicted;
        // Without a channel behind the program its neighbours get it only afterwards.
        let alone = matches!(running.level, Level::Partner | Level::Erasure) && !running.behind;
        if !alone {
            self.done.set(running.level, running.sequence);
        }
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
