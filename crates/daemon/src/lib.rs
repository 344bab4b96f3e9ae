//! The daemon `fermatad`: it manages sessions and their workers, drives CRIU, and writes and restores images.
//!
//! ```text
//!  user's tool ── requests ──► server ──► daemon: sessions by name ──► run, checkpoint, restore, pause
//!  program ───── attach ─────►   │                     │
//!                                │                     ├─ worker, pool: processes with the GPU
//!                                │                     └─ criu, helpers: the host process
//! ```
//! It uses threads and no async runtime: one thread for each connection, and one for each process or restore that is watched.
//! A failure of one session never affects another.
//!
//! | folder or file | subject |
//! | --- | --- |
//! | `server`, `requests` in it | the daemon's life: lock, sockets, log, what users and programs ask for |
//! | `daemon`, `session`, `persist` | sessions: their state, their end, the records that outlive the daemon |
//! | `takeover` | takes over the sessions of a daemon that has ended |
//! | `run`, `restore`, `checkpoint`, `pause`, `priority` | operations on a session |
//! | `foreign` | programs that Fermata did not start |
//! | `agent` | the library in a program: its connection, attaching, reattaching |
//! | `worker`, `pool`, `gpu` | processes that hold the GPU, the driver that they load, what NVML says |
//! | `criu`, `host`, `helpers` | the program's processes: CRIU, memory copied ahead or on demand, PID namespaces |
//! | `open_files` | files, sockets and pipes that a program has open |
//! | `images` | the daemon's part in images: its record in the manifest, space, copies in memory |
//! | `doctor`, `memory`, `metrics` | reports: what the host supports, memory of sessions, Prometheus metrics |
//! | `failure`, `progress`, `phases`, `parallel`, `proc`, `sys` | helpers that all of these use |
#![deny(unsafe_code)]

mod agent;
mod awake;
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
mod looks;
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
