//! The reference protocol: everything is copied while the session stands still.
//!
//! ```text
//!  device ─ hash ─► zero or in the store already? ─ yes ─────────────────────────► table
//!     │                       │ no, or no hash on this device                        ▲
//!     └────── copy ─► pinned buffers ─► queue ─► helpers: zero? hash, put ───────────┘
//!                           ▲                                    │
//!                           └──────────── buffer returns ────────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fermata_device::{Direction, HostMapping, InFlight, PinnedBuffer};
use fermata_store::image::{BufferId, ChunkTableWriter};
use fermata_store::{ChunkId, PackWriter, Store};
use parking_lot::Mutex;

use super::{Engines, Piece, Source, pieces};
use crate::digest::{self, Digest};
use crate::pipeline::{Next, Queue, STEP_LIMIT, helpers};
use crate::{CHUNK, EngineError, Live, Progress, STAGING_BUFFERS, Site, Summary, files, variables};

/// Copies under way at once, per device.
const IN_FLIGHT: usize = 8;

/// Saves the session into `image` (an existing folder) and `store`. Nothing may be running: every stream
/// idle, no operation under way. The session goes on as if nothing had happened.
///
/// # Errors
/// [`EngineError`]; the store then holds nothing new, and what is in the folder is no image.
pub fn save(
    site: &mut Site,
    store: &Store,
    image: &Path,
    progress: Progress<'_>,
) -> Result<Summary, EngineError> {
    let start = Instant::now();
    settle(&mut site.live)?;
    variables::discover(site)?;
    let exposed = site.live.expose(&site.session)?;
    let saved = pieces(&site.session, &exposed.addresses)
        .and_then(|plan| copy_out(&mut site.live, store, &plan, progress));
    site.live.forget_current();
    let concealed = site.live.conceal(exposed);
    let (chunks, writer) = saved?;
    concealed?;
    let mut table = ChunkTableWriter::new();
    for ((buffer, offset), (length, id)) in &chunks {
        table.push(BufferId(*buffer), *offset, *length, *id)?;
    }
    // Chunks are published before anything refers to them.
    let totals = writer.finish()?;
    files::save(image, &site.session, &table)?;
    Ok(Summary {
        chunks: chunks.len() as u64,
        written_bytes: totals.new_bytes,
        seconds: start.elapsed().as_secs_f64(),
        ..Summary::of(&site.session)
    })
}

/// Waits until every context is idle; a failed one cannot be saved.
fn settle(live: &mut Live) -> Result<(), EngineError> {
    let contexts: Vec<u64> = live.contexts.keys().copied().collect();
    for context in contexts {
        let idle = live
            .enter(context)
            .and_then(|_| live.driver.synchronize_context());
        idle.map_err(|error| {
            EngineError::NotCheckpointable(format!("context {context:#x} has failed: {error}"))
        })?;
    }
    Ok(())
}

/// Content of a piece on its way to the store.
enum Content {
    Copied(PinnedBuffer),
    Host { region: u64, offset: u64 },
}

struct Job {
    piece: Piece,
    content: Content,
    /// The chunk's id, if the device has found it.
    id: Option<ChunkId>,
}

type Chunks = BTreeMap<(u64, u64), (u32, ChunkId)>;

fn copy_out(
    live: &mut Live,
    store: &Store,
    plan: &[Piece],
    progress: Progress<'_>,
) -> Result<(Chunks, PackWriter), EngineError> {
    let writer = store.begin()?;
    if plan
        .iter()
        .any(|piece| !matches!(piece.source, Source::Host { .. }))
    {
        live.prepare_staging()
            .map_err(EngineError::driver("make staging buffers"))?;
    }
    let digests = digest::on_devices(live, plan);
    let mut known = Chunks::new();
    let (mut wanted, mut settled) = (Vec::with_capacity(plan.len()), 0);
    for (piece, digest) in plan.iter().zip(digests) {
        match digest {
            Digest::Zero => settled += piece.len as u64,
            Digest::Id(id) if writer.put_known(&id, piece.len as u64) => {
                known.insert((piece.buffer, piece.offset), (piece.len as u32, id));
                settled += piece.len as u64;
            }
            Digest::Id(id) => wanted.push((*piece, Some(id))),
            Digest::Unknown => wanted.push((*piece, None)),
        }
    }
    let chunks = Mutex::new(known);
    let done = AtomicU64::new(settled);
    let total = plan.iter().map(|piece| piece.len as u64).sum();
    let helpers = helpers();
    let queue = Queue::new(STAGING_BUFFERS, 1);
    progress(settled, total);
    std::thread::scope(|scope| {
        let hosts = &live.hosts;
        for _ in 0..helpers {
            scope.spawn(|| {
                store_pieces(&queue, hosts, &writer, &chunks, &|bytes| {
                    progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
                });
            });
        }
        if let Err(error) = produce(live, &wanted, &queue) {
            queue.fail(error);
        }
        queue.end();
    });
    queue.outcome()?;
    Ok((chunks.into_inner(), writer))
}

