//! Device memory set aside for copies of what the program is about to overwrite.

use std::collections::BTreeMap;

use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, PhysicalHandle};

use super::map::Slot;
use crate::{EngineError, Live};

/// Device memory that is left to the program when the pool takes what is free.
const MARGIN: u64 = 256 << 20;

/// Slots start at multiples of this, as allocations do.
const ALIGN: u64 = 256;
/// Physical memory comes in multiples of this.
const PAGE: u64 = 2 << 20;

/// Slots on one device, first fit.
#[derive(Debug)]
pub(crate) struct DevicePool {
    pub device: u32,
    base: u64,
    bytes: u64,
    memory: Option<PhysicalHandle>,
    /// Free ranges: offset and bytes, none touching another.
    free: BTreeMap<u64, u64>,
    used: u64,
}

/// Bytes that a piece takes in a pool.
pub(crate) fn slot_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

impl DevicePool {
    /// A pool of up to `bytes`, less if the device has less free, even none.
    ///
    /// # Errors
    /// The driver fails in another way than by having too little memory.
    pub(crate) fn new(live: &mut Live, device: u32, bytes: u64) -> Result<Self, EngineError> {
        let operation = format!("set {bytes} bytes of device {device} aside");
        let none = Self {
            device,
            base: 0,
            bytes: 0,
            memory: None,
            free: BTreeMap::new(),
            used: 0,
        };
        let free = live
            .enter_device(device)
            .and_then(|_| live.driver.memory_info())
            .map_err(EngineError::driver(&*operation))?
            .0;
        let free = free.saturating_sub(MARGIN) / PAGE * PAGE;
        let bytes = bytes.next_multiple_of(PAGE).min(free);
        if bytes == 0 {
            return Ok(none);
        }
        let memory = match live.driver.create_memory(device, bytes) {
            Ok(memory) => memory,
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY => return Ok(none),
            Err(error) => return Err(EngineError::driver(operation)(error)),
        };
        let reserved = live.space.reserve(bytes, 0, 0);
        let base = match reserved {
            Ok(base) => base,
            Err(error) => {
                // The first failure is the one to report.
                let _ = live.driver.release_memory(memory);
                return Err(EngineError::memory(operation)(error));
            }
        };
        let pool = Self {
            device,
            base,
            bytes,
            memory: Some(memory),
            free: BTreeMap::from([(0, bytes)]),
            used: 0,
        };
        match pool.map(live, memory) {
            Ok(()) => {
                *live.set_aside.entry(device).or_default() += bytes;
                Ok(pool)
            }
            Err(error) => {
                pool.give_back(live);
                Err(EngineError::driver(operation)(error))
            }
        }
    }

    fn map(&self, live: &Live, memory: PhysicalHandle) -> Result<(), DriverError> {
        live.driver.map(self.base, self.bytes, 0, memory)?;
        let access = cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // Whoever can write the program's memory can be told to copy it aside first.
        let devices = live.space.reachers(self.device);
        live.driver
            .set_access(self.base, self.bytes, access, &devices)
    }

    /// Bytes it can take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A slot of `bytes`, if there is room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Slot> {
        let bytes = slot_bytes(bytes);
        let fits = self.free.iter().find(|(_, len)| **len >= bytes);
        let (offset, len) = fits.map(|(offset, len)| (*offset, *len))?;
        self.free.remove(&offset);
        if len > bytes {
            self.free.insert(offset + bytes, len - bytes);
        }
        self.used += bytes;
        Some(self.base + offset)
    }

    /// Takes a slot of `bytes` back.
    pub(crate) fn put(&mut self, slot: Slot, bytes: u64) {
        let (mut offset, mut len) = (slot - self.base, slot_bytes(bytes));
        self.used -= len;
        if let Some(after) = self.free.remove(&(offset + len)) {
            len += after;
        }
        if let Some((before, bytes)) = self.free.range(..offset).next_back().map(|(o, l)| (*o, *l))
            && before + bytes == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, bytes + len);
        }
        self.free.insert(offset, len);
    }

    /// Whether more than half of it is in use.
    pub(crate) fn is_tight(&self) -> bool {
        self.used * 2 > self.bytes
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Gives the memory back to the driver. Nothing may use it any more.
    pub(crate) fn give_back(self, live: &mut Live) {
        let Some(memory) = self.memory else {
            return;
        };
        live.set_aside.remove(&self.device);
        // What the driver does not take back now goes with the process.
        if live.enter_device(self.device).is_ok() {
            let _ = live.driver.unmap(self.base, self.bytes);
            let _ = live.driver.release_memory(memory);
        }
        let _ = live.space.unreserve(self.base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_side_by_side_and_join_again() {
        let mut pool = DevicePool {
            device: 0,
            base: 1 << 40,
            bytes: 4096,
            memory: None,
            free: BTreeMap::from([(0, 4096)]),
            used: 0,
        };
        let slots: Vec<Slot> = (0..4).map(|_| pool.take(1000).unwrap()).collect();
        assert_eq!(
            slots,
            [
                1 << 40,
                (1 << 40) + 1024,
                (1 << 40) + 2048,
                (1 << 40) + 3072
            ]
        );
        assert!(pool.take(1).is_none() && pool.is_tight());
        for slot in [slots[2], slots[0], slots[1]] {
            pool.put(slot, 1000);
        }
        assert_eq!(pool.take(3072), Some(slots[0]));
        pool.put(slots[3], 1000);
        pool.put(slots[0], 3072);
        assert_eq!((pool.used(), pool.free.len()), (0, 1));
    }
}
