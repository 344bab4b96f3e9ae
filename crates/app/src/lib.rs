//! Application-level checkpoints: a program names its variables, and this library keeps them.
//!
//! ```text
//!  Session ── variables: number, type, memory (host, device or managed)
//!     ├────── capture: pieces copied, hashed and written at once; unchanged blocks are not written
//!     ├────── sites: local folder, shared folder; each with a store of chunks
//!     └────── search, restore: integrity first, by all ranks together, then data
//! ```
//! It prints nothing, ends no process, holds no global state, and starts no CUDA in a program that has
//! none. The C interface is in `bindings/c`.
#![deny(unsafe_code)]

mod buffer;
mod capture;
mod checkpoint;
mod config;
mod costs;
mod error;
mod gpu;
mod levels;
mod maps;
mod memory;
mod queue;
mod ranks;
mod recovery;
mod session;
mod status;
mod target;
mod variable;

pub use config::{BLOCK_BYTES, Config, Interval, StageSchedule};
pub use error::{AppError, Result};
pub use fermata_object::{ObjectConfig, Secret};
pub use levels::level::Level;
pub use memory::Memory;
pub use ranks::comm;
pub use ranks::comm::{Comm, Solo};
pub use session::Session;
pub use session::snapshot::Snapshot;
pub use status::{CheckpointReport, RecoveryReport, Status};
pub use variable::{ElementType, VariableId};
