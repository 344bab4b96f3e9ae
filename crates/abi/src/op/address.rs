//! Addresses, and the ranges in which they lie.

/// An address in the device range or in shared host memory, equal in both processes.
pub type Address = u64;

/// Device addresses lie in `DEVICE_BASE .. DEVICE_END`, reserved in the worker.
pub const DEVICE_BASE: Address = 0x3000_0000_0000;
/// One past the device range (4 TiB).
pub const DEVICE_END: Address = 0x3400_0000_0000;
/// Pinned and managed host memory made by the library lies in `HOST_BASE .. HOST_END`,
/// mapped at the same address in program and worker.
pub const HOST_BASE: Address = 0x2000_0000_0000;
/// One past the host range (4 TiB).
pub const HOST_END: Address = 0x2400_0000_0000;
