//! The part of a capture in the stop: copies everything on the devices, or hashes it, and reads what no gate can watch.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Instant;

use fermata_device::StreamHandle;
use fermata_store::moments;
use fermata_terms::{Step, Way};

use super::aside::copy_aside;
use super::map::{ChunkMap, Mark, Slot, device_of};
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
    let orders = arrays.into_iter();
    let mut orders = orders.map(|piece| Order::new(piece, Digest::Unknown));
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
    let mut aside = Aside::new();
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
    put_aside(
        site,
        |index| *map.piece(index),
        &aside,
        |site| {
            tools.signals.hurry(true);
            take_unwatched(site, &mut tools.sink, plan)?;
            tools.signals.hurry(false);
            Ok(())
        },
    )?;
    isolate(&mut map, aside);
    steps.add("aside", from, device_bytes(plan));
    Ok(Some(map))
}

/// Returns slots that nothing was copied to, of pieces of `map`.
fn put_back(pools: &mut [DevicePool], map: &ChunkMap, aside: &Aside) {
    for pool in pools {
        for (index, slot) in aside.get(&pool.device()).into_iter().flatten() {
            pool.put(*slot, map.piece(*index).len as u64);
        }
    }
}

/// Slots of a device's pool, by device, each with the index of a piece.
type Aside = BTreeMap<u32, Vec<(usize, Slot)>>;

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
    tools.signals.hurry(true);
    let sorted = if tools.validation.by.by_content() {
        let sorted = digest::on_any_device_beside(site, plan, |site, digests| {
            sort(site, tools, plan, digests)
        })?;
        steps.add("hash", from, device_bytes(plan));
        sorted
    } else {
        let mut unknown = std::iter::repeat_n(Digest::Unknown, plan.len());
        sort(site, tools, plan, &mut unknown)?
    };
    let from = Instant::now();
    let mut map = ChunkMap::new(&site.session, &sorted.watched);
    isolate(&mut map, sorted.copied);
    put_aside(
        site,
        |index| *map.piece(index),
        &sorted.aside,
        |_| tools.sink.take(&mut sorted.now.into_iter(), &mut |_| {}),
    )?;
    isolate(&mut map, sorted.aside);
    tools.signals.hurry(false);
    steps.add("copy", from, 0);
    Ok(map)
}

/// What is to be done about each piece on a device.
#[derive(Default)]
struct Sorted {
    /// Those that are taken in the stop.
    now: Vec<Order>,
    /// All of them, with their digests, and whether they are still to be copied. The others refer to these by their indices.
    watched: Vec<(Piece, Digest, bool)>,
    /// Those that have been copied to the pools.
    copied: Aside,
    /// Those that are to be copied there.
    aside: Aside,
}

/// Reads what no gate watches, puts variables aside, and sorts the pieces of `plan`, whose digests come in their order, while
/// further ones are hashed.
fn sort(
    site: &mut Site,
    tools: &mut Tools,
    plan: &[Piece],
    digests: &mut dyn Iterator<Item = Digest>,
) -> Result<Sorted, EngineError> {
    take_unwatched(site, &mut tools.sink, plan)?;
    let variables = variables_aside(site, &mut tools.pools, plan)?;
    let by_content = tools.validation.by.by_content();
    let mut sorted = Sorted::default();
    let pieces = plan.iter().zip(digests).enumerate();
    for (at, (piece, digest)) in pieces.filter(|(_, (piece, _))| piece.is_on_device()) {
        let order = Order::new(*piece, digest);
        let index = sorted.watched.len();
        let (device, bytes) = (device_of(piece), piece.len as u64);
        let is_shared = || site.session.sharing.shared.contains_key(&piece.buffer);
        let is_known = tools.sink.has(&order);
        let at_once = match variables.get(&at) {
            Some(Some(slot)) if is_known => {
                // Nothing of it has to be copied any more.
                if let Some(pool) = of_device(&mut tools.pools, device) {
                    pool.put(*slot, bytes);
                }
                true
            }
            Some(Some(slot)) => {
                let copied = sorted.copied.entry(device).or_default();
                copied.push((index, *slot));
                false
            }
            Some(None) => true,
            None if is_known => true,
            // Other processes may write the buffer, and this worker's gate does not see their operations.
            None if is_shared() => match slot_of_unwatched(&mut tools.pools, device, bytes) {
                Some(slot) => {
                    let aside = sorted.aside.entry(device).or_default();
                    aside.push((index, slot));
                    false
                }
                None => true,
            },
            // What its device cannot hash could not be validated by content later.
            None => by_content && digest == Digest::Unknown,
        };
        if at_once {
            sorted.now.push(order);
        }
        sorted.watched.push((*piece, digest, !at_once));
    }
    Ok(sorted)
}

/// Copies variables to the pools, if they have at most [`VARIABLES`] bytes in all, as far as there is room. Returns the slot of each,
/// by its piece's index in the plan, when all copies are complete.
fn variables_aside(
    site: &mut Site,
    pools: &mut [DevicePool],
    plan: &[Piece],
) -> Result<BTreeMap<usize, Option<Slot>>, EngineError> {
    let of_variables = variable_buffers(site);
    let pieces = plan.iter().enumerate();
    let variables = pieces.filter(|(_, piece)| of_variables.contains(&piece.buffer));
    let bytes = variables.clone().map(|(_, piece)| piece.len as u64);
    if bytes.sum::<u64>() > VARIABLES {
        return Ok(BTreeMap::new());
    }
    let (mut slots, mut aside) = (BTreeMap::new(), Aside::new());
    for (at, piece) in variables {
        let device = device_of(piece);
        let slot = slot_of_unwatched(pools, device, piece.len as u64);
        slots.insert(at, slot);
        if let Some(slot) = slot {
            aside.entry(device).or_default().push((at, slot));
        }
    }
    put_aside(site, |at| plan[at], &aside, |_| Ok(()))?;
    Ok(slots)
}

/// A slot for memory whose writers the gate does not see: at most half of the pool, because the rest is for isolated copies.
fn slot_of_unwatched(pools: &mut [DevicePool], device: u32, bytes: u64) -> Option<Slot> {
    let pool = of_device(pools, device).filter(|pool| !pool.is_tight());
    pool?.take(bytes)
}

/// Copies pieces, which `piece` tells by their index, to their slots, and does `meanwhile`. Returns when all copies are complete.
fn put_aside(
    site: &mut Site,
    piece: impl Fn(usize) -> Piece,
    aside: &Aside,
    meanwhile: impl FnOnce(&mut Site) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let failed = || EngineError::driver("copy the session on its device");
    let begun = aside.iter().try_for_each(|(device, aside)| {
        site.live.enter_device(*device)?;
        copy_aside(&site.live.driver, &piece, aside, StreamHandle::LEGACY)
    });
    let done = begun.map_err(failed()).and_then(|()| meanwhile(site));
    // Also after a failure: the pools are released then, so no copy into them may be under way.
    let mut ended = Ok(());
    for device in aside.keys() {
        site.live.forget_current();
        let entered = site.live.enter_device(*device);
        ended = ended.and(entered.and_then(|_| site.live.driver.synchronize_context()));
    }
    done.and(ended.map_err(failed()))
}

/// Marks pieces as copied to their slots.
fn isolate(map: &mut ChunkMap, aside: Aside) {
    for (index, slot) in aside.into_values().flatten() {
        map.set_isolated(index, slot, PASSED);
    }
}

fn variable_buffers(site: &Site) -> HashSet<u64> {
    let modules = site.session.modules.iter();
    modules
        .flat_map(|(_, module)| module.variables.values().map(|it| it.buffer))
        .collect()
}
