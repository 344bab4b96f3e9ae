//! What surrounds every call: the frame of an exported function, the end of a thread, and a fork.

pub mod ending;
pub mod entry;
pub mod fork;
