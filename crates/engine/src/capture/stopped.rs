//! The part of a capture in the stop: copies everything on the devices, or hashes it, and reads what no gate can watch.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::Instant;

use fermata_device::StreamHandle;
use fermata_store::moments;
use fermata_terms::{Step, Way};

use super::aside::copy_aside;
use super::map::{ChunkMap, Mark, Slot, address_of, device_of};
use super::pool::{DevicePool, of_device};
use super::reference::Reference;
use super::tools::Tools;
use crate::digest::{self, Digest};
use crate::live::Exposed;
use crate::protocol::stop::settle;
use crate::protocol::{Piece, Source, pieces};
use crate::records::Records;
use crate::sink::{Order, Sink};
use crate::steps::Steps;
use crate::{EngineError, Site, Summary, variables};

/// Variables of a device up to this many bytes are read in the stop or put aside, because kernels use them without a parameter
/// that names them.
const VARIABLES: u64 = 64 << 20;

/// The result of the stop.
pub(super) struct Stopped {
    /// The pieces, and which are still to be copied.
    pub(super) map: ChunkMap,
    /// Physical memory made reachable for the copies.
    pub(super) exposed: Exposed,
    /// The session.
    pub(super) records: Records,
    /// Digests of a stopped copy, for tests.
    pub(super) reference: Option<Reference>,
    /// Totals of the session.
    pub(super) summary: Summary,
    /// Its steps, with their times.
    pub(super) steps: Vec<Step>,
}

/// Does the work of the stop, for an image in `folder` that was begun at `start`. With `check` the image is compared with
/// a copy made in the stop.
///
/// # Errors
/// A driver error; the session is as before. The thread's current context may have changed.
pub(super) fn take(
    site: &mut Site,
    tools: &mut Tools,
    (folder, start): (&Path, Instant),
    check: bool,
) -> Result<Stopped, EngineError> {
    moments::pass("stopped");
    settle(&mut site.live)?;
    variables::discover(site)?;
    site.live.check_shared(&mut site.session)?;
    let exposed = site.live.expose(&site.session)?;
    let mut steps = Steps::since(start);
    let read = (|| {
        let plan = pieces(&site.session, &exposed.addresses)?;
        let reference = check
            .then(|| Reference::take(&mut site.live, &plan))
            .transpose()?;
        let map = read(site, tools, &plan, &mut steps)?;
        Ok((map, reference, Records::encode(folder, &site.session)?))
    })();
    site.live.forget_current();
    match read {
        Ok((map, reference, records)) => Ok(Stopped {
            map,
            exposed,
            records,
            reference,
            summary: Summary::of(&site.session),
            steps: steps.list(),
        }),
        Err(error) => {
            // The first failure is the one to report.
            let _ = site.live.conceal(exposed);
            Err(error)
        }
    }
}

