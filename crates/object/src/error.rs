//! Why something in a bucket cannot be done. What the user can do about it, the caller says in its own words, by the cause.

use fermata_store::StoreError;

/// Result of what this crate does.
pub type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The bucket's description cannot be used.
    #[error("{0}")]
    Config(String),
    /// There are no keys.
    #[error("no credentials for the object store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")]
    NoKeys,
    /// The service cannot be used, or not as it is.
    #[error("cannot {op} `{key}` in bucket `{bucket}`: {what}")]
    Service {
        /// What was tried.
        op: &'static str,
        /// The bucket.
        bucket: String,
        /// The object's key.
        key: String,
        /// What the service says, or why it could not be asked.
        what: String,
        /// The kind of reason.
        cause: Cause,
    },
    /// An image or a store on this machine.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ObjectError {
    /// Whether an object does not hold what was written.
    pub fn is_damaged(&self) -> bool {
        matches!(
            self,
            Self::Service {
                cause: Cause::Damaged,
                ..
            }
        )
    }

    /// Whether there is no such object.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Service {
                cause: Cause::Gone,
                ..
            }
        )
    }
}

/// Kinds of reasons why a service did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It did not answer in time.
    Silent,
    /// Nobody is there.
    Unreached,
    /// Its certificate is not trusted.
    Untrusted,
    /// There is no such bucket.
    NoBucket,
    /// The keys are wrong, or may not do this.
    Denied,
    /// The bucket is in another region, or at another address.
    Elsewhere,
    /// There is no space.
    Full,
    /// There is no such object.
    Gone,
    /// There is such an image already.
    Exists,
    /// An object does not hold what was written there.
    Damaged,
    /// Its answer is not that of an S3-compatible service.
    Strange,
    /// Anything else.
    Other,
}
