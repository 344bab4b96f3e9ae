//! The objects of a session as data: what exists, how it was made, what refers to what.
//!
//! ```text
//!  Context ◄─ Module ◄─ Function          Allocation   HostRegion   Array      each with a buffer number:
//!     ▲          └─ image, by content     Memory ◄─ Mapping ─► Reservation     content is kept elsewhere
//!     ├─ Stream, Event
//!     ├─ Green (context) ─► Stream
//!     └─ Executable (graph as data)
//! ```
//! Only live objects are here, so that a restore never replays history; but modules that a program has unloaded are
//! kept for the places of those after them. The worker changes a [`Session`]
//! after the driver has agreed; [`records`] turns it into bytes and back. No I/O, no driver.
#![forbid(unsafe_code)]

mod buffers;
mod error;
mod green;
mod image;
mod load_order;
mod memory;
mod objects;
mod pointers;
pub mod records;
mod session;
mod sharing;
mod table;
mod tensors;
mod unloaded_module;
mod validate;

pub use buffers::{Buffer, BufferOwner};
pub use error::StateError;
pub use green::{Green, Greens};
pub use image::{
    IMAGE_BUFFERS, IMAGE_PADDING, ImageBytes, ImageFacts, LONGEST_IMAGE, STORED_FROM, StoredImage,
};
pub use load_order::{KEPT_BYTES, KEPT_MODULES, Loaded, Retired};
pub use memory::{Allocation, HostRegion, Mapping, Memory, Reservation};
pub use objects::{
    Array, Context, ContextPlace, Device, Event, Executable, Function, ImageId, MipmappedArray,
    Module, Places, ReferenceKey, Stream, TextureKey, Variable,
};
pub use pointers::{KNOWN_POINTERS, KNOWN_TABLES, LONGEST_TABLE, Pointers, TABLE_HEAD};
pub use session::{Deferred, Queued, Removed, Session};
pub use sharing::{Fetched, Shared, Sharing};
pub use table::{Kind, Table};
pub use tensors::{KNOWN_TENSORS, TensorMaps};
pub use unloaded_module::KeptModule;
