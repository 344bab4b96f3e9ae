//! Memory: allocations, host regions, and the pieces of virtual memory management.

use std::collections::BTreeMap;

use fermata_abi::op::{Address, ContextId, HostKind, MemoryId};
use fermata_abi::sys::driver as cu;
use serde::{Deserialize, Serialize};

use crate::Kind;

/// Device memory, by address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// The context it was made in.
    pub context: ContextId,
    /// Index of its device.
    pub device: u32,
    /// Bytes asked for.
    pub size: u64,
    /// Number of its content.
    pub buffer: u64,
}

/// Host memory shared with the program, by address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRegion {
    /// Bytes.
    pub size: u64,
    /// What for.
    pub kind: HostKind,
    /// Flags given by the program.
    pub flags: u32,
    /// The context it was made in.
    pub context: ContextId,
    /// Number of its content.
    pub buffer: u64,
}

/// Addresses reserved by the program, by address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Bytes.
    pub size: u64,
}

/// Physical memory made by the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Index of its device.
    pub device: u32,
    /// Bytes.
    pub size: u64,
    /// Flags given by the program.
    pub flags: u64,
    /// Whether the program has let go of it; it lives on while it is mapped.
    pub released: bool,
    /// Number of its content.
    pub buffer: u64,
}

/// A mapping of physical memory, by address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Bytes.
    pub size: u64,
    /// Where it begins in the memory.
    pub offset: u64,
    /// The memory.
    pub memory: MemoryId,
    /// `CUmemAccess_flags` by device.
    pub access: BTreeMap<u32, u32>,
}

impl Kind for Allocation {
    type Key = Address;

    const NAME: &'static str = "allocation";
    const MISSING: cu::CUresult = cu::CUDA_ERROR_INVALID_VALUE;
}

impl Kind for HostRegion {
    type Key = Address;

    const NAME: &'static str = "host region";
    const MISSING: cu::CUresult = cu::CUDA_ERROR_INVALID_VALUE;
}

impl Kind for Reservation {
    type Key = Address;

    const NAME: &'static str = "reservation";
    const MISSING: cu::CUresult = cu::CUDA_ERROR_INVALID_VALUE;
}

impl Kind for Memory {
    type Key = MemoryId;

    const NAME: &'static str = "physical memory";
    const MISSING: cu::CUresult = cu::CUDA_ERROR_INVALID_VALUE;
}

impl Kind for Mapping {
    type Key = Address;

    const NAME: &'static str = "mapping";
    const MISSING: cu::CUresult = cu::CUDA_ERROR_INVALID_VALUE;
}
