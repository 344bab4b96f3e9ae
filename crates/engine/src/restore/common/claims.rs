//! Claims: which blocks of an image a worker asks the keeper of common memory for, and the outcome.
//!
//! A block's key covers all that its content depends on: the device, the length, and which chunk or zeros lie where.
//! Only large allocations are claimed, because a slab of small ones is written soon. Blocks that the first-use
//! profile lists as written are loaded as the session's own.

use fermata_abi::op::Address;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fermata_device::Driver;
use fermata_device::layout::LARGE;
use parking_lot::Mutex;

use crate::restore::blocks::{Block, Blocks, address_of};
use crate::restore::common::keeper::{Claim, CommonKey, Keeper, Told};
use crate::restore::loading::schedule::Schedule;

/// The first bytes of a key's input to the hash; to be changed when the layout of keys changes.
const PREFIX: &[u8] = b"fermata common block 1";

/// See the module.
pub(in crate::restore) struct Claims {
    keeper: Arc<dyn Keeper>,
    claims: BTreeMap<usize, Claim>,
    /// Blocks that are this worker's to load.
    own: Mutex<HashSet<usize>>,
}

impl Claims {
    /// The claims for these blocks of an image, except those at `written`, which the program writes; `None` if there
    /// are none.
    pub fn of(
        keeper: Arc<dyn Keeper>,
        driver: &Driver,
        blocks: &Blocks,
        written: &[Address],
    ) -> Option<Arc<Self>> {
        let mut devices: HashMap<u32, Option<String>> = HashMap::new();
        let mut known = BTreeSet::new();
        let mut claims = BTreeMap::new();
        let all = blocks.all().iter().enumerate();
        for (index, block) in all.filter(|(_, it)| !written.contains(&it.at)) {
            let identity = || driver.device_facts(block.device).ok();
            let device = devices
                .entry(block.device)
                .or_insert_with(|| identity().map(|it| it.uuid_text()));
            let Some(device) = device.clone() else {
                continue;
            };
            // Of equal blocks in one session only one is claimed: else the keeper's "alone" would not mean a single
            // mapping.
            if let Some(key) = key(block, &device)
                && known.insert(key)
            {
                let stored = block.stored.iter().map(|(piece, _)| piece);
                let bytes = stored.chain(&block.zero).map(|it| it.len as u64).sum();
                claims.insert(index, Claim { key, bytes, device });
            }
        }
        (!claims.is_empty()).then(|| {
            Arc::new(Self {
                keeper,
                claims,
                own: Mutex::default(),
            })
        })
    }

    /// Asks the keeper. The outcome of each claim goes to `schedule`.
    pub fn begin(self: &Arc<Self>, schedule: &Arc<Schedule>) {
        let blocks: Vec<usize> = self.claims.keys().copied().collect();
        schedule.ask_elsewhere(&blocks);
        let index = self.claims.iter().map(|(index, it)| (it.key, *index));
        let index: HashMap<CommonKey, usize> = index.collect();
        let (claims, schedule) = (Arc::downgrade(self), Arc::clone(schedule));
        let told = move |told| {
            let Some(claims) = claims.upgrade() else {
                return;
            };
            match told {
                Told::Memory(key, memory) => {
                    if let Some(block) = index.get(&key)
                        && !schedule.fetched(*block, memory)
                    {
                        claims.keeper.leave(&key);
                    }
                }
                Told::Yours(key) => {
                    if let Some(block) = index.get(&key)
                        && !claims.take_over(*block, &schedule)
                    {
                        claims.keeper.leave(&key);
                    }
                }
                Told::Gone => schedule.take_over_all(),
            }
        };
        let all = self.claims.values().cloned().collect();
        self.keeper.claim(all, Box::new(told));
    }

    /// Has a block loaded here whose claim this worker has been granted. False if it is loaded here already, not to be offered.
    ///
    /// The lock is held across both steps: else the loader could offer a block that is then left, or not offer one that
    /// other workers wait for.
    fn take_over(&self, block: usize, schedule: &Schedule) -> bool {
        let mut own = self.own.lock();
        let taken = schedule.take_over(block);
        if taken {
            own.insert(block);
        }
        taken
    }

    /// Whether this worker loads the block, and other workers may wait for it.
    pub fn is_own(&self, block: usize) -> bool {
        self.own.lock().contains(&block)
    }

    /// Offers a loaded block, whose hashes have been verified, to other workers.
    pub fn offer(&self, block: usize, memory: OwnedFd) {
        if let Some(claim) = self.claims.get(&block) {
            self.keeper.offer(&claim.key, memory);
        }
    }

