//! Frees a session's device memory while its worker still runs.
//!
//! The driver takes longer to end a worker that has registered much host memory than to free device memory, because it
//! releases the host's pages one by one. Sessions that wait for device memory need not wait for that.

use fermata_state::Session;

use crate::share::Sharing;
use crate::{EngineError, Live};

impl Live {
    /// Unmaps and frees all device memory of the session: allocations, physical memory, and memory kept for later
    /// allocations. No work may use it any more, and the session cannot be served any more. Arrays, modules and
    /// contexts stay until the worker ends, and so does memory that the driver refuses to free. Other processes no
    /// longer find what this one shares.
    ///
    /// # Errors
    /// The first driver error.
    pub fn vacate(&mut self, session: &Session) -> Result<(), EngineError> {
        self.sharing = Sharing::default();
        // What is registered meanwhile takes time of the driver's.
        let _quiet = self.tier.as_ref().map(|tier| tier.quiet());
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
