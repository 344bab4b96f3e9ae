//! The range of device addresses of this process, with physical memory behind what is live.
//!
//! One per worker. The whole range is reserved once; allocations are mapped into it, so that each comes
//! back at its address in another worker. Pages of a freed allocation stay mapped for a while
//! (`kept.rs`): what a program wrongly does to them concerns nobody else.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{DEVICE_BASE, DEVICE_END};
use fermata_abi::sys::driver as cu;

use crate::layout::{
    LARGE, Layout, LayoutError, MAX_DEVICES, PAGE, Reservations, device_of, footprint,
};
use crate::reusable_pages::ReusablePages;
use crate::{Driver, DriverError, MemoryError, PhysicalHandle, StreamHandle};

struct Backing {
    len: u64,
    memory: PhysicalHandle,
    /// Mapped for reading alone: other processes have the same memory.
    common: bool,
}

impl Backing {
    /// What devices may do there (`CUmemAccess_flags`).
    fn access(&self) -> u32 {
        match self.common {
            true => cu::CU_MEM_ACCESS_FLAGS_PROT_READ,
            false => cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }
}

/// See the module.
pub struct AddressSpace {
    layouts: Vec<Layout>,
    reservations: Reservations,
    backing: BTreeMap<u64, Backing>,
    /// For each device, pages of freed allocations that are still mapped, and so in `backing`.
    kept: Vec<ReusablePages>,
    /// For each device, the others that may reach its memory.
    peers: Vec<BTreeSet<u32>>,
}

fn layout_error(error: LayoutError) -> MemoryError {
    match error {
        LayoutError::Full(size) => MemoryError::Driver(DriverError {
            call: "cuMemAlloc",
            code: cu::CUDA_ERROR_OUT_OF_MEMORY,
            name: format!("no room for {size} bytes in the device's address range").into(),
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

/// Fills `memory`, of `len` bytes, with what is mapped at `at`.
fn copy_of(
    driver: &Driver,
    device: u32,
    (at, len): (u64, u64),
    memory: PhysicalHandle,
) -> Result<(), DriverError> {
    let window = driver.reserve_addresses(len, PAGE, 0)?;
    let copied = driver.map(window, len, 0, memory).and_then(|()| {
        let access = cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let copied = driver
            .set_access(window, len, access, &[device])
            .and_then(|()| driver.copy(window, at, len, StreamHandle::LEGACY))
            .and_then(|()| driver.synchronize_stream(StreamHandle::LEGACY));
        let unmapped = driver.unmap(window, len);
        copied.and(unmapped)
    });
    let released = driver.release_addresses(window, len);
    copied.and(released)
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
        driver.reserve_addresses(size, PAGE, DEVICE_BASE.raw())?;
        Ok(Self {
            layouts: (0..devices).map(Layout::new).collect(),
            reservations: Reservations::default(),
            backing: BTreeMap::new(),
            kept: (0..devices).map(|_| ReusablePages::default()).collect(),
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
        self.layout(device)?;
        let kept = footprint(size)
            .filter(|_| size >= LARGE)
            .and_then(|room| self.kept[device as usize].find(room));
        if let Some(at) = kept
            && self.layouts[device as usize].place_at(at, size).is_ok()
        {
            self.kept[device as usize].remove(at);
            return Ok(at);
        }
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

    /// Takes an allocation's addresses as [`Self::allocate_at`] does, without memory behind them. The answer
    /// is the block of pages (address and length) that nobody has been told of yet; [`Self::adopt`] says when
    /// memory is mapped there.
    ///
    /// # Errors
    /// The address is taken or not one of the range; nothing is changed then.
    pub fn place_late(
        &mut self,
        address: u64,
        size: u64,
    ) -> Result<Option<(u64, u64)>, MemoryError> {
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
        Ok(placed.map)
    }

    /// The block of pages at `at`, from [`Self::place_late`], has `memory` mapped now, reachable for all of
    /// [`Self::reachers`]: for reading alone if it is `common`, memory that other processes have, too.
    pub fn adopt(&mut self, at: u64, len: u64, memory: PhysicalHandle, common: bool) {
        let backing = Backing {
            len,
            memory,
            common,
        };
        self.backing.insert(at, backing);
    }

    /// Whether the block of pages at `at` is mapped for reading alone.
    pub fn is_common(&self, at: u64) -> bool {
        self.backing.get(&at).is_some_and(|it| it.common)
    }

    /// Lets the process write to the block at `at`, whose memory no other process has any more.
    ///
    /// # Errors
    /// What the driver says; nothing is changed then.
    pub fn open(&mut self, driver: &Driver, at: u64) -> Result<(), DriverError> {
        let Some(backing) = self.backing.get_mut(&at).filter(|it| it.common) else {
            return Ok(());
        };
        let len = backing.len;
        backing.common = false;
        let granted = self.grant(driver, at, len);
        if granted.is_err()
            && let Some(backing) = self.backing.get_mut(&at)
        {
            backing.common = true;
        }
        granted
    }

    /// Gives the process memory of its own for the block at `at`, with the same content, in place of what it has in common
    /// with others. No work may use the block meanwhile. A context of its device is current.
    ///
    /// # Errors
    /// What the driver says: `CUDA_ERROR_OUT_OF_MEMORY` if there is no memory for it, and nothing is changed then. After any
    /// other refusal the block may have no memory any more.
    pub fn make_own(&mut self, driver: &Driver, at: u64) -> Result<(), DriverError> {
        let Some(backing) = self.backing.get(&at).filter(|it| it.common) else {
            return Ok(());
        };
        let (len, shared) = (backing.len, backing.memory);
        let device = device_of(at).unwrap_or_default();
        let memory = self.physical(driver, device, len)?;
        let copied = copy_of(driver, device, (at, len), memory);
        if let Err(error) = copied {
            driver.release_memory(memory)?;
            return Err(error);
        }
        self.backing.remove(&at);
        driver.unmap(at, len)?;
        driver.map(at, len, 0, memory)?;
        let backing = Backing {
            len,
            memory,
            common: false,
        };
        self.backing.insert(at, backing);
        self.grant(driver, at, len)?;
        driver.release_memory(shared)
    }

    /// Devices that may reach the memory of `device`, itself first.
    pub fn reachers(&self, device: u32) -> Vec<u32> {
        let mut devices = vec![device];
        devices.extend(self.peers.get(device as usize).into_iter().flatten());
        devices
    }

    fn back(
        &mut self,
        driver: &Driver,
        device: u32,
        address: u64,
        map: Option<(u64, u64)>,
    ) -> Result<u64, MemoryError> {
        if let Some((at, len)) = map
            && !self.kept[device as usize].remove_exact(at, len)
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
        let in_the_way = self.kept[device as usize].overlapping(at, len);
        self.give_back(driver, device, in_the_way)?;
        let memory = self.physical(driver, device, len)?;
        let mapped = driver.map(at, len, 0, memory).and_then(|()| {
            self.grant(driver, at, len)
                .inspect_err(|_| drop(driver.unmap(at, len)))
        });
        if let Err(error) = mapped {
            driver.release_memory(memory)?;
            return Err(error);
        }
        self.adopt(at, len, memory, false);
        Ok(())
    }

    fn grant(&self, driver: &Driver, at: u64, len: u64) -> Result<(), DriverError> {
        let devices = self.reachers(device_of(at).unwrap_or_default());
        driver.set_access(at, len, cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &devices)
    }

    fn physical(
        &mut self,
        driver: &Driver,
        device: u32,
        len: u64,
    ) -> Result<PhysicalHandle, DriverError> {
        match driver.create_memory(device, len) {
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY && self.cached(device) > 0 => {
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
        let Some(kept) = self.kept.get(device as usize) else {
            return Ok(());
        };
        let all = kept.all();
        self.give_back(driver, device, all)
    }

    /// Unmaps and releases the pages at `starts`, whether still kept or not.
    fn give_back(
        &mut self,
        driver: &Driver,
        device: u32,
        starts: Vec<u64>,
    ) -> Result<(), DriverError> {
        for at in starts {
            self.kept[device as usize].remove(at);
            let Some(backing) = self.backing.remove(&at) else {
                continue;
            };
            driver.unmap(at, backing.len)?;
            driver.release_memory(backing.memory)?;
        }
        Ok(())
    }

    /// Gives all physical memory back to the driver, that of live allocations too. Their addresses stay taken, with nothing
    /// behind them: no work may use them any more. What the driver refuses is left to the end of the process.
    ///
    /// # Errors
    /// The first refusal.
    pub fn vacate(&mut self, driver: &Driver) -> Result<(), DriverError> {
        let mut outcome = Ok(());
        for kept in &mut self.kept {
            *kept = ReusablePages::default();
        }
        // All is unmapped first: one after the other, each released as it was unmapped, took longer (decision 036).
        let backing = std::mem::take(&mut self.backing);
        for (at, backing) in &backing {
            outcome = outcome.and(driver.unmap(*at, backing.len));
        }
        for backing in backing.into_values() {
            outcome = outcome.and(driver.release_memory(backing.memory));
        }
        outcome
    }

    /// Bytes kept for later on `device`: free memory from the program's point of view.
    pub fn cached(&self, device: u32) -> u64 {
        self.kept
            .get(device as usize)
            .map_or(0, ReusablePages::bytes)
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
        // A late block may never have got its memory. What others have, too, is not kept: a later allocation would write there.
        match unmap {
            Some((at, _)) if self.is_common(at) => self.give_back(driver, device, vec![at])?,
            Some((at, len)) if self.backing.contains_key(&at) => {
                let too_much = self.kept[device as usize].add(at, len);
                self.give_back(driver, device, too_much)?;
            }
            _ => {}
        }
        Ok(size)
    }

    /// The live allocation that contains `address`: its start and size.
    pub fn containing(&self, address: u64) -> Option<(u64, u64)> {
        self.layouts
            .get(device_of(address)? as usize)?
            .containing(address)
    }

    /// The physical memory behind an allocation: its first address, its bytes, and its handle.
    pub fn backing(&self, address: u64) -> Option<(u64, u64, PhysicalHandle)> {
        let (at, backing) = self.backing.range(..=address).next_back()?;
        (address - at < backing.len).then_some((*at, backing.len, backing.memory))
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
        for (at, backing) in self
            .backing
            .iter()
            .filter(|(at, _)| device_of(**at) == Some(device))
        {
            let access = match on {
                true => backing.access(),
                false => cu::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            };
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
