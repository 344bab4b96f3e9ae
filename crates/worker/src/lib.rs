//! The process that owns a program's GPU contexts: it serves the program's ring and hosts the engine.
//!
//! ```text
//!  daemon ── control ──► conversation ── Attach / Detach ──► serve (one thread)
//!                            │                                 ├ decode ─► dispatch ─► driver
//!                            └ Save, Load ─► engine            └ completions ─► answers
//! ```
//! One worker serves one program, and never a second one after a fault. As a `monitor` the same executable serves none,
//! and tells of the machine's GPUs; as `foreign` it checkpoints programs that Fermata has not started.

mod callbacks;
mod completions;
pub mod conversation;
mod dispatch;
mod errors;
mod failure;
pub mod files;
pub mod foreign;
mod gated;
mod guarded;
mod held;
mod keeper;
pub mod layout;
mod load;
mod lot;
mod module_load;
pub mod monitor;
mod next_daemon;
pub mod output;
mod parked;
mod preparation;
mod printing;
mod queues;
mod scratch;
mod serve;
mod server;
mod threads;
mod touches;
mod trace;
mod unloaded_modules;
mod waiting;
