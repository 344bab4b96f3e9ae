//! What a capture does while the program stands still: everything is copied on the devices, or hashed, and what no gate
//! watches is read.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use fermata_device::StreamHandle;
use fermata_state::Session;
use fermata_terms::Way;

use super::map::{ChunkMap, Mark, device_of};
use super::ready::Prepared;
use super::watch::copy_aside;
use crate::digest::{self, Digest};
use crate::protocol::{Piece, Source};
use crate::sink::{Order, Sink};
use crate::steps::Steps;
use crate::{EngineError, Site};

/// Variables of a device up to this many bytes are read while the program stands still, for kernels reach
/// them without naming them.
const VARIABLES: u64 = 64 << 20;

/// Copies everything on the devices, or finds what everything is, as the capture's way says.
///
/// # Errors
/// What the driver says.
pub(super) fn take(
    site: &mut Site,
    prepared: &mut Prepared,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<ChunkMap, EngineError> {
    if prepared.way == Way::Snapshot
        && let Some(map) = aside_all(site, prepared, plan, steps)?
    {
        return Ok(map);
    }
    // A snapshot that has outgrown its pool since goes on as this.
    prepared.way = Way::Cow;
    known_all(site, prepared, plan, steps)
}

fn device_bytes(plan: &[Piece]) -> u64 {
    let pieces = plan.iter().filter(|piece| piece.is_on_device());
    pieces.map(|piece| piece.len as u64).sum()
}

/// A map of everything on devices, of which nothing is known.
pub(super) fn all_on_devices(session: &Session, plan: &[Piece]) -> ChunkMap {
    let watched = plan.iter().filter(|piece| piece.is_on_device());
    let watched: Vec<_> = watched
        .map(|piece| (*piece, Digest::Unknown, true))
        .collect();
    ChunkMap::new(session, &watched)
}

/// Reads host memory and arrays, which no gate watches.
fn take_unwatched(site: &mut Site, sink: &mut Sink, plan: &[Piece]) -> Result<(), EngineError> {
    let of = |wanted: fn(&Source) -> bool| -> Vec<Piece> {
        plan.iter()
            .copied()
            .filter(|piece| wanted(&piece.source))
            .collect()
    };
    let hosts = of(|source| matches!(source, Source::Host { .. }));
    sink.take_host(&site.live.hosts, &hosts, &|_| {})?;
    let arrays = of(|source| matches!(source, Source::Array { .. }));
    let mut orders = arrays.into_iter().map(|piece| Order {
        piece,
        digest: Digest::Unknown,
    });
    sink.take(&mut orders, &mut |_| {})
}

/// Copies everything on the device to the pools; `None` if it does not fit any more.
fn aside_all(
    site: &mut Site,
    prepared: &mut Prepared,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<Option<ChunkMap>, EngineError> {
    let from = Instant::now();
    let mut map = all_on_devices(&site.session, plan);
    let mut aside: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
    for index in map.indices() {
        let piece = *map.piece(index);
        let device = device_of(&piece);
        let Some(slot) = prepared.slot(device, piece.len as u64) else {
            // All of the pool is for what is about to be written.
            prepared.put_back(&map, &aside);
            return Ok(None);
        };
        aside.entry(device).or_default().push((index, slot));
    }
    let failed = || EngineError::driver("copy the session on its device");
    for (device, aside) in &aside {
        site.live.enter_device(*device).map_err(failed())?;
        copy_aside(&site.live.driver, &map, aside, StreamHandle::LEGACY).map_err(failed())?;
    }
    // Host memory is read meanwhile.
    take_unwatched(site, &mut prepared.sink, plan)?;
    for (device, aside) in aside {
        site.live.forget_current();
        site.live
            .enter_device(device)
            .and_then(|_| site.live.driver.synchronize_context())
            .map_err(failed())?;
        for (index, slot) in aside {
            map.set_isolated(index, slot, PASSED);
        }
    }
    steps.add("aside", from, device_bytes(plan));
    Ok(Some(map))
}

/// The mark of copies that are complete.
const PASSED: Mark = Mark::MAX;

/// Finds what everything is, and takes what cannot be watched.
fn known_all(
    site: &mut Site,
    prepared: &mut Prepared,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<ChunkMap, EngineError> {
    let from = Instant::now();
    let by_content = prepared.validation.by.by_content();
    let digests = match by_content {
        true => digest::on_any_device(&mut site.live, plan)?,
        false => vec![Digest::Unknown; plan.len()],
    };
    if by_content {
        steps.add("hash", from, device_bytes(plan));
    }
    let from = Instant::now();
    take_unwatched(site, &mut prepared.sink, plan)?;
    let of_variables = variable_buffers(site);
    let small = plan
        .iter()
        .filter(|piece| of_variables.contains(&piece.buffer))
        .map(|piece| piece.len as u64)
        .sum::<u64>()
        <= VARIABLES;
    let mut now = Vec::new();
    let mut watched = Vec::new();
    for (piece, digest) in plan
        .iter()
        .zip(digests)
        .filter(|(piece, _)| piece.is_on_device())
    {
        let order = Order {
            piece: *piece,
            digest,
        };
        let variable = small && of_variables.contains(&piece.buffer);
        // Other processes write it, and no gate of this worker sees them.
        let shared = site.session.sharing.shared.contains_key(&piece.buffer);
        // What no device can hash could not be validated by content later.
        let unknown = by_content && digest == Digest::Unknown;
        let at_once = variable || shared || unknown || prepared.sink.has(&order);
        if at_once {
            now.push(order);
        }
        watched.push((*piece, digest, !at_once));
    }
    prepared.sink.take(&mut now.into_iter(), &mut |_| {})?;
    steps.add("copy", from, 0);
    Ok(ChunkMap::new(&site.session, &watched))
}

fn variable_buffers(site: &Site) -> HashSet<u64> {
    let modules = site.session.modules.iter();
    modules
        .flat_map(|(_, module)| module.variables.values().map(|it| it.buffer))
        .collect()
}
