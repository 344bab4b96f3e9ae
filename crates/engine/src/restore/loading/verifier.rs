//! Verifies on the device the hashes of data that was copied there without a check by the processor.
//!
//! ```text
//!  piece ─┬─ hash kernels not loaded yet ─► hashed by the processor, copied
//!         └─ loaded ─► copied, noted ─► block full ─► hashed on the device ─┬─ right ─► handed to the program
//!                                                                           └─ wrong ─► read, hashed, copied again
//! ```
//! A processor hashes fewer bytes a second than a link moves. Hash kernels are loaded while the first pieces come,
//! unless the worker has loaded them before, so that the program does not wait for them. The program gets no block
//! whose hash has not been verified.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use fermata_device::hash::Hasher;
use fermata_device::{ContextHandle, CopyEngine, Direction, Driver, PinnedPool};
use fermata_store::ChunkReader;
use parking_lot::Mutex;

use crate::hashers::SharedHasher;
use crate::pipeline::STEP_LIMIT;
use crate::restore::blocks::{Block, address_of};
use crate::{EngineError, Live};

/// Less data than this has come before the kernels are loaded.
const WORTH: u64 = 64 << 20;
/// Pieces of smaller blocks are hashed by the processor, because asking the device takes longer.
const SMALL: u64 = 4 << 20;

/// See the module.
pub(in crate::restore) struct Verifier {
    driver: Arc<Driver>,
    contexts: BTreeMap<u32, ContextHandle>,
    hashers: BTreeMap<u32, OnceLock<SharedHasher>>,
    /// Pieces of each block that have not been hashed.
    unseen: Mutex<HashMap<usize, Vec<usize>>>,
}

impl Verifier {
    /// A verifier for devices with these contexts, with the kernels that are `loaded` there. No device hashes if
    /// `able` is false, or if there is little data and the kernels are not loaded.
    pub fn new(
        driver: &Arc<Driver>,
        contexts: &BTreeMap<u32, ContextHandle>,
        loaded: &HashMap<u32, SharedHasher>,
        able: bool,
        bytes: u64,
    ) -> Self {
        let place = |(device, context): (&u32, &ContextHandle)| {
            let known = loaded.get(device).filter(|known| known.0 == *context);
            let place = OnceLock::new();
            if let Some(known) = known {
                place.get_or_init(|| known.clone());
            }
            (*device, place)
        };
        let places = contexts.iter().filter(|_| able).map(place);
        let places = places.filter(|it| bytes >= WORTH || it.1.get().is_some());
        Self {
            driver: Arc::clone(driver),
            contexts: contexts.clone(),
            hashers: places.collect(),
            unseen: Mutex::default(),
        }
    }

    /// Loads the missing kernels. For a device that fails the processor hashes.
    pub fn load(&self) {
        for (device, place) in self.hashers.iter().filter(|it| it.1.get().is_none()) {
            let Some(context) = self.contexts.get(device) else {
                continue;
            };
            let made = self
                .driver
                .set_current(*context)
                .and_then(|()| Hasher::new(&self.driver, *device));
            if let Ok(hasher) = made {
                place.get_or_init(|| (*context, Arc::new(Mutex::new(hasher))));
            }
        }
    }

    /// Whether `piece` of `block` may be copied unverified; it must then be noted.
    pub fn takes(&self, block: &Block, piece: usize) -> bool {
        let hasher = self.hashers.get(&block.device).and_then(OnceLock::get);
        let aligned = address_of(&block.stored[piece].0).is_multiple_of(16);
        hasher.is_some() && aligned && block.len >= SMALL
    }

    /// Notes that these pieces of block `index` are copied unverified.
    pub fn note(&self, index: usize, pieces: Range<usize>) {
        self.unseen.lock().entry(index).or_default().extend(pieces);
    }

    /// Verifies every unverified piece of full blocks, which lie at their places in `window`, and loads wrong ones again.
    ///
    /// # Errors
    /// The device fails, or the stored data is damaged.
    pub fn check(
        &self,
        full: &[usize],
        blocks: &[Block],
        window: &[u64],
        reader: &ChunkReader,
        buffers: impl Fn() -> Result<PinnedPool, EngineError>,
    ) -> Result<(), EngineError> {
        let mut by_device: BTreeMap<u32, Vec<(usize, usize)>> = BTreeMap::new();
        for index in full {
            let unseen = self.unseen.lock().remove(index).unwrap_or_default();
            let pieces = unseen.into_iter().map(|piece| (*index, piece));
            let device = blocks[*index].device;
            by_device.entry(device).or_default().extend(pieces);
        }
        let stored = |(index, piece): (usize, usize)| &blocks[index].stored[piece];
        let place =
            |at: (usize, usize)| window[at.0] + (address_of(&stored(at).0) - blocks[at.0].at);
        for (device, unseen) in by_device.into_iter().filter(|it| !it.1.is_empty()) {
            let hasher = self.hashers.get(&device).and_then(OnceLock::get);
            let nobody = || EngineError::Internal("nobody hashes what has verifier".into());
            let (context, hasher) = hasher.ok_or_else(nobody)?;
            let failed = || EngineError::driver("hash what has verifier");
            let places: Vec<(u64, u64)> = unseen
                .iter()
                .map(|at| (place(*at), stored(*at).0.len as u64))
                .collect();
            self.driver.set_current(*context).map_err(failed())?;
            let found = hasher.lock().blake3(&places).map_err(failed())?;
            let wrong = unseen.iter().zip(found);
            let wrong = wrong.filter(|(at, digest)| stored(**at).1.0 != *digest);
            let mut engine = None;
            for (at, _) in wrong {
                let (part, id) = stored(*at);
                let late = || EngineError::Internal("no staging buffer comes back".to_owned());
                let mut buffer = buffers()?.take(STEP_LIMIT).ok_or_else(late)?;
                reader.read_verified(id, &mut buffer[..part.len])?;
                let engine = match &mut engine {
                    Some(engine) => engine,
                    None => engine.insert(
                        CopyEngine::new(&self.driver, *context, Direction::ToDevice)
                            .map_err(EngineError::driver("make a stream for restoring"))?,
                    ),
                };
                let copied = engine.start(place(*at), buffer, part.len);
                copied
                    .and_then(|copy| engine.finish(copy))
                    .map(drop)
                    .map_err(EngineError::driver("bring data to the device"))?;
            }
        }
        Ok(())
    }

