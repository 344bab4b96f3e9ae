//! Operations on memory and events shared with other processes of the session: what the program offers and fetches.

use std::os::fd::{AsFd, OwnedFd};

use fermata_abi::op::{
    Address, ContextId, EventId, MemoryId, ReplyBody, SharedEvent, SharedMemory, Sharer, StreamRef,
};
use fermata_abi::sys::driver as cu;
use fermata_engine::{EngineError, ShareError, event_handle};
use fermata_state::{Event, Fetched, Memory, Shared};
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::failure::full_text;
use crate::server::Server;
use crate::waiting::{Then, Unmapping};

impl From<ShareError> for OpError {
    fn from(error: ShareError) -> Self {
        let code = match error {
            ShareError::Outside | ShareError::Ended | ShareError::Freed => {
                cu::CUDA_ERROR_INVALID_VALUE
            }
            ShareError::NoFolder | ShareError::Ask(_) | ShareError::Offer(_) => {
                cu::CUDA_ERROR_OPERATING_SYSTEM
            }
        };
        Self::new(code, full_text(&error))
    }
}

fn refused(error: &EngineError) -> OpError {
    OpError::new(cu::CUDA_ERROR_INVALID_VALUE, full_text(error))
}

impl Server {
    pub(super) fn mem_share(
        &mut self,
        sharer: &Sharer,
        address: Address,
        memory: MemoryId,
        ticket: Option<Ticket>,
    ) -> Step {
        self.check_name(sharer)?;
        let session = &self.site.session;
        if session.is_fetched(memory) {
            return Err(OpError::invalid(format!(
                "physical memory {memory:#x} is another process's, which alone can share it"
            )));
        }
        let live = &self.site.live;
        let (buffer, size, shared, export) = match memory {
            MemoryId::NULL => {
                let known = session.allocations.get(address)?;
                let shared = Shared::Allocation(address);
                (
                    known.buffer,
                    known.size,
                    shared,
                    live.export_allocation(address),
                )
            }
            _ => {
                let known = session.memories.get(memory)?;
                let export = live.export_memory(session, memory);
                let export = export.map(|(whole, descriptor)| (whole, 0, descriptor));
                (known.buffer, known.size, Shared::Memory(memory), export)
            }
        };
        let (whole, offset, descriptor) = export.map_err(|error| refused(&error))?;
        self.offer(sharer, (buffer, shared), descriptor)?;
        let handle = SharedMemory {
            sharer: *sharer,
            buffer,
            whole,
            offset,
            size,
            memory,
        };
        self.answer(ticket, None, false, Ok(ReplyBody::Bytes(&handle.encode())));
        Ok(Reaction::Later)
    }

    pub(super) fn mem_fetch(&mut self, memory: MemoryId, shared: &[u8]) -> Step {
        let given = SharedMemory::decode(shared)
            .ok_or_else(|| OpError::invalid("that is no handle of shared memory"))?;
        if self.site.session.memories.contains(memory) {
            return Err(OpError::invalid(format!(
                "there is a physical memory {memory:#x} already"
            )));
        }
        let from = Fetched {
            sharer: given.sharer,
            buffer: given.buffer,
        };
        let live = &mut self.site.live;
        let descriptor = live.sharing.fetch(&from)?;
        let (made, device) = live.driver.import_memory(descriptor.as_fd())?;
        live.memories.insert(memory, made);
        let session = &mut self.site.session;
        let buffer = session.number_buffer();
        session.memories.insert(
            memory,
            Memory {
                device,
                size: given.whole,
                flags: 0,
                released: false,
                buffer,
            },
        )?;
        session.sharing.fetched.insert(memory, from);
        Ok(Reaction::Answer(ReplyBody::U64(u64::from(device))))
    }

    fn check_name(&self, sharer: &Sharer) -> Result<(), OpError> {
        let known = self.site.session.sharing.own;
        match known.is_some_and(|own| own != *sharer) {
            true => Err(OpError::invalid("the process has another name already")),
            false => Ok(()),
        }
    }

