//! The thread that copies pieces to the host while the program runs.
//!
//! It copies in this order: pieces that an operation waits for, alone; slots of a pool that is filling up; pieces that
//! the program has not touched; the remaining slots. Long transfers of the program take precedence, and copies leave gaps for all of them
//! ([`crate::link`]).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use fermata_abi::op::Address;
use fermata_device::Driver;

use super::map::{Slot, State, device_of};
use super::purpose::Purpose;
use super::shared::{Inner, Shared};
use crate::EngineError;
use crate::digest::{self, Digest};
use crate::hashers::SharedHasher;
use crate::protocol::{Piece, Source};
use crate::sink::{Order, Sink};

/// The longest sleep while there is nothing to start.
const TURN: Duration = Duration::from_micros(200);
/// The most passes over pieces that the program has written again, for an image of the end.
const PASSES: u32 = 5;
/// Another pass pays only if the last one has left less than this share to do.
const SHRINKING: f64 = 0.7;

/// After an operation has waited, no other copy begins for this time, because the next operation often has to wait, too,
/// and a copy under way would be ahead of it in the link or in the store's buffers. So the slots of a pool that is too
/// small are emptied only when no operation waits.
const LINGER: Duration = Duration::from_millis(1);
/// How long to wait for an operation to go on, once its pieces have been copied.
const GOING: Duration = Duration::from_millis(50);
/// Bytes in a batch that is hashed at once, which takes a device 0.6 ms, and a link 20 ms. With batches of a quarter of
/// that, every second step of a program met one, and each left a part of the device idle at its end.
const TOGETHER: u64 = 1 << 30;
/// How long a batch of so many bytes waits for a moment at which the devices are idle: half the time that a link takes to
/// copy it, so that copies do not wait for it even if there is no such moment.
const POLITE: Duration = Duration::from_millis(10);
/// Batches that may be hashed and not yet copied, beside the one being hashed: enough that copies go on while the
/// program's kernels occupy the device.
const BATCHES: usize = 2;

/// Indices of pieces, and where the copy of each lies: address and bytes.
type Aside = (Vec<usize>, Vec<(u64, u64)>);

/// See the module.
pub(crate) struct Conductor {
    pub shared: Arc<Shared>,
    pub driver: Arc<Driver>,
    pub sink: Sink,
    /// Hash kernels by device, for pieces with an unknown digest that lie in a pool: they are hashed before they are
    /// copied.
    pub hashers: HashMap<u32, SharedHasher>,
}

impl Conductor {
    /// Copies until nothing is left, or the capture is given up, as after a failure.
    pub(crate) fn run(mut self) -> Sink {
        if let Err(error) = self.copy_all() {
            self.shared.give_up(error);
        }
        self.shared.end();
        self.shared.settle(&self.driver);
        self.sink
    }

    fn copy_all(&mut self) -> Result<(), EngineError> {
        let Self {
            shared,
            driver,
            sink,
            hashers,
        } = self;
        std::thread::scope(|scope| {
            let mut names = Names::begin(scope, shared, driver, hashers);
            loop {
                let mut orders = std::iter::from_fn(|| {
                    let (index, mut order) = next(shared, driver)?;
                    match names.name(shared, index) {
                        Ok(digest) => order.digest = digest,
                        Err(error) => {
                            shared.give_up(error);
                            return None;
                        }
                    }
                    Some(order)
                });
                sink.take(&mut orders, &mut |piece| read(shared, piece))?;
                let mut inner = shared.inner.lock();
                if inner.is_given_up() {
                    return Ok(());
                }
                if inner.map.left().pieces == 0 {
                    if shared.purpose == Purpose::End && another_pass(&mut inner) {
                        continue;
                    }
                    return Ok(());
                }
                shared.changed.wait_for(&mut inner, TURN);
            }
        })
    }
}

/// Hashes the pieces that were copied to a pool in the stop, in batches, somewhat before they are copied to the host, so
/// that chunks which the store has are not copied. Hashing all at once would keep the program's kernels off the device
/// for 0.7 ms a GiB; each batch but the first waits for a moment at which the device is idle.
struct Names {
    by_device: BTreeMap<u32, Receiver<Named>>,
}

/// The digests of a batch, by the pieces' indices.
type Named = Result<Vec<(usize, Digest)>, EngineError>;

impl Names {
    /// Begins to hash, on a thread for each device.
    fn begin<'scope>(
        scope: &'scope Scope<'scope, '_>,
        shared: &Arc<Shared>,
        driver: &Arc<Driver>,
        hashers: &HashMap<u32, SharedHasher>,
    ) -> Self {
        let mut found: BTreeMap<u32, Aside> = BTreeMap::new();
        let inner = shared.inner.lock();
        for index in inner.map.indices() {
            if let State::Isolated { slot, .. } = inner.map.state(index)
                && inner.map.digest(index) == Digest::Unknown
            {
                let piece = *inner.map.piece(index);
                let (indices, places) = found.entry(device_of(&piece)).or_default();
                indices.push(index);
                places.push((slot, piece.len as u64));
            }
        }
        drop(inner);
        let begun = found.into_iter().filter_map(|(device, aside)| {
            let hasher = hashers.get(&device)?.clone();
            let (driver, shared) = (Arc::clone(driver), Arc::clone(shared));
            let (give, batches) = sync_channel(BATCHES);
            let hash = move || {
                for (nth, batch) in batches_of(&aside.1).into_iter().enumerate() {
                    let (indices, places) = (&aside.0[batch.clone()], &aside.1[batch]);
                    if nth > 0 {
                        shared.await_rest(patience(places));
                    }
                    let named = digest::of_places(&driver, &hasher, places)
                        .map(|digests| indices.iter().copied().zip(digests).collect())
                        .map_err(EngineError::driver(format!(
                            "hash what was put aside on device {device}"
                        )));
                    let failed = named.is_err();
                    // The receiver has gone when the copying has ended.
                    if give.send(named).is_err() || failed {
                        return;
                    }
                }
            };
            // Without a thread the pieces are hashed where they arrive.
            let thread = Builder::new().name(format!("hash {device}"));
            thread.spawn_scoped(scope, hash).ok()?;
            Some((device, batches))
        });
        Self {
            by_device: begun.collect(),
        }
    }

    /// The digest of a piece that is about to be copied.
    fn name(&mut self, shared: &Shared, index: usize) -> Result<Digest, EngineError> {
        loop {
            let (device, digest) = {
                let inner = shared.inner.lock();
                (device_of(inner.map.piece(index)), inner.map.digest(index))
            };
            if digest != Digest::Unknown {
                return Ok(digest);
            }
            let batch = self.by_device.get(&device).map(Receiver::recv);
            let Some(Ok(batch)) = batch else {
                self.by_device.remove(&device);
                return Ok(Digest::Unknown);
            };
            let mut inner = shared.inner.lock();
            for (index, digest) in batch? {
                inner.map.set_digest(index, digest);
            }
        }
    }
}

