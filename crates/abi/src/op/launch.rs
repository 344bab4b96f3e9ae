//! A kernel launch, and the stream that it goes to.

use serde::{Deserialize, Serialize};

use crate::handle::{ContextId, EventId, FunctionId, StreamId};
use crate::sys::driver as cu;

/// An attribute of a launch beyond grid and block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchAttribute<'a> {
    /// A `CUlaunchAttributeID`.
    pub id: u32,
    /// The 64 bytes of its `CUlaunchAttributeValue`.
    #[serde(with = "serde_bytes")]
    pub value: &'a [u8],
}

impl LaunchAttribute<'_> {
    /// The event that the launch records, if the attribute names one: its handle stands where the API has its pointer.
    pub fn event(&self) -> Option<EventId> {
        let names_event = matches!(
            self.id,
            cu::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
                | cu::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
        );
        let first = self.value.first_chunk().filter(|_| names_event)?;
        Some(EventId::from_raw(u64::from_le_bytes(*first)))
    }
}

/// A kernel launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch<'a> {
    /// The function.
    pub function: FunctionId,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Cooperative launch.
    pub cooperative: bool,
    /// The parameter block, laid out as [`super::FunctionInfo::params`] says.
    #[serde(with = "serde_bytes")]
    pub params: &'a [u8],
    /// Launch attributes that matter to the driver (cluster size, priority, ...).
    #[serde(borrow)]
    pub attributes: Vec<LaunchAttribute<'a>>,
}

/// A stream, with the context that the legacy default stream (handle 1) belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StreamRef {
    /// The context.
    pub context: ContextId,
    /// [`super::STREAM_LEGACY`] or a created stream.
    pub stream: StreamId,
}
