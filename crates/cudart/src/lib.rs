//! The CUDA runtime API as a thin layer over the driver API.