/// Copies everything on the devices, or hashes everything, depending on the protocol.
fn read(
    site: &mut Site,
    tools: &mut Tools,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<ChunkMap, EngineError> {
    if tools.way == Way::Snapshot
        && let Some(map) = aside_all(site, tools, plan, steps)?
    {
        return Ok(map);
    }
    // The session has outgrown the pool of its snapshot since.
    tools.way = Way::Cow;
    known_all(site, tools, plan, steps)
}

fn device_bytes(plan: &[Piece]) -> u64 {
    let pieces = plan.iter().filter(|piece| piece.is_on_device());
    pieces.map(|piece| piece.len as u64).sum()
}

/// Reads host memory and arrays, which no gate watches. The plan is that of the session now, which has changed since the
/// sink was opened.
fn take_unwatched(site: &mut Site, sink: &mut Sink, plan: &[Piece]) -> Result<(), EngineError> {
    sink.renew(&mut site.live, plan)?;
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
    tools: &mut Tools,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<Option<ChunkMap>, EngineError> {
    let from = Instant::now();
    let mut map = ChunkMap::unknown(&site.session, plan);
    let mut aside: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
    for index in map.indices() {
        let piece = *map.piece(index);
        let device = device_of(&piece);
        let pool = of_device(&mut tools.pools, device);
        let Some(slot) = pool.and_then(|pool| pool.take(piece.len as u64)) else {
            // `cow` needs all of the pool for isolated copies.
            put_back(&mut tools.pools, &map, &aside);
            return Ok(None);
        };
        aside.entry(device).or_default().push((index, slot));
    }
    // Host memory is read meanwhile.
    put_aside(site, &mut map, aside, |site| {
        tools.signals.hurry(true);
        take_unwatched(site, &mut tools.sink, plan)?;
        tools.signals.hurry(false);
        Ok(())
    })?;
    steps.add("aside", from, device_bytes(plan));
    Ok(Some(map))
}

/// Returns slots that nothing was copied to: by device, each with its piece's index in `map`.
fn put_back(pools: &mut [DevicePool], map: &ChunkMap, aside: &BTreeMap<u32, Vec<(usize, Slot)>>) {
    for pool in pools {
        for (index, slot) in aside.get(&pool.device()).into_iter().flatten() {
            pool.put(*slot, map.piece(*index).len as u64);
        }
    }
}

/// The mark of copies that are complete.
const PASSED: Mark = Mark::MAX;

/// Hashes everything, and copies what no gate can watch.
fn known_all(
    site: &mut Site,
    tools: &mut Tools,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<ChunkMap, EngineError> {
    let from = Instant::now();
    let by_content = tools.validation.by.by_content();
    tools.signals.hurry(true);
    let variables = small_variables(site, plan);
    let mut slots = BTreeMap::new();
    let mut unwatched = |site: &mut Site| {
        take_unwatched(site, &mut tools.sink, plan)?;
        slots = variables_aside(site, &mut tools.pools, plan, &variables)?;
        Ok(())
    };
    let (digests, from) = if by_content {
        let digests = digest::on_any_device_beside(&mut *site, plan, unwatched)?;
        steps.add("hash", from, device_bytes(plan));
        (digests, Instant::now())
    } else {
        unwatched(site)?;
        (vec![Digest::Unknown; plan.len()], from)
    };
    let mut now = Vec::new();
    let mut watched = Vec::new();
    let mut copied = Vec::new();
    let mut aside: BTreeMap<u32, Vec<(usize, Slot)>> = BTreeMap::new();
    let pieces = plan.iter().zip(digests).enumerate();
    for (at, (piece, digest)) in pieces.filter(|(_, (piece, _))| piece.is_on_device()) {
        let order = Order {
            piece: *piece,
            digest,
        };
        let (device, bytes) = (device_of(piece), piece.len as u64);
        let mut at_once = tools.sink.has(&order);
        if variables.contains(&at) {
            match slots.remove(&at) {
                // Nothing of it has to be copied any more.
                Some(slot) if at_once => {
                    if let Some(pool) = of_device(&mut tools.pools, device) {
                        pool.put(slot, bytes);
                    }
                }
                Some(slot) => copied.push((watched.len(), slot)),
                None => at_once = true,
            }
        } else if !at_once && site.session.sharing.shared.contains_key(&piece.buffer) {
            // Other processes may write the buffer, and this worker's gate does not see their operations.
            match slot_of_unwatched(&mut tools.pools, device, bytes) {
                Some(slot) => aside.entry(device).or_default().push((watched.len(), slot)),
                None => at_once = true,
            }
        } else if by_content && digest == Digest::Unknown {
            // Its device cannot hash it, so it could not be validated by content later.
            at_once = true;
        }
        if at_once {
            now.push(order);
        }
        watched.push((*piece, digest, !at_once));
    }
    let mut map = ChunkMap::new(&site.session, &watched);
    for (index, slot) in copied {
        map.set_isolated(index, slot, PASSED);
    }
    put_aside(site, &mut map, aside, |_| {
        tools.sink.take(&mut now.into_iter(), &mut |_| {})
    })?;
    tools.signals.hurry(false);
    steps.add("copy", from, 0);
    Ok(map)
}

/// Which pieces of a plan are of variables; none if they have more than [`VARIABLES`] bytes.
fn small_variables(site: &Site, plan: &[Piece]) -> BTreeSet<usize> {
    let of_variables = variable_buffers(site);
    let pieces = plan.iter().enumerate();
    let of_variables = pieces.filter(|(_, piece)| of_variables.contains(&piece.buffer));
    let bytes = |(_, piece): (usize, &Piece)| piece.len as u64;
    match of_variables.clone().map(bytes).sum::<u64>() <= VARIABLES {
        true => of_variables.map(|(at, _)| at).collect(),
        false => BTreeSet::new(),
    }
}

/// Copies these pieces of a plan to the pools, as far as there is room. Returns their slots when all copies are complete.
fn variables_aside(
    site: &mut Site,
    pools: &mut [DevicePool],
    plan: &[Piece],
    variables: &BTreeSet<usize>,
) -> Result<BTreeMap<usize, Slot>, EngineError> {
    let mut slots = BTreeMap::new();
    let mut by_device: BTreeMap<u32, Vec<(Slot, &Piece)>> = BTreeMap::new();
    for (at, piece) in variables
        .iter()
        .filter_map(|at| Some((*at, plan.get(*at)?)))
    {
        let device = device_of(piece);
        if let Some(slot) = slot_of_unwatched(pools, device, piece.len as u64) {
            slots.insert(at, slot);
            by_device.entry(device).or_default().push((slot, piece));
        }
    }
    for (device, pieces) in by_device {
        let entered = site.live.enter_device(device).map(|_| ());
        let driver = &site.live.driver;
        let copied = entered.and_then(|()| {
            pieces.iter().try_for_each(|(slot, piece)| {
                let from = address_of(piece).raw();
                driver.copy(*slot, from, piece.len as u64, StreamHandle::LEGACY)
            })
        });
        // Also after a failure: the pool is released then, so no copy into it may be under way.
        let ended = driver.synchronize_stream(StreamHandle::LEGACY);
        copied
            .and(ended)
            .map_err(EngineError::driver("copy variables on their device"))?;
    }
    Ok(slots)
}

/// A slot for memory whose writers the gate does not see: at most half of the pool, because the rest is for isolated copies.
fn slot_of_unwatched(pools: &mut [DevicePool], device: u32, bytes: u64) -> Option<Slot> {
    let pool = of_device(pools, device).filter(|pool| !pool.is_tight());
    pool?.take(bytes)
}

/// Copies pieces to their slots, by device, and does `meanwhile`. Returns when all copies are complete.
fn put_aside(
    site: &mut Site,
    map: &mut ChunkMap,
    aside: BTreeMap<u32, Vec<(usize, Slot)>>,
    meanwhile: impl FnOnce(&mut Site) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let failed = || EngineError::driver("copy the session on its device");
    let begun = aside.iter().try_for_each(|(device, aside)| {
        site.live.enter_device(*device)?;
        copy_aside(&site.live.driver, map, aside, StreamHandle::LEGACY)
    });
    let done = begun.map_err(failed()).and_then(|()| meanwhile(site));
    // Also after a failure: the pool is released then, so no copy into it may be under way.
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
    done
}

fn variable_buffers(site: &Site) -> HashSet<u64> {
    let modules = site.session.modules.iter();
    modules
        .flat_map(|(_, module)| module.variables.values().map(|it| it.buffer))
        .collect()
}
