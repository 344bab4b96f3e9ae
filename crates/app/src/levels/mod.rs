//! Levels 2 to 5: what keeps a checkpoint beyond the rank's own folder, and brings it back.

pub(crate) mod erasure;
pub(crate) mod level;
pub(crate) mod object;
pub(crate) mod partner;
pub(crate) mod peers;
pub(crate) mod shared;
