//! A capture under way: the thread that copies, and what becomes of its copies.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::checker::Checker;
use super::conductor::Conductor;
use super::map::ChunkMap;
use super::outcome::{Ahead, Image, Outcome};
use super::purpose::Purpose;
use super::ready::Prepared;
use super::reference::Reference;
use super::shared::Shared;
use super::validation;
use super::watch::Watch;
use crate::access::Predictor;
use crate::files::Records;
use crate::live::Exposed;
use crate::protocol::stop::publish;
use crate::sink::Sink;
use crate::{EngineError, Gate, Site, Summary};
use fermata_terms::Step;
use fermata_terms::Way;

/// A capture under way.
pub struct Capture {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Outcome, EngineError>>,
    way: Way,
    total: u64,
    pub(super) steps: Vec<Step>,
}

/// What the thread needs to make an image of what it has copied.
pub(super) struct Finish {
    pub image: PathBuf,
    pub records: Records,
    pub summary: Summary,
    pub start: Instant,
    pub reference: Option<Reference>,
}

/// Starts the thread that copies. An image of the start has something to finish with; that of the end is
/// finished by the stop.
pub(super) fn launch(
    site: &mut Site,
    prepared: Prepared,
    map: ChunkMap,
    exposed: Exposed,
    finish: Option<Finish>,
) -> Result<(Capture, Box<dyn Gate>), EngineError> {
    let Prepared {
        way,
        validation,
        sink,
        pools,
        ..
    } = prepared;
    let purpose = match finish {
        Some(_) => Purpose::Start,
        None => Purpose::End,
    };
    let shared = Arc::new(Shared::new(purpose, map, pools, validation, sink.hurry()));
    let (total, validate) = {
        let inner = shared.inner.lock();
        (inner.map.left().bytes, inner.validation.by)
    };
    let predictor = site.live.lasting.take::<Predictor>().unwrap_or_default();
    let checker = validate.by_instrumenting().then(|| Checker::new(site));
    let mut watch = Watch::new(Arc::clone(&shared), exposed, predictor, checker);
    let conductor = Conductor {
        shared: Arc::clone(&shared),
        driver: Arc::clone(&site.live.driver),
        sink,
        hashers: site.live.hashers.clone(),
    };
    let own = Arc::clone(&shared);
    let thread = std::thread::Builder::new()
        .name("capture".to_owned())
        .spawn(move || {
            let begun = Instant::now();
            let sink = conductor.run();
            own.inner.lock().cost.copying = begun.elapsed();
            end(&own, sink, finish)
        });
    match thread {
        Ok(thread) => {
            let capture = Capture {
                shared,
                thread,
                way,
                total,
                steps: Vec::new(),
            };
            Ok((capture, Box::new(watch)))
        }
        Err(error) => {
            shared.end();
            watch.close(site);
            Err(EngineError::Internal(format!(
                "cannot start the thread that copies: {error}"
            )))
        }
    }
}

/// What becomes of a sink whose pieces have been read.
fn end(shared: &Shared, mut sink: Sink, finish: Option<Finish>) -> Result<Outcome, EngineError> {
    let (failure, yielded, stall, validation, launched) = {
        let mut inner = shared.inner.lock();
        let launched = std::mem::take(&mut inner.launched);
        inner.count_wait();
        let mut validation = std::mem::take(&mut inner.validation);
        if let Some(why) = &inner.yielded {
            validation.note.clone_from(why);
        }
        let yielded = inner.yielded.is_some();
        let failure = inner.failure.take();
        let stall = inner.cost.stall();
        (failure, yielded, stall, validation, launched)
    };
    let ahead = |sink, overtaken: Option<&BTreeSet<u64>>| {
        let named: BTreeSet<u64> = validation.misses.iter().map(|miss| miss.buffer).collect();
        let buffers = overtaken.into_iter().flatten().copied();
        Ahead {
            sink,
            stall: stall.clone(),
            overtaken: overtaken.is_some(),
            unexplained: buffers.filter(|buffer| !named.contains(buffer)).collect(),
            suspects: validation::suspects(
                launched.iter().map(|(function, open)| (*function, *open)),
            ),
            validation: validation.clone().compared(),
        }
    };
    let Some(finish) = finish else {
        // Whatever has ended the copying ahead, the stop takes the rest, unless nothing can be written. What
        // is written by then is not copied again.
        if let Err(error) = sink.differing() {
            // The first failure is the one to report.
            return Err(failure.unwrap_or(error));
        }
        return Ok(Outcome::Ahead(ahead(sink, None)));
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    let wrong = sink.differing()?;
    let mut buffers: BTreeSet<u64> = wrong.iter().map(|piece| piece.buffer).collect();
    if validation.fails() {
        let missed = validation.misses.iter().map(|miss| miss.buffer);
        buffers.extend(missed.filter(|buffer| *buffer != 0));
    }
    if yielded || validation.fails() || !buffers.is_empty() {
        return Ok(Outcome::Overtaken(ahead(sink, Some(&buffers)), buffers));
    }
    sink.take_images(finish.records.images());
    let kept = sink.close()?.finish()?;
    if let Some(reference) = &finish.reference {
        reference.compare(&kept.chunks)?;
    }
    let summary = publish(
        &finish.image,
        &finish.records,
        &kept,
        finish.summary,
        finish.start,
    )?;
    Ok(Outcome::Complete(Image {
        summary,
        stall,
        validation,
    }))
}

impl Capture {
    /// How it goes: a snapshot that no longer fits goes as `cow`.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Bytes copied and bytes in all.
    pub fn progress(&self) -> (u64, u64) {
        let moved = self.shared.inner.lock().moved;
        (moved, self.total.max(moved))
    }

    /// What the stop at its begin has spent its time on.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether it has ended, one way or the other.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it early: the program goes on, and there is no image. Copying ahead ends without harm.
    pub fn give_up(&self, why: &str) {
        self.shared.give_up(EngineError::Internal(why.to_owned()));
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// There is no image.
    pub fn join(self) -> Result<Outcome, EngineError> {
        let failed = || EngineError::Internal("the thread that copies has failed".to_owned());
        self.thread.join().map_err(|_| failed())?
    }
}
