//! What the session shares with other processes, offered to their workers.

use std::os::fd::OwnedFd;

use fermata_state::{Session, Shared};

use crate::{EngineError, Live};

impl Live {
    /// Bytes of the physical memory that holds what is shared, where in there it begins, and a descriptor of it.
    ///
    /// # Errors
    /// It is not there, or what the driver says.
    pub fn export(
        &self,
        session: &Session,
        shared: Shared,
    ) -> Result<(u64, u64, OwnedFd), EngineError> {
        let missing = || EngineError::Internal("there is no memory to share".to_owned());
        let (whole, offset, memory) = match shared {
            Shared::Allocation(address) => {
                let (at, len, memory) = self.space.backing(address).ok_or_else(missing)?;
                (len, address - at, memory)
            }
            Shared::Memory(handle) => {
                let size = session.memories.get(handle)?.size;
                let memory = *self.memories.get(&handle).ok_or_else(missing)?;
                (size, 0, memory)
            }
        };
        let descriptor = self.driver.export_memory(memory);
        let descriptor = descriptor.map_err(EngineError::driver("export memory"))?;
        Ok((whole, offset, descriptor))
    }

    /// Refuses a session that has memory of a process that is no more, or that has freed it: no restore could bring it back.
    ///
    /// # Errors
    /// [`EngineError::NotCheckpointable`], with the reason.
    pub fn check_shared(&self, session: &Session) -> Result<(), EngineError> {
        let checked = self.sharing.check(&session.sharing);
        checked.map_err(|error| {
            EngineError::NotCheckpointable(format!(
                "it has opened memory of another process, which a restore would not find: {error}"
            ))
        })
    }

    /// Offers everything that the session shares.
    ///
    /// # Errors
    /// As [`Live::export`], or nothing can be offered.
    pub(crate) fn share_all(&mut self, session: &Session) -> Result<(), EngineError> {
        let Some(own) = &session.sharing.own else {
            return Ok(());
        };
        let mut all = Vec::new();
        for (buffer, shared) in &session.sharing.shared {
            let (_, _, descriptor) = self.export(session, *shared)?;
            all.push((*buffer, descriptor));
        }
        self.sharing
            .offer(own, all)
            .map_err(|source| EngineError::Shared {
                operation: "share memory".to_owned(),
                source,
            })
    }
}
