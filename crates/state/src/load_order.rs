//! The order in which modules were loaded, and contexts and green contexts made for them. It decides where a driver puts their variables, so an unloaded module stays in
//! the driver, and keeps its place in the order, while the limits for such modules permit.
//!
//! ```text
//!  load A, B, C    unload B      unload C      load C again    a restore loads
//!  A B C           A (b) C       A (b) (c)     A (b) C         A (b) C             (b): kept, unknown to the program
//! ```
//! A module that does not fit is gone, and the order has a gap: what came after it may lie elsewhere in the next
//! driver.

use std::collections::BTreeMap;

use fermata_abi::op::{ContextId, FunctionId, ModuleId};

use crate::session::handles;
use crate::{ContextPlace, ImageId, KeptModule, Module, Session, StateError};

/// Modules that are kept at most.
pub const KEPT_MODULES: usize = 256;
/// Bytes of images and variables that are kept at most.
pub const KEPT_BYTES: u64 = 64 << 20;

/// Where green contexts stand among what was made after the same module; contexts have the numbers of their slots.
const FIRST_GREEN: u32 = 1 << 31;

/// What became of a module that the program has unloaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Retired {
    /// Its functions, which are gone.
    pub functions: Vec<FunctionId>,
    /// Its place in the order if it is kept; else it is gone, too.
    pub kept: Option<u64>,
}

/// What a restore loads next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// A context is made.
    Context(ContextId),
    /// A green context is made.
    Green(ContextId),
    /// A module of the program.
    Module(ModuleId),
    /// A kept one, by its place in the order.
    Kept(u64),
}

impl Session {
    /// Everything that is loaded, in the order in which it was. A context of which no place is known came before all.
    pub fn load_order(&self) -> Vec<Loaded> {
        let modules = self.modules.iter();
        let modules = modules.map(|(handle, it)| ((it.serial, 0), Loaded::Module(handle)));
        let kept = self.kept.keys();
        let kept = kept.map(|serial| ((*serial, 0), Loaded::Kept(*serial)));
        let contexts = self.context_places.iter();
        let contexts = contexts.map(|(handle, it)| ((it.after, it.slot), Loaded::Context(*handle)));
        // Behind the contexts, in the order of their handles, which is that in which they were made.
        let greens = (FIRST_GREEN..).zip(self.greens.contexts.iter());
        let greens = greens.map(|(at, (handle, it))| ((it.after, at), Loaded::Green(handle)));
        let all = modules.chain(kept).chain(contexts).chain(greens);
        let order: BTreeMap<(u64, u32), Loaded> = all.collect();
        order.into_values().collect()
    }

    /// The place of a context that is made now.
    pub fn next_context_place(&self) -> ContextPlace {
        let slots = self.context_places.values().map(|it| it.slot);
        ContextPlace {
            after: self.next_serial,
            slot: slots.max().unwrap_or(0).saturating_add(1),
            kernels: false,
        }
    }

    /// Kept modules by their place in the order.
    pub fn kept(&self) -> &BTreeMap<u64, KeptModule> {
        &self.kept
    }

    /// Bytes of variables of kept modules on a device: free memory from the program's point of view.
    pub fn kept_variables(&self, device: u32) -> u64 {
        let on_device = |it: &&KeptModule| {
            self.contexts
                .get(it.context)
                .is_ok_and(|of| of.device == device)
        };
        self.kept
            .values()
            .filter(on_device)
            .fold(0, |sum, it| sum.saturating_add(it.variables))
    }

    /// The program has unloaded a module, which is kept if it may be and there is room. Its variables must be known.
    ///
    /// # Errors
    /// There is no such module.
    pub fn retire_module(
        &mut self,
        handle: ModuleId,
        may_keep: bool,
    ) -> Result<Retired, StateError> {
        let (module, functions) = self.take_module(handle)?;
        let kept = KeptModule {
            context: module.context,
            image: module.image,
            variables: module.variables.values().map(|it| it.size).sum(),
        };
        let serial = module.serial;
        if may_keep && self.has_room(&kept) {
            self.kept.insert(serial, kept);
            let kept = Some(serial);
            return Ok(Retired { functions, kept });
        }
        self.gone(serial, &module.image);
        Ok(Retired {
            functions,
            kept: None,
        })
    }

    fn has_room(&self, new: &KeptModule) -> bool {
        let image = |it: &KeptModule| self.image(&it.image).map_or(0, |bytes| bytes.len() as u64);
        let cost = |it: &KeptModule| it.variables.saturating_add(image(it));
        let bytes = self
            .kept
            .values()
            .map(cost)
            .fold(cost(new), u64::saturating_add);
        self.kept.len() < KEPT_MODULES && bytes <= KEPT_BYTES
    }

    /// `image` is about to be loaded into `context`: if it was loaded before, and unloaded with everything after it,
    /// it comes to its place again. The answer is what must be unloaded for that, by place, in this order.
    pub fn rewind(&mut self, context: ContextId, image: &ImageId) -> Vec<u64> {
        let last = self.modules.iter().map(|(_, it)| it.serial).max();
        let mut unused = self.kept.range(last.map_or(0, |last| last + 1)..);
        let same = unused.find(|(_, it)| it.context == context && it.image == *image);
        let Some(first) = same.map(|(serial, _)| *serial) else {
            return Vec::new();
        };
        let gone = self.kept.split_off(&first);
        self.give_up(gone)
    }

    /// Room is needed: nothing is kept any more. The answer is what must be unloaded, by place, in this order.
    pub fn give_up_kept(&mut self) -> Vec<u64> {
        let gone = std::mem::take(&mut self.kept);
        self.give_up(gone)
    }

    /// These are kept no more.
    pub(crate) fn give_up(&mut self, kept: BTreeMap<u64, KeptModule>) -> Vec<u64> {
        let last_first = kept.into_iter().rev();
        let unloaded = last_first.map(|(serial, it)| {
            self.gone(serial, &it.image);
            serial
        });
        unloaded.collect()
    }

    /// Takes a module and its functions out; the caller has to say where it went.
    pub(crate) fn take_module(
        &mut self,
        handle: ModuleId,
    ) -> Result<(Module, Vec<FunctionId>), StateError> {
        let module = self.modules.remove(handle)?;
        let of_module = self.functions.take_where(|it| it.module == handle);
        self.references.retain(|key, _| key.module != handle);
        Ok((module, handles(of_module)))
    }

    /// The place of a module in the order is empty.
    pub(crate) fn gone(&mut self, serial: u64, image: &ImageId) {
        self.drop_unused(image);
        self.gap = Some(self.gap.map_or(serial, |first| first.min(serial)));
        let last = (self.modules.iter().map(|(_, it)| it.serial))
            .chain(self.kept.keys().copied())
            .max();
        // What nothing comes after is no gap.
        self.gap = self
            .gap
            .filter(|first| last.is_some_and(|last| last > *first));
    }

    /// All modules lie where they lie in a driver that has loaded them in order.
    pub fn forget_gap(&mut self) {
        self.gap = None;
    }

    /// A variable that came after a module that is gone, so that the next driver may put it elsewhere; one whose
    /// address the program knows, if there is one. Variables must be known.
    pub fn unsettled_variable(&self) -> Option<&str> {
        let gap = self.gap?;
        let after = self.modules.iter().filter(|(_, it)| it.serial > gap);
        let variables = after.flat_map(|(_, it)| &it.variables);
        let first_known = variables.max_by_key(|(_, it)| it.fixed);
        first_known.map(|(name, _)| name.as_str())
    }
}
