//! What a traced session leaves in a file: which memory its operations touched when, and how well that was
//! predicted. Written by the worker, read by the tool.

use serde::{Deserialize, Serialize};

/// Version of the file.
pub const VERSION: u32 = 1;
/// Variable of a worker: the file that a traced session is recorded in.
pub const ENV_FILE: &str = "FERMATA_TRACE";
/// Variable of a worker, for tests: `writes`, `reads` or `both`; kernels run instrumented and may touch
/// everything.
pub const ENV_TEST_INSTRUMENTED: &str = "FERMATA_TEST_INSTRUMENTED";

/// A recorded session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// [`VERSION`].
    pub version: u32,
    /// From the first operation to the last.
    pub seconds: f64,
    /// Width of a column of the heat map.
    pub bin_seconds: f64,
    /// Rows of the heat map.
    pub buffers: Vec<Buffer>,
    /// Every kernel that was launched.
    pub kernels: Vec<Kernel>,
    /// Copies, fills and words written or waited for: exactly known.
    pub transfers: u64,
    /// Launches of graphs.
    pub graph_launches: u64,
    /// Those with a kernel whose set is open.
    pub open_graph_launches: u64,
}

/// A row of the heat map.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// What it is: `allocation`, `mapping`, `host`, `variable`.
    pub kind: String,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Operations that read it, by column.
    pub reads: Vec<u32>,
    /// Operations that wrote it, by column.
    pub writes: Vec<u32>,
}

/// A row of the table of speculation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Name as the module has it.
    pub name: String,
    /// Launches, those of replayed graphs included.
    pub launches: u64,
    /// Launches whose set was said to be complete.
    pub complete: u64,
    /// Launches of instrumented kernels, which checked their own accesses.
    pub checked: u64,
    /// Launches in which an instrumented kernel found an access outside the predicted set, at least.
    pub mispredicted: u64,
    /// Mispredicted although the set was said to be complete.
    pub wrongly_complete: u64,
    /// Where the first access outside went, and its size.
    pub first_miss: Option<(u64, u64)>,
    /// Why the kernel cannot be instrumented.
    pub unchecked: Option<String>,
}
