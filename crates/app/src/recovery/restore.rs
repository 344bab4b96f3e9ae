//! From the store back into the program's memory; the reverse of capture.
//!
//! ```text
//!  packs ─► readers, each with a buffer ─┬─► host: checked by hash, copied in
//!                                        └─► queue ─► device: copied, then checked by hash on the GPU
//! ```
//! The caller has verified the checkpoint and located every variable before; from the first byte written
//! on, a failure is [`AppError::Mixed`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fermata_device::{ContextHandle, CopyEngine, Direction, PinnedBuffer, PinnedPool};
use fermata_store::image::ChunkRecord;
use fermata_store::{ChunkId, ChunkReader, StoreError};

use crate::buffer::{PIECE, PlainPool};
use crate::gpu::{Gpu, Place};
use crate::queue::{Queue, helpers};
use crate::target::Target;
use crate::{AppError, Result};

const DEPTH: usize = 4;

/// Where chunks are read from.
pub(crate) trait Chunks: Sync {
    /// Fills `into` with a chunk, whose hash the caller checks.
    fn read(&self, id: &ChunkId, into: &mut [u8]) -> Result<(), StoreError>;
    /// Fills `into` with a chunk and checks its hash.
    fn read_verified(&self, id: &ChunkId, into: &mut [u8]) -> Result<(), StoreError>;
}

impl Chunks for ChunkReader {
    fn read(&self, id: &ChunkId, into: &mut [u8]) -> Result<(), StoreError> {
        ChunkReader::read(self, id, into)
    }

    fn read_verified(&self, id: &ChunkId, into: &mut [u8]) -> Result<(), StoreError> {
        ChunkReader::read_verified(self, id, into)
    }
}

/// A variable and the chunks that fill it, ascending and without gaps.
pub(crate) struct Source<'a> {
    pub(crate) target: &'a Target,
    pub(crate) chunks: &'a [ChunkRecord],
}

/// Some chunks that lie side by side and fit a buffer.
struct Piece<'a> {
    target: &'a Target,
    offset: u64,
    bytes: usize,
    chunks: &'a [ChunkRecord],
}

/// Fills every variable.
pub(crate) fn restore(
    sources: &[Source<'_>],
    reader: &dyn Chunks,
    gpu: Option<&Gpu>,
    plain: &PlainPool,
    limit: Duration,
) -> Result<()> {
    let (host, device): (Vec<_>, Vec<_>) = sources
        .iter()
        .flat_map(pieces)
        .partition(|p| p.target.place == Place::Host);
    let queue = Queue::<()>::new(limit);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..helpers().min(host.len()) {
            scope.spawn(|| {
                while let Some(piece) = host.get(next.fetch_add(1, Ordering::Relaxed))
                    && !queue.failed()
                {
                    queue.watch(|| fill_host(piece, reader, plain, limit));
                }
            });
        }
        if let Some(gpu) = gpu {
            // On a thread of ours: the caller's current context is the program's.
            let (queue, device) = (&queue, &device);
            scope.spawn(move || {
                queue.watch(|| fill_devices(sources, device, reader, gpu, limit));
            });
        }
    });
    queue.outcome().map_err(|e| AppError::Mixed(Box::new(e)))
}

fn pieces<'a>(source: &Source<'a>) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut rest = source.chunks;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |c: &&ChunkRecord| {
            bytes += c.length as usize;
            bytes <= PIECE
        };
        // A chunk is never longer than a buffer, so at least one is taken.
        let count = rest.iter().take_while(fits).count().max(1);
        let (chunks, more) = rest.split_at(count);
        pieces.push(Piece {
            target: source.target,
            offset: chunks[0].offset,
            bytes: chunks.iter().map(|c| c.length as usize).sum(),
            chunks,
        });
        rest = more;
    }
    pieces
}

fn read(
    piece: &Piece<'_>,
    into: &mut [u8],
    read: impl Fn(&ChunkRecord, &mut [u8]) -> Result<(), StoreError>,
) -> Result<()> {
    let mut at = 0;
    for chunk in piece.chunks {
        let end = at + chunk.length as usize;
        read(chunk, &mut into[at..end]).map_err(AppError::store("read the checkpoint"))?;
        at = end;
    }
    Ok(())
}

