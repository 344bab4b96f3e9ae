//! The place where a parked process waits without a connection.

use serde::{Deserialize, Serialize};

use crate::proc::ProcessId;

/// A detached process that has to be brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// The process with the agent.
    pub process: ProcessId,
    /// Address of its wake block.
    pub wake_block: u64,
}
