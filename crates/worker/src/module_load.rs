//! Loads large modules on a thread beside the decode loop, so that the program's other threads are not held up.
//!
//! ```text
//!  decode loop: ModuleLoad ─► thread: the driver compiles ─► loop: recorded, answered
//!                   └── other threads' operations go on ──┘
//! ```
//! The program's thread that loads the module waits for the answer, so its own order is kept. For a program with one
//! thread the loop loads modules itself: they then get the addresses that they will get in a restore.

use std::time::{Duration, Instant};

use fermata_abi::op::ReplyBody;

use crate::errors::OpError;
use crate::load::Load;
use crate::server::Server;
use crate::waiting::Then;

/// Bytes from which on an image is loaded on a thread.
pub(crate) const LARGE: usize = 64 << 10;
/// How long the end of serving waits for a load.
const PATIENCE: Duration = Duration::from_secs(60);

impl Server {
    /// Records a module whose load is done; returns the answer.
    pub(crate) fn loaded(&mut self, load: Load) -> Result<ReplyBody<'static>, OpError> {
        let (module, context) = (load.module, load.context);
        let (image, loaded) = load.end();
        let handle = loaded?;
        let recorded = self.record_module(module, context, handle, image);
        if recorded.is_err() && self.site.live.enter(context).is_ok() {
            // The program has no handle of it. If it cannot be unloaded now, it goes with the context.
            let _ = self.site.live.driver.unload_module(handle);
        }
        recorded.map(|()| ReplyBody::None)
    }

    /// Waits, at the end of serving, for loads under way, whose modules no program will use.
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
