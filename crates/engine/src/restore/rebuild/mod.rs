//! Rebuilds a session's objects in the driver, after checking that this host suits.

mod greens;
pub(super) mod objects;
pub(super) mod preconditions;
mod references;
mod textures;
