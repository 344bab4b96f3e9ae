//! Digests of device memory, taken by the device itself.
//!
//! What has its digest before it is copied need not be copied if the store has it, nor hashed by the
//! processor if not. A device that cannot hash, or fails at it, costs nothing but the processor's time:
//! its pieces are `Unknown` here and hashed where they arrive.

use std::collections::{BTreeMap, HashMap};

use fermata_device::DriverError;
use fermata_device::hash::Hasher;
use fermata_store::ChunkId;

use crate::Live;
use crate::protocol::{Piece, Source};

/// What is known of a piece before it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digest {
    /// Not hashed by a device.
    Unknown,
    /// All zeros, by its digest.
    Zero,
    /// The chunk's id.
    Id(ChunkId),
}

/// The digests of `plan`'s pieces, one each. Nothing may be running on the devices.
pub(crate) fn on_devices(live: &mut Live, plan: &[Piece]) -> Vec<Digest> {
    let mut digests = vec![Digest::Unknown; plan.len()];
    if !live.device_hashes {
        return digests;
    }
    let mut by_device: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, piece) in plan.iter().enumerate() {
        if let Source::Device { device, address } = piece.source
            && address % 16 == 0
        {
            by_device.entry(device).or_default().push(index);
        }
    }
    let mut zeros: HashMap<usize, ChunkId> = HashMap::new();
    for (device, indices) in by_device {
        let Ok(found) = of_device(live, device, plan, &indices) else {
            live.hashers.remove(&device);
            continue;
        };
        for (index, digest) in indices.into_iter().zip(found) {
            let len = plan[index].len;
            let zero = *zeros
                .entry(len)
                .or_insert_with(|| ChunkId::of(&vec![0; len]));
            let id = ChunkId(digest);
            digests[index] = if id == zero {
                Digest::Zero
            } else {
                Digest::Id(id)
            };
        }
    }
    live.forget_current();
    digests
}

fn of_device(
    live: &mut Live,
    device: u32,
    plan: &[Piece],
    indices: &[usize],
) -> Result<Vec<[u8; 32]>, DriverError> {
    let pieces = indices
        .iter()
        .filter_map(|&index| match plan[index].source {
            Source::Device { address, .. } => Some((address, plan[index].len as u64)),
            Source::Host { .. } | Source::Array { .. } => None,
        });
    let pieces: Vec<(u64, u64)> = pieces.collect();
    let context = live
        .contexts
        .values()
        .filter(|it| it.device == device)
        .min_by_key(|it| it.handle);
    let Some(context) = context.map(|it| it.handle) else {
        return Ok(Vec::new());
    };
    live.driver.set_current(context)?;
    live.forget_current();
    // A hasher of a context that has gone went with it.
    if live
        .hashers
        .get(&device)
        .is_none_or(|(owner, _)| *owner != context)
    {
        let hasher = Hasher::new(&live.driver, device)?;
        live.hashers.insert(device, (context, hasher));
    }
    match live.hashers.get_mut(&device) {
        Some((_, hasher)) => hasher.blake3(&pieces),
        None => Ok(Vec::new()),
    }
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
