//! The driver's objects that copying data needs, separated from the session.
//!
//! A concurrent checkpoint copies on its own thread while the program goes on and changes the session. The objects named
//! here existed when the copy was planned, and must exist until the copy has ended.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fermata_abi::op::{ArrayId, ContextId};
use fermata_device::{ArrayHandle, ContextHandle, Driver, PinnedPool};

use crate::{Elsewhere, EngineError, Live};

/// See the module. Clones are cheap enough to be made for every checkpoint.
#[derive(Clone)]
pub(crate) struct Reach {
    pub driver: Arc<Driver>,
    /// Every context by device, the oldest first.
    contexts: BTreeMap<u32, Vec<ContextHandle>>,
    arrays: HashMap<ArrayId, (ArrayHandle, u32)>,
    /// Staging buffers, if they have been made.
    pub staging: Option<PinnedPool>,
    /// Bytes of host memory, beside the staging buffers, for data that waits for the store.
    pub host_buffer: u64,
    /// Bytes a second that may be written to storage; 0 for no limit.
    pub write_rate: u64,
    /// What other workers store for the image that is about to be made.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
}

impl Live {
    /// The session's contexts, arrays and staging buffers as they are now.
    pub(crate) fn reach(&self) -> Reach {
        let mut contexts: BTreeMap<u32, Vec<ContextHandle>> = BTreeMap::new();
        for context in self.contexts.values() {
            contexts
                .entry(context.device)
                .or_default()
                .push(context.handle);
        }
        contexts.values_mut().for_each(|all| all.sort());
        let device = |context: &ContextId| self.contexts.get(context).map(|it| it.device);
        let arrays = self
            .arrays
            .iter()
            .filter_map(|(handle, (array, context))| Some((*handle, (*array, device(context)?))));
        Reach {
            driver: Arc::clone(&self.driver),
            contexts,
            arrays: arrays.collect(),
            staging: self.staging.clone(),
            host_buffer: self.host_buffer,
            write_rate: self.write_rate,
            elsewhere: None,
        }
    }

    /// As [`Live::reach`], for the sink of the next image: with what other workers store for that.
    pub(crate) fn reach_for_image(&mut self) -> Reach {
        Reach {
            elsewhere: self.elsewhere.take(),
            ..self.reach()
        }
    }
}

impl Reach {
    /// A context of the device.
    ///
    /// # Errors
    /// The session had none there.
    pub fn context(&self, device: u32) -> Result<ContextHandle, EngineError> {
        self.contexts(device)
            .first()
            .copied()
            .ok_or_else(|| EngineError::Internal(format!("device {device} has no context")))
    }

    /// All contexts of the device.
    pub fn contexts(&self, device: u32) -> &[ContextHandle] {
        self.contexts.get(&device).map_or(&[], Vec::as_slice)
    }

    /// An array and its device.
    ///
    /// # Errors
    /// Unknown.
    pub fn array(&self, array: ArrayId) -> Result<(ArrayHandle, u32), EngineError> {
        let found = self.arrays.get(&array).copied();
        found.ok_or_else(|| EngineError::Internal(format!("array {array:#x} has no context")))
    }
}
