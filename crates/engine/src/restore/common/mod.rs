//! Common memory: device memory of equal content that several sessions have is there once per device, mapped for
//! reading in each worker.
//!
//! ```text
//!  block of an image ─► key: device, length, hash of each piece ─► keeper ─┬─ none has it: loaded, hashes checked, offered
//!                                                                          └─ another has it: its memory, mapped
//!  operation that may write a block ─► guard: waits for the device ─► memory of the session's own
//!  mis-speculated write ─► fault ─► the session starts again from its image, without common memory
//! ```
//! See decision 045. No mapping of a common block is writable in any process, so its content cannot change.

pub(super) mod claims;
mod examination;
pub(super) mod foreign;
pub(super) mod guard;
pub(super) mod keeper;
