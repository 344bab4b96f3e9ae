//! The threads of the program: how they are stopped and go on, and what the library does in them unseen.

pub mod alloc;
pub mod exact;
pub mod gate;
pub mod mask;
pub mod quiet;
pub mod restart;
pub mod signal;
pub mod tally;
pub mod threads;
