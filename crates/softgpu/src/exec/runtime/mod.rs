//! Runs compiled kernels: contexts, fibers, blocks, collectives, the pool, faults.
//!
//! ```text
//! launch ──► Grid ──► pool thread ──► Engine (one per host thread: window slot, fibers)
//!                                        └─ Block: schedules fibers ──► compiled code ──► helpers
//! ```
//! A fiber runs threads of a block to their end one after another, and is left hanging only when its
//! thread has to wait; then another fiber takes over. Kernels that never wait use one fiber.

pub(super) mod barrier;
pub(super) mod block;
pub(super) mod context;
pub(super) mod engine;
pub(super) mod fiber;
pub(super) mod grid;
pub(super) mod half;
pub(super) mod helpers;
pub(super) mod math;
pub(super) mod mbarrier;
pub(super) mod mma;
pub(super) mod mxcsr;
pub(super) mod nested;
mod others;
pub(super) mod pool;
pub(super) mod print;
pub(super) mod quiet;
pub(super) mod signal;
pub(super) mod texture;
pub(super) mod threads;
pub(super) mod video;
pub(super) mod warp;
pub(super) mod window;
