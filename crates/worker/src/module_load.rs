//! Large modules are loaded beside the decode loop, if other threads of the program are there to be held up.
//!
//! ```text
//!  decode loop: ModuleLoad ─► thread: the driver compiles ─► loop: recorded, answered
//!                   └── other threads' operations go on ──┘
//! ```
//! The thread of the program that loads waits for its answer, so that its own order is kept. A program with
//! one thread is served in the loop: its modules then lie where they will lie after a restore.

use std::time::{Duration, Instant};

use fermata_abi::op::ReplyBody;

use crate::errors::OpError;
use crate::load::Load;
use crate::server::Server;
use crate::waiting::Then;

/// Images from this size on may take long.
pub(crate) const LARGE: usize = 64 << 10;
/// How long the end of serving waits for a load.
const PATIENCE: Duration = Duration::from_secs(60);

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

    /// Serving ends: waits for what is still being loaded, which no program will use.
    pub(crate) fn abandon_loads(&mut self) {
        let end = Instant::now() + PATIENCE;
        for waiting in std::mem::take(&mut self.waiting) {
            let Then::ModuleLoad(load) = waiting.then else {
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if load.ends_within(left) {
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
