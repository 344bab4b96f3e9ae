//! What an image has cost and how it was validated, kept from the copying to the answer of the stop.

use fermata_control::worker::{Stall, Validation};

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub stall: Stall,
    pub validation: Validation,
}

impl Account {
    pub fn of(stall: &Stall, validation: &Validation) -> Self {
        Self {
            stall: stall.clone(),
            validation: validation.clone(),
        }
    }
}
