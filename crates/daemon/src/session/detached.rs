//! Where a parked process waits, which has no connection.

use serde::{Deserialize, Serialize};

use crate::proc::ProcessId;

/// A detached program that must be brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// The process with the agent.
    pub process: ProcessId,
    /// Address of its wake block.
    pub wake_block: u64,
}
