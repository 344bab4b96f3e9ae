//! Loads the content that must be present before the program runs: helpers read and check chunks, one thread copies
//! them to the device.
//!
//! ```text
//!  registered pack ─────────────────► copy to the device ─► hashed there; if the hash is wrong, read again:
//!  store ─ read, hash ─► pinned buffers ─► queue ─► copy to the device
//!                    └─► host regions directly
//! ```
//! Pieces without a chunk were zero. A piece counts as restored only when its hash has been verified, on the device or
//! before the copy.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use fermata_device::{Direction, HostEnd, InFlight, PinnedPool};
use fermata_store::image::ChunkTable;
use fermata_store::{ChunkId, ChunkReader};

use crate::digest::{self, Digest};
use crate::pipeline::{Next, Queue, STEP_LIMIT, help, helpers};
use crate::protocol::{Engines, Piece, Source, pieces};
use crate::restore::blocks::Blocks;
use crate::restore::loading::chunks_by_place::{ChunksByPlace, by_place};
use crate::restore::loading::variables::Filled;
use crate::steps::Steps;
use crate::{CHUNK, EngineError, Live, Progress, Site};

const IN_FLIGHT: usize = 8;
/// Up to this many pieces get buffers of their own instead of the staging buffers.
const FEW: usize = 4;
/// Lengths of such buffers are multiples of this.
const PAGE_BYTES: usize = 4096;
/// Copies under way at once when no staging buffer is used.
const STRAIGHT: usize = 32;

/// A piece and the chunk it is filled from.
type Stored = (Piece, ChunkId);

/// A piece whose bytes have been read and checked.
struct Ready {
    piece: Piece,
    end: HostEnd,
}

