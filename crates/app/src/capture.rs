//! From the program's memory into the store: copied in pieces, hashed, written, all at once.
//!
//! ```text
//!  device  hash on the GPU ─► changed blocks only ─► pinned buffer ─┐
//!                                                                   ├─► queue ─► writers ─► packs
//!  host    copy a piece ─► hash ─► changed blocks only ─────────────┘
//!                                  captured ▲                          written ▲
//! ```
//! At "captured" nothing looks at the program's memory any more. What is written is what was hashed:
//! both are the buffer's bytes, and a GPU's digest is held against them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fermata_device::{ContextHandle, CopyEngine, Direction, InFlight, PinnedBuffer, PinnedPool};
use fermata_store::{ChunkId, PackWriter};
use parking_lot::Mutex;

use crate::gpu::{Gpu, Place};
use crate::queue::{Queue, helpers};
use crate::staging::{Buffer, PIECE, PlainPool};
use crate::variable::Variable;
use crate::{AppError, Result};

/// Bytes whose digests are taken by one launch.
const BATCH: u64 = 256 << 20;
/// Copies from a device under way at once.
const DEPTH: usize = 4;

/// A variable and where it is.
pub(crate) struct Target {
    pub(crate) variable: Variable,
    pub(crate) place: Place,
}

impl Target {
    /// Its blocks: offset and length.
    pub(crate) fn blocks(&self, block: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let bytes = self.variable.memory.bytes();
        (0..bytes.div_ceil(block)).map(move |i| (i * block, block.min(bytes - i * block)))
    }
}

/// What is to be captured, and how.
pub(crate) struct Plan<'a> {
    pub(crate) targets: &'a [Target],
    /// Bytes of a block.
    pub(crate) block: u64,
    /// Whether GPU digests are checked by the CPU.
    pub(crate) verify: bool,
    /// Longest wait for a buffer or a piece.
    pub(crate) limit: Duration,
}

/// A block in a buffer.
struct Part {
    block: usize,
    at: usize,
    bytes: usize,
    /// Its digest, unless that is still to be computed.
    id: Option<ChunkId>,
}

/// A piece of a variable on its way to the store.
struct Piece {
    target: usize,
    buffer: Buffer,
    parts: Vec<Part>,
    /// Whether the digests were taken of the buffer's own bytes.
    checked: bool,
}

struct Run<'a> {
    plan: &'a Plan<'a>,
    writer: &'a PackWriter,
    queue: Queue<Piece>,
    ids: Mutex<Vec<Vec<ChunkId>>>,
}

/// Captures everything and returns the names of every target's blocks. `captured` is called when the
/// program may go on; not if the capture fails.
pub(crate) fn capture(
    plan: &Plan<'_>,
    writer: &PackWriter,
    gpu: Option<&Gpu>,
    plain: &PlainPool,
    captured: impl FnOnce(),
) -> Result<Vec<Vec<ChunkId>>> {
    let blank = |t: &Target| vec![ChunkId([0; 32]); t.blocks(plan.block).count()];
    let run = Run {
        plan,
        writer,
        queue: Queue::new(plan.limit),
        ids: Mutex::new(plan.targets.iter().map(blank).collect()),
    };
    let pieces = host_pieces(plan.targets);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..helpers() {
            scope.spawn(|| run.write());
        }
        let readers: Vec<_> = (0..helpers().min(pieces.len()))
            .map(|_| {
                scope.spawn(|| {
                    while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
                        && !run.queue.failed()
                    {
                        run.queue.watch(|| run.host(*piece, plain));
                    }
                })
            })
            .collect();
        if let Some(gpu) = gpu {
            run.queue.watch(|| run.devices(gpu));
        }
        for reader in readers {
            if reader.join().is_err() {
                run.queue.fail(AppError::Fault("a thread that captures"));
            }
        }
        if !run.queue.failed() {
            captured();
        }
        run.queue.end();
    });
    run.queue.outcome()?;
    Ok(run.ids.into_inner())
}

