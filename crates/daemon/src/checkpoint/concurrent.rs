//! Protocols that copy device memory while the program runs.
//!
//! ```text
//!  snapshot, cow   Prepare ─► stop: Begin, CRIU ─► run ─► Look ... ─► Saved
//!                                                           └► Overtaken ─► stop: Save, CRIU ─► run
//!  recopy          Prepare ─► Ahead ─► Look ... ─► Ahead ─► stop: Save, CRIU ─► run
//! ```
//! (PhoenixOS, sections 4.2 and 4.3.) If a capture is overtaken, a short stop copies the data that has changed since; data that
//! was copied already is not copied again.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Checkpoint, Mode, Then, Totals};
use fermata_control::worker::{FailureKind, FromWorker, Step, ToWorker, Way};
use parking_lot::Mutex;

use super::halt::workers_of;
use super::parts::Parts;
use super::sum::{Progress, longest, sum};
use super::taking::Taking;
use crate::agent::attach::share_chunks;
use crate::failure::{OrFail, Result, fail};
use crate::host::HostCopy;
use crate::images::record;
use crate::parallel::{all_at_once, each_at_once};
use crate::proc::ProcessId;
use crate::progress::Report;
use crate::session::Served;
use crate::worker::{STALL_TIME, STEP_TIME, Worker, unexpected};

/// The time between two looks at a capture.
const TURN: Duration = Duration::from_millis(5);

/// How a capture has ended.
enum Followed {
    Saved(Box<Totals>),
    Ahead,
    Overtaken(u64),
}

fn mode(way: Way) -> Mode {
    match way {
        Way::Snapshot => Mode::Snapshot,
        Way::Cow => Mode::Cow,
        Way::Recopy => Mode::Recopy,
    }
}

