//! The configuration as TOML.

use serde::Deserialize;

use super::job::{Config, Interval, StageSchedule};
use super::nearest::nearest;
use super::object::{KEYS, RawObject};
use crate::{AppError, Result};

const TOP: [&str; 19] = [
    "name",
    "interval",
    "between_failures",
    "downtime",
    "keep_last",
    "block_bytes",
    "background",
    "staging_bytes",
    "keep_at_end",
    "recover",
    "hash_host_on_gpu",
    "verify_blocks",
    "deadline",
    "local",
    "partner",
    "erasure",
    "shared",
    "object",
    "stage",
];
/// Tables and their keys.
const TABLES: [(&str, &[&str]); 6] = [
    ("local", &["local.folders"]),
    ("partner", &["partner.every"]),
    (
        "erasure",
        &["erasure.every", "erasure.group", "erasure.losses"],
    ),
    ("shared", &["shared.folder", "shared.every"]),
    ("object", KEYS),
    ("stage", &["stage.device_bytes", "stage.schedule"]),
];

#[derive(Deserialize, Default)]
#[serde(default)]
struct Raw {
    name: Option<String>,
    interval: Option<RawInterval>,
    between_failures: Option<f64>,
    downtime: Option<f64>,
    keep_last: Option<u32>,
    block_bytes: Option<u32>,
    background: Option<bool>,
    staging_bytes: Option<u64>,
    keep_at_end: Option<bool>,
    recover: Option<bool>,
    hash_host_on_gpu: Option<bool>,
    verify_blocks: Option<bool>,
    deadline: Option<f64>,
    local: RawLocal,
    partner: RawLevel,
    erasure: RawErasure,
    shared: RawLevel,
    object: RawObject,
    stage: RawStage,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLocal {
    folders: Vec<std::path::PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLevel {
    folder: Option<std::path::PathBuf>,
    every: u32,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawErasure {
    every: u32,
    group: Option<u32>,
    losses: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStage {
    device_bytes: u64,
    schedule: StageSchedule,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawInterval {
    Seconds(f64),
    Word(String),
}

pub(super) fn parse(text: &str, from: &str) -> Result<Config> {
    let wrong = |what: String| AppError::Config {
        from: from.into(),
        what,
    };
    let table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| wrong(e.to_string()))?;
    for (key, value) in &table {
        if !TOP.contains(&key.as_str()) {
            return Err(unknown(from, key, &TOP));
        }
        let known = TABLES.iter().find(|(name, _)| name == key);
        if let (Some((_, keys)), Some(inner)) = (known, value.as_table()) {
            for name in inner.keys().map(|inner| format!("{key}.{inner}")) {
                if !keys.contains(&name.as_str()) {
                    return Err(unknown_within(from, name, keys));
                }
            }
        }
    }
    let raw: Raw = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let mut c = Config::default();
    c.interval = match raw.interval {
        None => c.interval,
        Some(RawInterval::Seconds(s)) => Interval::Seconds(s),
        Some(RawInterval::Word(w)) if w == "auto" => Interval::Auto,
        Some(RawInterval::Word(w)) if w == "never" => Interval::Never,
        Some(RawInterval::Word(w)) => {
            return Err(wrong(format!(
                "`interval` is \"{w}\"; it can be a number of seconds, \"auto\" or \"never\""
            )));
        }
    };
    macro_rules! take {
        ($($field:ident),*) => { $(if let Some(value) = raw.$field { c.$field = value; })* };
    }
    take!(
        name,
        between_failures,
        downtime,
        keep_last,
        block_bytes,
        background,
        staging_bytes,
        keep_at_end,
        recover,
        hash_host_on_gpu,
        verify_blocks,
        deadline
    );
    c.local = raw.local.folders;
    c.shared = raw.shared.folder;
    c.erasure_group = raw.erasure.group.unwrap_or(c.erasure_group);
    c.erasure_losses = raw.erasure.losses.unwrap_or(c.erasure_losses);
    c.stage_bytes = raw.stage.device_bytes;
    c.stage_schedule = raw.stage.schedule;
    c.every[2] = raw.partner.every;
    c.every[3] = raw.erasure.every;
    c.every[4] = raw.shared.every;
    c.every[5] = raw.object.every;
    c.object = raw.object.config().map_err(wrong)?;
    Ok(c)
}

fn unknown(from: &str, key: &str, known: &[&'static str]) -> AppError {
    AppError::UnknownKey {
        from: from.into(),
        key: key.into(),
        near: nearest(key, known),
    }
}

/// A key of a table. What follows a table's name in the file belongs to it, so one of no table or of another may be
/// meant.
fn unknown_within(from: &str, name: String, keys: &[&'static str]) -> AppError {
    let last = name.rsplit('.').next().unwrap_or(&name);
    let elsewhere = || {
        let all = TABLES.iter().flat_map(|(_, keys)| keys.iter().copied());
        let same = |key: &&str| key.rsplit('.').next() == Some(last);
        nearest(last, &TOP).or_else(|| all.into_iter().find(same))
    };
    AppError::UnknownKey {
        near: nearest(&name, keys).or_else(elsewhere),
        from: from.into(),
        key: name,
    }
}
