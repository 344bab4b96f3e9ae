//! Why a verb failed: one sentence, a hint, an exit status.

use std::error::Error;
use std::io;

use fermata_bench::BenchError;
use fermata_control::ControlError;
use fermata_control::user::FailureKind;
use fermata_function::RecordError;
use fermata_object::{Cause, ObjectError};
use fermata_store::StoreError;

/// The user can correct the cause: a wrong request, a full disk, a file in the way.
pub const USER: u8 = 1;
/// Wrong usage, or a bug of ours.
pub const INTERNAL: u8 = 2;
/// Some of it was done.
pub const PARTLY: u8 = 3;
/// No such image or session.
pub const NOT_FOUND: u8 = 10;
/// In use by another operation.
pub const LOCKED: u8 = 11;
/// Damaged data.
pub const DAMAGED: u8 = 12;
/// This host cannot.
pub const HOST: u8 = 13;
/// The program cannot be checkpointed.
pub const NOT_CHECKPOINTABLE: u8 = 14;
/// A GPU of the program is lost.
pub const DEVICE_LOST: u8 = 15;
/// `run`: Fermata cannot follow the program any more, which has started and may still run.
pub const AFTER_START: u8 = 124;
/// `run`: Fermata failed before the program started.
pub const BEFORE_START: u8 = 125;
/// `run`: the program cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// `run`: there is no such program.
pub const NO_PROGRAM: u8 = 127;

/// Interrupted by the user.
pub const INTERRUPTED: u8 = 130;

/// What to do about a runtime folder that cannot be used.
pub const ANOTHER_FOLDER: &str = "set FERMATA_RUNTIME_DIR to a folder that only you can write to, or run the command \
     as the user whose daemon this is";

/// A verb's failure.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// One sentence naming the operation and the object.
    pub message: String,
    /// The next step for the user; may be empty.
    pub hint: String,
    /// Whether the daemon has ended before it has answered.
    pub hung_up: bool,
    broken_pipe: bool,
    started: bool,
}

impl Failure {
    /// A failure with a status.
    pub fn new(status: u8, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            hint: String::new(),
            hung_up: false,
            broken_pipe: false,
            started: false,
        }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: hint.into(),
            ..self
        }
    }

    /// The same with another exit status.
    #[must_use]
    pub fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// An operation on a file that the system refused.
    pub fn io(operation: &str, error: &io::Error) -> Self {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Self {
            broken_pipe,
            ..Self::new(USER, format!("cannot {operation}: {error}"))
        }
    }

    /// Whether the reader of our output has gone; nothing is to be said then.
    pub fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }

    /// As a failure after the program of `run` has started.
    #[must_use]
    pub fn after_start(self) -> Self {
        Self {
            status: match self.status {
                INTERRUPTED => INTERRUPTED,
                _ => AFTER_START,
            },
            started: true,
            ..self
        }
    }

    /// As a failure after the program of `run` has ended, with the status that it has.
    #[must_use]
    pub fn after_end(self) -> Self {
        Self {
            started: true,
            ..self
        }
    }

    /// As a failure before the program of `run` has started, unless it is known that it has.
    #[must_use]
    pub fn before_start(self) -> Self {
        match self.status {
            NOT_EXECUTABLE | NO_PROGRAM => self,
            _ if self.started => self,
            _ => self.with_status(BEFORE_START),
        }
    }
}

/// An error with its causes, as one sentence.
pub fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        let add = c.to_string();
        if !text.ends_with(&add) {
            text = format!("{text}: {add}");
        }
        cause = c.source();
    }
    text
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Store(error) => error.into(),
            ObjectError::Config(_) | ObjectError::NoKeys => Self::new(USER, sentence(&error)).hint(
                "buckets are reached by the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL_S3",
            ),
            ObjectError::Service { cause, .. } => {
                let (status, hint) = of_bucket(cause);
                Self::new(status, sentence(&error)).hint(hint)
            }
        }
    }
}

/// Exit status and hint where a service did not do what was asked.
fn of_bucket(cause: Cause) -> (u8, &'static str) {
    match cause {
        Cause::Silent => (USER, "try again; nothing on this machine was changed"),
        Cause::Unreached => (
            USER,
            "check the network, and AWS_ENDPOINT_URL_S3 (without it, Amazon's service in AWS_REGION is asked)",
        ),
        Cause::Untrusted => (
            USER,
            "add the authority of its certificate to this machine's, or name a file with it in SSL_CERT_FILE",
        ),
        Cause::NoBucket => (USER, "make the bucket, or correct its name"),
        Cause::Denied => (
            USER,
            "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, what they may do, and AWS_REGION",
        ),
        Cause::Elsewhere => (
            USER,
            "the bucket is elsewhere: correct AWS_REGION or AWS_ENDPOINT_URL_S3",
        ),
        Cause::Full => (
            USER,
            "free some space in the bucket: `fermata images rm s3://BUCKET/FOLDER/NAME` removes an image",
        ),
        Cause::Gone => (
            NOT_FOUND,
            "`fermata images ls s3://BUCKET/FOLDER` lists the images in a folder of a bucket",
        ),
        Cause::Exists => (
            USER,
            "remove it with `fermata images rm`, or use another folder",
        ),
        Cause::Damaged => (
            DAMAGED,
            "use another image: `fermata images ls s3://BUCKET/FOLDER`",
        ),
        Cause::Strange => (
            USER,
            "check that AWS_ENDPOINT_URL_S3 is an S3-compatible service",
        ),
        Cause::Other => (USER, "try again; nothing on this machine was changed"),
    }
}

