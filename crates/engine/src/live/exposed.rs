//! Maps physical memory of the program for copying, wherever the program has mapped it, or not.

use std::collections::HashMap;

use fermata_abi::op::{Address, MemoryId};
use fermata_abi::sys::driver as cu;
use fermata_state::Session;

use crate::{EngineError, Live};

/// Where each physical memory can be reached, and what must be undone.
#[derive(Default)]
pub(crate) struct Exposed {
    pub addresses: HashMap<MemoryId, Address>,
    temporary: Vec<(Address, u64)>,
}

impl Live {
    /// Finds or makes an address for every physical memory of the session.
    pub(crate) fn expose(&mut self, session: &Session) -> Result<Exposed, EngineError> {
        let mut exposed = Exposed::default();
        for (handle, memory) in session.own_memories() {
            let whole = session.mappings.iter().find(|(_, it)| {
                let reachable = it
                    .access
                    .get(&memory.device)
                    .is_some_and(|access| *access == cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
                it.memory == handle && it.offset == 0 && it.size == memory.size && reachable
            });
            let address = match whole {
                Some((address, _)) => address,
                None => match self.map_aside(handle, memory.device, memory.size) {
                    Ok(address) => {
                        exposed.temporary.push((address, memory.size));
                        address
                    }
                    Err(error) => {
                        // The first failure is the one to report.
                        let _ = self.conceal(exposed);
                        return Err(error);
                    }
                },
            };
            exposed.addresses.insert(handle, address);
        }
        Ok(exposed)
    }

    fn map_aside(
        &mut self,
        handle: MemoryId,
        device: u32,
        size: u64,
    ) -> Result<Address, EngineError> {
        let operation = format!("reach physical memory {handle:#x}");
        let physical = self.memories.get(&handle).copied();
        let physical = physical
            .ok_or_else(|| EngineError::Internal(format!("cannot {operation}: it is not there")))?;
        let address = self
            .space
            .reserve(size, 0, 0)
            .map_err(EngineError::memory(&*operation))?;
        let mapped = self.driver.map(address, size, 0, physical).and_then(|()| {
            self.driver.set_access(
                address,
                size,
                cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                &[device],
            )
        });
        if let Err(error) = mapped {
            // It may not have been mapped; unmapping does nothing then.
            let _ = self.driver.unmap(address, size);
            let _ = self.space.unreserve(address);
            return Err(EngineError::driver(operation)(error));
        }
        Ok(Address::from_raw(address))
    }

    /// Undoes [`Live::expose`].
    pub(crate) fn conceal(&mut self, exposed: Exposed) -> Result<(), EngineError> {
        for (address, size) in exposed.temporary {
            self.driver
                .unmap(address.raw(), size)
                .map_err(EngineError::driver("undo a mapping for the transfer"))?;
            self.space
                .unreserve(address.raw())
                .map_err(EngineError::memory("undo a mapping for the transfer"))?;
        }
        Ok(())
    }
}
