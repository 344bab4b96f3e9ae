//! The table `[object]` of a configuration.

use fermata_object::{DEADLINE, ObjectConfig, Secret};
use serde::Deserialize;

use super::limits::LONGEST;

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
        let deadline = self.deadline.unwrap_or(DEADLINE);
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