    fn offer(
        &mut self,
        sharer: &Sharer,
        (number, shared): (u64, Shared),
        descriptor: OwnedFd,
    ) -> Result<(), OpError> {
        let live = &mut self.site.live.sharing;
        if !live.offers(number) {
            live.offer(sharer, vec![(number, descriptor)])?;
        }
        let sharing = &mut self.site.session.sharing;
        sharing.own = Some(*sharer);
        sharing.shared.insert(number, shared);
        Ok(())
    }

    /// Unmaps memory of another process, and frees its reservation, when the stream has reached this operation.
    pub(super) fn mem_close_async(&mut self, address: Address, stream: StreamRef) -> Step {
        let session = &mut self.site.session;
        let (memory, size) = {
            let mapping = session.mappings.get(address)?;
            (mapping.memory, mapping.size)
        };
        let whole = session.reservations.get(address)?.size == size
            && session.memories.get(memory)?.size == size;
        let others = session
            .mappings
            .iter()
            .any(|(at, it)| at != address && it.memory == memory);
        if !whole || others || !session.is_fetched(memory) {
            return Err(OpError::invalid(format!(
                "what is mapped at {address:#x} is not memory of another process that is mapped whole, and there alone"
            )));
        }
        session.release_memory(memory)?;
        session.remove_mapping(address)?;
        session.reservations.remove(address)?;
        let physical = self.site.live.memories.remove(&memory);
        let then = Then::Unmap(Unmapping {
            address,
            size,
            memory: physical,
        });
        self.after(&[stream], Some(stream.context), false, then, None)
    }

    /// Unmaps memory of another process that no work uses any more.
    pub(crate) fn unmap_closed(&mut self, gone: Unmapping) -> Result<(), OpError> {
        let live = &mut self.site.live;
        live.driver.unmap(gone.address.raw(), gone.size)?;
        live.space.unreserve(gone.address.raw())?;
        match gone.memory {
            Some(memory) => Ok(live.driver.release_memory(memory)?),
            None => Ok(()),
        }
    }

    pub(super) fn event_share(
        &mut self,
        sharer: &Sharer,
        event: EventId,
        ticket: Option<Ticket>,
    ) -> Step {
        self.check_name(sharer)?;
        let session = &self.site.session;
        let known = session.events.get(event)?;
        if known.flags & cu::CU_EVENT_INTERPROCESS == 0 {
            return Err(OpError::invalid(format!(
                "event {event:#x} was not made for other processes"
            )));
        }
        if session.sharing.opened.contains_key(&event) {
            return Err(OpError::invalid(format!(
                "event {event:#x} is another process's, which alone can share it"
            )));
        }
        let number = match session.sharing.number_of(event) {
            Some(number) => number,
            None => {
                let descriptor = self.site.live.export_event(event);
                let descriptor = descriptor.map_err(|error| refused(&error))?;
                let number = self.site.session.number_buffer();
                self.offer(sharer, (number, Shared::Event(event)), descriptor)?;
                number
            }
        };
        let handle = SharedEvent {
            sharer: *sharer,
            number,
        };
        self.answer(ticket, None, false, Ok(ReplyBody::Bytes(&handle.encode())));
        Ok(Reaction::Later)
    }

    pub(super) fn event_open(&mut self, event: EventId, context: ContextId, shared: &[u8]) -> Step {
        let given = SharedEvent::decode(shared)
            .ok_or_else(|| OpError::invalid("that is no handle of an event"))?;
        if self.site.session.events.contains(event) {
            return Err(OpError::invalid(format!(
                "there is an event {event:#x} already"
            )));
        }
        let from = Fetched {
            sharer: given.sharer,
            buffer: given.number,
        };
        let live = &mut self.site.live;
        let handle = event_handle::read(live.sharing.fetch(&from)?)?;
        let opened = live.open_event(context, handle)?;
        live.events.insert(event, (opened, context));
        let session = &mut self.site.session;
        session.events.insert(
            event,
            Event {
                context,
                flags: cu::CU_EVENT_INTERPROCESS | cu::CU_EVENT_DISABLE_TIMING,
                recorded: false,
            },
        )?;
        session.sharing.opened.insert(event, from);
        DONE
    }

    /// Withdraws offers of memory that has been freed.
    pub(super) fn keep_offers(&self) {
        self.site.live.sharing.keep(&self.site.session.sharing);
    }
}
