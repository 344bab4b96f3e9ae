//! A software GPU: the CUDA driver API on the CPU.
pub mod exec;
