//! Digests of device memory, computed by the device itself.
//!
//! A piece whose digest is known before it is copied need not be copied if the store has its chunk, nor be hashed by the
//! processor if the store has not. The pieces of a device that cannot hash, or fails at it, are `Unknown` here, and the
//! processor hashes them where they arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use fermata_device::hash::{self, CHANGE_BLOCK, Hasher};
use fermata_device::{ContextHandle, Driver, DriverError, PinnedBuffer, StreamHandle};
use fermata_store::ChunkId;
use parking_lot::Mutex;

use crate::hashers::SharedHasher;
use crate::pipeline::{Next, Queue, STEP_LIMIT, help, helpers};
use crate::protocol::{Piece, Source};
use crate::seal::{Seal, SealKey};
use crate::{EngineError, Live, Site, seal};

/// What is known of a piece before it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digest {
    /// Not hashed by a device.
    Unknown,
    /// All zeros.
    Zero,
    /// The chunk's id.
    Id(ChunkId),
}

/// Bytes of the first part of a plan that is hashed while what has been hashed is used, the factor by which each further part
/// is longer, and the most. A link moves some 50 GB/s, and a device makes digests and seals of 1000: with a factor of 16 the second
/// part was waited for. Small in debug builds, so that tests have several parts.
const FIRST_PART: u64 = if cfg!(debug_assertions) {
    4 << 20
} else {
    512 << 20
};
const PART_GROWTH: u64 = 4;
const LONGEST_PART: u64 = 32 * FIRST_PART;

impl Live {
    /// Loads the hash kernels into a context of `device`, which becomes current. Meant for spare workers, so that the
    /// first checkpoint finds the kernels loaded. The driver places a program's variables depending on what was loaded
    /// before, so either every worker does this or none.
    ///
    /// # Errors
    /// The context cannot be used. A device that cannot hash is no error here; its first use finds out.
    pub fn load_hash_kernels(
        &mut self,
        device: u32,
        context: ContextHandle,
    ) -> Result<(), DriverError> {
        self.forget_current();
        self.driver.set_current(context)?;
        if let Ok(hasher) = Hasher::new(&self.driver, device) {
            let shared = (context, Arc::new(Mutex::new(hasher)));
            self.hashers.insert(device, shared);
        }
        Ok(())
    }
}

/// The digests of zeros, by their number. That of four MiB takes the processor a millisecond, which a stop need not wait for.
static ZEROS: Mutex<BTreeMap<usize, ChunkId>> = Mutex::new(BTreeMap::new());

/// Has the digests of so many zeros known.
pub(crate) fn know_zeros(lengths: impl IntoIterator<Item = usize>) {
    for len in lengths {
        zeros(len);
    }
}

fn zeros(len: usize) -> ChunkId {
    let known = ZEROS.lock().get(&len).copied();
    known.unwrap_or_else(|| {
        let id = ChunkId::of(&vec![0; len]);
        ZEROS.lock().insert(len, id);
        id
    })
}

impl Digest {
    /// What a device has found `len` bytes to be.
    fn of(digest: [u8; 32], len: usize) -> Self {
        match ChunkId(digest) {
            id if id == zeros(len) => Self::Zero,
            id => Self::Id(id),
        }
    }
}

/// The digests of `plan`'s pieces, one each, where devices hash faster than the processor. The devices must be idle.
pub(crate) fn on_devices(live: &mut Live, plan: &[Piece]) -> Vec<Digest> {
    if live.device_hashes {
        of_all(live, plan)
    } else {
        vec![Digest::Unknown; plan.len()]
    }
}

/// The digests of `plan`'s pieces on devices, one each, computed by the device or by the processor, whichever is faster.
/// The devices must be idle.
pub(crate) fn on_any_device(live: &mut Live, plan: &[Piece]) -> Result<Vec<Digest>, EngineError> {
    if live.device_hashes {
        Ok(of_all(live, plan))
    } else {
        by_copy(live, plan)
    }
}

