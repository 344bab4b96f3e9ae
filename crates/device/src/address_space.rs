//! The range of device addresses of this process, with physical memory behind what is live.
//!
//! One per worker. The whole range is reserved once; allocations are mapped into it, so that each comes
//! back at its address in another worker.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{DEVICE_BASE, DEVICE_END};
use fermata_abi::sys::driver as cu;

use crate::layout::{Layout, LayoutError, MAX_DEVICES, PAGE, Reservations, device_of};
use crate::{Driver, DriverError, MemoryError, PhysicalHandle};

/// Physical memory of one device kept for the next allocation of its size, at most.
const CACHE_BYTES: u64 = 256 << 20;

#[derive(Default)]
struct Cache {
    by_size: BTreeMap<u64, Vec<PhysicalHandle>>,
    bytes: u64,
}

struct Backing {
    len: u64,
    memory: PhysicalHandle,
}

/// See the module.
pub struct AddressSpace {
    layouts: Vec<Layout>,
    reservations: Reservations,
    backing: BTreeMap<u64, Backing>,
    caches: Vec<Cache>,
    /// For each device, the others that may reach its memory.
    peers: Vec<BTreeSet<u32>>,
}

fn layout_error(error: LayoutError) -> MemoryError {
    match error {
        LayoutError::Full(size) => MemoryError::Driver(DriverError {
            call: "cuMemAlloc",
            code: cu::CUDA_ERROR_OUT_OF_MEMORY,
            name: format!("no room for {size} bytes in the device's address range"),
        }),
        LayoutError::Unknown(address) => MemoryError::Invalid {
            address,
            size: 0,
            reason: "there is no such allocation",
        },
        LayoutError::Taken { address, size } => MemoryError::Invalid {
            address,
            size,
            reason: "these addresses are taken or out of range",
        },
    }
}

impl AddressSpace {
    /// Reserves the range. The current context may be any.
    ///
    /// # Errors
    /// The driver does not grant the range, or its pages are larger than [`PAGE`].
    pub fn new(driver: &Driver) -> Result<Self, MemoryError> {
        let size = DEVICE_END - DEVICE_BASE;
        let devices = driver.device_count().min(MAX_DEVICES);
        for device in 0..devices {
            if !PAGE.is_multiple_of(driver.granularity(device)?.max(1)) {
                let reason = "the device's pages are larger than 2 MiB";
                return Err(MemoryError::Invalid {
                    address: 0,
                    size: PAGE,
                    reason,
                });
            }
        }
        driver.reserve_addresses(size, PAGE, DEVICE_BASE)?;
        Ok(Self {
            layouts: (0..devices).map(Layout::new).collect(),
            reservations: Reservations::default(),
            backing: BTreeMap::new(),
            caches: (0..devices).map(|_| Cache::default()).collect(),
            peers: vec![BTreeSet::new(); devices as usize],
        })
    }

    fn layout(&mut self, device: u32) -> Result<&mut Layout, MemoryError> {
        let invalid = MemoryError::Invalid {
            address: 0,
            size: 0,
            reason: "there is no such device",
        };
        self.layouts.get_mut(device as usize).ok_or(invalid)
    }

    /// Allocates on `device`.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` among others; nothing is changed then.
    pub fn allocate(
        &mut self,
        driver: &Driver,
        device: u32,
        size: u64,
    ) -> Result<u64, MemoryError> {
        let placed = self.layout(device)?.place(size).map_err(layout_error)?;
        self.back(driver, device, placed.address, placed.map)
    }

    /// Allocates at `address`, as in an earlier life.
    ///
    /// # Errors
    /// The address is taken or not one of the range, or the driver refuses; nothing is changed then.
    pub fn allocate_at(
        &mut self,
        driver: &Driver,
        address: u64,
        size: u64,
    ) -> Result<(), MemoryError> {
        let invalid = MemoryError::Invalid {
            address,
            size,
            reason: "this is no address of a device",
        };
        let device = device_of(address).ok_or(invalid)?;
        let placed = self
            .layout(device)?
            .place_at(address, size)
            .map_err(layout_error)?;
        self.back(driver, device, placed.address, placed.map)
            .map(|_| ())
    }

    fn back(
        &mut self,
        driver: &Driver,
        device: u32,
        address: u64,
        map: Option<(u64, u64)>,
    ) -> Result<u64, MemoryError> {
        if let Some((at, len)) = map
            && let Err(error) = self.map_pages(driver, device, at, len)
        {
            let layout = self.layout(device)?;
            layout.abandon(address, at);
            return Err(error.into());
        }
        Ok(address)
    }

