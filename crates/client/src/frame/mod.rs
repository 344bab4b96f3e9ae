//! Code around every call: the wrapper of exported functions, the end of a thread, and fork handlers.

pub mod ending;
pub mod entry;
pub mod fork;
