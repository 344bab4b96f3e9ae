//! Makes [`Failure`]s, the errors that a user is shown.

use std::path::Path;

use fermata_control::ControlError;
pub use fermata_control::worker::{Failure, FailureKind};
use fermata_store::StoreError;

/// A result whose error is shown to the user unchanged.
pub type Result<T> = std::result::Result<T, Failure>;

/// A failure without a hint.
pub fn fail(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure {
        kind,
        message: message.into(),
        hint: String::new(),
    }
}

/// The hint for a failure of this kind that has no more specific one.
pub fn next_step(kind: FailureKind, log: &Path) -> String {
    let step = match kind {
        FailureKind::User => "",
        FailureKind::Internal => {
            return format!("`{}` says what came before", log.display());
        }
        FailureKind::NotFound => "`fermata ps` lists the sessions, `fermata images ls` the images",
        FailureKind::Locked => "try again when that has ended",
        FailureKind::Damaged => "`fermata images verify` names everything that is damaged",
        FailureKind::Host => "`fermata doctor` says what this machine can do",
        FailureKind::NotCheckpointable => "`fermata doctor NAME` says what stands in the way",
        FailureKind::DeviceLost => "end the program, and restore its newest image",
    };
    step.to_owned()
}

/// Whether a device lacked memory: all drivers use the same name for that error.
pub fn lacks_memory(failure: &Failure) -> bool {
    let told = |text| failure.message.contains(text);
    told("out of memory") || told("OUT_OF_MEMORY")
}

/// Adds a hint to a failure.
pub trait Hint {
    /// The same failure with the user's next step.
    fn hint(self, hint: impl Into<String>) -> Self;
}

impl Hint for Failure {
    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

/// Turns errors into failures, naming the operation.
pub trait OrFail<T> {
    /// `kind`, with the message "OPERATION: error and its causes".
    fn or_fail(self, kind: FailureKind, operation: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::error::Error> OrFail<T> for std::result::Result<T, E> {
    fn or_fail(self, kind: FailureKind, operation: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| fail(kind, format!("{}: {}", operation(), chain(&e))))
    }
}

/// An error with its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let part = next.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = next.source();
    }
    text
}

/// The failure for an error in communication with another process of Fermata.
pub fn from_control(error: &ControlError) -> Failure {
    fail(FailureKind::Internal, chain(error))
}

/// The failure for an error of the store.
pub fn from_store(error: &StoreError) -> Failure {
    let kind = match error {
        StoreError::NotFound { .. } => FailureKind::NotFound,
        StoreError::Locked { .. } => FailureKind::Locked,
        StoreError::Damaged { .. }
        | StoreError::DamagedChunk { .. }
        | StoreError::MissingChunk { .. } => FailureKind::Damaged,
        StoreError::Newer { .. } => FailureKind::Host,
        StoreError::Io { .. }
        | StoreError::Full { .. }
        | StoreError::Exists { .. }
        | StoreError::BadName { .. }
        | StoreError::BadPlace { .. }
        | StoreError::NotTrusted { .. }
        | StoreError::LostImage { .. } => FailureKind::User,
        StoreError::Misuse { .. } => FailureKind::Internal,
    };
    fail(kind, chain(error)).hint(error.hint().unwrap_or_default())
}
