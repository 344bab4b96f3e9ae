//! What a kernel reads and writes, found from its text.
//!
//! The question is always about memory that the program sees as buffers: global memory reached
//! through kernel parameters (also inside structs passed by value, through pointer arithmetic,
//! through local and shared memory, and through calls), through module variables, and through
//! pointers that were themselves loaded from global memory. The last kind cannot be named before
//! the launch; the analysis says that it is there and leaves finding it to validation.
//!
//! The answer over-approximates: a root that is named may never be dereferenced, but every access
//! goes through a root that is named, or the summary says [`Roots::loaded`] or
//! [`Summary::opaque`]. (PhoenixOS, section 4.1, speculates from arguments; this refines it where
//! there is text.)

mod access;
mod provenance;
mod solver;
mod summary;
#[cfg(test)]
mod tests;

pub use access::Analysis;
pub use summary::{ParamSlot, Roots, Summary};
