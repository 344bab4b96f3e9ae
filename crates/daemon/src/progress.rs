//! Reports the progress of a request to the user who waits for it.

/// Receives phase, bytes done and bytes in all.
pub type Report<'a> = dyn FnMut(&str, u64, u64) + Send + 'a;
