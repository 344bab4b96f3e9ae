//! Ends a checkpoint: lets the program go on, writes what the workers have read, and commits the draft as an image.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fermata_control::user::{Checkpointed, Then, Totals};
use fermata_control::worker::{FailureKind, FromWorker, ToWorker};
use parking_lot::Mutex;
use tracing::warn;

use super::host::NOT_STORED;
use super::image::{describe, folder_bytes};
use super::parts::Parts;
use super::sum::{Progress, sum};
use super::taking::Taking;
use crate::agent::bring_back::{Parked, bring_back};
use crate::criu::dump::HeldTree;
use crate::daemon::Daemon;
use crate::failure::{Hint, Result, fail, from_store};
use crate::helpers::namespace;
use crate::host::{pages, stored};
use crate::parallel::all_at_once;
use crate::phases::Phases;
use crate::progress::Report;
use crate::session::Session;
use crate::worker::unexpected;

/// How long a worker may take to hash and sync what it has read.
const FINISH_TIME: Duration = Duration::from_secs(600);
/// How long a program may take to end after a checkpoint that stops it for good.
const STOP_TIME: Duration = Duration::from_secs(15);

impl Parts {
    /// Lets the program go on, unless it does.
    pub(super) fn resume(
        &self,
        daemon: &Arc<Daemon>,
        session: &Arc<Session>,
        phases: &Phases,
    ) -> Result<()> {
        match self.resumed {
            false => phases.time("reattach", || bring_back(daemon, session, &self.parked)),
            true => Ok(()),
        }
    }

    /// Waits until the workers have written what they have read.
    fn finish(&mut self, report: &mut Report<'_>) -> Result<()> {
        if !self.saved {
            self.device = finished(&self.parked, report)?;
        }
        Ok(())
    }
}

impl Taking<'_> {
    /// Lets the program go on, then finishes and commits the image; or finishes, commits, and ends the program (`Then::Stop`).
    pub(super) fn finish(
        self,
        mut parts: Parts,
        then: Then,
        report: &mut Report<'_>,
    ) -> Result<Checkpointed> {
        let resumed = match then {
            Then::Run => parts.resume(self.daemon, self.session, &self.phases),
            Then::Stop => Ok(()),
        };
        parts.count_stop();
        parts.release();
        let completed = match parts.dumped {
            true => Ok(()),
            false => self.complete(&mut parts.record),
        };
        let Self {
            daemon,
            session,
            criu,
            mut draft,
            root,
            phases,
            folders,
            ..
        } = self;
        let mut host_bytes = 0;
        // Workers that are still writing are waited for, whatever has become of the rest.
        let committed = phases
            .time("finish", || parts.finish(report))
            .and(completed)
            .and_then(|()| check_chunks(daemon, &folders))
            .and_then(|()| match parts.pages.take() {
                Some(pages) => phases.time("settle", || pages.settle(&draft.host())),
                None => Ok(Vec::new()),
            })
            .and_then(|settled| {
                pages::hand_on(&namespace::work_folder(&session.dir), &draft.host());
                report("pages", 0, 0);
                let put = phases.time("pages", || stored::store(&draft, &settled))?;
                host_bytes = folder_bytes(&draft.host()) + put.bytes;
                phases.moved("host", host_bytes);
                phases.moved("pages", put.new_bytes);
                parts.memory = put;
                report("commit", 0, 0);
                // The manifest has the time of this first part of the step; the answer has the time of the whole step.
                phases
                    .time("commit", || draft.seal())
                    .map_err(|e| from_store(&e))?;
                parts.device.stall.timeline.start = parts.began;
                let manifest = describe(session, &criu, root, &parts, &phases)?;
                phases
                    .time("commit", || draft.commit(manifest))
                    .map_err(|e| from_store(&e))
            });
        let image = match committed {
            Ok(image) => image.dir().to_owned(),
            Err(failure) => {
                drop(parts.held.take());
                if let Err(first) = resumed {
                    warn!(session = %session.name, "nor is there an image: {}", failure.message);
                    return Err(first);
                }
                if then == Then::Stop {
                    parts.resume(daemon, session, &phases)?;
                }
                return Err(failure);
            }
        };
        if let Err(failure) = resumed {
            let message = format!("the program cannot go on: {}", failure.message);
            let hint = format!(
                "its image is complete: `fermata restore {}`",
                image.display()
            );
            return Err(fail(failure.kind, message).hint(hint));
        }
        if then == Then::Stop {
            end(session, parts.held.take())?;
        }
        Ok(Checkpointed {
            session: session.name.clone(),
            image,
            mode: parts.mode,
            running: then == Then::Run && parts.paused.is_none(),
            paused: then == Then::Run && parts.paused.is_some(),
            device: parts.device,
            host_bytes,
            stopped_seconds: parts.stopped_seconds,
            seconds: phases.seconds(),
            phases: phases.list(),
            overtaken: parts.overtaken,
            waited: parts.waited,
            foreign: None,
        })
    }

    /// Brings the program back after a failure.
    pub(super) fn recover(&self, parked: &[Parked]) {
        // The first failure is reported; `ps` shows the effect of this one.
        let _ = bring_back(self.daemon, self.session, parked);
    }
}

/// Checks that the parts of several workers lack no chunk: each has counted on others to store what they have in common.
fn check_chunks(daemon: &Daemon, parts: &[PathBuf]) -> Result<()> {
    if parts.len() < 2 {
        return Ok(());
    }
    let store = daemon.store()?;
    parts.iter().try_for_each(|part| {
        let checked = store.check_part(part).map_err(|e| from_store(&e));
        checked.map(drop).map_err(|failure| {
            let message = format!("{}, {NOT_STORED}", failure.message);
            fail(FailureKind::Internal, message).hint("take the checkpoint again")
        })
    })
}

/// Ends a program whose image is complete.
fn end(session: &Session, held: Option<HeldTree>) -> Result<()> {
    if !session.ends_held(held, STOP_TIME) {
        let message = format!(
            "the image is complete, but session `{}` does not end",
            session.name
        );
        return Err(fail(FailureKind::Internal, message));
    }
    Ok(())
}

/// Waits until the workers of these processes have written what they have read; returns the totals.
///
/// # Errors
/// The first failure of a worker.
pub(crate) fn finished(parked: &[Parked], report: &mut Report<'_>) -> Result<Totals> {
    let report = Mutex::new(report);
    let done = Progress::of(parked.len());
    let finish = |(at, it): (usize, &Parked)| {
        let mut progress = |now, total| done.report("finish", at, (now, total), &report);
        let finish = ToWorker::Finish;
        match it
            .worker
            .request(&finish, &[], FINISH_TIME, &mut progress)?
        {
            FromWorker::Saved(totals) => Ok(totals),
            other => Err(unexpected(&other)),
        }
    };
    let parked = parked.iter().enumerate().collect();
    Ok(sum(all_at_once(parked, "finish", finish)?))
}
