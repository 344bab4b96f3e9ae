//! Memory and events that the session shares: exports its own to the workers of other processes, and imports theirs.

use std::os::fd::OwnedFd;

use fermata_abi::op::{Address, ContextId, EventId, MemoryId};
use fermata_device::{DriverError, EventHandle};
use fermata_state::{Session, Shared};

use crate::share::{ShareError, event_handle};
use crate::{EngineError, Live};

impl Live {
    /// Exports the physical memory that holds an allocation: its bytes, the allocation's offset in it, and a descriptor.
    ///
    /// # Errors
    /// The allocation does not exist, or a driver error.
    pub fn export_allocation(&self, address: Address) -> Result<(u64, u64, OwnedFd), EngineError> {
        let backing = self.space.backing(address.raw());
        let (at, len, memory) = backing.ok_or_else(missing)?;
        let descriptor = self.driver.export_memory(memory);
        let descriptor = descriptor.map_err(EngineError::driver("export memory"))?;
        Ok((len, (address - at).raw(), descriptor))
    }

    /// Exports physical memory that the program has made: its bytes, and a descriptor.
    ///
    /// # Errors
    /// As [`Live::export_allocation`].
    pub fn export_memory(
        &self,
        session: &Session,
        handle: MemoryId,
    ) -> Result<(u64, OwnedFd), EngineError> {
        let size = session.memories.get(handle)?.size;
        let memory = *self.memories.get(&handle).ok_or_else(missing)?;
        let descriptor = self.driver.export_memory(memory);
        Ok((
            size,
            descriptor.map_err(EngineError::driver("export memory"))?,
        ))
    }

    /// A file with the driver's handle of an event.
    ///
    /// # Errors
    /// What the driver says, or there is no file.
    pub fn export_event(&self, event: EventId) -> Result<OwnedFd, EngineError> {
        let exporting = || EngineError::driver(format!("export event {event:#x}"));
        let found = self.event(event).map_err(exporting())?;
        let handle = self.driver.event_handle(found).map_err(exporting())?;
        event_handle::write(&handle).map_err(|source| EngineError::Shared {
            operation: format!("share event {event:#x}"),
            source,
        })
    }

    /// Opens an event of another process in a context, which is current then.
    ///
    /// # Errors
    /// What the driver says.
    pub fn open_event(
        &mut self,
        context: ContextId,
        handle: [u8; 64],
    ) -> Result<EventHandle, DriverError> {
        self.enter(context)?;
        self.driver.open_event(handle)
    }

    /// Refuses a session that has memory of a process that has ended, or that has freed the memory: no restore could
    /// bring it back. An event that its owner has destroyed becomes a plain event: in every image its recordings have
    /// completed, and afterwards only this process could record it.
    ///
    /// # Errors
    /// [`EngineError::NotCheckpointable`], with the reason.
    pub fn check_shared(&self, session: &mut Session) -> Result<(), EngineError> {
        let refused = |what: &str, error: ShareError| {
            EngineError::NotCheckpointable(format!(
                "it has opened {what} of another process, which a restore would not find: {error}"
            ))
        };
        let checked = self.sharing.check(&session.sharing);
        checked.map_err(|error| refused("memory", error))?;
        let mut gone = Vec::new();
        for (event, from) in &session.sharing.opened {
            let shared = self.sharing.is_shared(from);
            if !shared.map_err(|error| refused("an event", error))? {
                gone.push(*event);
            }
        }
        for event in gone {
            session.sharing.opened.remove(&event);
        }
        Ok(())
    }

    /// Offers everything that the session shares.
    ///
    /// # Errors
    /// An object cannot be exported, or the worker cannot offer anything.
    pub(crate) fn share_all(&mut self, session: &Session) -> Result<(), EngineError> {
        let Some(own) = &session.sharing.own else {
            return Ok(());
        };
        let mut all = Vec::new();
        for (number, shared) in &session.sharing.shared {
            let descriptor = match *shared {
                Shared::Allocation(address) => self.export_allocation(address)?.2,
                Shared::Memory(handle) => self.export_memory(session, handle)?.1,
                Shared::Event(event) => self.export_event(event)?,
            };
            all.push((*number, descriptor));
        }
        self.sharing
            .offer(own, all)
            .map_err(|source| EngineError::Shared {
                operation: "share memory and events".to_owned(),
                source,
            })
    }
}

fn missing() -> EngineError {
    EngineError::Internal("there is no memory to share".to_owned())
}
