//! Objects without content of their own: contexts, modules, functions, streams, events, graphs, arrays.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{
    Address, ArrayId, ContextId, EventId, ExecId, FunctionId, Mipmap, MipmapId, ModuleId, StreamId,
    TextureId,
};
use fermata_abi::sys::driver as cu;
use fermata_graph::Graph;
use serde::{Deserialize, Serialize};

use crate::Kind;

/// A device the session was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Model.
    pub name: String,
    /// Unique id.
    pub uuid: [u8; 16],
    /// Bytes.
    pub memory: u64,
    /// 10 * major + minor.
    pub compute_capability: u32,
}

/// Where the multiprocessors of a device lie on its chip. Chips of one model differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// For each pair of multiprocessors the cluster of processors it is in.
    pub clusters: Vec<u8>,
    /// Its index in there, for as many pairs.
    pub indices: Vec<u8>,
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// Index of its device.
    pub device: u32,
    /// `CU_CTX_*`.
    pub flags: u32,
    /// Whether it is the device's primary context.
    pub primary: bool,
    /// Limits that were set, by `CUlimit`.
    pub limits: BTreeMap<u32, u64>,
    /// Contexts whose memory it may reach.
    pub peers: BTreeSet<ContextId>,
}

/// Where a context stands in the order in which modules were loaded, and what its addresses depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextPlace {
    /// Number of the last module that had been loaded when it was made.
    pub after: u64,
    /// Number of its slot of addresses, from 1.
    pub slot: u32,
    /// Whether our kernels were loaded into it at once.
    pub kernels: bool,
}

/// BLAKE3 of a module image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImageId(pub [u8; 32]);

impl ImageId {
    /// The id of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// A name for an image until its content has been hashed: another one for each number.
    pub fn provisional(number: u64) -> Self {
        let mut hasher =
            blake3::Hasher::new_derive_key("fermata: name of an image before its hash");
        hasher.update(&number.to_le_bytes());
        Self(*hasher.finalize().as_bytes())
    }
}

/// A device variable of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Where it lies.
    pub address: Address,
    /// The same: the format of records has it twice, from when variables could lie elsewhere.
    pub actual: Address,
    /// Bytes.
    pub size: u64,
    /// Whether the program has been told the address, so that it stays valid over restores.
    pub fixed: bool,
    /// Number of its content.
    pub buffer: u64,
}

/// A loaded module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Its context.
    pub context: ContextId,
    /// Its image.
    pub image: ImageId,
    /// Place in the order in which modules were loaded.
    pub serial: u64,
    /// Variables known so far, by name.
    pub variables: BTreeMap<String, Variable>,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its module.
    pub module: ModuleId,
    /// Its name.
    pub name: String,
    /// Attributes that were set, by `CUfunction_attribute`.
    pub attributes: BTreeMap<i32, i32>,
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Its context.
    pub context: ContextId,
    /// `CU_STREAM_*`.
    pub flags: u32,
    /// Its priority.
    pub priority: i32,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its context.
    pub context: ContextId,
    /// `CU_EVENT_*`.
    pub flags: u32,
    /// Whether it has been recorded.
    pub recorded: bool,
}

/// An executable graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    /// Its context.
    pub context: ContextId,
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`.
    pub flags: u64,
    /// What it does.
    pub graph: Graph,
}

/// Which texture or surface object: the driver's number for it, and where it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TextureKey {
    /// Its context.
    pub context: ContextId,
    /// Whether it is a surface object.
    pub surface: bool,
    /// The driver's number.
    pub object: TextureId,
}

/// Which texture or surface reference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReferenceKey {
    /// Its module.
    pub module: ModuleId,
    /// Whether it is a surface reference.
    pub surface: bool,
    /// Its name in there.
    pub name: String,
}

/// A CUDA array with levels, which are arrays of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MipmappedArray {
    /// Its context.
    pub context: ContextId,
    /// Its shape and its levels.
    pub shape: Mipmap,
}

/// A CUDA array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// Its context.
    pub context: ContextId,
    /// Elements in a row.
    pub width: u64,
    /// Rows, 0 for one dimension.
    pub height: u64,
    /// Slices, 0 for fewer than three dimensions.
    pub depth: u64,
    /// A `CUarray_format`.
    pub format: u32,
    /// Channels per element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
    /// Bytes of its content, rows packed.
    pub bytes: u64,
    /// Number of its content.
    pub buffer: u64,
}

macro_rules! kinds {
    ($($type:ident by $key:ty: $name:literal, $missing:ident;)*) => {
        $(impl Kind for $type {
            type Key = $key;

            const NAME: &'static str = $name;
            const MISSING: cu::CUresult = cu::$missing;
        })*
    };
}

kinds! {
    Context by ContextId: "context", CUDA_ERROR_INVALID_CONTEXT;
    Module by ModuleId: "module", CUDA_ERROR_INVALID_HANDLE;
    Function by FunctionId: "function", CUDA_ERROR_INVALID_HANDLE;
    Stream by StreamId: "stream", CUDA_ERROR_INVALID_HANDLE;
    Event by EventId: "event", CUDA_ERROR_INVALID_HANDLE;
    Executable by ExecId: "executable graph", CUDA_ERROR_INVALID_VALUE;
    Array by ArrayId: "array", CUDA_ERROR_INVALID_HANDLE;
    MipmappedArray by MipmapId: "mipmapped array", CUDA_ERROR_INVALID_HANDLE;
}
