//! How far a request is, told to the user who waits.

/// Receives phase, bytes done and bytes in all.
pub type Report<'a> = dyn FnMut(&str, u64, u64) + Send + 'a;
