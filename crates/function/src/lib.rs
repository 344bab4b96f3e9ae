//! Functions: programs whose image was taken when they were ready to answer, and the HTTP server that answers each
//! request by an instance restored from it.
//!
//! ```text
//!  client ──HTTP──► front ──► pool: an idle instance, or a new one, or wait ──► instance (a leased session)
//!                     └─ proxy: one request, one connection into the instance's network ──┘
//! ```
//! `record` is what a function is on disk. How instances are started, reached and ended is not known here: [`Host`] and
//! [`Instance`] say what is asked of them. Nothing here prints or ends the process.
#![forbid(unsafe_code)]

mod config;
mod front;
mod host;
mod metrics;
mod passing;
mod pool;
mod proxy;
mod record;

pub use config::FrontConfig;
pub use front::{METRICS_PATH, Stop, serve};
pub use host::{Host, Instance, Link, StartError};
pub use record::{FunctionRecord, Functions, RecordError};
