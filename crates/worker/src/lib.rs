//! The process that owns a program's GPU contexts: it serves the program's ring and hosts the engine.
//!
//! ```text
//!  daemon ── control ──► conversation ── Attach / Detach ──► serve (one thread)
//!                            │                                 ├ decode ─► dispatch ─► driver
//!                            └ Save, Load ─► engine            └ completions ─► answers
//! ```
//! One worker serves one program, and never a second one after a fault. As a `monitor` the same executable serves none,
//! and tells of the machine's GPUs.

mod beside;
mod callbacks;
mod completions;
pub mod conversation;
mod dispatch;
mod errors;
mod failure;
pub mod files;
mod gated;
mod held;
mod keeper;
mod kept;
pub mod layout;
mod lot;
pub mod monitor;
mod next_daemon;
pub mod output;
mod parked;
mod printing;
mod queues;
mod scratch;
mod serve;
mod touches;
mod trace;
