//! Device memory that sessions restored from equal data have in common: once per device, mapped for reading in each worker.
//!
//! ```text
//!  block of an image ─► key: device, length, hash of each piece ─► keeper ─┬─ none has it: loaded, hashes checked, offered
//!                                                                          └─ another has it: its memory, mapped
//!  operation that may write a block ─► guard: the device comes to its end ─► memory of the session's own
//!  write that was not foreseen ─► fault ─► the session starts again from its image, with nothing in common
//! ```
//! See decision 045. No mapping of a common block is writable in any process, so its content cannot change.

pub(super) mod claims;
mod examination;
pub(super) mod foreign;
pub(super) mod guard;
pub(super) mod keeper;
