//! Turns the worker's and the engine's errors into the [`Failure`] messages that the daemon gets.

use fermata_control::worker::{Failure, FailureKind};
use fermata_engine::{EngineError, ErrorKind};

/// A failure with its kind.
pub(crate) fn failure(kind: FailureKind, message: impl Into<String>, hint: &str) -> Failure {
    Failure {
        kind,
        message: message.into(),
        hint: hint.to_owned(),
    }
}

/// The failure that stands for an error of the engine.
pub(crate) fn from_engine(error: &EngineError) -> Failure {
    let (kind, hint) = match error.kind() {
        _ if matches!(error, EngineError::Moved(_)) => (
            FailureKind::Host,
            "a driver places variables by what was loaded before: restore with the driver and the kind of GPU of the \
             checkpoint; a program that unloads modules is better checkpointed before it does",
        ),
        _ if matches!(error, EngineError::Places(_)) => (
            FailureKind::Host,
            "restore on the GPU of the checkpoint; with `--ignore-places` the program goes on with what it was told, and may \
             compute slower or otherwise",
        ),
        _ if matches!(error, EngineError::Multiprocessors(_)) => (
            FailureKind::Host,
            "restore on a GPU of the same kind as that of the checkpoint, with its driver",
        ),
        _ if matches!(error, EngineError::Peers { .. }) => (
            FailureKind::Host,
            "`--gpus LIST` gives the program GPUs that reach each other; `nvidia-smi topo -p2p r` shows which do",
        ),
        ErrorKind::User => (
            FailureKind::User,
            "free some space, or choose another folder with -o",
        ),
        ErrorKind::Internal => (FailureKind::Internal, ""),
        ErrorKind::NotFound => (FailureKind::NotFound, "fermata images ls"),
        ErrorKind::Locked => (
            FailureKind::Locked,
            "try again when the other operation has ended",
        ),
        ErrorKind::Damaged => (
            FailureKind::Damaged,
            "fermata images verify names what is damaged",
        ),
        ErrorKind::Host => (
            FailureKind::Host,
            "fermata doctor says what this machine can do",
        ),
        ErrorKind::NotCheckpointable => (FailureKind::NotCheckpointable, ""),
    };
    failure(kind, error.to_string(), hint)
}

/// The failure that stands for an error of the engine with a session that was running.
pub(crate) fn of_session(error: &EngineError) -> Failure {
    match error.loses_device() {
        true => device_lost(error.to_string()),
        false => from_engine(error),
    }
}

/// A device is lost to the session.
pub(crate) fn device_lost(message: String) -> Failure {
    let hint = "the program cannot use the GPU any more: end it, and restore its newest image, on another GPU if this one does \
                not come back (`nvidia-smi` says how it is)";
    failure(FailureKind::DeviceLost, message, hint)
}

/// An error with its causes.
pub(crate) fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = source.source();
    }
    text
}