/// Fills every buffer that is not in an on-demand block and not `filled` ahead, and gives on-demand blocks their pieces.
/// Returns the number of chunks.
pub(in crate::restore) fn fill(
    site: &mut Site,
    reader: &ChunkReader,
    table: &ChunkTable,
    (late, filled): (&mut Blocks, &Filled),
    (progress, steps): (Progress<'_>, &mut Steps),
) -> Result<u64, EngineError> {
    let from = Instant::now();
    let exposed = site.live.expose(&site.session)?;
    let mut plan = pieces(&site.session, &exposed.addresses)?;
    plan.retain(|piece| !filled.has(&(piece.buffer, piece.offset)));
    let mut chunks = by_place(table);
    chunks.retain(|place, _| !filled.has(place));
    let plan = late.claim(plan, &chunks)?;
    for (piece, _) in late.all().iter().flat_map(|it| &it.stored) {
        chunks.remove(&(piece.buffer, piece.offset));
    }
    steps.add("now.plan", from, 0);
    let filled = steps.time("now.copy", || {
        transfer(&mut site.live, reader, &chunks, &plan, progress)
    });
    site.live.forget_current();
    site.live.conceal(exposed)?;
    filled?;
    Ok(table.records().len() as u64)
}

fn transfer(
    live: &mut Live,
    reader: &ChunkReader,
    by_place: &ChunksByPlace,
    plan: &[Piece],
    progress: Progress<'_>,
) -> Result<(), EngineError> {
    let stored: Vec<Stored> = plan
        .iter()
        .filter_map(|piece| {
            let (length, id) = by_place.get(&(piece.buffer, piece.offset))?;
            (*length as usize == piece.len).then_some((*piece, *id))
        })
        .collect();
    if stored.len() != by_place.len() {
        return Err(EngineError::Damaged(
            "its chunks do not match the pieces of its buffers".to_owned(),
        ));
    }
    let mut engines = Engines::new(live.reach(), Direction::ToDevice);
    let absent = plan
        .iter()
        .filter(|piece| !by_place.contains_key(&(piece.buffer, piece.offset)));
    let zero: Vec<Piece> = absent.copied().collect();
    clear(live, &mut engines, &zero)?;
    let total = stored.iter().map(|(piece, _)| piece.len as u64).sum();
    let done = AtomicU64::new(0);
    let count = |bytes: u64| progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
    progress(0, total);
    let (direct, rest) = straight(live, &mut engines, reader, stored, &count)?;
    read_all(live, &mut engines, reader, &rest, &count)?;
    engines.settle()?;
    let again = not_right(live, direct);
    read_all(live, &mut engines, reader, &again, &|_| {})?;
    engines.settle()
}

/// Clears the pieces that were zero. The driver fills no arrays, and what a new one holds is not defined: a buffer of zeros
/// is copied to it.
fn clear(live: &mut Live, engines: &mut Engines, zero: &[Piece]) -> Result<(), EngineError> {
    let of_array = |piece: &&Piece| matches!(piece.source, Source::Array { .. });
    for piece in zero.iter().filter(|piece| !of_array(piece)) {
        engines.zero(piece)?;
    }
    let arrays = || zero.iter().filter(of_array);
    let Some(longest) = arrays().map(|piece| piece.len).max() else {
        return Ok(());
    };
    let failed = || EngineError::driver("make a buffer of zeros");
    live.enter_any().map_err(failed())?;
    let bytes = longest.next_multiple_of(PAGE_BYTES);
    let pool = PinnedPool::new(&live.driver, 1, bytes).map_err(failed())?;
    for piece in arrays() {
        let mut buffer = pool.take(STEP_LIMIT).ok_or_else(no_buffer)?;
        buffer[..piece.len].fill(0);
        let copy = engines.start(piece, buffer)?;
        drop(engines.finish(piece, copy)?);
    }
    Ok(())
}

fn no_buffer() -> EngineError {
    EngineError::Internal("no staging buffer comes back".to_owned())
}

/// Copies pieces that lie in the registered tier, for a device that verifies hashes itself. Returns the pieces that have
/// been copied, and those that must be read.
fn straight(
    live: &Live,
    engines: &mut Engines,
    reader: &ChunkReader,
    stored: Vec<Stored>,
    count: &dyn Fn(u64),
) -> Result<(Vec<Stored>, Vec<Stored>), EngineError> {
    let Some(tier) = live.tier.as_ref().filter(|_| live.device_hashes) else {
        return Ok((Vec::new(), stored));
    };
    let (mut direct, mut rest) = (Vec::new(), Vec::new());
    let mut flying: VecDeque<(Piece, InFlight)> = VecDeque::new();
    for (piece, id) in stored {
        let plain =
            matches!(piece.source, Source::Device { address, .. } if address.is_multiple_of(16));
        let span = match plain && live.moved.is_empty() {
            true => {
                let at = reader.locate(&id)?;
                tier.share(&at).map(|span| (at, span))
            }
            false => None,
        };
        let Some((at, span)) = span.filter(|(_, span)| span.len() == piece.len) else {
            rest.push((piece, id));
            continue;
        };
        reader.took(&at);
        if flying.len() >= STRAIGHT
            && let Some((piece, copy)) = flying.pop_front()
        {
            drop(engines.finish(&piece, copy)?);
            count(piece.len as u64);
        }
        flying.push_back((piece, engines.start_from(&piece, span)?));
        direct.push((piece, id));
    }
    for (piece, copy) in flying {
        drop(engines.finish(&piece, copy)?);
        count(piece.len as u64);
    }
    Ok((direct, rest))
}

/// The pieces whose hash on the device is wrong.
fn not_right(live: &mut Live, direct: Vec<Stored>) -> Vec<Stored> {
    let pieces: Vec<Piece> = direct.iter().map(|(piece, _)| *piece).collect();
    let digests = digest::on_devices(live, &pieces);
    let wrong = direct
        .into_iter()
        .zip(digests)
        .filter(|((_, id), digest)| *digest != Digest::Id(*id));
    wrong.map(|(stored, _)| stored).collect()
}

/// Buffers for reading: the staging buffers, or a few new ones if few are needed.
fn buffers(live: &mut Live, stored: &[Stored]) -> Result<Option<PinnedPool>, EngineError> {
    let failed = || EngineError::driver("make staging buffers");
    let devices = stored
        .iter()
        .filter(|(piece, _)| !matches!(piece.source, Source::Host { .. }));
    let lengths: Vec<usize> = devices.map(|(piece, _)| piece.len).collect();
    let Some(longest) = lengths.iter().max() else {
        return Ok(None);
    };
    live.adopt_staging();
    if live.staging.is_none() && lengths.len() <= FEW {
        live.enter_any().map_err(failed())?;
        let bytes = longest.next_multiple_of(PAGE_BYTES);
        return PinnedPool::new(&live.driver, lengths.len(), bytes)
            .map(Some)
            .map_err(failed());
    }
    live.prepare_staging().map_err(failed())?;
    Ok(live.staging.clone())
}

/// Reads, checks and copies.
fn read_all(
    live: &mut Live,
    engines: &mut Engines,
    reader: &ChunkReader,
    stored: &[Stored],
    count: &(dyn Fn(u64) + Sync),
) -> Result<(), EngineError> {
    if stored.is_empty() {
        return Ok(());
    }
    let pool = buffers(live, stored)?;
    let live = &*live;
    let (next, helpers) = (AtomicUsize::new(0), helpers());
    let queue = Queue::new(crate::STAGING_BUFFERS, helpers);
    let work = || {
        let read = Reading {
            live,
            reader,
            pool: pool.as_ref(),
            queue: &queue,
        };
        while let Some((piece, id)) = stored.get(next.fetch_add(1, Ordering::Relaxed)) {
            if queue.failed() || !read.piece(piece, id) {
                break;
            }
            count(piece.len as u64);
        }
        queue.end();
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            if let Err(error) = help(scope, work) {
                queue.fail(error);
                queue.end();
            }
        }
        if let Err(error) = upload(engines, &queue) {
            queue.fail(error);
        }
    });
    queue.outcome()
}

