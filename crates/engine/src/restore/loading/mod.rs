//! Loads an image's data to the devices: in which order, by which threads, and how it is verified.

pub(super) mod background;
mod chunks_by_place;
pub(super) mod content;
pub(super) mod disk_turns;
pub(super) mod limits;
pub(super) mod loader;
pub(super) mod prefetch_order;
pub(super) mod schedule;
pub(super) mod variables;
pub(super) mod verifier;