/// Hands the digests that [`on_any_device`] finds to `act`, in order, as soon as they are known. `act` runs while devices hash,
/// or after the processor has, and changes no memory of theirs. Where no thread can be started they are all `Unknown`.
///
/// # Errors
/// A driver error, or that of `act`.
pub(crate) fn on_any_device_beside<R>(
    site: &mut Site,
    plan: &[Piece],
    act: impl FnOnce(&mut Site, &mut dyn Iterator<Item = Digest>) -> Result<R, EngineError>,
) -> Result<R, EngineError> {
    if !site.live.device_hashes {
        // First, because it needs the staging buffers.
        let digests = by_copy(&mut site.live, plan)?;
        return act(site, &mut digests.into_iter());
    }
    let mut kernels = Kernels::of(&mut site.live, plan);
    let done = kernels.in_parts(plan, None, |found| {
        act(site, &mut found.map(|(digest, _)| digest))
    });
    kernels.settle(&mut site.live);
    done
}

/// The digests of `plan`'s pieces on devices, one each, computed by the processor from copies.
///
/// # Errors
/// A driver error of a copy.
pub(crate) fn by_copy(live: &mut Live, plan: &[Piece]) -> Result<Vec<Digest>, EngineError> {
    let failed = || EngineError::driver("copy device memory to hash it");
    let digests = Mutex::new(vec![Digest::Unknown; plan.len()]);
    live.prepare_staging().map_err(failed())?;
    let queue: Queue<(usize, PinnedBuffer)> = Queue::new(usize::MAX, 1);
    let hash = || {
        while let Next::Item((index, buffer)) = queue.next() {
            let bytes = &buffer[..plan[index].len];
            let digest = match is_zero(bytes) {
                true => Digest::Zero,
                false => Digest::Id(ChunkId::of(bytes)),
            };
            digests.lock()[index] = digest;
        }
    };
    std::thread::scope(|scope| {
        help(scope, hash).unwrap_or_else(|error| queue.fail(error));
        for _ in 1..helpers() {
            // One thread is enough.
            let _ = help(scope, hash);
        }
        for (index, piece) in plan.iter().enumerate() {
            let Source::Device { device, address } = piece.source else {
                continue;
            };
            let buffer = live.staging.as_ref().and_then(|pool| pool.take(STEP_LIMIT));
            let Some(buffer) = buffer else {
                queue.fail(EngineError::Internal(
                    "no staging buffer comes back".to_owned(),
                ));
                break;
            };
            let copied = live.enter_device(device).and_then(|_| {
                let bytes = piece.len as u64;
                live.driver
                    .copy(buffer.address(), address.raw(), bytes, StreamHandle::LEGACY)?;
                live.driver.synchronize_stream(StreamHandle::LEGACY)
            });
            if let Err(error) = copied {
                queue.fail(failed()(error));
                break;
            }
            // The outcome reports a failure.
            let _ = queue.push((index, buffer));
        }
        queue.end();
    });
    live.forget_current();
    queue.outcome()?;
    Ok(digests.into_inner())
}

/// What is known of a piece before it is copied, and its seal if it has one.
pub(crate) type Hashed = (Digest, Option<Seal>);

/// The seals that are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Seals<'s> {
    /// With which they are made.
    pub key: &'s SealKey,
    /// Whether a piece with this digest will be copied; others get none.
    pub copied: &'s (dyn Fn(&Piece, Digest) -> bool + Sync),
}

/// Hands the digests of `plan`'s pieces to `act`, in order, as soon as they are known, with the seals that are wanted: the device
/// hashes the next part while `act` copies the one before. No other work may run on the devices.
///
/// The first part is small, so that copies begin soon. Hashing a further part takes less time than copying the one
/// before, because a device reads its memory many times as fast as a link does.
pub(crate) fn in_parts<R>(
    live: &mut Live,
    plan: &[Piece],
    seals: Option<Seals<'_>>,
    act: impl FnOnce(&mut dyn Iterator<Item = Hashed>) -> R,
) -> R {
    if !live.device_hashes {
        return act(&mut std::iter::repeat_n(UNKNOWN, plan.len()));
    }
    let mut kernels = Kernels::of(live, plan);
    let done = kernels.in_parts(plan, seals, act);
    kernels.settle(live);
    done
}

