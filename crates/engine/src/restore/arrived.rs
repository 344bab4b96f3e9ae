//! Checking on the device what has been copied there unseen.
//!
//! ```text
//!  piece in the registered tier ─┬─ kernels not loaded yet ─► hashed by the processor, copied
//!                                └─ loaded ─► copied, noted ─► block full ─► hashed there ─┬─ right ─► mapped
//!                                                                                          └─ read, hashed, copied again
//! ```
//! A processor hashes less than a link brings. The kernels are loaded beside the first pieces, so that the
//! program does not wait for them. Nothing is mapped whose hash has not been seen to be right.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use fermata_device::hash::Hasher;
use fermata_device::{ContextHandle, CopyEngine, Direction, Driver, PinnedPool};
use fermata_store::ChunkReader;
use parking_lot::Mutex;

use super::blocks::{Block, address_of};
use crate::digest::SharedHasher;
use crate::pipeline::STEP_LIMIT;
use crate::{EngineError, Live};

/// Less data than this is there before the kernels are.
const WORTH: u64 = 64 << 20;
/// Pieces of smaller blocks are hashed by the processor: a question to the device takes longer.
const SMALL: u64 = 4 << 20;

/// See the module.
pub(super) struct Arrived {
    driver: Arc<Driver>,
    contexts: BTreeMap<u32, ContextHandle>,
    hashers: BTreeMap<u32, OnceLock<SharedHasher>>,
    /// Pieces of each block that nobody has hashed.
    unseen: Mutex<HashMap<usize, Vec<usize>>>,
}

impl Arrived {
    /// For devices with these contexts; none hashes where `able` is false, or there is little data.
    pub fn new(
        driver: &Arc<Driver>,
        contexts: &BTreeMap<u32, ContextHandle>,
        able: bool,
        bytes: u64,
    ) -> Self {
        let devices = contexts.keys().filter(|_| able && bytes >= WORTH);
        Self {
            driver: Arc::clone(driver),
            contexts: contexts.clone(),
            hashers: devices.map(|device| (*device, OnceLock::new())).collect(),
            unseen: Mutex::default(),
        }
    }

    /// Loads the kernels. A device that cannot costs the processor's time.
    pub fn load(&self) {
        for (device, place) in &self.hashers {
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

    /// Whether `piece` of `block` may be copied unseen; then it is noted.
    pub fn takes(&self, index: usize, block: &Block, piece: usize) -> bool {
        let hasher = self.hashers.get(&block.device).and_then(OnceLock::get);
        let aligned = address_of(&block.stored[piece].0).is_multiple_of(16);
        let takes = hasher.is_some() && aligned && block.len >= SMALL;
        if takes {
            self.unseen.lock().entry(index).or_default().push(piece);
        }
        takes
    }

    /// Sees to it that every piece of a full block, which lies at `window`, is what it should be.
    ///
    /// # Errors
    /// The device fails, or what is stored is damaged.
    pub fn check(
        &self,
        index: usize,
        block: &Block,
        window: u64,
        reader: &ChunkReader,
        buffers: impl Fn() -> Result<PinnedPool, EngineError>,
    ) -> Result<(), EngineError> {
        let Some(unseen) = self.unseen.lock().remove(&index) else {
            return Ok(());
        };
        let hasher = self.hashers.get(&block.device).and_then(OnceLock::get);
        let (context, hasher) =
            hasher.ok_or_else(|| EngineError::Internal("nobody hashes what has arrived".into()))?;
        let failed = || EngineError::driver("hash what has arrived");
        let place = |piece: &usize| window + address_of(&block.stored[*piece].0) - block.at;
        let places: Vec<(u64, u64)> = unseen
            .iter()
            .map(|piece| (place(piece), block.stored[*piece].0.len as u64))
            .collect();
        self.driver.set_current(*context).map_err(failed())?;
        let found = hasher.lock().blake3(&places).map_err(failed())?;
        let right = |(piece, digest): &(&usize, [u8; 32])| block.stored[**piece].1.0 == *digest;
        let wrong: Vec<usize> = unseen
            .iter()
            .zip(found)
            .filter(|it| !right(it))
            .map(|(piece, _)| *piece)
            .collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let mut engine = CopyEngine::new(&self.driver, *context, Direction::ToDevice)
            .map_err(EngineError::driver("make a stream for restoring"))?;
        for piece in &wrong {
            let (part, id) = &block.stored[*piece];
            let late = || EngineError::Internal("no staging buffer comes back".to_owned());
            let mut buffer = buffers()?.take(STEP_LIMIT).ok_or_else(late)?;
            reader.read_verified(id, &mut buffer[..part.len])?;
            let copied = engine.start(place(piece), buffer, part.len);
            copied
                .and_then(|copy| engine.finish(copy))
                .map(drop)
                .map_err(EngineError::driver("bring data to the device"))?;
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
        let mut block = Block::new(AT, BYTES, 0);
        for (address, bytes) in [AT, AT + HALF as u64].into_iter().zip(&halves) {
            let id = ChunkId::of(bytes);
            writer.put(&id, bytes).expect("put");
            let source = Source::Device { device: 0, address };
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
        let arrived = Arrived::new(&driver, &contexts, true, WORTH);
        assert!(!arrived.takes(0, &block, 0), "nobody can check it yet");
        arrived.load();
        assert!(arrived.takes(0, &block, 0) && arrived.takes(0, &block, 1));
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
        arrived
            .check(0, &block, window, &reader, buffers)
            .expect("checked");
        let pool = buffers().expect("a buffer");
        let buffer = pool.take(STEP_LIMIT).expect("a buffer");
        driver
            .copy(buffer.address(), window, BYTES, StreamHandle::LEGACY)
            .and_then(|()| driver.synchronize_stream(StreamHandle::LEGACY))
            .expect("copied back");
        assert!(buffer[..BYTES as usize] == halves.concat());

        let few = Arrived::new(&driver, &contexts, true, WORTH - 1);
        few.load();
        assert!(!few.takes(0, &block, 0), "little data is not worth it");
    }
}
