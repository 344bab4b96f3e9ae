//! What the driver is asked, and what its linker is given.

use serde::{Deserialize, Serialize};

use super::{Launch, StreamRef};

/// A question about how many blocks of a kernel run at once. The driver alone answers it, for its answer decides
/// which kernels libraries choose; so numbers are as the program gave them, sensible or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occupancy<'a> {
    /// Blocks on a multiprocessor: `ReplyBody::U64`.
    Blocks {
        /// Threads of a block.
        block: i32,
        /// Dynamic shared memory of a block, bytes.
        shared: u64,
        /// `CUoccupancy_flags`.
        flags: u32,
    },
    /// Blocks of a grid that fills the device, and threads of a block: `ReplyBody::Pair`.
    BlockSize {
        /// Dynamic shared memory of a block.
        shared: SharedOf,
        /// Most threads of a block; 0 for what the kernel allows.
        limit: i32,
        /// `CUoccupancy_flags`.
        flags: u32,
    },
    /// Bytes of dynamic shared memory that each block may have: `ReplyBody::U64`.
    SharedMemory {
        /// Blocks on a multiprocessor.
        blocks: i32,
        /// Threads of a block.
        block: i32,
    },
    /// Clusters on the device for a launch without parameters in a stream: `ReplyBody::U64`.
    Clusters(#[serde(borrow)] Launch<'a>, StreamRef),
    /// Blocks of the largest cluster for a launch without parameters in a stream: `ReplyBody::U64`.
    ClusterSize(#[serde(borrow)] Launch<'a>, StreamRef),
}

/// What a linker is given; it travels as a blob, in postcard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkJob<'a> {
    /// Options with plain values: `CUjit_option` and value.
    pub options: Vec<(u32, u64)>,
    /// In the order in which they were added.
    #[serde(borrow)]
    pub inputs: Vec<LinkInput<'a>>,
}

/// One input of a linker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInput<'a> {
    /// A `CUjitInputType`.
    pub kind: u32,
    /// Its name in messages.
    pub name: &'a str,
    /// Its content.
    #[serde(with = "serde_bytes")]
    pub bytes: &'a [u8],
    /// Options of this input alone.
    pub options: Vec<(u32, u64)>,
}

/// What a device can do beyond its attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceQuestion {
    /// Atomic operations on a peer's memory: for each `CUatomicOperation`, a mask of `CUatomicOperationCapability`.
    PeerAtomics {
        /// The peer.
        peer: u32,
        /// The operations.
        operations: Vec<u32>,
    },
    /// The same for host memory.
    HostAtomics {
        /// The operations.
        operations: Vec<u32>,
    },
    /// Elements of the longest texture over linear memory.
    LinearTextureWidth {
        /// A `CUarray_format`.
        format: u32,
        /// Channels of an element.
        channels: u32,
    },
}

/// Dynamic shared memory by the size of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedOf {
    /// The same bytes whatever the size.
    Any(u64),
    /// What the program's function says: threads and bytes.
    Sizes(Vec<(i32, u64)>),
}
