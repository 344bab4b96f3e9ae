//! What can go wrong for a program that checkpoints itself, with a stable number for each kind.

use std::path::PathBuf;

use fermata_device::{DriverError, LoadError};
use fermata_object::{Cause, ObjectError};
use fermata_store::StoreError;

/// Result of the library's operations.
pub type Result<T, E = AppError> = std::result::Result<T, E>;

/// Errors of the library. Unless the variant says otherwise the program's memory is untouched and the
/// older checkpoints are intact.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A call that makes no sense as it is.
    #[error("cannot {op}: {what}")]
    Misuse {
        /// What was tried.
        op: &'static str,
        /// Why it cannot be.
        what: String,
    },
    /// The configuration cannot be used.
    #[error("configuration `{from}`: {what}")]
    Config {
        /// The file, or `text`.
        from: String,
        /// What is wrong.
        what: String,
    },
    /// The configuration has a key that does not exist.
    #[error("configuration `{from}`: there is no key `{key}`{}", nearest(.near))]
    UnknownKey {
        /// The file, or `text`.
        from: String,
        /// The key.
        key: String,
        /// The existing key that looks most like it.
        near: Option<&'static str>,
    },
    /// A level that this job has not configured, or that is not built.
    #[error("level {level} ({name}): {what}")]
    Level {
        /// Its number.
        level: u8,
        /// Its name.
        name: &'static str,
        /// Why it cannot be used.
        what: &'static str,
    },
    /// A protected variable cannot be read or written.
    #[error("variable {id}: {what}")]
    Variable {
        /// Its number.
        id: u32,
        /// What is wrong.
        what: String,
    },
    /// The checkpoint does not fit this program or job.
    #[error("the checkpoint does not fit: {what}")]
    Mismatch {
        /// What differs.
        what: String,
    },
    /// The checkpoint is another rank's, or that of a job of another size.
    #[error(
        "the checkpoint does not fit: `{folder}` was written by rank {rank} of {ranks}, this is rank {now}"
    )]
    OtherSize {
        /// The checkpoint.
        folder: PathBuf,
        /// The rank that wrote it.
        rank: u32,
        /// Ranks of the job then.
        ranks: u32,
        /// This rank and the ranks of the job now, as `0 of 4`.
        now: String,
    },
    /// There is no checkpoint to recover from.
    #[error("there is no usable checkpoint in `{folder}`{why}")]
    Nothing {
        /// Where it was looked for.
        folder: PathBuf,
        /// What is wrong with those that are there; empty if there are none.
        why: String,
    },
    /// Another process works in the same folder.
    #[error("`{folder}` is used by process {by}")]
    Busy {
        /// The folder.
        folder: PathBuf,
        /// The other process, as far as known.
        by: String,
    },
    /// Storing or reading failed.
    #[error("cannot {op}")]
    Store {
        /// What was tried.
        op: &'static str,
        /// Why it failed.
        #[source]
        source: StoreError,
    },
    /// A file or folder of ours cannot be used.
    #[error("cannot {op} `{path}`")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The object store cannot be used, or not as it is.
    #[error("cannot {op} `{key}` in bucket `{bucket}`: {what}")]
    Object {
        /// What was tried.
        op: &'static str,
        /// The bucket.
        bucket: String,
        /// The object's key.
        key: String,
        /// What the service says, or why it could not be asked.
        what: String,
        /// What the user can do.
        hint: &'static str,
    },
    /// The GPU's driver refused.
    #[error("cannot {op}")]
    Device {
        /// What was tried.
        op: &'static str,
        /// What the driver said.
        #[source]
        source: DriverError,
    },
    /// The program's driver cannot be used.
    #[error("the program's CUDA driver cannot be used")]
    Driver(#[source] LoadError),
    /// A variable was written while it was being captured.
    #[error("variable {id} changed at byte {offset} while it was being captured")]
    Changed {
        /// Its number.
        id: u32,
        /// First byte of the block that changed.
        offset: u64,
    },
    /// A step took too long.
    #[error("{what} did not end within {seconds} s")]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        seconds: f64,
    },
    /// Recovery failed after it had begun to write: the variables hold a mixture.
    #[error("recovery failed half-way, the protected variables hold a mixture")]
    Mixed(#[source] Box<AppError>),
    /// The program's message passing failed.
    #[error("{call} of the ranks' bridge failed with {code}")]
    Ranks {
        /// Which call.
        call: &'static str,
        /// What it returned.
        code: i32,
    },
    /// Another rank has failed, so that this one cannot go on either.
    #[error("rank {rank} failed: {what}")]
    OtherRank {
        /// The rank.
        rank: u32,
        /// What it said.
        what: String,
    },
    /// A thread of the library ended unexpectedly.
    #[error("{0} ended unexpectedly; this is a fault of Fermata")]
    Fault(&'static str),
}

fn nearest(near: &Option<&'static str>) -> String {
    near.map_or(String::new(), |key| format!("; did you mean `{key}`?"))
}

impl AppError {
    /// A [`AppError::Store`] for `map_err`.
    pub(crate) fn store(op: &'static str) -> impl Fn(StoreError) -> Self {
        move |source| Self::Store { op, source }
    }

    /// An [`AppError::Io`], or that the disk is full where that is the cause.
    pub(crate) fn io(op: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        match StoreError::io(op, path, 0, source) {
            StoreError::Io { op, path, source } => Self::Io { op, path, source },
            source => Self::Store {
                op: "use a folder of the job",
                source,
            },
        }
    }

    /// A [`AppError::Device`] for `map_err`.
    pub(crate) fn device(op: &'static str) -> impl Fn(DriverError) -> Self {
        move |source| Self::Device { op, source }
    }

    /// Whether a disk is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(
            self,
            Self::Store {
                source: StoreError::Full { .. },
                ..
            }
        )
    }

    /// The kind's number, the same in every release.
    pub fn code(&self) -> i32 {
        match self {
            Self::Misuse { .. } => 1,
            Self::Config { .. } | Self::UnknownKey { .. } => 2,
            Self::Level { .. } => 3,
            Self::Variable { .. } => 4,
            Self::Mismatch { .. } | Self::OtherSize { .. } => 5,
            Self::Nothing { .. } => 6,
            Self::Busy { .. } => 7,
            Self::Store { source, .. } => match source {
                StoreError::Full { .. } => 8,
                StoreError::Damaged { .. }
                | StoreError::DamagedChunk { .. }
                | StoreError::MissingChunk { .. } => 9,
                _ => 10,
            },
            Self::Io { .. } => 10,
            Self::Device { .. } | Self::Driver(_) => 11,
            Self::Changed { .. } => 12,
            Self::Deadline { .. } => 13,
            Self::Mixed(_) => 14,
            Self::Ranks { .. } | Self::OtherRank { .. } => 15,
            Self::Fault(_) => 16,
            Self::Object { .. } => 17,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Variable { .. } => {
                "protect it again after every allocation, and call unprotect before it is freed"
            }
            Self::Mismatch { .. } => {
                "protect what the checkpoint holds, or set `recover = false` to begin afresh"
            }
            Self::OtherSize { .. } => {
                "start the job with as many ranks as before, each with its own folders, or set `recover = false` to \
                 begin afresh"
            }
            Self::Busy { .. } => "give each job a `name` of its own in the configuration",
            Self::Changed { .. } => {
                "nothing may write protected memory from the call until the data is captured"
            }
            Self::Object { hint, .. } => hint,
            Self::Mixed(_) => "do not go on with these values: start the program again",
            Self::Store {
                source: StoreError::Full { .. },
                ..
            } => "free some space, or lower `keep_last`",
            _ => return None,
        })
    }

    /// The message with all its causes, one line.
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl From<ObjectError> for AppError {
    fn from(error: ObjectError) -> Self {
        let config = |what: String| Self::Config {
            from: "session".into(),
            what,
        };
        match error {
            ObjectError::Config(what) => config(format!("`object`: {what}")),
            ObjectError::NoKeys => config(format!(
                "{error}, or `object.access_key` and `object.secret_key`"
            )),
            ObjectError::Service {
                op,
                bucket,
                key,
                what,
                cause,
            } => Self::Object {
                op,
                bucket,
                key,
                what,
                hint: advice(cause),
            },
            ObjectError::Store(source) => Self::Store {
                op: "use a bucket",
                source,
            },
        }
    }
}

/// What the user can do where an object store did not do what was asked.
fn advice(cause: Cause) -> &'static str {
    match cause {
        Cause::Silent => {
            "the lower levels are intact; raise `object.deadline` if the service is slow"
        }
        Cause::Unreached => "the lower levels are intact; check `object.endpoint` and the network",
        Cause::Untrusted => {
            "add the authority of its certificate to this machine's, or name a file with it in SSL_CERT_FILE"
        }
        Cause::NoBucket => "make the bucket, or correct `object.bucket`",
        Cause::Denied => {
            "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or `object.access_key` and \
             `object.secret_key`), what they may do, and `object.region`"
        }
        Cause::Elsewhere => "the bucket is elsewhere: correct `object.region` or `object.endpoint`",
        Cause::Full => "free some space in the bucket, or lower `keep_last`",
        Cause::Gone => "somebody has removed it; older checkpoints may be there",
        Cause::Damaged => "an older checkpoint is used if there is one",
        Cause::Strange => "check that `object.endpoint` is an S3-compatible service",
        Cause::Exists | Cause::Other => {
            "the lower levels are intact, and the next checkpoint tries again"
        }
    }
}
