//! Which moment an image shows.

/// Which moment the image shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The consistent point at the start.
    Start,
    /// A stop that comes later.
    End,
}
