//! Sessions, worker pool, CRIU, supervision.
//!
//! ```text
//!  user's tool ── requests ──► server ──► daemon: sessions by name ──► run, checkpoint, restore, pause
//!  program ───── attach ─────►   │                     │
//!                                │                     ├─ worker, pool: processes with the GPU
//!                                │                     └─ criu, namespace, init: the host process
//! ```
//! Threads, no runtime: one per connection and one per thing that is watched. A failure of one session
//! never touches another.
#![deny(unsafe_code)]

mod agent;
mod attach;
mod behind;
mod beside;
mod cache;
mod checkpoint;
pub mod criu;
mod criu_core;
mod criu_dump;
mod criu_files;
mod criu_rpc;
mod daemon;
mod doctor;
mod driver;
pub mod failure;
mod folders;
mod gpu_files;
mod host;
mod init;
mod input;
mod integrity;
mod kept_logs;
mod kerndat;
mod leave;
mod letters;
mod log;
mod monitor;
pub mod namespace;
mod nvml;
mod pages;
mod pause;
mod persist;
mod phases;
mod pool;
mod preflight;
pub mod proc;
mod program;
mod record;
mod requests;
mod restore;
mod returning;
mod run;
mod server;
mod session;
mod sockets;
mod sys;
mod tcp;
mod tier;
mod unix_sockets;
mod wake;
mod worker;

pub use init::helper;
pub use leave::leave_session;
pub use server::{Taken, serve};
pub use sys::close_inherited;
