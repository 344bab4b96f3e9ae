//! Bringing content back: helpers read and check chunks, one thread copies them to the device.
//!
//! ```text
//!  store ─ read, hash ─► pinned buffers ─► queue ─► copy to the device
//!                    └─► host regions directly
//! ```
//! Pieces without a chunk were zero.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fermata_device::{Direction, InFlight, PinnedBuffer, PinnedPool};
use fermata_store::image::ChunkTable;
use fermata_store::{ChunkId, ChunkReader, Store};

use super::blocks::Blocks;
use crate::pipeline::{Next, Queue, STEP_LIMIT, helpers};
use crate::protocol::{Engines, Piece, Source, pieces};
use crate::{CHUNK, EngineError, Live, Progress, Site};

const IN_FLIGHT: usize = 8;

/// A piece whose bytes have been read.
struct Ready {
    piece: Piece,
    buffer: PinnedBuffer,
}

/// Chunks by buffer and offset, each with its length.
type Chunks = HashMap<(u64, u64), (u32, ChunkId)>;

/// Fills every buffer that is not in a late block, and tells those their pieces; the answer is the number
/// of chunks.
pub(super) fn fill(
    site: &mut Site,
    store: &Store,
    table: &ChunkTable,
    late: &mut Blocks,
    progress: Progress<'_>,
) -> Result<u64, EngineError> {
    let exposed = site.live.expose(&site.session)?;
    let plan = pieces(&site.session, &exposed.addresses)?;
    let mut chunks: Chunks = table
        .records()
        .iter()
        .map(|it| ((it.buffer.0, it.offset), (it.length, it.id)))
        .collect();
    let plan = late.claim(plan, &chunks)?;
    for (piece, _) in late.all().iter().flat_map(|it| &it.stored) {
        chunks.remove(&(piece.buffer, piece.offset));
    }
    if plan
        .iter()
        .any(|piece| !matches!(piece.source, Source::Host { .. }))
    {
        site.live
            .prepare_staging()
            .map_err(EngineError::driver("make staging buffers"))?;
    }
    let filled = transfer(&site.live, store, &chunks, &plan, progress);
    site.live.forget_current();
    site.live.conceal(exposed)?;
    filled?;
    Ok(table.records().len() as u64)
}

fn transfer(
    live: &Live,
    store: &Store,
    by_place: &Chunks,
    plan: &[Piece],
    progress: Progress<'_>,
) -> Result<(), EngineError> {
    let stored: Vec<(Piece, ChunkId)> = plan
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
    for piece in plan
        .iter()
        .filter(|piece| !by_place.contains_key(&(piece.buffer, piece.offset)))
    {
        engines.zero(piece)?;
    }
    let pool = live.staging.clone();
    let (reader, total) = (
        store.reader()?,
        stored.iter().map(|(piece, _)| piece.len as u64).sum(),
    );
    let (next, done, helpers) = (AtomicUsize::new(0), AtomicU64::new(0), helpers());
    let queue = Queue::new(crate::STAGING_BUFFERS, helpers);
    progress(0, total);
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|| {
                let read = Reading {
                    live,
                    reader: &reader,
                    pool: pool.as_ref(),
                    queue: &queue,
                };
                while let Some((piece, id)) = stored.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if queue.failed() || !read.piece(piece, id) {
                        break;
                    }
                    let so_far =
                        done.fetch_add(piece.len as u64, Ordering::Relaxed) + piece.len as u64;
                    progress(so_far, total);
                }
                queue.end();
            });
        }
        if let Err(error) = upload(&mut engines, &queue) {
            queue.fail(error);
        }
    });
    queue.outcome()?;
    engines.settle()
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

    /// A variable that has moved must not be known to any memory.
    fn refuse_moved(&self, piece: &Piece, bytes: &[u8]) -> Result<(), EngineError> {
        match self.live.moved.mentioned(bytes) {
            None => Ok(()),
            Some(address) => Err(EngineError::Unsuitable(format!(
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
        let buffer = self.pool.and_then(|pool| pool.take(STEP_LIMIT));
        let mut buffer = buffer
            .ok_or_else(|| EngineError::Internal("no staging buffer comes back".to_owned()))?;
        self.reader.read_verified(id, &mut buffer[..piece.len])?;
        self.refuse_moved(piece, &buffer[..piece.len])?;
        Ok(Some(Ready {
            piece: *piece,
            buffer,
        }))
    }
}

/// Copies what is ready to the device until nothing more comes.
fn upload(engines: &mut Engines, queue: &Queue<Ready>) -> Result<(), EngineError> {
    let mut flying: VecDeque<(Piece, InFlight)> = VecDeque::new();
    loop {
        let ready = match queue.try_next() {
            Some(ready) => ready,
            None => {
                // Buffers under way go back before this thread sleeps, or the readers would wait for them.
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
        let copy = engines.start(&ready.piece, ready.buffer)?;
        flying.push_back((ready.piece, copy));
    }
}