    /// Gives up a claim whose block cannot be mapped for reading alone, or is not loaded.
    pub fn give_up(&self, block: usize) {
        self.own.lock().remove(&block);
        if let Some(claim) = self.claims.get(&block) {
            self.keeper.leave(&claim.key);
        }
    }

    /// The keeper.
    pub fn keeper(&self) -> Arc<dyn Keeper> {
        Arc::clone(&self.keeper)
    }

    /// Address, length in bytes and key of each claimed block.
    pub fn blocks(&self, blocks: &Blocks) -> Vec<(Address, u64, CommonKey)> {
        let of = |(index, claim): (&usize, &Claim)| {
            let block = &blocks.all()[*index];
            (block.at, block.len, claim.key)
        };
        self.claims.iter().map(of).collect()
    }
}

/// The key of a block on the device with this identity; `None` if sharing it is not worthwhile.
fn key(block: &Block, device: &str) -> Option<CommonKey> {
    let stored = block.stored.iter();
    let stored = stored.map(|(piece, id)| (piece, Some(id)));
    let mut pieces: Vec<_> = stored
        .chain(block.zero.iter().map(|piece| (piece, None)))
        .collect();
    pieces.sort_unstable_by_key(|(piece, _)| address_of(piece));
    let buffer = pieces.first()?.0.buffer;
    let bytes: u64 = pieces.iter().map(|(piece, _)| piece.len as u64).sum();
    let is_large = bytes >= LARGE && pieces.iter().all(|(piece, _)| piece.buffer == buffer);
    if !is_large || block.stored.is_empty() {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(PREFIX);
    hasher.update(&(device.len() as u64).to_le_bytes());
    hasher.update(device.as_bytes());
    hasher.update(&block.len.to_le_bytes());
    for (piece, id) in pieces {
        hasher.update(&(address_of(piece) - block.at).to_le_bytes());
        hasher.update(&(piece.len as u64).to_le_bytes());
        match id {
            Some(id) => hasher.update(&[1]).update(&id.0),
            None => hasher.update(&[0]),
        };
    }
    Some(CommonKey(*hasher.finalize().as_bytes()))
}

#[cfg(test)]
mod tests {
    use fermata_device::layout::PAGE;
    use fermata_store::ChunkId;

    use super::*;
    use crate::protocol::{Piece, Source};

    fn piece(at: u64, offset: u64, len: usize) -> Piece {
        let address = at + offset;
        Piece {
            buffer: at,
            offset,
            len,
            source: Source::Device {
                device: 0,
                address: Address::from_raw(address),
            },
        }
    }

    fn block(at: u64, content: &[u8]) -> Block {
        let mut block = Block::new(Address::from_raw(at), PAGE, 0);
        let half = PAGE / 2;
        let stored = piece(at, 0, half as usize);
        block.stored.push((stored, ChunkId::of(content)));
        block.zero.push(piece(at, half, half as usize));
        block
    }

    #[test]
    fn a_key_says_all_that_the_content_depends_on() {
        let first = key(&block(PAGE, b"x"), "GPU-0");
        assert!(first.is_some());
        assert_eq!(
            first,
            key(&block(9 * PAGE, b"x"), "GPU-0"),
            "not the address"
        );
        assert_ne!(first, key(&block(PAGE, b"y"), "GPU-0"), "the content");
        assert_ne!(first, key(&block(PAGE, b"x"), "GPU-1"), "the device");
        let mut longer = block(PAGE, b"x");
        longer.len *= 2;
        assert_ne!(first, key(&longer, "GPU-0"), "the length");
        let mut swapped = block(PAGE, b"x");
        let half = (PAGE / 2) as usize;
        swapped.stored[0].0 = piece(PAGE, PAGE / 2, half);
        swapped.zero[0] = piece(PAGE, 0, half);
        assert_ne!(first, key(&swapped, "GPU-0"), "where what lies");
    }

    #[test]
    fn slabs_and_zeros_are_not_common() {
        let mut slab = block(PAGE, b"x");
        slab.zero[0].buffer = 7;
        assert_eq!(key(&slab, "GPU-0"), None);
        let mut zeros = block(PAGE, b"x");
        zeros.stored.clear();
        assert_eq!(key(&zeros, "GPU-0"), None);
        let mut small = block(PAGE, b"x");
        small.zero.clear();
        small.stored[0].0.len = 512;
        assert_eq!(key(&small, "GPU-0"), None);
    }
}
