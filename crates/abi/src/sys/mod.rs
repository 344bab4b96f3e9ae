//! C types of the CUDA driver and runtime APIs, as laid out in CUDA 13's headers.
pub mod driver;
pub mod runtime;