    /// Gives the kernels to the session, whose next checkpoint needs them.
    pub fn hand_over(&self, live: &mut Live) {
        for (device, place) in &self.hashers {
            if let Some(hasher) = place.get() {
                live.hashers
                    .entry(*device)
                    .or_insert_with(|| hasher.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::Address;
    use fermata_abi::sys::driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    use fermata_device::StreamHandle;
    use fermata_device::layout::PAGE;
    use fermata_store::{ChunkId, Store};

    use super::*;
    use crate::protocol::{Piece, Source};

    const HALF: usize = 2 << 20;
    const BYTES: u64 = 2 * HALF as u64;
    const AT: u64 = 0x3000_0000_0000;

    fn softgpu() -> Arc<Driver> {
        let own = std::env::current_exe().expect("a path");
        let beside = own.ancestors().skip(1).take(2);
        let library = beside
            .map(|folder| folder.join("libfermata_softgpu.so"))
            .find(|file| file.exists())
            .expect("softgpu's library: run `cargo build -p fermata-softgpu`");
        Arc::new(Driver::load(&library).expect("softgpu"))
    }

    #[test]
    fn what_has_arrived_wrong_is_read_again_before_it_is_mapped() {
        let driver = softgpu();
        let context = driver.primary_context(0, 0).expect("a context");
        driver.set_current(context).expect("current");
        let memory = driver.create_memory(0, BYTES).expect("memory");
        let window = driver.reserve_addresses(BYTES, PAGE, 0).expect("addresses");
        driver.map(window, BYTES, 0, memory).expect("mapped");
        driver
            .set_access(window, BYTES, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &[0])
            .expect("access");

        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), true).expect("a store");
        let writer = store.begin().expect("a writer");
        let halves = [vec![3u8; HALF], vec![5u8; HALF]];
        let mut block = Block::new(Address::from_raw(AT), BYTES, 0);
        for (address, bytes) in [AT, AT + HALF as u64].into_iter().zip(&halves) {
            let id = ChunkId::of(bytes);
            writer.put(&id, bytes).expect("put");
            let source = Source::Device {
                device: 0,
                address: Address::from_raw(address),
            };
            let piece = Piece {
                buffer: AT,
                offset: address - AT,
                len: HALF,
                source,
            };
            block.stored.push((piece, id));
        }
        writer.finish().expect("written");
        let reader = store.reader().expect("a reader");

        let contexts = BTreeMap::from([(0, context)]);
        let verifier = Verifier::new(&driver, &contexts, &HashMap::new(), true, WORTH);
        assert!(!verifier.takes(&block, 0), "nobody can check it yet");
        verifier.load();
        assert!(verifier.takes(&block, 0) && verifier.takes(&block, 1));
        verifier.note(0, 0..2);
        // The first half arrives with a wrong bit.
        let mut wrong = halves[0].clone();
        wrong[HALF / 2] ^= 4;
        let copy = |at: u64, bytes: &[u8]| {
            driver
                .copy_from_slice(at, bytes, StreamHandle::LEGACY)
                .and_then(|()| driver.synchronize_stream(StreamHandle::LEGACY))
                .expect("copied");
        };
        copy(window, &wrong);
        copy(window + HALF as u64, &halves[1]);
        let buffers =
            || PinnedPool::new(&driver, 1, 4 << 20).map_err(EngineError::driver("make a buffer"));
        verifier
            .check(&[0], &[block.clone()], &[window], &reader, buffers)
            .expect("checked");
        let pool = buffers().expect("a buffer");
        let buffer = pool.take(STEP_LIMIT).expect("a buffer");
        driver
            .copy(buffer.address(), window, BYTES, StreamHandle::LEGACY)
            .and_then(|()| driver.synchronize_stream(StreamHandle::LEGACY))
            .expect("copied back");
        assert!(buffer[..BYTES as usize] == halves.concat());

        let known = verifier.hashers[&0].get().cloned().expect("kernels");
        let loaded = HashMap::from([(0, known)]);
        let again = Verifier::new(&driver, &contexts, &loaded, true, WORTH - 1);
        assert!(again.takes(&block, 0), "they are loaded already");
        let few = Verifier::new(&driver, &contexts, &HashMap::new(), true, WORTH - 1);
        few.load();
        assert!(!few.takes(&block, 0), "little data is not worth it");
        let unable = Verifier::new(&driver, &contexts, &loaded, false, WORTH);
        assert!(!unable.takes(&block, 0));
    }
}