/// The pieces of all host variables: target, offset, bytes.
fn host_pieces(targets: &[Target]) -> Vec<(usize, u64, usize)> {
    let host = targets
        .iter()
        .enumerate()
        .filter(|(_, t)| t.place == Place::Host);
    host.flat_map(|(i, t)| {
        let bytes = t.variable.memory.bytes();
        (0..bytes.div_ceil(PIECE as u64)).map(move |n| {
            let offset = n * PIECE as u64;
            (i, offset, (bytes - offset).min(PIECE as u64) as usize)
        })
    })
    .collect()
}

impl Run<'_> {
    /// Captures a piece of host memory.
    fn host(&self, (target, offset, bytes): (usize, u64, usize), plain: &PlainPool) -> Result<()> {
        let mut buffer = plain.take(self.plan.limit).ok_or_else(|| self.late())?;
        let memory = &self.plan.targets[target].variable.memory;
        memory.read(offset, &mut buffer[..bytes]);
        let block = self.plan.block as usize;
        let first = offset as usize / block;
        let names: Vec<_> = buffer[..bytes].chunks(block).map(ChunkId::of).collect();
        self.ids.lock()[target][first..first + names.len()].copy_from_slice(&names);
        let parts: Vec<_> = names
            .into_iter()
            .enumerate()
            .map(|(i, id)| Part {
                block: first + i,
                at: i * block,
                bytes: block.min(bytes - i * block),
                id: Some(id),
            })
            .filter(|part| !part.id.is_some_and(|id| self.has(&id, part.bytes)))
            .collect();
        if !parts.is_empty() {
            self.queue.push(Piece {
                target,
                buffer: Buffer::Plain(buffer),
                parts,
                checked: true,
            });
        }
        Ok(())
    }

    fn has(&self, id: &ChunkId, bytes: usize) -> bool {
        self.writer.put_known(id, bytes as u64)
    }

    fn late(&self) -> AppError {
        AppError::Deadline {
            what: "waiting for a staging buffer",
            seconds: self.plan.limit.as_secs_f64(),
        }
    }

    /// Captures all device variables, context by context.
    fn devices(&self, gpu: &Gpu) -> Result<()> {
        let mut done: Vec<ContextHandle> = Vec::new();
        for target in self.plan.targets {
            let Place::Device { context, device } = target.place else {
                continue;
            };
            if done.contains(&context) {
                continue;
            }
            done.push(context);
            let wait = AppError::device("wait for the program's work on the device");
            gpu.driver.set_current(context).map_err(&wait)?;
            gpu.driver.synchronize_context().map_err(&wait)?;
            self.context(gpu, context, device)?;
        }
        Ok(())
    }

    fn context(&self, gpu: &Gpu, context: ContextHandle, device: u32) -> Result<()> {
        let engine = CopyEngine::new(&gpu.driver, context, Direction::ToHost)
            .map_err(AppError::device("copy from the device"))?;
        let mut copies = Copies {
            run: self,
            engine,
            pool: gpu.pool()?,
            flying: VecDeque::new(),
        };
        for (index, target) in self.plan.targets.iter().enumerate() {
            if target.place != (Place::Device { context, device }) {
                continue;
            }
            let base = target.variable.memory.address();
            let blocks: Vec<_> = target.blocks(self.plan.block).collect();
            let batch = (BATCH / self.plan.block).max(1) as usize;
            for (n, blocks) in blocks.chunks(batch).enumerate() {
                let first = n * batch;
                // The kernel needs aligned addresses; what is not aligned is hashed by the writers.
                let names = if base % 16 == 0 {
                    let pieces: Vec<_> = blocks.iter().map(|(o, l)| (base + o, *l)).collect();
                    let digests = gpu.with_hasher(context, device, |hasher| {
                        hasher
                            .blake3(&pieces)
                            .map_err(AppError::device("hash device memory"))
                    })?;
                    let names: Vec<_> = digests.into_iter().map(ChunkId).collect();
                    self.ids.lock()[index][first..first + names.len()].copy_from_slice(&names);
                    Some(names)
                } else {
                    None
                };
                copies.batch(index, first, blocks, names.as_deref())?;
            }
        }
        while copies.land()? {}
        Ok(())
    }

    /// Writes pieces until there are no more.
    fn write(&self) {
        while let Some(piece) = self.queue.next() {
            self.queue.watch(|| {
                piece.parts.iter().try_for_each(|part| {
                    let bytes = &piece.buffer[part.at..part.at + part.bytes];
                    let id = self.name(&piece, part, bytes)?;
                    self.writer
                        .put(&id, bytes)
                        .map_err(AppError::store("write the checkpoint"))?;
                    Ok(())
                })
            });
        }
    }

    fn name(&self, piece: &Piece, part: &Part, bytes: &[u8]) -> Result<ChunkId> {
        match part.id {
            Some(id) if piece.checked || !self.plan.verify => Ok(id),
            Some(id) if ChunkId::of(bytes) == id => Ok(id),
            Some(_) => Err(AppError::Changed {
                id: self.plan.targets[piece.target].variable.id.0,
                offset: part.block as u64 * self.plan.block,
            }),
            None => {
                let id = ChunkId::of(bytes);
                self.ids.lock()[piece.target][part.block] = id;
                Ok(id)
            }
        }
    }
}

