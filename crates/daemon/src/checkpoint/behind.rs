//! Protocols that copy device memory while the program runs.
//!
//! ```text
//!  snapshot, cow   Prepare ─► stop: Begin, CRIU ─► run ─► Look ... ─► Saved
//!                                                           └► Overtaken ─► stop: Save, CRIU ─► run
//!  recopy          Prepare ─► Ahead ─► Look ... ─► Ahead ─► stop: Save, CRIU ─► run
//! ```
//! (PhoenixOS, sections 4.2 and 4.3.) A program that was overtaken is stopped for what has changed since;
//! what was copied already is not copied again.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Checkpoint, Mode, Then, Totals};
use fermata_control::worker::{FailureKind, FromWorker, Step, ToWorker, Way};

use super::{Parts, Report, Taking, bring_back};
use crate::failure::{OrFail, Result, fail};
use crate::record;
use crate::worker::{STALL_TIME, STEP_TIME, Worker, unexpected};

/// Between two looks at a capture.
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
    /// Makes ready what can be while the program runs; `None` if it has to be stopped for everything.
    pub(super) fn ready(&self, worker: &Worker, request: &Checkpoint) -> Result<Option<Way>> {
        let way = match (request.mode, request.then) {
            (Mode::Stop, _) => return Ok(None),
            // A program that ends anyway need not be kept from writing.
            (Mode::Auto, Then::Stop) | (Mode::Recopy, _) => Some(Way::Recopy),
            (Mode::Auto, Then::Run) => None,
            (Mode::Snapshot, _) => Some(Way::Snapshot),
            (Mode::Cow, _) => Some(Way::Cow),
        };
        let prepare = ToWorker::Prepare {
            store: self.daemon.paths.store(),
            way,
            pool_bytes: request.pool_bytes,
            validate: request.validate,
        };
        match self.phases.time("prepare", || ask(worker, &prepare))? {
            FromWorker::Prepared { way } => Ok(Some(way)),
            other => Err(unexpected(&other)),
        }
    }

    /// Copies what can be copied before the stop.
    /// The answer is when that began, in seconds.
    pub(super) fn copy_ahead(&self, worker: &Worker, report: &mut Report<'_>) -> Result<f64> {
        begun(ask(worker, &ToWorker::Ahead)?)?;
        let began = self.phases.seconds();
        match self.follow("ahead", worker, report)? {
            Followed::Ahead => Ok(began),
            Followed::Saved(_) | Followed::Overtaken(_) => Err(fail(
                FailureKind::Internal,
                "the worker has made an image that nobody has asked for",
            )),
        }
    }

    /// Takes the session as a stop finds it, and copies it behind the running program.
    pub(super) fn behind(
        &self,
        worker: &Arc<Worker>,
        then: Then,
        report: &mut Report<'_>,
    ) -> Result<Parts> {
        let begin = ToWorker::Begin {
            image: self.draft.path().to_owned(),
        };
        // What did not fit any more in the stop goes another way than was planned.
        let (stop, (way, began)) = self.stop(worker, report, |_| {
            let asked = Instant::now();
            let (way, steps) = worker
                .request(&begin, &[], STALL_TIME, &mut |_, _| {})
                .and_then(begun)?;
            self.phases.parts("device", asked, &steps);
            Ok((way, self.phases.seconds()))
        })?;
        let mut parts = Parts {
            record: stop.record,
            device: Totals::default(),
            worker: Some((Arc::clone(worker), stop.detached)),
            mode: mode(way),
            overtaken: 0,
            waited: stop.waited,
            began,
            stopped_seconds: 0.0,
            since: Some(stop.since),
            resumed: false,
            saved: true,
        };
        if then == Then::Run {
            self.phases.time("reattach", || {
                bring_back(self.daemon, self.session, worker, stop.detached)
            })?;
            parts.resumed = true;
            parts.count_stop();
        }
        let followed = self.follow("capture", worker, report);
        match followed {
            Ok(Followed::Saved(totals)) => {
                self.phases
                    .moved("capture", totals.device_bytes + totals.host_bytes);
                parts.device = *totals;
                Ok(parts)
            }
            Ok(Followed::Overtaken(buffers)) if parts.resumed => {
                self.forget_host()?;
                let again = self.stopped(worker, parts.mode, report)?;
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
                    self.recover(worker, stop.detached);
                }
                Err(failure)
            }
        }
    }

    /// Looks at a capture until it has ended.
    fn follow(&self, phase: &str, worker: &Worker, report: &mut Report<'_>) -> Result<Followed> {
        self.phases.time(phase, || {
            let (mut last, mut since) = (0, Instant::now());
            loop {
                match ask(worker, &ToWorker::Look)? {
                    FromWorker::Capturing { done, total } => {
                        report(phase, done, total);
                        if done != last {
                            (last, since) = (done, Instant::now());
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
                std::thread::sleep(TURN);
            }
        })
    }

    /// The host part of the first stop belongs to no image any more.
    fn forget_host(&self) -> Result<()> {
        let host = self.draft.host();
        let forget = || {
            fs::remove_file(self.draft.path().join(record::LOG))?;
            for entry in fs::read_dir(&host)? {
                fs::remove_file(entry?.path())?;
            }
            Ok(())
        };
        let forgotten: std::io::Result<()> = forget();
        forgotten.or_fail(FailureKind::Internal, || {
            format!("cannot empty `{}`", host.display())
        })
    }

    /// Nothing comes of it: the worker gives back what it holds for it.
    pub(super) fn abandon(&self, worker: &Worker) {
        // A worker that is lost holds nothing any more.
        let _ = ask(worker, &ToWorker::Abandon);
    }
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
