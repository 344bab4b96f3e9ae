//! Sessions of higher priority get device memory from those of lower priority, which are paused meanwhile.
//!
//! ```text
//!  an allocation, a start ── no memory ─► `room`: those of lower priority, the least first, are paused one by one
//!                                                                    │ it is tried again after each
//!  `back`: memory is free again ─► resumed, those of most priority first ◄┘
//! ```
//! Equals are never paused for each other, and what its user has paused is never resumed here. `gpu` says what sessions have of a
//! device. ([Decision 044](../../../../docs/decisions/044-priorities.md).)

mod back;
mod gpu;
mod room;
pub mod yielded;

pub use self::back::keep;
pub use self::gpu::Gpu;
pub use self::room::{Need, ahead, make, retried};
