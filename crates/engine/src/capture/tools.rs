//! The resources of a capture, handed from its preparation to the thread that copies.

use std::sync::Arc;

use fermata_terms::{Validation, Way};

use super::pool::DevicePool;
use crate::sink::{Signals, Sink};

/// See the module.
pub(super) struct Tools {
    /// How the program is captured.
    pub(super) way: Way,
    /// How the image will be validated.
    pub(super) validation: Validation,
    /// The sink that takes the copies.
    pub(super) sink: Sink,
    /// Whether the program waits for what the sink takes.
    pub(super) signals: Arc<Signals>,
    /// Memory set aside on the devices.
    pub(super) pools: Vec<DevicePool>,
}
