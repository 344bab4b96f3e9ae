//! Stops and resumes the program's threads, with the allocator and signal handling that this needs.

pub mod alloc;
pub mod block;
pub mod exact;
pub mod gate;
pub mod mask;
pub mod quiet;
pub mod restart;
pub mod signal;
pub mod tally;
pub mod threads;
