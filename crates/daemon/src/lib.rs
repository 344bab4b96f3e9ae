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
mod arrivals;
mod attach;
mod bring_back;
mod cache;
mod checkpoint;
pub mod criu;
mod criu_core;
mod criu_dump;
mod criu_end;
mod criu_environment;
mod criu_files;
mod criu_rpc;
mod daemon;
mod doctor;
mod driver;
pub mod failure;
mod folder_removal;
mod folders;
mod foreign;
mod gpu_files;
mod gpu_memory;
mod helper_modes;
mod host;
mod init;
mod input;
mod integrity;
mod kept_logs;
mod kerndat;
mod leave;
mod letters;
mod listening;
mod log;
mod log_limit;
mod memory;
mod metrics;
mod monitor;
pub mod namespace;
mod nvml;
mod on_demand;
mod pages;
mod parallel;
mod pause;
mod paused_data;
mod persist;
mod phases;
mod pool;
mod preflight;
mod priorities;
mod priority;
pub mod proc;
mod program;
mod progress;
mod record;
mod removal;
mod requests;
mod restore;
mod returning;
mod rollback;
mod run;
mod server;
mod session;
mod sockets;
mod space;
mod sys;
mod takeover;
mod tcp;
mod temporary;
mod tier;
mod turn;
mod unix_sockets;
mod wake;
mod worker;

pub use init::helper;
pub use leave::leave_session;
pub use server::{Taken, serve};
pub use sys::close_inherited;
