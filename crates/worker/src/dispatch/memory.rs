//! Operations on device memory: allocations, and virtual memory management.

use std::collections::BTreeMap;

use fermata_abi::op::{Address, ContextId, MemoryId, Op, ReplyBody, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_state::{Allocation, Mapping, Memory, Reservation};
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::Then;

impl Server {
    pub(super) fn mem_alloc(
        &mut self,
        context: ContextId,
        size: u64,
        ticket: Option<Ticket>,
    ) -> Step {
        if size == 0 {
            return Err(OpError::invalid("an allocation of no bytes"));
        }
        match self.try_allocate(context, size) {
            Ok(address) => Ok(Reaction::Answer(ReplyBody::U64(address.raw()))),
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY && self.is_freeing() => {
                let (context_of, then) = (Some(context), Then::Allocate { context, size });
                self.after(&[], context_of, false, then, ticket)
            }
            Err(error)
                if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY
                    && self.park_until_freed(&Op::MemAlloc { context, size }, ticket) =>
            {
                Ok(Reaction::Later)
            }
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY => {
                let address = self.allocate(context, size)?;
                Ok(Reaction::Answer(ReplyBody::U64(address.raw())))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether memory is about to be freed.
    fn is_freeing(&self) -> bool {
        self.is_captured()
            || self
                .waiting
                .iter()
                .any(|it| matches!(it.then, Then::Free(_)))
    }

    /// Allocates and records memory. If it is short, unloaded modules that are kept are unloaded first.
    pub(crate) fn allocate(&mut self, context: ContextId, size: u64) -> Result<Address, OpError> {
        match self.try_allocate(context, size) {
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY && self.give_up_kept() => {
                self.try_allocate(context, size)
            }
            other => other,
        }
    }

    fn try_allocate(&mut self, context: ContextId, size: u64) -> Result<Address, OpError> {
        let live = &mut self.site.live;
        let device = live.enter(context)?.device;
        let address = live.space.allocate(&live.driver, device, size)?;
        let session = &mut self.site.session;
        let buffer = session.number_buffer();
        session.allocations.insert(
            Address::from_raw(address),
            Allocation {
                context,
                device,
                size,
                buffer,
            },
        )?;
        Ok(Address::from_raw(address))
    }

    pub(super) fn mem_free(&mut self, address: Address, ticket: Option<Ticket>) -> Step {
        let context = self.site.session.remove_allocation(address)?.context;
        self.keep_offers();
        // Work in any context may use the memory.
        self.after_all(None, Some(context), true, Then::Free(address), ticket)
    }

    pub(super) fn mem_free_async(&mut self, address: Address, stream: StreamRef) -> Step {
        self.site.session.remove_allocation(address)?;
        self.keep_offers();
        self.after(
            &[stream],
            Some(stream.context),
            false,
            Then::Free(address),
            None,
        )
    }

    /// Frees an allocation that no work uses any more.
    pub(crate) fn release(&mut self, address: Address) -> Result<(), OpError> {
        if self.is_held(address) {
            return Ok(());
        }
        let live = &mut self.site.live;
        live.enter_any()?;
        live.space.free(&live.driver, address.raw())?;
        Ok(())
    }

    pub(super) fn address_reserve(&mut self, size: u64, align: u64, address: Address) -> Step {
        if size == 0 {
            return Err(OpError::invalid("a reservation of no bytes"));
        }
        let address = self.site.live.space.reserve(size, align, address.raw())?;
        self.site
            .session
            .reservations
            .insert(Address::from_raw(address), Reservation { size })?;
        Ok(Reaction::Answer(ReplyBody::U64(address)))
    }

    pub(super) fn address_free(&mut self, address: Address) -> Step {
        let size = self.site.session.reservations.get(address)?.size;
        let last = address.saturating_add(size).saturating_sub(1);
        if self
            .site
            .session
            .mappings
            .at_or_below(last)
            .is_some_and(|(mapped, _)| mapped >= address)
        {
            return Err(OpError::invalid(format!(
                "the reservation at {address:#x} has mappings"
            )));
        }
        self.site.live.space.unreserve(address.raw())?;
        self.site.session.reservations.remove(address)?;
        DONE
    }

    pub(super) fn mem_create(
        &mut self,
        memory: MemoryId,
        device: u32,
        size: u64,
        flags: u64,
    ) -> Step {
        if self.site.session.memories.contains(memory) {
            return Err(OpError::invalid(format!(
                "there is a physical memory {memory:#x} already"
            )));
        }
        let live = &mut self.site.live;
        let made = match live.driver.create_memory(device, size) {
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY => {
                // The program's memory takes precedence over a capture's, and over kept modules. Data that a restore has yet
                // to bring is the program's.
                if self.gate.as_ref().is_some_and(|gate| gate.is_dispensable()) {
                    self.close_gate();
                }
                self.give_up_kept();
                let live = &mut self.site.live;
                live.enter_any()?;
                live.space.trim(&live.driver, device)?;
                live.driver.create_memory(device, size)?
            }
            other => other?,
        };
        self.site.live.memories.insert(memory, made);
        let buffer = self.site.session.number_buffer();
        self.site.session.memories.insert(
            memory,
            Memory {
                device,
                size,
                flags,
                released: false,
                buffer,
            },
        )?;
        DONE
    }

    pub(super) fn mem_release(&mut self, memory: MemoryId) -> Step {
        if self.site.session.release_memory(memory)? {
            self.keep_offers();
            self.drop_physical(memory)?;
        }
        DONE
    }

    /// Releases physical memory that is not mapped any more. Until then the worker keeps it, so that it can be saved whole.
    fn drop_physical(&mut self, memory: MemoryId) -> Result<(), OpError> {
        let live = &mut self.site.live;
        match live.memories.remove(&memory) {
            Some(handle) => Ok(live.driver.release_memory(handle)?),
            None => Ok(()),
        }
    }

    pub(super) fn mem_map(
        &mut self,
        address: Address,
        size: u64,
        offset: u64,
        memory: MemoryId,
    ) -> Step {
        let session = &self.site.session;
        let known = session.memories.get(memory)?;
        let reserved = session
            .reservations
            .at_or_below(address)
            .is_some_and(|(start, it)| {
                address - start <= it.size && size <= it.size - (address - start)
            });
        let before = session
            .mappings
            .at_or_below(address.saturating_add(size).saturating_sub(1));
        let free = before.is_none_or(|(start, it)| start + it.size <= address);
        let fits = offset
            .checked_add(size)
            .is_some_and(|end| end <= known.size);
        if known.released || !reserved || !free || !fits || size == 0 {
            return Err(OpError::invalid(format!(
                "{size} bytes of memory {memory:#x} cannot be mapped at {address:#x}"
            )));
        }
        let live = &mut self.site.live;
        let handle = *live
            .memories
            .get(&memory)
            .ok_or_else(|| OpError::invalid("the memory is gone"))?;
        live.driver.map(address.raw(), size, offset, handle)?;
        self.site.session.mappings.insert(
            address,
            Mapping {
                size,
                offset,
                memory,
                access: BTreeMap::new(),
            },
        )?;
        DONE
    }

    /// The mappings that fill `address .. address + size` exactly.
    fn mappings_within(&self, address: Address, size: u64) -> Result<Vec<(Address, u64)>, OpError> {
        let end = address
            .checked_add(size)
            .ok_or_else(|| OpError::invalid("a range beyond all addresses"))?;
        let inside = self
            .site
            .session
            .mappings
            .iter()
            .filter(|(start, _)| (address..end).contains(start));
        let found: Vec<(Address, u64)> = inside.map(|(start, it)| (start, it.size)).collect();
        let covered: u64 = found.iter().map(|(_, size)| size).sum();
        let last = found
            .last()
            .map_or(Address::NULL, |(start, size)| *start + *size);
        if found.is_empty() || covered != size || last != end {
            return Err(OpError::invalid(format!(
                "{size} bytes at {address:#x} are not whole mappings"
            )));
        }
        Ok(found)
    }

    pub(super) fn mem_unmap(&mut self, address: Address, size: u64) -> Step {
        for (start, size) in self.mappings_within(address, size)? {
            self.site.live.driver.unmap(start.raw(), size)?;
            let memory = self.site.session.remove_mapping(start)?.memory;
            self.site.session.pointers.forget(start, size);
            if !self.site.session.memories.contains(memory) {
                self.keep_offers();
                self.drop_physical(memory)?;
            }
        }
        DONE
    }

    pub(super) fn mem_set_access(
        &mut self,
        address: Address,
        size: u64,
        access: u32,
        devices: &[u32],
    ) -> Step {
        if devices
            .iter()
            .any(|device| *device as usize >= self.devices.len())
        {
            return Err(OpError::new(
                cu::CUDA_ERROR_INVALID_DEVICE,
                "access for a device that does not exist",
            ));
        }
        for (start, size) in self.mappings_within(address, size)? {
            self.site
                .live
                .driver
                .set_access(start.raw(), size, access, devices)?;
            let mapping = self.site.session.mappings.get_mut(start)?;
            for device in devices {
                mapping.access.insert(*device, access);
            }
        }
        DONE
    }
}