impl From<fermata_control::user::Failure> for Failure {
    fn from(f: fermata_control::user::Failure) -> Self {
        let status = match f.kind {
            FailureKind::User => USER,
            FailureKind::Internal => INTERNAL,
            FailureKind::NotFound => NOT_FOUND,
            FailureKind::Locked => LOCKED,
            FailureKind::Damaged => DAMAGED,
            FailureKind::Host => HOST,
            FailureKind::NotCheckpointable => NOT_CHECKPOINTABLE,
            FailureKind::DeviceLost => DEVICE_LOST,
        };
        Self::new(status, f.message).hint(f.hint)
    }
}

impl From<StoreError> for Failure {
    fn from(e: StoreError) -> Self {
        use StoreError as E;
        let status = match &e {
            E::NotFound { .. } => NOT_FOUND,
            E::Locked { .. } => LOCKED,
            E::Damaged { .. } | E::DamagedChunk { .. } | E::MissingChunk { .. } => DAMAGED,
            E::Newer { .. } => HOST,
            E::Misuse { .. } => INTERNAL,
            E::Io { .. }
            | E::Full { .. }
            | E::Exists { .. }
            | E::BadName { .. }
            | E::BadPlace { .. }
            | E::NotTrusted { .. }
            | E::LostImage { .. } => USER,
        };
        Self::new(status, sentence(&e)).hint(e.hint().unwrap_or_default())
    }
}

impl From<RecordError> for Failure {
    fn from(e: RecordError) -> Self {
        let text = sentence(&e);
        match e {
            RecordError::NotFound(_) => {
                Self::new(NOT_FOUND, text).hint("`fermata function ls` lists the functions")
            }
            RecordError::BadName(_) => {
                Self::new(USER, text).hint("use letters, digits, dots and dashes")
            }
            RecordError::Damaged { .. } => {
                let hint = "remove the function with `fermata function rm`, and make it again";
                Self::new(DAMAGED, text).hint(hint)
            }
            RecordError::Newer { .. } => {
                let hint = "use the release of Fermata that made the function, or a newer one";
                Self::new(HOST, text).hint(hint)
            }
            RecordError::Store(e) => e.into(),
            RecordError::Io { .. } => Self::new(USER, text),
        }
    }
}

impl From<fermata_planner::ProblemError> for Failure {
    fn from(e: fermata_planner::ProblemError) -> Self {
        Self::new(USER, e.to_string())
    }
}

impl From<BenchError> for Failure {
    fn from(e: BenchError) -> Self {
        match e {
            BenchError::Io { operation, source } => Self::io(&operation, &source),
            BenchError::Program { message, hint } => Self::new(USER, message).hint(hint),
            BenchError::Command { message, status } => {
                Self::new(status.unwrap_or(INTERNAL), message)
            }
            BenchError::Interrupted => Self::new(INTERRUPTED, e.to_string()),
            _ => Self::new(INTERNAL, e.to_string()),
        }
    }
}

impl From<ControlError> for Failure {
    fn from(e: ControlError) -> Self {
        let status = match e {
            ControlError::Connect { .. } | ControlError::Untrusted { .. } => USER,
            _ => INTERNAL,
        };
        let failure = Self::new(status, sentence(&e));
        if matches!(e, ControlError::Untrusted { .. }) {
            return failure.hint(ANOTHER_FOLDER);
        }
        if e.is_closed() {
            let failure = Self {
                hung_up: true,
                ..failure
            };
            return failure.hint(
                "the daemon has ended, see `fermatad.log` in its folder; ask again: the next command starts \
                 a daemon, which finds the sessions",
            );
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_before_the_start_are_told_from_the_programs() {
        assert_eq!(Failure::new(LOCKED, "x").before_start().status, 125);
        assert_eq!(Failure::new(NO_PROGRAM, "x").before_start().status, 127);
        for (status, told) in [(LOCKED, 124), (INTERRUPTED, 130)] {
            let failure = Failure::new(status, "x").after_start().before_start();
            assert_eq!(failure.status, told);
        }
        let ended = Failure::new(INTERNAL, "x").after_end().before_start();
        assert_eq!(ended.status, INTERNAL);
    }

    #[test]
    fn causes_are_said_once() {
        let path = "/x".into();
        let source = io::Error::other("why");
        let e = StoreError::Io {
            op: "read",
            path,
            source,
        };
        assert_eq!(sentence(&e), "cannot read `/x`: why");
    }
}
