//! How device memory is copied while the program runs, and which moment the image shows.

/// Which moment the image shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The consistent point at the start.
    Start,
    /// A stop that comes later.
    End,
}

/// How a capture goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Copied on the device at once.
    Snapshot,
    /// Copied aside before it is written.
    Cow,
    /// Copied ahead, and what was written meanwhile again.
    Recopy,
}
