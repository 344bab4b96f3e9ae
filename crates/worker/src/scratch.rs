//! Pinned memory of the worker for small results, and the registration of the staging area.

use std::collections::HashMap;

use fermata_abi::op::ContextId;
use fermata_abi::sys::driver as cu;
use fermata_device::{Driver, DriverError, EventHandle, PinnedBuffer, PinnedPool};
use fermata_engine::Live;
use fermata_wire::{StagedArea, WireError};

/// Largest result that travels in the answer itself.
pub(crate) const SMALL: usize = 64 << 10;
const BUFFERS: usize = 64;
/// Offset in a buffer of [`Scratch`] of the word that the device sets when its copy is done. Reading it costs less than
/// asking for the stream's state.
pub(crate) const DONE_AT: usize = SMALL;
/// Bytes of a buffer: the result, and the word at [`DONE_AT`] in a cache line of its own.
const BUFFER: usize = SMALL + 4096;

/// The staging area, registered with the driver as soon as there is a context. It outlives an attachment, because
/// registering takes as long as the rest of the next attachment.
pub(crate) struct Staging {
    area: StagedArea,
    registered: bool,
}

impl Staging {
    pub fn new(area: StagedArea) -> Self {
        Self {
            area,
            registered: false,
        }
    }

    /// Makes the area fit for asynchronous copies. A context must be current; the area stays registered as long as that
    /// one lives. Done once.
    pub fn register(&mut self, driver: &Driver) -> Result<(), DriverError> {
        if self.registered || self.area.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the area stays mapped while `self.area` lives, and is unregistered before.
        unsafe { driver.register_range(self.area.base(), self.area.bytes() as usize)? };
        self.registered = true;
        Ok(())
    }

    /// Undoes [`Staging::register`].
    pub fn unregister(&mut self, driver: &Driver) -> Result<(), DriverError> {
        if std::mem::take(&mut self.registered) {
            driver.unregister_range(self.area.base())?;
        }
        Ok(())
    }

    /// The area.
    pub fn area(&self) -> &StagedArea {
        &self.area
    }

    /// Address of a staged range, for the driver.
    pub fn address(&self, offset: u64, len: u64) -> Result<u64, WireError> {
        Ok(self.area.at(offset, len)? as u64)
    }

    /// A private copy of a staged range.
    pub fn copy_out(&self, offset: u64, len: u64) -> Result<Vec<u8>, WireError> {
        self.area.at(offset, len)?;
        let mut bytes = vec![0; len as usize];
        self.area.read(offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// Small pinned buffers, made when the first is wanted.
#[derive(Default)]
pub(crate) struct Scratch {
    pool: Option<PinnedPool>,
}

impl Scratch {
    /// A buffer of [`SMALL`] bytes, or `None` if all are in use. A context must be current.
    pub fn take(&mut self, live: &mut Live) -> Result<Option<PinnedBuffer>, DriverError> {
        if self.pool.is_none() {
            let make = |driver: &Driver| PinnedPool::new(driver, BUFFERS, BUFFER);
            // A fault of the program may have ended the process's own context. The current one lives.
            let made = live.at_home(make).or_else(|_| make(&live.driver));
            self.pool = Some(made?);
        }
        Ok(self.pool.as_ref().and_then(PinnedPool::try_take))
    }
}

/// Events without timing, kept by context for reuse.
#[derive(Default)]
pub(crate) struct EventPool {
    spare: HashMap<ContextId, Vec<EventHandle>>,
}

impl EventPool {
    /// An event of `context`, which must be current.
    pub fn take(
        &mut self,
        driver: &Driver,
        context: ContextId,
    ) -> Result<EventHandle, DriverError> {
        match self.spare.get_mut(&context).and_then(Vec::pop) {
            Some(event) => Ok(event),
            None => driver.create_event(cu::CU_EVENT_DISABLE_TIMING),
        }
    }

    /// Takes an event back.
    pub fn put(&mut self, context: ContextId, event: EventHandle) {
        self.spare.entry(context).or_default().push(event);
    }

    /// Destroys the events of a context that is about to be destroyed.
    pub fn drain(&mut self, driver: &Driver, context: ContextId) {
        for event in self.spare.remove(&context).unwrap_or_default() {
            // An event that cannot be destroyed now goes with its context.
            let _ = driver.destroy_event(event);
        }
    }
}
