//! Where an S3-compatible object store is, and how to get in.

use std::fmt;

/// Longest time for one request with all its repetitions, in seconds, where nothing else is said.
pub const DEADLINE: f64 = 60.0;

/// A bucket of an object store.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectConfig {
    /// The bucket, which must exist.
    pub bucket: String,
    /// Address of the service; Amazon's of the region if there is none.
    pub endpoint: Option<String>,
    /// The region; `$AWS_REGION`, `$AWS_DEFAULT_REGION` or `us-east-1` if there is none.
    pub region: Option<String>,
    /// Put before all keys.
    pub prefix: String,
    /// Whether the bucket is part of the path instead of the host's name; by default with an endpoint.
    pub path_style: Option<bool>,
    /// Access key and secret; `$AWS_ACCESS_KEY_ID` and `$AWS_SECRET_ACCESS_KEY` if there are none.
    pub keys: Option<(String, Secret)>,
    /// Longest time for one request with all its repetitions, in seconds.
    pub deadline: f64,
}

/// Text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