const UNKNOWN: Hashed = (Digest::Unknown, None);

fn lengths(plan: &[Piece]) -> impl Iterator<Item = u64> {
    plan.iter().map(|piece| piece.len as u64)
}

/// How many pieces of these lengths make `bytes`, and at least one.
pub(crate) fn part(lengths: impl Iterator<Item = u64>, bytes: u64) -> usize {
    let mut sum = 0;
    let count = lengths.take_while(|len| {
        let fits = sum < bytes;
        sum += len;
        fits
    });
    count.count()
}

/// The digests of these ranges of a device's memory (address, bytes), one each. Changes the thread's current context.
///
/// # Errors
/// A driver error.
pub(crate) fn of_places(
    driver: &Driver,
    (context, hasher): &SharedHasher,
    places: &[hash::Piece],
) -> Result<Vec<Digest>, DriverError> {
    driver.set_current(*context)?;
    let found = hasher.lock().blake3(places)?;
    let digests = places.iter().zip(found);
    Ok(digests
        .map(|((_, bytes), digest)| Digest::of(digest, *bytes as usize))
        .collect())
}

fn of_all(live: &mut Live, plan: &[Piece]) -> Vec<Digest> {
    let mut kernels = Kernels::of(live, plan);
    let digests = kernels.digests(plan);
    kernels.settle(live);
    digests
}

/// The hash kernels of all devices that a plan touches; usable from any thread.
struct Kernels {
    driver: Arc<Driver>,
    by_device: BTreeMap<u32, SharedHasher>,
    /// Devices whose hash kernels have failed.
    failed: BTreeSet<u32>,
}

impl Kernels {
    fn of(live: &mut Live, plan: &[Piece]) -> Self {
        let mut kernels = Self {
            driver: Arc::clone(&live.driver),
            by_device: BTreeMap::new(),
            failed: BTreeSet::new(),
        };
        for piece in plan {
            let Source::Device { device, .. } = piece.source else {
                continue;
            };
            if kernels.failed.contains(&device) || kernels.by_device.contains_key(&device) {
                continue;
            }
            match hasher(live, device) {
                Ok(Some(hasher)) => drop(kernels.by_device.insert(device, hasher)),
                Ok(None) | Err(_) => drop(kernels.failed.insert(device)),
            }
        }
        kernels
    }

