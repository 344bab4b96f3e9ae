//! The machine's GPUs as the daemon sees them, which has no CUDA context: the driver that workers load, and what NVML says.

pub mod driver;
pub mod leftovers;
pub mod memory;
pub mod monitor;
pub mod nvml;
pub mod visible;
