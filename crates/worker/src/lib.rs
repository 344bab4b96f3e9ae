//! The worker: the process that owns a program's GPU contexts, serves the program's ring and hosts the engine.
//!
//! ```text
//!  daemon ── control ──► conversation ── Attach / Detach ──► serve (one thread)
//!                            │                                 ├ decode ─► dispatch ─► driver
//!                            └ Save, Load ─► engine            └ completions ─► answers
//! ```
//! A worker serves one program, and never a second one after a fault. The same executable has two modes that serve no
//! program: `monitor` describes the machine's GPUs, `foreign` checkpoints programs that Fermata has not started.

mod callbacks;
mod completions;
pub mod conversation;
mod dispatch;
mod errors;
mod failure;
pub mod files;
pub mod foreign;
mod gated;
mod graph_events;
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
mod reading;
mod scratch;
mod serve;
mod server;
mod threads;
mod touches;
mod trace;
mod unloaded_modules;
mod waiting;