    /// See the function of this name.
    fn in_parts<R>(
        &mut self,
        plan: &[Piece],
        seals: Option<Seals<'_>>,
        act: impl FnOnce(&mut dyn Iterator<Item = Hashed>) -> R,
    ) -> R {
        let (give, parts) = std::sync::mpsc::channel();
        let hash = move || {
            let (mut rest, mut wanted) = (plan, FIRST_PART);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(part(lengths(rest), wanted));
                if give.send(self.sealed(now, seals)).is_err() {
                    // The receiver has ended: the digests are not needed any more.
                    return;
                }
                (rest, wanted) = (later, (wanted * PART_GROWTH).min(LONGEST_PART));
            }
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("hash".to_owned());
            // Without a thread the closure, and with it the sender, is dropped, and everything is hashed where it arrives.
            let hashing = thread.spawn_scoped(scope, hash);
            let done = act(&mut parts
                .into_iter()
                .flatten()
                .chain(std::iter::repeat(UNKNOWN))
                .take(plan.len()));
            // What it has not hashed, also because of a panic, is hashed there, too.
            drop(hashing.map(ScopedJoinHandle::join));
            done
        })
    }

    /// The digests of some pieces, one each, and the seals that are wanted.
    fn sealed(&mut self, plan: &[Piece], wanted: Option<Seals<'_>>) -> Vec<Hashed> {
        let digests = self.digests(plan);
        let mut seals = vec![None; plan.len()];
        if let Some(wanted) = wanted {
            for (device, hasher) in &self.by_device {
                let all = (plan, digests.as_slice());
                // Pieces without a seal are checked by their digests.
                let _ = enter_seals(&self.driver, (*device, hasher), all, wanted, &mut seals);
            }
        }
        digests.into_iter().zip(seals).collect()
    }

    /// The digests of some pieces, one each.
    fn digests(&mut self, plan: &[Piece]) -> Vec<Digest> {
        let mut digests = vec![Digest::Unknown; plan.len()];
        let mut by_device: BTreeMap<u32, (Vec<usize>, Vec<hash::Piece>)> = BTreeMap::new();
        for (index, piece) in plan.iter().enumerate() {
            if let Source::Device { device, address } = piece.source
                && address.is_multiple_of(16)
            {
                let (indices, places) = by_device.entry(device).or_default();
                indices.push(index);
                places.push((address.raw(), piece.len as u64));
            }
        }
        for (device, (indices, places)) in by_device {
            let Some(hasher) = self.by_device.get(&device) else {
                continue;
            };
            let Ok(found) = of_places(&self.driver, hasher, &places) else {
                self.by_device.remove(&device);
                self.failed.insert(device);
                continue;
            };
            for (index, digest) in indices.into_iter().zip(found) {
                digests[index] = digest;
            }
        }
        digests
    }

    /// Returns the kernels to the session. Those that have failed are dropped, so that the next use loads them again.
    fn settle(self, live: &mut Live) {
        for device in self.failed {
            live.hashers.remove(&device);
        }
        live.forget_current();
    }
}

/// Enters the seals of those pieces of `plan` that lie on a device and may have one.
///
/// # Errors
/// A driver error.
fn enter_seals(
    driver: &Driver,
    (device, (context, hasher)): (u32, &SharedHasher),
    (plan, digests): (&[Piece], &[Digest]),
    wanted: Seals<'_>,
    seals: &mut [Option<Seal>],
) -> Result<(), DriverError> {
    let (mut indices, mut places): (Vec<_>, Vec<hash::Piece>) = (Vec::new(), Vec::new());
    for (index, (piece, digest)) in plan.iter().zip(digests).enumerate() {
        let bytes = piece.len as u64;
        if let Source::Device {
            device: at,
            address,
        } = piece.source
            && at == device
            && address.is_multiple_of(16)
            && seal::has_seal(bytes)
            && (wanted.copied)(piece, *digest)
        {
            indices.push(index);
            places.push((address.raw(), bytes));
        }
    }
    driver.set_current(*context)?;
    let mut hasher = hasher.lock();
    let mut hashes = hasher.changes(&places, wanted.key.bytes())?;
    for (index, (_, bytes)) in indices.into_iter().zip(places) {
        let of_piece = hashes.split_off(..(bytes / CHANGE_BLOCK) as usize);
        seals[index] = of_piece.map(|it| wanted.key.seal(it.iter().copied()));
    }
    Ok(())
}

/// The hash kernels of a device that has a context, loaded if need be.
fn hasher(live: &mut Live, device: u32) -> Result<Option<SharedHasher>, DriverError> {
    let context = live
        .contexts
        .values()
        .filter(|it| it.device == device)
        .min_by_key(|it| it.handle);
    let Some(context) = context.map(|it| it.handle) else {
        return Ok(None);
    };
    // A hasher of a destroyed context went with it.
    if let Some(known) = live.hashers.get(&device)
        && known.0 == context
    {
        return Ok(Some(known.clone()));
    }
    live.driver.set_current(context)?;
    live.forget_current();
    let made = (
        context,
        Arc::new(Mutex::new(Hasher::new(&live.driver, device)?)),
    );
    live.hashers.insert(device, made.clone());
    Ok(Some(made))
}

/// Whether all bytes are zero; such pieces are not stored.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
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
