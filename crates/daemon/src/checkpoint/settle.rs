//! Waiting, before a program is stopped, until its device has done what it was given.
//!
//! ```text
//!  all streams held ─┬─ device idle ─► the ring is taken whole, the program parked
//!         ▲          └─ not soon: what it is at is named; those streams stay held, the others go on
//!         └─────────────── that has ended ◄──┘
//! ```
//! The program runs meanwhile. What it issues waits in the worker, and is part of the image.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{WAITING, Waited};
use fermata_control::worker::{FailureKind, FromWorker, Hold, Holding, StreamWork, ToWorker};
use parking_lot::Mutex;

use super::halt::{Halt, workers_of};
use super::settled::Settled;
use crate::failure::{Hint, Result, fail};
use crate::parallel::each_at_once;
use crate::progress::Report;
use crate::session::Served;
use crate::worker::{STEP_TIME, Worker, unexpected};

/// How long all streams are held: what the device has been given takes half of it, unless a piece takes longer.
const SOON: Duration = Duration::from_millis(20);
/// How long what the device is at may take: the program is not stopped meanwhile.
const LONGEST: Duration = Duration::from_secs(300);
/// Between two looks, at first and later.
const TURNS: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(5)];
/// How often it is said what is waited for.
const SAYING: Duration = Duration::from_secs(2);

fn in_words(work: &StreamWork) -> String {
    match work.stream {
        1 => format!("{} on the default stream", work.what),
        stream => format!("{} on stream {stream:#x}", work.what),
    }
}

impl Halt<'_> {
    /// Holds all streams and waits until the device is idle.
    ///
    /// # Errors
    /// `NotCheckpointable` after [`LONGEST`], naming what the device is at; the worker does not answer. Nothing is held
    /// then.
    pub(super) fn settle(
        &self,
        worker: &Worker,
        meanwhile: &(dyn Fn() + Sync),
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<Settled> {
        self.wait_for_device(worker, meanwhile, report)
            .inspect_err(|_| {
                let _ = ask(worker, Hold::Off);
            })
    }

    /// The devices get work again.
    pub(super) fn let_on(&self, served: &[Served]) {
        // A worker that is lost holds nothing any more.
        let off = |worker: Arc<Worker>| ask(&worker, Hold::Off);
        let _ = each_at_once(workers_of(served), "let on", off);
    }

    fn wait_for_device(
        &self,
        worker: &Worker,
        meanwhile: &(dyn Fn() + Sync),
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<Settled> {
        let begun = Instant::now();
        let mut said = begun;
        let mut waited: Option<StreamWork> = None;
        loop {
            if begun.elapsed() >= LONGEST {
                let message = "the program cannot be stopped now: its device does not come to an end of its work";
                return Err(fail(FailureKind::NotCheckpointable, message).hint("try again later"));
            }
            let since = Instant::now();
            let mut holding = ask(worker, Hold::All)?;
            while !holding.idle && since.elapsed() < SOON {
                worker.pause(TURNS[0]);
                holding = ask(worker, Hold::All)?;
            }
            if holding.idle {
                ask(worker, Hold::Closing)?;
                let waited = waited.map(|work| Waited {
                    what: in_words(&work),
                    seconds: begun.elapsed().as_secs_f64(),
                });
                return Ok(Settled { since, waited });
            }
            let long = ask(worker, Hold::Busy)?.busy;
            waited = waited.or_else(|| long.first().cloned());
            let goes_on = |now: &Holding| {
                let same = |it: &&StreamWork| {
                    let mut then = long.iter();
                    then.any(|then| (then.stream, then.count) == (it.stream, it.count))
                };
                now.busy.iter().find(same).cloned()
            };
            while let Some(work) = goes_on(&ask(worker, Hold::Busy)?) {
                let so_far = begun.elapsed();
                if so_far >= LONGEST {
                    let words = in_words(&work);
                    let message = format!(
                        "the program cannot be stopped now: {words} has not ended in {} s",
                        so_far.as_secs()
                    );
                    return Err(fail(FailureKind::NotCheckpointable, message)
                        .hint("try again when it has ended"));
                }
                if said.elapsed() >= SAYING || said == begun {
                    said = Instant::now();
                    let phase = format!("{WAITING} for {}", in_words(&work));
                    report.lock()(&phase, so_far.as_secs(), LONGEST.as_secs());
                }
                // The program runs, and writes its memory.
                meanwhile();
                worker.pause(TURNS[1]);
            }
        }
    }
}

fn ask(worker: &Worker, hold: Hold) -> Result<Holding> {
    match worker.request(&ToWorker::Hold(hold), &[], STEP_TIME, &mut |_, _| {})? {
        FromWorker::Holding(holding) => Ok(holding),
        other => Err(unexpected(&other)),
    }
}
