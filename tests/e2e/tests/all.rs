//! All tests of whole programs, in one executable: what one waits for, another one uses, and they are linked once. A file is a
//! module: `cargo test -p fermata-e2e common::`.

mod adversary;
mod behind;
mod bench;
mod bucket;
mod cache;
mod collectives;
mod common;
mod compiled;
mod connections;
mod daemon;
mod damage;
mod deaths;
mod environment;
mod family;
mod faults;
mod files;
mod foreign;
mod functions;
mod gpus;
mod hostile;
mod hoststate;
mod input;
mod instrumented;
mod io_uring;
mod itself;
mod late;
mod memory;
mod mpi;
mod names;
mod neighbours;
mod nvml;
mod old_driver;
mod pause;
mod pause_faults;
mod pool;
mod priority;
mod program;
mod protect;
mod pytorch;
mod queued;
mod ranks;
mod refusals;
mod restore;
mod runtime;
#[path = "../../../crates/object/tests/common/server.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "other tests use the rest")]
mod server;
mod shared;
mod shm;
mod siblings;
mod steps;
mod still;
mod tables;
mod trust;
mod unforeseen;
