//! A module that the driver loads on a thread of its own.

use std::io;
use std::time::Duration;

use fermata_abi::op::{ContextId, ModuleId};
use fermata_device::{ContextHandle, ModuleHandle};
use fermata_engine::{Thread, Undisturbed};
use fermata_state::{ImageBytes, ImageId};

use crate::errors::OpError;
use crate::threads::serving_thread;

/// A module in the driver.
type Loaded = Result<ModuleHandle, OpError>;

/// A load under way.
pub(crate) struct Load {
    pub module: ModuleId,
    pub context: ContextId,
    image: (ImageId, ImageBytes),
    thread: Thread<Loaded>,
}

impl Load {
    /// Begins to load `image` into `context`.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn begin(
        undisturbed: Undisturbed,
        (module, context): (ModuleId, ContextId),
        entered: ContextHandle,
        image: (ImageId, ImageBytes),
    ) -> io::Result<Self> {
        let bytes = image.1.clone();
        let load = move || -> Loaded {
            undisturbed.driver.set_current(entered)?;
            Ok(undisturbed.load_module(&bytes)?)
        };
        Ok(Self {
            module,
            context,
            image,
            thread: Thread::start(serving_thread().name("load".to_owned()), load)?,
        })
    }

    /// Whether the driver is done.
    pub fn is_done(&self) -> bool {
        self.thread.is_done()
    }

    /// Waits until the driver is done; false if it is not within `limit`.
    pub fn ends_within(&self, limit: Duration) -> bool {
        self.thread.ends_within(limit)
    }

    /// The image that was loaded, and the driver's result. Waits for the driver.
    pub fn end(self) -> ((ImageId, ImageBytes), Loaded) {
        let lost = |_| Err(OpError::invalid("the thread that loads has panicked"));
        (self.image, self.thread.join().unwrap_or_else(lost))
    }
}
