//! The CUDA runtime API (`libcudart.so.13` and `.12`) as a thin layer over whatever `libcuda.so.1` there is.
//!
//! ```text
//!  program ── cuda* exports (api/) ── context, registry ── driver::calls ── libcuda.so.1
//! ```
//! It keeps only what the driver API has no place for: which device a thread chose, the last error of a
//! thread, and the fat binaries, kernels and variables that the compiler's start-up code registers. It
//! starts no thread, prints nothing, never ends the process, and calls the driver only when the program
//! calls it (start-up code of programs that never use CUDA costs nothing).

// Constants of the C headers keep their names, also where patterns are made of them.
#![allow(non_upper_case_globals)]

pub mod api;
mod context;
mod driver;
mod error;
mod registry;
