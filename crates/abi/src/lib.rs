//! CUDA driver and runtime types, the API table and the operations that travel from program to worker.
//!
//! This crate has no code that runs on a GPU and no I/O: it is facts and plain data.
pub mod op;
pub mod sys;
pub mod table;