fn fill_host(
    piece: &Piece<'_>,
    reader: &dyn Chunks,
    plain: &PlainPool,
    limit: Duration,
) -> Result<()> {
    let mut buffer = plain.take(limit).ok_or_else(|| late(limit))?;
    read(piece, &mut buffer, |chunk, into| {
        reader.read_verified(&chunk.id, into)
    })?;
    let memory = &piece.target.variable.memory;
    memory.write(piece.offset, &buffer[..piece.bytes]);
    Ok(())
}

fn late(limit: Duration) -> AppError {
    AppError::Deadline {
        what: "waiting for a staging buffer",
        seconds: limit.as_secs_f64(),
    }
}

fn fill_devices(
    sources: &[Source<'_>],
    pieces: &[Piece<'_>],
    reader: &dyn Chunks,
    gpu: &Gpu,
    limit: Duration,
) -> Result<()> {
    let mut done: Vec<ContextHandle> = Vec::new();
    for piece in pieces {
        let Place::Device { context, .. } = piece.target.place else {
            continue;
        };
        if done.contains(&context) {
            continue;
        }
        done.push(context);
        let mine = |t: &Target| matches!(t.place, Place::Device { context: c, .. } if c == context);
        let wait = AppError::device("wait for the program's work on the device");
        gpu.driver.set_current(context).map_err(&wait)?;
        gpu.driver.synchronize_context().map_err(&wait)?;
        let own: Vec<_> = pieces.iter().filter(|p| mine(p.target)).collect();
        copy_in(gpu, context, &own, reader, limit)?;
        for source in sources.iter().filter(|s| mine(s.target)) {
            check(gpu, source)?;
        }
    }
    Ok(())
}

fn copy_in(
    gpu: &Gpu,
    context: ContextHandle,
    pieces: &[&Piece<'_>],
    reader: &dyn Chunks,
    limit: Duration,
) -> Result<()> {
    let copy = AppError::device("copy to the device");
    let pool: PinnedPool = gpu.pool()?;
    let mut engine = CopyEngine::new(&gpu.driver, context, Direction::ToDevice).map_err(&copy)?;
    let queue: Queue<(usize, PinnedBuffer)> = Queue::new(limit);
    let (next, readers) = (AtomicUsize::new(0), helpers());
    let left = AtomicUsize::new(readers);
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                while !queue.failed() {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(piece) = pieces.get(index) else {
                        break;
                    };
                    queue.watch(|| {
                        let mut buffer = pool.take(limit).ok_or_else(|| late(limit))?;
                        // Unaligned variables cannot be checked on the GPU afterwards.
                        let aligned = piece.target.variable.memory.address() % 16 == 0;
                        read(piece, &mut buffer, |chunk, into| match aligned {
                            true => reader.read(&chunk.id, into),
                            false => reader.read_verified(&chunk.id, into),
                        })?;
                        queue.push((index, buffer));
                        Ok(())
                    });
                }
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    queue.end();
                }
            });
        }
        let mut flying = VecDeque::new();
        while let Some((index, buffer)) = queue.next() {
            queue.watch(|| {
                let piece = pieces[index];
                let address = piece.target.variable.memory.address() + piece.offset;
                flying.push_back(engine.start(address, buffer, piece.bytes).map_err(&copy)?);
                if flying.len() >= DEPTH
                    && let Some(oldest) = flying.pop_front()
                {
                    engine.finish(oldest).map_err(&copy)?;
                }
                Ok(())
            });
        }
        for last in flying {
            queue.watch(|| engine.finish(last).map(drop).map_err(&copy));
        }
    });
    queue.outcome()
}

/// Compares what is in device memory now with what the checkpoint says.
fn check(gpu: &Gpu, source: &Source<'_>) -> Result<()> {
    let (Place::Device { context, device }, memory) =
        (source.target.place, &source.target.variable.memory)
    else {
        return Ok(());
    };
    if memory.address() % 16 != 0 {
        return Ok(());
    }
    for chunks in source.chunks.chunks(1 << 14) {
        let pieces: Vec<_> = chunks
            .iter()
            .map(|c| (memory.address() + c.offset, u64::from(c.length)))
            .collect();
        let digests = gpu.with_hasher(context, device, |hasher| {
            hasher
                .blake3(&pieces)
                .map_err(AppError::device("hash device memory"))
        })?;
        if let Some((chunk, _)) = chunks.iter().zip(&digests).find(|(c, d)| c.id.0 != **d) {
            return Err(AppError::Variable {
                id: source.target.variable.id.0,
                what: format!("it does not hold what was read, at byte {}", chunk.offset),
            });
        }
    }
    Ok(())
}
