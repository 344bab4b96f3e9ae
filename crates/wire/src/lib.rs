//! Rings in shared memory between a program and its worker, and the passing of descriptors.
//!
//! One memory file holds everything (see `docs/wire.md` for its offset table):
//!
//! ```text
//!   program: many threads                              worker: one decode loop
//!   ┌──────────┐  lock, copy in   ┌──────────────┐  copy out   ┌──────────┐
//!   │ Producer ├─────────────────►│ ring         ├────────────►│ Consumer │
//!   │          │◄─────────────────┤ reply slots  │◄────────────┤ Replier  │  any thread
//!   │          │◄────────────────►│ staging area │◄───────────►│          │
//!   └────┬─────┘                  └──────────────┘             └────┬─────┘
//!        └───────────────── side socket (descriptors) ──────────────┘
//! ```
//!
//! What a peer wrote is hostile: it is copied to private memory first, then checked, then used. A bad
//! byte is an error that names it, never a panic and never an access outside the memory. No wait is
//! for ever: a peer that is gone is noticed within a tenth of a second.

#[cfg(not(loom))]
mod barrier;
#[cfg(not(loom))]
mod callbacks;
#[cfg(not(loom))]
pub mod claims;
#[cfg(not(loom))]
mod consumer;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod kept;
#[cfg(not(loom))]
mod launch;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
mod producer;
mod protocol;
#[cfg(not(loom))]
mod reply;
#[cfg(not(loom))]
mod rhythm;
#[cfg(not(loom))]
mod shm;
#[cfg(not(loom))]
mod side;
#[cfg(not(loom))]
mod staging;
mod sync;
#[cfg(not(loom))]
mod tally;
#[cfg(not(loom))]
mod wait;

#[cfg(not(loom))]
pub use callbacks::CallbackCount;
#[cfg(not(loom))]
pub use consumer::{Consumer, Event, Kicker, Message, Presence};
#[cfg(not(loom))]
pub use error::WireError;
#[cfg(not(loom))]
pub use launch::BareLaunch;
#[cfg(not(loom))]
pub use layout::{CALL_PLACES, Config, VERSION};
#[cfg(not(loom))]
pub use producer::{Pending, Producer, Rest};
#[cfg(not(loom))]
pub use reply::{Replier, Ticket};
#[cfg(not(loom))]
pub use rhythm::{Advice, Rhythm};
#[cfg(not(loom))]
pub use shm::{StagedArea, create, renew, staged, touch};
#[cfg(not(loom))]
pub use side::{FromProgram, Side};
#[cfg(not(loom))]
pub use staging::Staged;
#[cfg(not(loom))]
pub use tally::{FOLDER as TALLY_FOLDER, Tally};
