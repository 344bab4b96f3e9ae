//! A session's objects made again in the driver, after it is known that this host suits.

pub(super) mod objects;
pub(super) mod preconditions;
mod references;
mod textures;
