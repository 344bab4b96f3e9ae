//! The copy-on-write pool: device memory for isolated copies of what the program is about to overwrite.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fermata_abi::sys::driver as cu;
use fermata_device::{ContextHandle, Driver, PhysicalHandle};

use super::map::Slot;
use crate::EngineError;
use crate::live::SetAside;
use crate::pipeline::breathe;

/// Device memory that is left to the program when the pool takes what is free.
const MARGIN: u64 = 256 << 20;

/// Memory is made and released in pieces of this many bytes, because a driver serves no other call meanwhile.
const PIECE: u64 = 128 << 20;
/// The pause between two pieces, in which the driver serves the program's calls.
const BREATH: Duration = Duration::from_micros(500);
/// Slots start at multiples of this, as allocations do.
const ALIGN: u64 = 256;
/// Physical memory comes in multiples of this.
pub(crate) const PAGE: u64 = 2 << 20;

/// Slots on one device, first fit.
pub(crate) struct DevicePool {
    driver: Arc<Driver>,
    /// Its addresses; `None` once the pool is being dropped.
    place: Option<Place>,
    device: u32,
    base: u64,
    bytes: u64,
    /// Its memory, in pieces of [`PIECE`] but for the last.
    memory: Vec<PhysicalHandle>,
    slots: Slots,
}

/// Ranges of a pool that are free and used.
#[derive(Debug, Default)]
struct Slots {
    /// Free ranges: offset and bytes, none touching another.
    free: BTreeMap<u64, u64>,
    used: u64,
}

/// Bytes that can be set aside on the device of `place`. Changes the thread's current context.
///
/// # Errors
/// A driver error.
pub(crate) fn room(driver: &Driver, place: &Place) -> Result<u64, EngineError> {
    let info = driver
        .set_current(place.context)
        .and_then(|()| driver.memory_info());
    let operation = format!("ask device {} for its free memory", place.device);
    let (free, _) = info.map_err(EngineError::driver(operation))?;
    Ok(free.saturating_sub(MARGIN) / PAGE * PAGE)
}

/// Bytes that a piece takes in a pool.
pub(crate) fn slot_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

/// The addresses of a pool, and its device. When it is dropped, the addresses can be released.
#[derive(Debug)]
pub(crate) struct Place {
    pub set_aside: SetAside,
    pub device: u32,
    /// A context of the device.
    pub context: ContextHandle,
    /// Reserved addresses.
    pub base: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.set_aside.add_loose(self.base);
    }
}

/// The pool of a device, if it has one.
pub(crate) fn of_device(pools: &mut [DevicePool], device: u32) -> Option<&mut DevicePool> {
    pools.iter_mut().find(|pool| pool.device == device)
}

impl DevicePool {
    /// Makes a pool at `place`. It is smaller than its addresses, or even empty, if the device has less free memory. Any
    /// thread may call this; changes the thread's current context.
    ///
    /// # Errors
    /// The driver fails in another way than by having too little memory.
    pub(crate) fn new(driver: &Arc<Driver>, place: Place) -> Result<Self, EngineError> {
        let (device, base, wanted) = (place.device, place.base, place.bytes);
        let operation = format!("set {wanted} bytes of device {device} aside");
        let mut pool = Self {
            driver: Arc::clone(driver),
            place: Some(place),
            device,
            base,
            bytes: 0,
            memory: Vec::new(),
            slots: Slots::default(),
        };
        let Some(place) = &pool.place else {
            return Ok(pool);
        };
        let access = cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let mut at = 0;
        // A piece that is short is the last.
        while at < wanted && at.is_multiple_of(PIECE) {
            // Pools of other workers may be made at the same time.
            let len = PIECE.min(wanted - at).min(room(driver, place)?);
            if len == 0 {
                break;
            }
            let memory = match driver.create_memory(device, len) {
                Ok(memory) => memory,
                // A smaller pool is used.
                Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY => break,
                Err(error) => return Err(EngineError::driver(operation)(error)),
            };
            place.set_aside.add(device, len);
            pool.memory.push(memory);
            pool.bytes += len;
            driver
                .map(base + at, len, 0, memory)
                .and_then(|()| driver.set_access(base + at, len, access, &[device]))
                .map_err(EngineError::driver(&*operation))?;
            at += len;
            breathe(BREATH);
        }
        if at > 0 {
            pool.slots.free.insert(0, at);
        }
        Ok(pool)
    }

    /// The device it lies on.
    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// A slot of `bytes`, if there is room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Slot> {
        Some(self.base + self.slots.take(bytes)?)
    }

    /// Takes a slot of `bytes` back.
    pub(crate) fn put(&mut self, slot: Slot, bytes: u64) {
        self.slots.put(slot - self.base, bytes);
    }

    /// Whether more than half of it is in use.
    pub(crate) fn is_tight(&self) -> bool {
        self.slots.used * 2 > self.bytes
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.slots.used
    }
}

impl Slots {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = slot_bytes(bytes);
        let fits = self.free.iter().find(|(_, len)| **len >= bytes);
        let (offset, len) = fits.map(|(offset, len)| (*offset, *len))?;
        self.free.remove(&offset);
        if len > bytes {
            self.free.insert(offset + bytes, len - bytes);
        }
        self.used += bytes;
        Some(offset)
    }

    fn put(&mut self, mut offset: u64, bytes: u64) {
        let mut len = slot_bytes(bytes);
        self.used -= len;
        if let Some(after) = self.free.remove(&(offset + len)) {
            len += after;
        }
        let before = self.free.range(..offset).next_back();
        if let Some((before, bytes)) = before.map(|(offset, len)| (*offset, *len))
            && before + bytes == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, bytes + len);
        }
        self.free.insert(offset, len);
    }
}

impl Drop for DevicePool {
    /// Releases the memory, on a thread of its own because the driver is slow. No work may use it any more.
    fn drop(&mut self) {
        let (Some(place), memory) = (self.place.take(), std::mem::take(&mut self.memory)) else {
            return;
        };
        if memory.is_empty() {
            return;
        }
        let (driver, bytes) = (Arc::clone(&self.driver), self.bytes);
        let give_back = move || {
            // Memory that cannot be released now goes with the process.
            let _ = driver.set_current(place.context);
            for (nth, memory) in (0..).zip(memory) {
                let at = nth * PIECE;
                let len = PIECE.min(bytes - at);
                let _ = driver.unmap(place.base + at, len);
                let _ = driver.release_memory(memory);
                place.set_aside.remove(place.device, len);
                breathe(BREATH);
            }
        };
        let thread = std::thread::Builder::new().name("give-back".to_owned());
        // Without a thread the memory goes with the process.
        let _ = thread.spawn(give_back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_side_by_side_and_join_again() {
        let mut slots = Slots {
            free: BTreeMap::from([(0, 4096)]),
            used: 0,
        };
        let taken: Vec<u64> = (0..4).map(|_| slots.take(1000).unwrap()).collect();
        assert_eq!(taken, [0, 1024, 2048, 3072]);
        assert!(slots.take(1).is_none());
        for slot in [taken[2], taken[0], taken[1]] {
            slots.put(slot, 1000);
        }
        assert_eq!(slots.take(3072), Some(0));
        slots.put(taken[3], 1000);
        slots.put(0, 3072);
        assert_eq!((slots.used, slots.free.len()), (0, 1));
    }
}
