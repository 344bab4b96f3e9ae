//! What the daemon does about images itself: its own record in a manifest, room for a new image, copies kept in memory,
//! files that need not be read again.

pub mod cache;
pub mod known;
pub mod record;
pub mod space;
pub mod tier;
