//! Checkpoint and restore of a session's device data and objects.
//!
//! ```text
//!   Site ── session: objects as data (fermata-state)
//!     └──── live: the same objects in the driver
//!
//!   protocol::stop   session + device ──► sink ──► chunks in the store, `state` and `chunks` in the image
//!   restore          image + store ──► a new Site
//! ```
//! The engine reaches the device only through `fermata-device`'s safe calls, uses at most
//! [`HOST_MEMORY`] bytes of staging whatever the devices hold, and never leaves half an image behind that
//! reads as a whole one.
#![forbid(unsafe_code)]

pub mod access;
pub mod capture;
mod digest;
mod elsewhere;
mod error;
mod files;
mod gate;
mod hashers;
pub mod instrumented;
mod link;
mod live;
mod module_images;
mod pipeline;
mod places;
mod profile;
pub mod protocol;
mod records;
pub mod restore;
mod seal;
mod share;
mod sink;
mod site;
mod steps;
mod stored;
mod text;
mod thread;
mod tier;
mod variables;

pub use elsewhere::Elsewhere;
pub use error::{EngineError, ErrorKind};
pub use gate::{Gate, Passage};
pub use live::{
    HandleMap, HostCaller, Live, LiveContext, LiveFunction, LiveGreen, LiveStream, Moved,
    SpareStaging, Undisturbed, level_bytes,
};
pub use module_images::Examining;
pub use share::{ShareError, Sharing, event_handle};
pub use site::{Site, Summary};
pub use thread::Thread;
pub use tier::{Tier, TierState, TierStatus};
pub use variables::{discover as discover_variables, discover_of as discover_variables_of};

/// Bytes of a chunk: device memory is copied, hashed and stored in such pieces.
pub const CHUNK: u64 = 4 << 20;
/// Pinned staging buffers, of [`CHUNK`] bytes each.
pub const STAGING_BUFFERS: usize = 32;
/// Host memory that a save uses beside its staging for data that waits for the store, unless told otherwise.
pub const HOST_BUFFER: u64 = 512 << 20;
/// Host memory that a save or load uses for data, at most; a save [`HOST_BUFFER`] more.
pub const HOST_MEMORY: u64 = CHUNK * STAGING_BUFFERS as u64 * 2;

/// Called with the bytes done and the bytes in all, from time to time.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);
