//! Memory shared with other processes of the session: what the program offers, and what it fetches.

use std::os::fd::AsFd;

use fermata_abi::op::{Address, MemoryId, ReplyBody, SharedMemory, Sharer};
use fermata_abi::sys::driver as cu;
use fermata_engine::ShareError;
use fermata_state::{Fetched, Memory, Shared};
use fermata_wire::Ticket;

use super::{Reaction, Step};
use crate::errors::OpError;
use crate::failure::full_text;
use crate::server::Server;

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

impl Server {
    pub(super) fn mem_share(
        &mut self,
        sharer: &Sharer,
        address: Address,
        memory: MemoryId,
        ticket: Option<Ticket>,
    ) -> Step {
        let session = &self.site.session;
        if session.sharing.own.is_some_and(|own| own != *sharer) {
            return Err(OpError::invalid("the process has another name already"));
        }
        if session.is_fetched(memory) {
            return Err(OpError::invalid(format!(
                "physical memory {memory:#x} is another process's, which alone can share it"
            )));
        }
        let (buffer, size, shared) = match memory {
            MemoryId::NULL => {
                let known = session.allocations.get(address)?;
                (known.buffer, known.size, Shared::Allocation(address))
            }
            _ => {
                let known = session.memories.get(memory)?;
                (known.buffer, known.size, Shared::Memory(memory))
            }
        };
        let live = &mut self.site.live;
        let export = live.export(session, shared);
        let (whole, offset, descriptor) = export
            .map_err(|error| OpError::new(cu::CUDA_ERROR_INVALID_VALUE, full_text(&error)))?;
        if !live.sharing.offers(buffer) {
            live.sharing.offer(sharer, vec![(buffer, descriptor)])?;
        }
        let sharing = &mut self.site.session.sharing;
        sharing.own = Some(*sharer);
        sharing.shared.insert(buffer, shared);
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

    /// What is freed is offered no more.
    pub(super) fn keep_offers(&self) {
        self.site.live.sharing.keep(&self.site.session.sharing);
    }
}
