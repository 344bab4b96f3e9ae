//! Sessions, worker pool, CRIU, supervision.
//!
//! ```text
//!  user's tool ── requests ──► server ──► daemon: sessions by name ──► run, checkpoint, restore, pause
//!  program ───── attach ─────►   │                     │
//!                                │                     ├─ worker, pool: processes with the GPU
//!                                │                     └─ criu, helpers: the host process
//! ```
//! Threads, no runtime: one per connection and one per thing that is watched. A failure of one session
//! never touches another.
//!
//! | folder or file | subject |
//! | --- | --- |
//! | `server`, `requests` in it | the daemon's life: lock, sockets, log, what users and programs ask for |
//! | `daemon`, `session`, `persist` | sessions: their state, their end, what of them outlives the daemon |
//! | `takeover` | the sessions of a daemon that has ended |
//! | `run`, `restore`, `checkpoint`, `pause`, `priority` | what is done with a session |
//! | `foreign` | programs that Fermata did not start |
//! | `agent` | the library in a program: its connection, attaching, reattaching |
//! | `worker`, `pool`, `gpu` | processes that hold the GPU, the driver that they load, what NVML says |
//! | `criu`, `host`, `helpers` | the program's processes: CRIU, memory copied ahead or on demand, PID namespaces |
//! | `open_files` | files, sockets and pipes that a program has open |
//! | `images` | the daemon's part in images: manifest record, space, copies in memory |
//! | `doctor`, `memory`, `metrics` | what is shown: the host's abilities, memory of sessions, Prometheus |
//! | `failure`, `progress`, `phases`, `parallel`, `proc`, `sys` | what all of these use |
#![deny(unsafe_code)]

mod agent;
mod checkpoint;
mod common;
pub mod criu;
mod daemon;
mod doctor;
pub mod failure;
mod folder_removal;
mod foreign;
mod gpu;
mod helpers;
mod host;
mod images;
mod memory;
mod metrics;
mod open_files;
mod parallel;
mod pause;
mod persist;
mod phases;
mod pool;
mod priority;
pub mod proc;
mod progress;
mod removal;
mod restore;
mod run;
mod server;
mod session;
mod sys;
mod takeover;
mod turn;
mod worker;

pub use helpers::init::helper;
pub use helpers::namespace;
pub use server::{Taken, leave_session, serve};
pub use sys::close_inherited;
