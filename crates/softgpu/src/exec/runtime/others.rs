//! What a fiber of a block needs to let others go on.

use std::collections::VecDeque;

use super::context::DeviceThread;

/// The other fibers of the block: their contexts, and those to be resumed.
pub struct Others<'b> {
    /// By fiber.
    pub contexts: &'b [*mut DeviceThread],
    /// Fibers that may go on.
    pub ready: &'b mut VecDeque<u32>,
}
