//! Where an S3-compatible object store is, and how to get in.

use std::fmt;

use serde::Deserialize;

use super::limits::LONGEST;

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

/// The table `[object]`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawObject {
    bucket: Option<String>,
    endpoint: Option<String>,
    region: Option<String>,
    prefix: String,
    path_style: Option<bool>,
    access_key: Option<String>,
    secret_key: Option<String>,
    deadline: Option<f64>,
    pub(super) every: u32,
}

/// The table's keys.
pub(super) const KEYS: &[&str] = &[
    "object.bucket",
    "object.endpoint",
    "object.region",
    "object.prefix",
    "object.path_style",
    "object.access_key",
    "object.secret_key",
    "object.deadline",
    "object.every",
];

impl RawObject {
    /// What it says; `None` if it names no bucket. The error is what is wrong with it.
    pub(super) fn config(self) -> Result<Option<ObjectConfig>, String> {
        let keys = match (self.access_key, self.secret_key) {
            (Some(key), Some(secret)) => Some((key, Secret(secret))),
            (None, None) => None,
            _ => return Err("`object.access_key` and `object.secret_key` go together".into()),
        };
        let deadline = self.deadline.unwrap_or(60.0);
        if !(deadline > 0.0 && deadline <= LONGEST) {
            return Err(format!(
                "`object.deadline` must be a positive number of seconds, at most {:e}",
                LONGEST
            ));
        }
        Ok(self.bucket.map(|bucket| ObjectConfig {
            bucket,
            endpoint: self.endpoint,
            region: self.region,
            prefix: self.prefix,
            path_style: self.path_style,
            keys,
            deadline,
        }))
    }
}
