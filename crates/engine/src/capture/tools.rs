//! What a capture works with, from its preparation to the thread that copies.

use std::sync::Arc;

use fermata_terms::{Validation, Way};

use super::pool::DevicePool;
use crate::sink::{Signals, Sink};

/// See the module.
pub(super) struct Tools {
    /// How the program is captured.
    pub(super) way: Way,
    /// What will vouch for the image.
    pub(super) validation: Validation,
    /// Where copies go.
    pub(super) sink: Sink,
    /// Whether the program waits for what the sink takes.
    pub(super) signals: Arc<Signals>,
    /// Memory set aside on the devices.
    pub(super) pools: Vec<DevicePool>,
}