impl Taking<'_> {
    /// Prepares the capture while the program runs. `None` if everything has to be copied in the stop.
    pub(super) fn ready(&self, served: &[Served], request: &Checkpoint) -> Result<Option<Way>> {
        let way = match (request.mode, request.then) {
            (Mode::Stop, _) => return Ok(None),
            // The program ends after the checkpoint, so its writes need not be isolated.
            (Mode::Auto, Then::Stop) | (Mode::Recopy, _) => Some(Way::Recopy),
            (Mode::Auto, Then::Run) => None,
            (Mode::Snapshot, _) => Some(Way::Snapshot),
            (Mode::Cow, _) => Some(Way::Cow),
        };
        let prepare = |way| {
            let prepare = ToWorker::Prepare {
                store: self.daemon.paths.store(),
                way,
                pool_bytes: request.pool_bytes,
                validate: request.validate,
            };
            let one = |worker: Arc<Worker>| match ask(&worker, &prepare)? {
                FromWorker::Prepared { way } => Ok(way),
                other => Err(unexpected(&other)),
            };
            self.phases.time("prepare", || {
                all_at_once(workers_of(served), "prepare", one)
            })
        };
        let mut ways = prepare(way)?;
        if ways.contains(&Way::Recopy) && ways.iter().any(|it| *it != Way::Recopy) {
            // Images of the beginning and of the end of the copying do not fit together, so all workers use `recopy`.
            self.abandon(served);
            ways = prepare(Some(Way::Recopy))?;
        }
        Ok(common(&ways))
    }

    /// Copies device memory ahead of the stop. Returns when that began, in seconds since the start of the checkpoint.
    pub(super) fn copy_ahead(&self, served: &[Served], report: &mut Report<'_>) -> Result<f64> {
        let ahead = |worker: Arc<Worker>| begun(ask(&worker, &ToWorker::Ahead)?);
        all_at_once(workers_of(served), "ahead", ahead)?;
        let began = self.phases.seconds();
        let followed = self.follow("ahead", served, report)?;
        match followed.iter().all(|it| matches!(it, Followed::Ahead)) {
            true => Ok(began),
            false => Err(fail(
                FailureKind::Internal,
                "the worker has made an image that nobody has asked for",
            )),
        }
    }

    /// Captures the session as of a stop, and copies its memory while the program runs.
    pub(super) fn behind(
        &self,
        served: &[Served],
        copy: Option<HostCopy>,
        then: Then,
        report: &mut Report<'_>,
    ) -> Result<Parts> {
        let begin = |(at, worker): (usize, Arc<Worker>)| {
            let begin = ToWorker::Begin {
                image: self.folders[at].clone(),
            };
            worker
                .request(&begin, &[], STALL_TIME, &mut |_, _| {})
                .and_then(begun)
        };
        // A snapshot that no longer fits in the stop becomes `cow`.
        let (stop, (way, began)) = self.stop(served, copy, report, |_| {
            let asked = Instant::now();
            let workers = workers_of(served).into_iter().enumerate().collect();
            let begun = all_at_once(workers, "begin", begin)?;
            let (ways, steps): (Vec<Way>, Vec<Vec<Step>>) = begun.into_iter().unzip();
            self.phases.parts("device", asked, &longest(steps));
            let way = common(&ways).unwrap_or(Way::Cow);
            Ok((way, self.phases.seconds()))
        })?;
        let mut parts = Parts {
            copy: stop.copy,
            held: stop.held,
            parked: stop.parked,
            waited: stop.waited,
            began,
            since: Some(stop.since),
            awake: Some(stop.awake),
            saved: true,
            ..Parts::new(stop.record, mode(way))
        };
        if then == Then::Run {
            parts.resume(self.daemon, self.session, &self.phases)?;
            parts.resumed = true;
            parts.count_stop();
            parts.release();
            // Now, not after the capture: it looks at what the program has open.
            self.complete(&mut parts.record)?;
            parts.dumped = true;
        }
        let followed = self.follow("capture", served, report).map(ended);
        match followed {
            Ok(Ended::Saved(totals)) => {
                self.phases
                    .moved("capture", totals.device_bytes + totals.host_bytes);
                parts.device = *totals;
                Ok(parts)
            }
            Ok(Ended::Overtaken(buffers)) if parts.resumed => {
                // Host memory of the first stop belongs to no image any more.
                parts.pages = None;
                self.forget_host()?;
                let copy = self.copy_memory(report);
                let served = self.returned(served)?;
                // What they have claimed is of the first stop.
                share_chunks(self.session, workers_of(&served), false)?;
                let again = self.stopped(&served, copy, parts.mode, report)?;
                Ok(Parts {
                    overtaken: buffers,
                    began,
                    stopped_seconds: parts.stopped_seconds,
                    ..again
                })
            }
            Ok(_) => Err(fail(
                FailureKind::Internal,
                "memory of a program that stood still has changed",
            )),
            Err(failure) => {
                if !parts.resumed {
                    drop(parts.held.take());
                    self.recover(&parts.parked);
                }
                Err(failure)
            }
        }
    }

    /// Looks at the captures of all workers until they have ended.
    fn follow(
        &self,
        phase: &str,
        served: &[Served],
        report: &mut Report<'_>,
    ) -> Result<Vec<Followed>> {
        let report = Mutex::new(report);
        let done = Progress::of(served.len());
        let one = |(at, worker): (usize, Arc<Worker>)| {
            let (mut last, mut since) = (0, Instant::now());
            loop {
                match ask(&worker, &ToWorker::Look)? {
                    FromWorker::Capturing { done: now, total } => {
                        done.report(phase, at, (now, total), &report);
                        if now != last {
                            (last, since) = (now, Instant::now());
                        }
                    }
                    FromWorker::Saved(totals) => return Ok(Followed::Saved(Box::new(totals))),
                    FromWorker::Ahead => return Ok(Followed::Ahead),
                    FromWorker::Overtaken { buffers } => return Ok(Followed::Overtaken(buffers)),
                    other => return Err(unexpected(&other)),
                }
                if since.elapsed() > STALL_TIME {
                    let message = format!("copying has not gone on for {STALL_TIME:?}");
                    return Err(fail(FailureKind::Internal, message));
                }
                // A worker does not say by itself how far it is; its loss ends the pause.
                worker.pause(TURN);
            }
        };
        let workers = workers_of(served).into_iter().enumerate().collect();
        self.phases
            .time(phase, || all_at_once(workers, "follow", one))
    }

    /// The same processes as they are connected now: each has come back from the stop with a connection of its own.
    fn returned(&self, served: &[Served]) -> Result<Vec<Served>> {
        let now = self.session.lock().served();
        let processes =
            |it: &[Served]| -> Vec<ProcessId> { it.iter().map(|it| it.agent.process).collect() };
        if processes(&now) == processes(served) {
            return Ok(now);
        }
        let ended = processes(served).into_iter().find(ProcessId::is_ending);
        Err(match ended {
            Some(it) => fail(
                FailureKind::NotFound,
                format!("process {} has ended", it.pid),
            ),
            None => fail(
                FailureKind::Internal,
                "other processes than before use CUDA in the session",
            ),
        })
    }

    /// The host part of the first stop belongs to no image any more; workers that were not overtaken write theirs anew.
    fn forget_host(&self) -> Result<()> {
        let log = self.draft.path().join(record::LOG);
        let gone = || format!("cannot remove `{}`", log.display());
        fs::remove_file(&log).or_fail(FailureKind::Internal, gone)?;
        self.empty_host()
    }

    /// Nothing comes of it: the workers give back what they hold for it.
    pub(super) fn abandon(&self, served: &[Served]) {
        // A worker that is lost holds nothing any more.
        let give_up = |worker: Arc<Worker>| ask(&worker, &ToWorker::Abandon);
        let _ = each_at_once(workers_of(served), "abandon", give_up);
    }
}

/// What all workers together have come to.
enum Ended {
    Saved(Box<Totals>),
    Ahead,
    /// So many buffers of all of them were.
    Overtaken(u64),
}

fn ended(all: Vec<Followed>) -> Ended {
    let (mut totals, mut overtaken) = (Vec::new(), None);
    for one in all {
        match one {
            Followed::Saved(one) => totals.push(*one),
            Followed::Overtaken(buffers) => overtaken = Some(overtaken.unwrap_or(0) + buffers),
            Followed::Ahead => return Ended::Ahead,
        }
    }
    match overtaken {
        Some(buffers) => Ended::Overtaken(buffers),
        None => Ended::Saved(Box::new(sum(totals))),
    }
}

/// The way of a capture whose workers go these ways: what one does without being asked to copy aside, another may need.
fn common(ways: &[Way]) -> Option<Way> {
    let by_cow = ways.iter().find(|it| **it == Way::Cow);
    by_cow.or(ways.first()).copied()
}

fn ask(worker: &Worker, request: &ToWorker) -> Result<FromWorker> {
    worker.request(request, &[], STEP_TIME, &mut |_, _| {})
}

fn begun(answer: FromWorker) -> Result<(Way, Vec<Step>)> {
    match answer {
        FromWorker::Begun { way, steps } => Ok((way, steps)),
        other => Err(unexpected(&other)),
    }
}