/// Batches of pieces that lie at these places (address, bytes), of at least [`TOGETHER`] bytes each but for the last.
fn batches_of(places: &[(u64, u64)]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let mut from = 0;
    while from < places.len() {
        let end = from + digest::part(lengths(&places[from..]), TOGETHER);
        batches.push(from..end);
        from = end;
    }
    batches
}

fn lengths(places: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    places.iter().map(|(_, bytes)| *bytes)
}

/// How long a batch waits for idle devices; see [`POLITE`].
fn patience(places: &[(u64, u64)]) -> Duration {
    let bytes: u64 = lengths(places).sum();
    POLITE.mul_f64(bytes as f64 / TOGETHER as f64)
}

/// The next piece to copy, with its state changed; `None` if there is none now.
fn next(shared: &Shared, driver: &Driver) -> Option<(usize, Order)> {
    let mut inner = shared.inner.lock();
    let yields = inner
        .yield_until
        .is_some_and(|until| Instant::now() < until);
    if inner.is_given_up() || yields && !inner.is_pressed() {
        return None;
    }
    let (index, slot) = pick(&mut inner, driver)?;
    let mut piece = *inner.map.piece(index);
    let digest = inner.map.digest(index);
    match slot {
        Some(slot) => {
            piece.source = Source::Device {
                device: device_of(&piece),
                address: Address::from_raw(slot),
            };
            inner.map.set_draining(index, slot);
        }
        None => inner.map.set_copying(index),
    }
    Some((index, Order::new(piece, digest)))
}

fn pick(inner: &mut Inner, driver: &Driver) -> Option<(usize, Option<Slot>)> {
    let isolated = |inner: &mut Inner| {
        let Inner { map, marks, .. } = inner;
        let found = map.next_isolated(|mark| Inner::has_passed(marks, driver, mark));
        found.map(|(index, slot)| (index, Some(slot)))
    };
    if inner.map.is_wanted() {
        return inner.map.next_untouched().map(|index| (index, None));
    }
    let pause = if inner.is_pressed() { GOING } else { LINGER };
    let relieved = inner.relieved.filter(|since| since.elapsed() < pause);
    if inner.map.is_urgent() || relieved.is_some() {
        return None;
    }
    let tight = inner.pools.iter().any(|pool| pool.is_tight());
    if tight
        && !inner.is_pressed()
        && let Some(found) = isolated(inner)
    {
        return Some(found);
    }
    match inner.map.next_untouched() {
        Some(index) => Some((index, None)),
        None => isolated(inner),
    }
}

/// The bytes of a piece have been read.
fn read(shared: &Shared, piece: &Piece) {
    let mut inner = shared.inner.lock();
    let Some(index) = inner.map.index_of(piece) else {
        return;
    };
    if let State::Draining(slot) = inner.map.state(index)
        && let Some(pool) = inner.pool(device_of(piece))
    {
        pool.put(slot, piece.len as u64);
    }
    let urgent = inner.map.is_urgent();
    inner.map.set_done(index);
    if urgent && !inner.map.is_urgent() {
        inner.relieved = Some(Instant::now());
    }
    inner.moved += piece.len as u64;
    inner.cost.timeline.copied(piece.len as u64);
}

/// Begins another pass over pieces that were written again, if that is worthwhile.
fn another_pass(inner: &mut Inner) -> bool {
    let dirty = inner.map.dirty_bytes();
    if inner.passes >= PASSES || dirty == 0 || dirty as f64 > SHRINKING * inner.last_pass as f64 {
        return false;
    }
    inner.passes += 1;
    inner.last_pass = inner.map.again();
    inner.last_pass > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_as_long_as_their_bytes_allow() {
        let chunk = (0, 4 << 20);
        let chunks = vec![chunk; 600];
        assert_eq!(batches_of(&chunks), [0..256, 256..512, 512..600]);
        assert_eq!(patience(&chunks[..256]), POLITE);
        assert_eq!(patience(&chunks[..64]), POLITE / 4);
        // Small pieces are one batch, however many there are.
        let small = batches_of(&vec![(0, 4096); 10_000]);
        assert_eq!(
            small,
            vec![Range {
                start: 0,
                end: 10_000
            }]
        );
        assert_eq!(batches_of(&[(0, 2 << 30), chunk]), [0..1, 1..2]);
        assert!(batches_of(&[]).is_empty());
    }
}