    fn map_pages(
        &mut self,
        driver: &Driver,
        device: u32,
        at: u64,
        len: u64,
    ) -> Result<(), DriverError> {
        let memory = self.physical(driver, device, len)?;
        let mapped = driver.map(at, len, 0, memory).and_then(|()| {
            self.grant(driver, device, at, len)
                .inspect_err(|_| drop(driver.unmap(at, len)))
        });
        if let Err(error) = mapped {
            driver.release_memory(memory)?;
            return Err(error);
        }
        self.backing.insert(at, Backing { len, memory });
        Ok(())
    }

    fn grant(&self, driver: &Driver, device: u32, at: u64, len: u64) -> Result<(), DriverError> {
        let mut devices = vec![device];
        devices.extend(&self.peers[device as usize]);
        driver.set_access(at, len, cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &devices)
    }

    fn physical(
        &mut self,
        driver: &Driver,
        device: u32,
        len: u64,
    ) -> Result<PhysicalHandle, DriverError> {
        let cache = &mut self.caches[device as usize];
        if let Some(memory) = cache.by_size.get_mut(&len).and_then(Vec::pop) {
            cache.bytes -= len;
            return Ok(memory);
        }
        match driver.create_memory(device, len) {
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY && cache.bytes > 0 => {
                self.trim(driver, device)?;
                driver.create_memory(device, len)
            }
            other => other,
        }
    }

    /// Gives the memory kept for later back to the driver.
    ///
    /// # Errors
    /// What the driver says.
    pub fn trim(&mut self, driver: &Driver, device: u32) -> Result<(), DriverError> {
        let Some(cache) = self.caches.get_mut(device as usize) else {
            return Ok(());
        };
        cache.bytes = 0;
        for memory in std::mem::take(&mut cache.by_size).into_values().flatten() {
            driver.release_memory(memory)?;
        }
        Ok(())
    }

    /// Bytes kept for later on `device`: free memory from the program's point of view.
    pub fn cached(&self, device: u32) -> u64 {
        self.caches
            .get(device as usize)
            .map_or(0, |cache| cache.bytes)
    }

    /// Frees an allocation, which no work may use any more. The answer is its size.
    ///
    /// # Errors
    /// Not an allocation, or what the driver says.
    pub fn free(&mut self, driver: &Driver, address: u64) -> Result<u64, MemoryError> {
        let unknown = MemoryError::Invalid {
            address,
            size: 0,
            reason: "there is no such allocation",
        };
        let device = device_of(address).ok_or(unknown)?;
        let (size, unmap) = self.layout(device)?.remove(address).map_err(layout_error)?;
        if let Some((at, _)) = unmap
            && let Some(backing) = self.backing.remove(&at)
        {
            driver.unmap(at, backing.len)?;
            let cache = &mut self.caches[device as usize];
            if cache.bytes + backing.len <= CACHE_BYTES {
                cache.bytes += backing.len;
                cache
                    .by_size
                    .entry(backing.len)
                    .or_default()
                    .push(backing.memory);
            } else {
                driver.release_memory(backing.memory)?;
            }
        }
        Ok(size)
    }

    /// The live allocation that contains `address`: its start and size.
    pub fn containing(&self, address: u64) -> Option<(u64, u64)> {
        self.layouts
            .get(device_of(address)? as usize)?
            .containing(address)
    }

    /// Lets `peer` reach (`on`) or not reach the memory of `device`, present and future.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_peer(
        &mut self,
        driver: &Driver,
        device: u32,
        peer: u32,
        on: bool,
    ) -> Result<(), DriverError> {
        let Some(peers) = self.peers.get_mut(device as usize) else {
            return Ok(());
        };
        let changed = if on {
            peers.insert(peer)
        } else {
            peers.remove(&peer)
        };
        if !changed {
            return Ok(());
        }
        let access = if on {
            cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            cu::CU_MEM_ACCESS_FLAGS_PROT_NONE
        };
        for (at, backing) in self
            .backing
            .iter()
            .filter(|(at, _)| device_of(**at) == Some(device))
        {
            driver.set_access(*at, backing.len, access, &[peer])?;
        }
        Ok(())
    }

    /// Reserves addresses for the program; `address` 0 lets us choose.
    ///
    /// # Errors
    /// No room, or taken.
    pub fn reserve(&mut self, size: u64, align: u64, address: u64) -> Result<u64, MemoryError> {
        if address != 0 && self.reservations.reserve_at(address, size).is_ok() {
            return Ok(address);
        }
        self.reservations.reserve(size, align).map_err(layout_error)
    }

    /// Reserves exactly there, as in an earlier life.
    ///
    /// # Errors
    /// Taken or out of range.
    pub fn reserve_at(&mut self, address: u64, size: u64) -> Result<(), MemoryError> {
        self.reservations
            .reserve_at(address, size)
            .map_err(layout_error)
    }

    /// Gives a reservation back.
    ///
    /// # Errors
    /// Not a reservation.
    pub fn unreserve(&mut self, address: u64) -> Result<(), MemoryError> {
        self.reservations.release(address).map_err(layout_error)
    }
}
