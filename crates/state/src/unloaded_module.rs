//! A module that stays in the driver although the program has unloaded it.

use fermata_abi::op::ContextId;
use serde::{Deserialize, Serialize};

use crate::ImageId;

/// A module that the program has unloaded and that stays in the driver, so that those after it lie where they do in
/// a driver that loads all of them in order. The program cannot name it, and its content does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptModule {
    /// Its context.
    pub context: ContextId,
    /// Its image.
    pub image: ImageId,
    /// Bytes of its variables.
    pub variables: u64,
}
