//! What the daemon does about images itself: its own record in a manifest, room for a new image, copies kept in memory.

pub mod cache;
pub mod record;
pub mod space;
pub mod tier;
