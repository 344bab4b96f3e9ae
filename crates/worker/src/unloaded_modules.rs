//! Keeps modules that the program has unloaded in the driver while memory allows, so that modules loaded later have the
//! addresses that they will have after a restore
//! ([decision 020](../../../docs/decisions/020-unloaded-modules-keep-their-place.md)).
//!
//! ```text
//!  ModuleUnload ─► all work of the context is done ─┬─ room ─► kept; the program's handles are gone
//!                                                   └─ none, or a dead context ─► unloaded
//!  memory runs out, or the same image comes again with nothing after it ─► unloaded
//! ```

use fermata_abi::op::{ContextId, ModuleId};
use fermata_abi::sys::driver as cu;
use fermata_device::ModuleHandle;
use fermata_state::{ImageBytes, ImageId};

use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::Then;

/// Images larger than this (bytes) are not searched for variables at unload, and so not kept: the search would take
/// longer than a program should wait.
const LARGEST: usize = 8 << 20;

impl Server {
    /// Loads an image into the current context, at its former place if no module was loaded after it.
    pub(crate) fn load_in_order(
        &mut self,
        context: ContextId,
        (name, image): (&ImageId, &ImageBytes),
    ) -> Result<ModuleHandle, OpError> {
        if !self.site.session.kept().is_empty() && !self.is_loading_any() {
            let again = self.site.session.rewind(context, name);
            self.unload_kept(&again)?;
        }
        self.site.live.enter(context)?;
        let refused = match self.site.live.undisturbed().load_module(image) {
            Ok(loaded) => return Ok(loaded),
            Err(refused) => refused,
        };
        if refused.error.code == cu::CUDA_ERROR_OUT_OF_MEMORY && self.give_up_kept() {
            self.site.live.enter(context)?;
            return Ok(self.site.live.undisturbed().load_module(image)?);
        }
        Err(refused.into())
    }

    /// Removes a module that no work uses any more.
    pub(crate) fn release_module(&mut self, module: ModuleId) -> Result<(), OpError> {
        let known = self.site.session.modules.get(module)?;
        let (context, image) = (known.context, known.image);
        let small = self
            .site
            .session
            .image(&image)
            .is_some_and(|it| it.len() <= LARGEST);
        let may_keep = small
            && self.faults.fatal(context).is_none()
            && fermata_engine::discover_variables_of(&mut self.site, module).is_ok();
        let retired = self.site.session.retire_module(module, may_keep)?;
        let live = &mut self.site.live;
        for function in retired.functions {
            live.functions.remove(&function);
        }
        let Some(handle) = live.modules.remove(&module) else {
            return Ok(());
        };
        if let Some(place) = retired.kept {
            live.kept.insert(place, (handle, context));
            return Ok(());
        }
        live.enter(context)?;
        Ok(live.driver.unload_module(handle)?)
    }

    /// Unloads all kept modules, because memory has run out. True if there were any.
    pub(crate) fn give_up_kept(&mut self) -> bool {
        let kept = self.site.session.give_up_kept();
        // A module that a dead context does not unload goes with the context.
        !kept.is_empty() && self.unload_kept(&kept).is_ok()
    }

    /// Unloads the modules of these places.
    pub(crate) fn unload_kept(&mut self, places: &[u64]) -> Result<(), OpError> {
        let live = &mut self.site.live;
        for place in places {
            if let Some((handle, context)) = live.kept.remove(place) {
                live.enter(context)?;
                live.driver.unload_module(handle)?;
            }
        }
        Ok(())
    }

    /// Whether modules are being loaded on other threads, so that their order is not known yet.
    fn is_loading_any(&self) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|it| matches!(it.then, Then::ModuleLoad(_)))
    }
}
