//! Bringing an image's data back to the devices: which comes when, who reads and copies it, and how it is checked.

pub(super) mod background;
mod chunks_by_place;
pub(super) mod content;
pub(super) mod loader;
pub(super) mod prefetch_order;
pub(super) mod schedule;
pub(super) mod variables;
pub(super) mod verifier;
