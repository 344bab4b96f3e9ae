//! How a capture ends, and what it has cost the program.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use fermata_abi::op::FunctionId;
use fermata_terms::{Stall, Validation};

use super::reference::Reference;
use super::shared::Verdict;
use super::validation;
use crate::files::publish;
use crate::profile::Profile;
use crate::records::Records;
use crate::sink::Sink;
use crate::{EngineError, Summary};

/// What an image is made of.
pub struct Image {
    /// Totals.
    pub summary: Summary,
    /// What it cost.
    pub stall: Stall,
    /// How it was validated.
    pub validation: Validation,
}

/// How a capture has ended.
pub enum Outcome {
    /// The image is complete and durable.
    Complete(Image),
    /// Everything has been copied ahead; the sink takes the rest in the stop.
    Ahead(Ahead),
    /// Mis-speculations have written these buffers before they were copied, or it cannot be ruled out that one has. What was
    /// copied is not lost.
    Overtaken(Ahead, BTreeSet<u64>),
}

/// What has been copied before a stop, which compares all of it.
pub struct Ahead {
    pub(crate) sink: Sink,
    /// What it has cost.
    pub stall: Stall,
    /// How the image that comes of it is validated.
    pub validation: Validation,
    /// Whether the copying was to be an image and was overtaken.
    pub(super) overtaken: bool,
    /// Buffers that were written by what no instrumented kernel has named.
    pub(super) unexplained: BTreeSet<u64>,
    /// Kernels that may have.
    pub(super) suspects: Vec<FunctionId>,
}

/// What the thread needs to make an image of what it has copied.
pub(super) struct Finish {
    /// Its folder.
    pub image: PathBuf,
    /// The session.
    pub records: Records,
    /// Its totals.
    pub summary: Summary,
    /// When it was begun.
    pub start: Instant,
    /// What it is compared with.
    pub reference: Option<Reference>,
}

/// What becomes of a sink whose pieces have been read.
///
/// # Errors
/// There is no image, and nothing was copied that a stop could use.
pub(super) fn conclude(
    verdict: Verdict,
    mut sink: Sink,
    finish: Option<Finish>,
) -> Result<Outcome, EngineError> {
    let Verdict {
        failure,
        yielded,
        stall,
        validation,
        launched,
        used,
    } = verdict;
    let ahead = |sink: Sink, overtaken: Option<&BTreeSet<u64>>| {
        sink.signals().go_on();
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
    let profile = Profile {
        order: used,
        ..Profile::default()
    };
    // Advice: without it data comes in the order of its addresses.
    let _ = profile.store(&finish.image);
    Ok(Outcome::Complete(Image {
        summary,
        stall,
        validation,
    }))
}
