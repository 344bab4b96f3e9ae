//! Gives a session's device memory back while its worker still lives.
//!
//! The driver takes longer to end a worker that has registered much host memory than to free device memory: it gives the
//! host's pages back one by one. Who waits for the device's memory need not wait for that.

use fermata_state::Session;

use crate::share::Sharing;
use crate::{EngineError, Live};

impl Live {
    /// Unmaps and releases all device memory of the session: allocations, physical memory, and what is kept for later ones. No
    /// work may use it any more, and the session cannot be served any more. Arrays, modules and contexts stay until the worker ends, and
    /// so does memory that the driver does not release. What the process shares with others is not found any more.
    ///
    /// # Errors
    /// What the driver says first.
    pub fn vacate(&mut self, session: &Session) -> Result<(), EngineError> {
        self.sharing = Sharing::default();
        if self.contexts.is_empty() {
            return Ok(());
        }
        self.enter_any()
            .map_err(EngineError::driver("give the device's memory back"))?;
        let mut outcome = Ok(());
        for (address, mapping) in session.mappings.iter() {
            outcome = outcome.and(self.driver.unmap(address.raw(), mapping.size));
        }
        for memory in std::mem::take(&mut self.memories).into_values() {
            outcome = outcome.and(self.driver.release_memory(memory));
        }
        outcome
            .and(self.space.vacate(&self.driver))
            .map_err(EngineError::driver("give the device's memory back"))
    }
}
