//! Large modules are loaded beside the decode loop, if other threads of the program are there to be held up.
//!
//! ```text
//!  decode loop: ModuleLoad ─► thread: the driver compiles ─► loop: recorded, answered
//!                   └── other threads' operations go on ──┘
//! ```
//! The thread of the program that loads waits for its answer, so that its own order is kept. A program with
//! one thread is served in the loop: its modules then lie where they will lie after a restore.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermata_abi::op::{Handle, ReplyBody};
use fermata_device::{ContextHandle, Driver, ModuleHandle};
use fermata_state::{ImageBytes, ImageId};

use crate::completions::Then;
use crate::conversation::serving_thread;
use crate::errors::OpError;
use crate::serve::Server;

/// Images from this size on may take long.
pub(crate) const LARGE: usize = 64 << 10;
/// How long the end of serving waits for a load.
const PATIENCE: Duration = Duration::from_secs(60);

/// A module in the driver.
type Loaded = Result<ModuleHandle, OpError>;

/// A load under way.
pub(crate) struct Load {
    pub module: Handle,
    pub context: Handle,
    image: (ImageId, ImageBytes),
    thread: JoinHandle<Loaded>,
}

impl Load {
    /// Begins to load `image` into `context`.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn begin(
        driver: Arc<Driver>,
        (module, context): (Handle, Handle),
        entered: ContextHandle,
        image: (ImageId, ImageBytes),
    ) -> io::Result<Self> {
        let bytes = image.1.clone();
        let load = move || -> Loaded {
            driver.set_current(entered)?;
            Ok(driver.load_padded_module(bytes.padded())?)
        };
        Ok(Self {
            module,
            context,
            image,
            thread: serving_thread().name("load".to_owned()).spawn(load)?,
        })
    }

    /// Whether the driver is done.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    fn end(self) -> ((ImageId, ImageBytes), Loaded) {
        let lost = |_| Err(OpError::invalid("the thread that loads has panicked"));
        (self.image, self.thread.join().unwrap_or_else(lost))
    }
}

impl Server {
    /// A load is done: records it; what is answered.
    pub(crate) fn loaded(&mut self, load: Load) -> Result<ReplyBody<'static>, OpError> {
        let (module, context) = (load.module, load.context);
        let (image, loaded) = load.end();
        let handle = loaded?;
        let recorded = self.record_module(module, context, handle, image);
        if recorded.is_err() && self.site.live.enter(context).is_ok() {
            // Nobody knows it: it goes with the context if it cannot be unloaded now.
            let _ = self.site.live.driver.unload_module(handle);
        }
        recorded.map(|()| ReplyBody::None)
    }

    /// Serving ends: waits for what is still being loaded, which nobody will use.
    pub(crate) fn abandon_loads(&mut self) {
        let end = Instant::now() + PATIENCE;
        for waiting in std::mem::take(&mut self.waiting) {
            let Then::ModuleLoad(load) = waiting.then else {
                continue;
            };
            while !load.is_done() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            if load.is_done() {
                let context = load.context;
                if let (_, Ok(handle)) = load.end()
                    && self.site.live.enter(context).is_ok()
                {
                    let _ = self.site.live.driver.unload_module(handle);
                }
            }
        }
    }
}
