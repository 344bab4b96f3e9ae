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

mod capture;
pub mod comm;
mod config;
mod copies;
mod copy;
mod costs;
mod erasure;
mod error;
mod gpu;
mod job;
mod layout;
mod level;
mod maps;
mod memory;
mod object;
mod offers;
mod partner;
mod peers;
mod queue;
mod record;
mod restore;
mod ring;
mod roll;
mod search;
mod session;
mod site;
mod snapshot;
mod stage;
mod staging;
mod status;
mod stream;
mod streams;
mod table;
mod transfer;
mod variable;
mod ways;

pub use comm::{Comm, Solo};
pub use config::{BLOCK_BYTES, Config, Interval, ObjectConfig, Secret, StageSchedule};
pub use error::{AppError, Result};
pub use level::Level;
pub use memory::Memory;
pub use session::Session;
pub use snapshot::Snapshot;
pub use status::{CheckpointReport, RecoveryReport, Status};
pub use variable::{ElementType, VariableId};
