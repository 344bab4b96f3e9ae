//! Green contexts, which are parts of a device's multiprocessors, and what the program was told of such parts.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{ContextId, SmQuestion, SmResource, StreamId};
use fermata_abi::sys::driver as cu;
use serde::{Deserialize, Serialize};

use crate::{Kind, Table};

/// A green context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Green {
    /// The primary context of its device, in which its streams are.
    pub context: ContextId,
    /// Its multiprocessors.
    pub resource: SmResource,
    /// Number of the last module that had been loaded when it was made: the driver may give it memory where it puts
    /// modules.
    pub after: u64,
    /// Streams that were made in it.
    pub streams: BTreeSet<StreamId>,
}

impl Kind for Green {
    type Key = ContextId;

    const NAME: &'static str = "green context";
    const MISSING: cu::CUresult = cu::CUDA_ERROR_INVALID_CONTEXT;
}

/// All green contexts, and what was answered about multiprocessors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greens {
    /// Green contexts.
    pub contexts: Table<Green>,
    /// What the program was told. Another driver must say the same.
    pub told: BTreeMap<(SmResource, SmQuestion), Vec<u64>>,
}

impl Greens {
    /// The green context that a stream was made in.
    pub fn of_stream(&self, stream: StreamId) -> Option<ContextId> {
        let mut all = self.contexts.iter();
        let found = all.find(|(_, it)| it.streams.contains(&stream));
        found.map(|(handle, _)| handle)
    }

    /// A stream is gone.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) {
        for (_, green) in self.contexts.iter_mut() {
            green.streams.remove(&stream);
        }
    }
}