/// Copies from one context to the host, several under way.
struct Copies<'r> {
    run: &'r Run<'r>,
    engine: CopyEngine,
    pool: PinnedPool,
    flying: VecDeque<(usize, Vec<Part>, InFlight)>,
}

impl Copies<'_> {
    /// Copies those blocks of a batch that the store lacks, neighbours together.
    fn batch(
        &mut self,
        target: usize,
        first: usize,
        blocks: &[(u64, u64)],
        names: Option<&[ChunkId]>,
    ) -> Result<()> {
        let mut start = 0;
        let mut parts: Vec<Part> = Vec::new();
        let mut used = 0;
        for (i, &(offset, bytes)) in blocks.iter().enumerate() {
            let id = names.map(|names| names[i]);
            if id.is_some_and(|id| self.run.has(&id, bytes as usize)) {
                continue;
            }
            let follows = parts.last().is_some_and(|p| p.block + 1 == first + i);
            if !follows || used + bytes as usize > PIECE {
                self.start(target, start, std::mem::take(&mut parts))?;
                (start, used) = (offset, 0);
            }
            parts.push(Part {
                block: first + i,
                at: used,
                bytes: bytes as usize,
                id,
            });
            used += bytes as usize;
        }
        self.start(target, start, parts)
    }

    fn start(&mut self, target: usize, offset: u64, parts: Vec<Part>) -> Result<()> {
        let bytes: usize = parts.iter().map(|p| p.bytes).sum();
        if bytes == 0 {
            return Ok(());
        }
        let buffer = self.buffer()?;
        let address = self.run.plan.targets[target].variable.memory.address() + offset;
        let copy = self
            .engine
            .start(address, buffer, bytes)
            .map_err(AppError::device("copy from the device"))?;
        self.flying.push_back((target, parts, copy));
        if self.flying.len() >= DEPTH {
            self.land()?;
        }
        Ok(())
    }

    fn buffer(&mut self) -> Result<PinnedBuffer> {
        loop {
            if let Some(buffer) = self.pool.try_take() {
                return Ok(buffer);
            }
            if self.run.queue.failed() {
                return Err(self.run.late());
            }
            if !self.land()? {
                let limit = self.run.plan.limit;
                return self.pool.take(limit).ok_or_else(|| self.run.late());
            }
        }
    }

    /// Hands the oldest copy to the writers; false if there is none.
    fn land(&mut self) -> Result<bool> {
        let Some((target, parts, copy)) = self.flying.pop_front() else {
            return Ok(false);
        };
        let buffer = self
            .engine
            .finish(copy)
            .map_err(AppError::device("copy from the device"))?;
        self.run.queue.push(Piece {
            target,
            buffer: Buffer::Pinned(buffer),
            parts,
            checked: false,
        });
        Ok(true)
    }
}
