//! What a capture has cost the program and how it was validated, kept until the daemon asks for the result.

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
