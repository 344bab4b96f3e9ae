//! The protocol `stop`: copies everything while the session stands still. The reference for the other protocols.
//!
//! ```text
//!  capture:  device ─ hash ─► sink (copies what the store lacks)     the program stands still
//!  finish:   sink behind: hash again, write, publish ─► image        the program may go on
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata_store::{Store, moments};

use super::{Piece, Source, pieces};
use crate::capture::Ahead;
use crate::digest::{self, Hashed, Seals};
use crate::files::publish;
use crate::records::Records;
use crate::sink::{Behind, Order, Sink};
use crate::steps::Steps;
use crate::{EngineError, Live, Progress, Site, Summary, variables};
use fermata_terms::Step;

/// A session whose bytes have been read; see [`capture`].
pub struct Captured {
    behind: Behind,
    records: Records,
    image: PathBuf,
    summary: Summary,
    start: Instant,
    steps: Vec<Step>,
}

/// Saves the session into `image` (an existing folder) and `store`. Every stream must be idle, and no operation under
/// way. The session is unchanged afterwards.
///
/// # Errors
/// [`EngineError`]; the store then holds nothing new, and what is in the folder is no image.
pub fn save(
    site: &mut Site,
    store: &Store,
    image: &Path,
    progress: Progress<'_>,
) -> Result<Summary, EngineError> {
    capture(site, store, None, image, progress)?.finish()
}

/// The first part of [`save`]: reads all bytes, so that the session may go on. The rest needs no device. Pieces that were
/// copied `ahead` are copied again only if they have changed.
///
/// # Errors
/// As [`save`].
pub fn capture(
    site: &mut Site,
    store: &Store,
    ahead: Option<Ahead>,
    image: &Path,
    progress: Progress<'_>,
) -> Result<Captured, EngineError> {
    let start = Instant::now();
    let mut steps = Steps::since(start);
    if let Some(ahead) = &ahead {
        ahead.teach(site);
    }
    moments::pass("stopped");
    settle(&mut site.live)?;
    variables::discover(site)?;
    site.live.check_shared(&mut site.session)?;
    let records = Records::encode(image, &site.session)?;
    let exposed = site.live.expose(&site.session)?;
    let taken = pieces(&site.session, &exposed.addresses)
        .and_then(|plan| take(&mut site.live, store, ahead, &plan, progress, &mut steps));
    site.live.forget_current();
    let concealed = site.live.conceal(exposed);
    let mut sink = taken?;
    concealed?;
    sink.take_images(records.images());
    Ok(Captured {
        behind: sink.close()?,
        records,
        image: image.to_owned(),
        summary: Summary::of(&site.session),
        start,
        steps: steps.list(),
    })
}

impl Captured {
    /// The steps of the stop, with their times.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The rest of [`save`]. Blocks until chunks and image folder are durable; any thread may call it.
    ///
    /// # Errors
    /// As [`save`].
    pub fn finish(self) -> Result<Summary, EngineError> {
        // Chunks are published before anything refers to them.
        let kept = self.behind.finish()?;
        publish(&self.image, &self.records, &kept, self.summary, self.start)
    }
}

/// Waits until every context is idle; a failed one cannot be saved.
pub(crate) fn settle(live: &mut Live) -> Result<(), EngineError> {
    live.settle()
        .map_err(|(context, source)| EngineError::Context { context, source })
}

/// Reads everything in `plan`, into a sink that has yet to be closed.
fn take(
    live: &mut Live,
    store: &Store,
    ahead: Option<Ahead>,
    plan: &[Piece],
    progress: Progress<'_>,
    steps: &mut Steps,
) -> Result<Sink, EngineError> {
    let begun = Instant::now();
    let again = match &ahead {
        // Only pieces that differ from what was copied ahead have to be copied.
        Some(_) if !live.device_hashes => Some(digest::by_copy(live, plan)?),
        _ => None,
    };
    let mut hashing = match &again {
        Some(_) => begun.elapsed(),
        None => Duration::ZERO,
    };
    let mut sink = match ahead {
        Some(Ahead { mut sink, .. }) => {
            // Copying ahead was meant to make the stop short.
            sink.signals().hurry(true);
            sink.renew(live, plan)?;
            sink
        }
        None => Sink::open(live, store, plan)?,
    };
    let on_host = |piece: &Piece| matches!(piece.source, Source::Host { .. });
    let hosts: Vec<Piece> = plan.iter().copied().filter(on_host).collect();
    let done = AtomicU64::new(0);
    let total: u64 = plan.iter().map(|piece| piece.len as u64).sum();
    let count = |piece: &Piece| {
        let bytes = piece.len as u64;
        progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
    };
    progress(0, total);
    let (from, hashed, copied) = (Instant::now(), hashing, sink.copied());
    let key = match again {
        Some(_) => None,
        None => sink.seal(),
    };
    let lacks = sink.lacks();
    let seals = key.as_deref().map(|key| Seals {
        key,
        copied: &lacks,
    });
    let mut take = |known: &mut dyn Iterator<Item = Hashed>| {
        // Counts hashing before the first copy, and hashing that copies had to wait for.
        hashing += from.elapsed();
        let known = std::iter::from_fn(|| {
            let asked = Instant::now();
            let next = known.next();
            hashing += asked.elapsed();
            next
        });
        let mut orders = plan
            .iter()
            .zip(known)
            .filter(|(piece, _)| !on_host(piece))
            .map(|(piece, (digest, seal))| Order {
                piece: *piece,
                digest,
                seal,
            });
        sink.take(&mut orders, &mut |piece| count(piece))
    };
    match again {
        Some(digests) => take(&mut digests.into_iter().map(|digest| (digest, None))),
        None => digest::in_parts(live, plan, seals, take),
    }?;
    let copying = from.elapsed().saturating_sub(hashing - hashed);
    let shared = Instant::now();
    sink.take_host(&live.hosts, &hosts, &count)?;
    let host_bytes = hosts.iter().map(|piece| piece.len as u64).sum();
    if live.device_hashes || hashed > Duration::ZERO {
        steps.spent("hash", begun, hashing, total - host_bytes);
    }
    steps.spent("copy", from, copying, sink.copied() - copied);
    if !hosts.is_empty() {
        steps.add("shared", shared, host_bytes);
    }
    sink.mend()?;
    Ok(sink)
}