/// Copies pieces into pinned buffers and queues them.
fn produce(
    live: &Live,
    plan: &[(Piece, Option<ChunkId>)],
    queue: &Queue<Job>,
) -> Result<(), EngineError> {
    let mut engines = Engines::new(live, Direction::ToHost);
    let mut flying = Flying::new();
    for (piece, id) in plan {
        if let Source::Host { region, offset } = piece.source {
            if !queue.push(Job {
                piece: *piece,
                content: Content::Host { region, offset },
                id: *id,
            }) {
                return Ok(());
            }
            continue;
        }
        while flying.len() >= IN_FLIGHT {
            if !land(&mut engines, &mut flying, queue)? {
                return Ok(());
            }
        }
        let buffer = loop {
            if let Some(buffer) = engines.pool()?.try_take() {
                break buffer;
            }
            if flying.is_empty() {
                let late = || EngineError::Internal("no staging buffer comes back".to_owned());
                break engines.pool()?.take(STEP_LIMIT).ok_or_else(late)?;
            }
            if !land(&mut engines, &mut flying, queue)? {
                return Ok(());
            }
        };
        flying.push_back((*piece, *id, engines.start(piece, buffer)?));
    }
    while !flying.is_empty() {
        if !land(&mut engines, &mut flying, queue)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Copies under way, oldest first.
type Flying<'d> = VecDeque<(Piece, Option<ChunkId>, InFlight<'d>)>;

/// Waits for the oldest copy and queues it; false if the pipeline has failed.
fn land<'d>(
    engines: &mut Engines<'d>,
    flying: &mut Flying<'d>,
    queue: &Queue<Job>,
) -> Result<bool, EngineError> {
    let Some((piece, id, copy)) = flying.pop_front() else {
        return Ok(true);
    };
    let buffer = engines.finish(&piece, copy)?;
    Ok(queue.push(Job {
        piece,
        content: Content::Copied(buffer),
        id,
    }))
}

/// Takes pieces from the queue, hashes and stores them.
fn store_pieces(
    queue: &Queue<Job>,
    hosts: &BTreeMap<u64, HostMapping>,
    writer: &PackWriter,
    chunks: &Mutex<Chunks>,
    report: &dyn Fn(u64),
) {
    let mut own = Vec::new();
    while let Next::Item(Job { piece, content, id }) = queue.next() {
        let bytes: &[u8] = match &content {
            Content::Copied(buffer) => &buffer[..piece.len],
            Content::Host { region, offset } => {
                own.resize(CHUNK as usize, 0);
                let Some(mapping) = hosts.get(region) else {
                    queue.fail(EngineError::Internal(format!(
                        "host region {region:#x} is not mapped"
                    )));
                    return;
                };
                mapping.read(*offset, &mut own[..piece.len]);
                &own[..piece.len]
            }
        };
        if id.is_some() || !is_zero(bytes) {
            let id = id.unwrap_or_else(|| ChunkId::of(bytes));
            if let Err(error) = writer.put(&id, bytes) {
                queue.fail(error.into());
                return;
            }
            chunks
                .lock()
                .insert((piece.buffer, piece.offset), (piece.len as u32, id));
        }
        report(piece.len as u64);
    }
}

/// Whether all bytes are zero; such pieces are not stored.
fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, tail) = bytes.as_chunks::<64>();
    tail.iter().all(|byte| *byte == 0)
        && blocks
            .iter()
            .all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::is_zero;

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        for len in [1, 63, 64, 65, 4096 + 7] {
            let mut bytes = vec![0u8; len];
            assert!(is_zero(&bytes));
            for at in [0, len / 2, len - 1] {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{len} {at}");
                bytes[at] = 0;
            }
        }
    }
}
