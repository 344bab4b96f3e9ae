//! What a check found, as it is told.

use fermata_control::user::{Check, CheckState};

/// One check of this name.
pub(super) fn check(name: &str, state: CheckState, detail: impl Into<String>, hint: &str) -> Check {
    Check {
        name: name.into(),
        state,
        detail: detail.into(),
        hint: hint.into(),
    }
}

/// All is well.
pub(super) fn ok(name: &str, detail: impl Into<String>) -> Check {
    check(name, CheckState::Ok, detail, "")
}

/// Works, with something missing that `hint` mends.
pub(super) fn warn(name: &str, detail: impl Into<String>, hint: &str) -> Check {
    check(name, CheckState::Warn, detail, hint)
}

/// Does not work until `hint` is done.
pub(super) fn fail(name: &str, detail: impl Into<String>, hint: &str) -> Check {
    check(name, CheckState::Fail, detail, hint)
}
