//! C types of the CUDA driver API, as laid out in CUDA 13's headers.
pub mod driver;
