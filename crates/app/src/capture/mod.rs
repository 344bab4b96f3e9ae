//! From the program's memory into the store: copied in pieces, hashed, written, all at once.
//!
//! ```text
//!  device  hash on the GPU ─► changed blocks only ─► pinned buffer ─┐
//!                                                                   ├─► queue ─► writers ─► packs
//!  host    copy a piece ─► hash, maybe over the GPU ─► changed ──────┘
//!                                  captured ▲                          written ▲
//! ```
//! At "captured" nothing looks at the program's memory any more. What is written is what was hashed:
//! both are the buffer's bytes, and a GPU's digest is held against them.

pub(crate) mod copies;
pub(crate) mod copy_streams;
pub(crate) mod device_staging;
pub(crate) mod offers;
pub(crate) mod piece;
pub(crate) mod placement;
pub(crate) mod run;

use std::sync::atomic::{AtomicUsize, Ordering};

use fermata_device::ContextHandle;
use fermata_store::{ChunkId, PackWriter};
use parking_lot::Mutex;

use self::copies::Copies;
use self::device_staging::{Moved, Staged};
use self::piece::{Block, OnDevice, Piece, Stretch};
use self::run::{CapturePlan, Run};
use crate::buffer::{Buffer, PIECE, PlainPool};
use crate::gpu::{Gpu, Place};
use crate::queue::{Queue, helpers};
use crate::target::Target;
use crate::{AppError, Result};

/// Bytes whose digests are taken by one launch.
const BATCH: u64 = 256 << 20;

/// What was captured.
pub(crate) struct Captured {
    /// The names of every target's blocks.
    pub(crate) names: Vec<Vec<ChunkId>>,
    /// How long data took into device memory, if it waited there.
    pub(crate) moved: Moved,
}

/// Captures everything. `captured` is called when the
/// program may go on; not if the capture fails.
pub(crate) fn capture(
    plan: &CapturePlan<'_>,
    writer: &PackWriter,
    gpu: Option<&Gpu>,
    plain: &PlainPool,
    captured: impl FnOnce(),
) -> Result<Captured> {
    let over = match gpu.filter(|_| plan.host_on_gpu) {
        Some(gpu) => gpu.any()?.map(|context| (gpu, context)),
        None => None,
    };
    let blank = |t: &Target| vec![ChunkId([0; 32]); t.blocks(plan.block).count()];
    let run = Run {
        plan,
        writer,
        queue: Queue::new(plan.limit),
        over,
        ids: Mutex::new(plan.targets.iter().map(blank).collect()),
    };
    let pieces = host_pieces(plan.targets);
    let next = AtomicUsize::new(0);
    let mut moved = Moved::default();
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
        let mut staged = Staged::default();
        if let Some(gpu) = gpu {
            run.queue.watch(|| {
                staged = run.devices(gpu)?;
                moved = staged.moved;
                Ok(())
            });
        } else if let Some(tell) = plan.tell {
            // The others wait for it.
            run.queue.watch(|| tell(Vec::new()).map(drop));
        }
        for reader in readers {
            if reader.join().is_err() {
                run.queue.fail(AppError::Fault("a thread that captures"));
            }
        }
        if !run.queue.failed() {
            captured();
        }
        if let Some(gpu) = gpu {
            run.queue.watch(|| staged.drain(&run, gpu));
        }
        run.queue.end();
    });
    run.queue.outcome()?;
    Ok(Captured {
        names: run.ids.into_inner(),
        moved,
    })
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
        let names: Vec<_> = match self.over {
            Some((gpu, context)) => gpu.names_of_host(context, &buffer[..bytes], block)?,
            None => buffer[..bytes].chunks(block).map(ChunkId::of).collect(),
        };
        self.ids.lock()[target][first..first + names.len()].copy_from_slice(&names);
        let parts: Vec<_> = names
            .into_iter()
            .enumerate()
            .map(|(i, id)| Block {
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
                checked: self.over.is_none(),
            });
        }
        Ok(())
    }

    /// Captures all device variables, context by context; what is left on devices is still to be drained.
    fn devices(&self, gpu: &Gpu) -> Result<Staged> {
        let mut done: Vec<ContextHandle> = Vec::new();
        let mut waiting = Vec::new();
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
            if self.plan.stage == 0 {
                let mut copies = Copies::new(self, gpu, context)?;
                self.context(gpu, context, device, &mut |stretch| copies.start(stretch))?;
                copies.finish()?;
                continue;
            }
            let mut stretches = Vec::new();
            self.context(gpu, context, device, &mut |stretch| {
                stretches.push(stretch);
                Ok(())
            })?;
            waiting.push(OnDevice {
                context,
                device,
                stretches,
            });
        }
        device_staging::stage(self, gpu, waiting)
    }

    /// Hashes a context's variables; `each` gets those blocks that the store lacks.
    fn context(
        &self,
        gpu: &Gpu,
        context: ContextHandle,
        device: u32,
        each: &mut dyn FnMut(Stretch) -> Result<()>,
    ) -> Result<()> {
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
                let wanted = |id: &ChunkId, bytes: usize| !self.has(id, bytes);
                let names = names.as_deref();
                for stretch in Stretch::of(index, base, first, blocks, names, wanted) {
                    each(stretch)?;
                }
            }
        }
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

    fn name(&self, piece: &Piece, part: &Block, bytes: &[u8]) -> Result<ChunkId> {
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
