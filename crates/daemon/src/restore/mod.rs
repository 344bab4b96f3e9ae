//! Starts sessions from an image.
//!
//! ```text
//!  check image and host ─► folder, log ─┬─► CRIU: restore (threads parked) ─┬─► reattach ─► running
//!                                       ├─► a worker per process: Load ─────┤
//!                                       └─► hashes of the memory's files ───┘
//! ```
//! Device data may come on demand while the program runs: see `on_demand`.
//! Every file of the image is checked against its digest in the manifest before the program runs: files that CRIU or the daemon
//! reads, before CRIU is called; `state` and `chunks`, by the worker as it reads them; and the memory of a program that comes
//! back parked, while it is restored (see `integrity`). A restore that fails leaves nothing behind.

mod found;
mod integrity;
pub mod on_demand;
pub mod rollback;
mod source;
mod start;

pub(crate) use self::source::{How, Source, resolve};
pub use self::start::restore;