struct Reading<'a> {
    live: &'a Live,
    reader: &'a ChunkReader,
    pool: Option<&'a PinnedPool>,
    queue: &'a Queue<Ready>,
}

impl Reading<'_> {
    /// Reads one piece to where it goes next; false if the pipeline has failed.
    fn piece(&self, piece: &Piece, id: &ChunkId) -> bool {
        match self.read(piece, id) {
            Ok(None) => true,
            Ok(Some(ready)) => self.queue.push(ready),
            Err(error) => {
                self.queue.fail(error);
                false
            }
        }
    }

    /// Refuses content that contains the former address of a moved variable.
    fn refuse_moved(&self, piece: &Piece, bytes: &[u8]) -> Result<(), EngineError> {
        match self.live.moved.mentioned(bytes) {
            None => Ok(()),
            Some(address) => Err(EngineError::Moved(format!(
                "buffer {} holds the address {address:#x} of a device variable, which the driver has put elsewhere",
                piece.buffer
            ))),
        }
    }

    fn read(&self, piece: &Piece, id: &ChunkId) -> Result<Option<Ready>, EngineError> {
        if let Source::Host { region, offset } = piece.source {
            let mut bytes = vec![0; piece.len.min(CHUNK as usize)];
            self.reader.read_verified(id, &mut bytes)?;
            self.refuse_moved(piece, &bytes)?;
            let mapping = self.live.hosts.get(&region);
            let mapping = mapping.ok_or_else(|| {
                EngineError::Internal(format!("host region {region:#x} is not mapped"))
            })?;
            mapping.write(offset, &bytes);
            return Ok(None);
        }
        if let Some(ready) = self.mapped(piece, id)? {
            return Ok(Some(ready));
        }
        let buffer = self.pool.and_then(|pool| pool.take(STEP_LIMIT));
        let mut buffer = buffer.ok_or_else(no_buffer)?;
        self.reader.read_verified(id, &mut buffer[..piece.len])?;
        self.refuse_moved(piece, &buffer[..piece.len])?;
        Ok(Some(Ready {
            piece: *piece,
            end: HostEnd::Buffer(buffer),
        }))
    }

    /// The bytes in the registered tier, if they are there and their hash is right.
    fn mapped(&self, piece: &Piece, id: &ChunkId) -> Result<Option<Ready>, EngineError> {
        let plain = matches!(piece.source, Source::Device { .. });
        let Some(tier) = self.live.tier.as_ref().filter(|_| plain) else {
            return Ok(None);
        };
        let Some(span) = tier.verified(self.reader, id, piece.len)? else {
            return Ok(None);
        };
        self.refuse_moved(piece, &span)?;
        Ok(Some(Ready {
            piece: *piece,
            end: HostEnd::Shared(span),
        }))
    }
}

/// Copies ready pieces to the device until the queue ends.
fn upload(engines: &mut Engines, queue: &Queue<Ready>) -> Result<(), EngineError> {
    let mut flying: VecDeque<(Piece, InFlight)> = VecDeque::new();
    loop {
        let ready = match queue.try_next() {
            Some(ready) => ready,
            None => {
                // Buffers of copies under way are returned before this thread sleeps, because the readers wait for them.
                while let Some((piece, copy)) = flying.pop_front() {
                    drop(engines.finish(&piece, copy)?);
                }
                match queue.next() {
                    Next::Item(ready) => ready,
                    Next::End => return Ok(()),
                }
            }
        };
        if flying.len() >= IN_FLIGHT
            && let Some((piece, copy)) = flying.pop_front()
        {
            drop(engines.finish(&piece, copy)?);
        }
        let copy = match ready.end {
            HostEnd::Buffer(buffer) => engines.start(&ready.piece, buffer)?,
            HostEnd::Shared(span) => engines.start_from(&ready.piece, span)?,
            HostEnd::Span(_) => {
                let what = "what is read is not to be written";
                return Err(EngineError::Internal(what.to_owned()));
            }
        };
        flying.push_back((ready.piece, copy));
    }
}
