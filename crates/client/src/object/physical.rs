//! Physical memory (`cuMemCreate`), reserved addresses, and mappings.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fermata_abi::op::{Address, ContextId, MemoryId, Op, SharedMemory};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::handles::{self, Table};
use crate::link;
use crate::link::room::with_room;
use crate::object::devices::Devices;
use crate::object::mirror::{Block, Kind, Mirror, fresh_id};
use crate::object::shared;
use crate::result::Result;

/// Sizes and addresses of physical memory are multiples of this, on every device so far.
pub const GRANULARITY: u64 = 2 << 20;

/// All physical memory and reservations, and the access rights of devices.
#[derive(Debug, Default)]
pub struct PhysicalMemory {
    table: Table<MemoryId, Physical>,
    reserved: Mutex<BTreeMap<Address, u64>>,
    access: Mutex<BTreeMap<Address, Access>>,
}

/// A piece of physical memory.
#[derive(Debug)]
pub struct Physical {
    /// Bytes.
    pub size: u64,
    /// Ordinal of its device.
    pub device: sys::CUdevice,
    /// The handle types that the program asked for.
    pub handle_types: u32,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID` of each place where it is mapped.
    id: u64,
    users: Mutex<Users>,
}

/// The memory lives as long as it has any.
#[derive(Debug)]
struct Users {
    /// Holders of the handle. Without one, the handle is not valid.
    holders: u32,
    /// Places where it is mapped.
    places: u32,
}

impl Users {
    /// Of new memory.
    fn new() -> Mutex<Self> {
        Mutex::new(Self {
            holders: 1,
            places: 0,
        })
    }

    fn any(&self) -> bool {
        self.holders > 0 || self.places > 0
    }
}

#[derive(Debug)]
struct Access {
    size: u64,
    devices: Vec<(sys::CUdevice, u32)>,
}

impl PhysicalMemory {
    /// New physical memory on a device.
    pub fn create(
        &self,
        devices: &Devices,
        size: u64,
        prop: &sys::CUmemAllocationProp,
    ) -> Result<MemoryId> {
        if prop.type_ != sys::CU_MEM_ALLOCATION_TYPE_PINNED
            || prop.location.type_ != sys::CU_MEM_LOCATION_TYPE_DEVICE
        {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        if size == 0 || !size.is_multiple_of(GRANULARITY) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let device = devices.get(prop.location.id)?.index;
        let memory = handles::fresh();
        let op = Op::MemCreate {
            memory,
            device,
            size,
            flags: 0,
        };
        with_room(None, (device, size), || link::ask(&op, link::nothing))?;
        let made = Physical {
            size,
            device: prop.location.id,
            handle_types: prop.requestedHandleTypes,
            id: fresh_id(),
            users: Users::new(),
        };
        self.table.insert(memory, Arc::new(made));
        Ok(memory)
    }

    /// The memory behind a handle.
    pub fn get(&self, memory: MemoryId) -> Result<Arc<Physical>> {
        let physical = self.known(memory)?;
        let held = physical.users.lock().holders > 0;
        held.then_some(physical)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// As [`PhysicalMemory::get`], also without a holder of the handle.
    fn known(&self, memory: MemoryId) -> Result<Arc<Physical>> {
        self.table.get(memory, sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// Adds a holder of the handle of the memory that is mapped at `address`, which may have none.
    pub fn retain(&self, blocks: &Mirror, address: Address) -> Result<MemoryId> {
        let memory = match blocks.find(address).map(|block| block.kind) {
            Some(Kind::Mapped(memory)) => memory,
            _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
        };
        self.known(memory)?.users.lock().holders += 1;
        Ok(memory)
    }

    /// Adds a holder of the handle, for an import of it by descriptor.
    pub fn share(&self, memory: MemoryId) -> Result {
        self.get(memory)?.users.lock().holders += 1;
        Ok(())
    }

    /// Imports physical memory of another process; each import gives a handle of its own.
    pub fn fetch(&self, devices: &Devices, given: &SharedMemory) -> Result<MemoryId> {
        let (memory, index) = shared::fetch("cuMemImportFromShareableHandle", given)?;
        let made = Physical {
            size: given.whole,
            device: devices.ordinal(index)?,
            handle_types: 0,
            id: fresh_id(),
            users: Users::new(),
        };
        self.table.insert(memory, Arc::new(made));
        Ok(memory)
    }

    /// Removes a holder of the handle; the memory itself lives as long as it is mapped.
    pub fn release(&self, memory: MemoryId) -> Result {
        self.get(memory)?;
        self.lose(memory, |users| &mut users.holders)
    }

    /// Removes a user of the memory, which is let go with the last.
    fn lose(&self, memory: MemoryId, kind: impl FnOnce(&mut Users) -> &mut u32) -> Result {
        let physical = self.known(memory)?;
        let mut users = physical.users.lock();
        let count = kind(&mut users);
        *count = count.saturating_sub(1);
        if users.any() {
            return Ok(());
        }
        self.table.remove(memory, sys::CUDA_ERROR_INVALID_VALUE)?;
        link::ask(&Op::MemRelease { memory }, link::nothing)
    }

    /// Reserves addresses.
    pub fn reserve(&self, size: u64, align: u64, address: Address) -> Result<Address> {
        if size == 0
            || !size.is_multiple_of(GRANULARITY)
            || !(align == 0 || align.is_power_of_two())
        {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let address = link::ask(
            &Op::AddressReserve {
                size,
                align,
                address,
            },
            link::address,
        )?;
        self.reserved.lock().insert(address, size);
        Ok(address)
    }

    /// Releases reserved addresses.
    pub fn free(&self, address: Address, size: u64) -> Result {
        let mut reserved = self.reserved.lock();
        if reserved.get(&address) != Some(&size) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        reserved.remove(&address);
        drop(reserved);
        link::ask(&Op::AddressFree { address, size }, link::nothing)
    }

    /// Maps physical memory into reserved addresses.
    pub fn map(
        &self,
        blocks: &Mirror,
        address: Address,
        size: u64,
        offset: u64,
        memory: MemoryId,
    ) -> Result {
        let physical = self.get(memory)?;
        let aligned = [address.raw(), size, offset]
            .iter()
            .all(|value| value.is_multiple_of(GRANULARITY));
        let fits = offset
            .checked_add(size)
            .is_some_and(|end| end <= physical.size);
        if !aligned
            || !fits
            || size == 0
            || !self.is_reserved(address, size)
            || blocks.overlaps(address, size)
        {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        physical.users.lock().places += 1;
        let map = Op::MemMap {
            address,
            size,
            offset,
            memory,
        };
        link::ask(&map, link::nothing).inspect_err(|_| {
            // The first failure is the one to report.
            let _ = self.lose(memory, |users| &mut users.places);
        })?;
        let context = crate::object::context::current_or_none();
        let context = context.map_or(ContextId::NULL, |context| context.handle);
        blocks.insert(Block {
            start: address,
            size,
            mapped: 0,
            kind: Kind::Mapped(memory),
            context,
            device: physical.device,
            flags: 0,
            id: physical.id,
            shared: OnceLock::new(),
        });
        Ok(())
    }

    /// Unmaps whole mappings.
    pub fn unmap(&self, blocks: &Mirror, address: Address, size: u64) -> Result {
        let end = address
            .checked_add(size)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        link::ask(&Op::MemUnmap { address, size }, link::nothing)?;
        let inside = |start: Address| (address..end).contains(&start);
        let gone =
            blocks.remove_if(|block| matches!(block.kind, Kind::Mapped(_)) && inside(block.start));
        self.access.lock().retain(|start, _| !inside(*start));
        let lose = |block: Arc<Block>| match block.kind {
            Kind::Mapped(memory) => self.lose(memory, |users| &mut users.places),
            _ => Ok(()),
        };
        gone.into_iter().map(lose).fold(Ok(()), Result::and)
    }

    /// Sets which devices may access a mapped range.
    pub fn set_access(
        &self,
        visible: &Devices,
        address: Address,
        size: u64,
        list: &[sys::CUmemAccessDesc],
    ) -> Result {
        for desc in list {
            if desc.location.type_ != sys::CU_MEM_LOCATION_TYPE_DEVICE {
                return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
            }
            let devices = vec![visible.get(desc.location.id)?.index];
            link::ask(
                &Op::MemSetAccess {
                    address,
                    size,
                    access: desc.flags,
                    devices,
                },
                link::nothing,
            )?;
            let mut access = self.access.lock();
            let entry = access.entry(address).or_insert(Access {
                size,
                devices: Vec::new(),
            });
            entry.size = entry.size.max(size);
            entry
                .devices
                .retain(|(device, _)| *device != desc.location.id);
            entry.devices.push((desc.location.id, desc.flags));
        }
        Ok(())
    }

    /// The access rights of a device to an address.
    pub fn access(&self, device: sys::CUdevice, address: Address) -> u32 {
        let access = self.access.lock();
        let found = access
            .range(..=address)
            .next_back()
            .filter(|(start, entry)| address < **start + entry.size);
        let mut devices = found.iter().flat_map(|(_, entry)| &entry.devices);
        devices
            .find(|(id, _)| *id == device)
            .map_or(sys::CU_MEM_ACCESS_FLAGS_PROT_NONE, |(_, flags)| *flags)
    }

    fn is_reserved(&self, address: Address, size: u64) -> bool {
        let reserved = self.reserved.lock();
        let found = reserved.range(..=address).next_back();
        found.is_some_and(|(start, len)| address + size <= *start + *len)
    }
}
