//! Which names and values are settings, and what is told of those that are not.

use std::ffi::{OsStr, OsString};

use super::table::{Reader, SETTINGS, Setting};

/// What a setting's name begins with.
pub(super) const PREFIX: &str = "FERMATA_";
/// The setting that names the configuration file.
pub(super) const CONFIG: &str = "FERMATA_CONFIG";
/// `FERMATA_WORKER_NAME` is `NAME` for a session's worker.
pub(super) const FOR_WORKERS: &str = "FERMATA_WORKER_";
/// Names of tests, benchmarks and builds begin so.
const OF_TESTS: [&str; 5] = [
    "FERMATA_TEST_",
    "FERMATA_BENCH_",
    "FERMATA_FUZZ_",
    "FERMATA_E2E_",
    "FERMATA_DEMO_",
];
/// A name this similar to a setting's may be meant for it.
pub(super) const SIMILAR: usize = 3;

/// A setting has a value that it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is `{value}`, and must be {allowed}")]
pub struct WrongSetting {
    /// The setting.
    pub name: String,
    /// What it is set to.
    pub value: String,
    /// What it can be.
    pub allowed: &'static str,
}

/// A variable that is named like a setting and is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSetting {
    /// Its name.
    pub name: String,
    /// The setting that may be meant.
    pub nearest: Option<&'static str>,
}

impl std::fmt::Display for UnknownSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "`{}` is no setting of Fermata and has no effect",
            self.name
        )?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean `{nearest}`?"),
            None => Ok(()),
        }
    }
}

/// Checks all settings among `variables`; returns the names that look like settings.
///
/// # Errors
/// The first setting with a value that it cannot have.
pub fn check<'a>(
    variables: impl Iterator<Item = (&'a OsStr, &'a OsStr)>,
) -> Result<Vec<UnknownSetting>, WrongSetting> {
    let mut unknown = Vec::new();
    for (full, value) in variables {
        let Some(full) = full.to_str() else { continue };
        let name = full.strip_prefix(FOR_WORKERS).unwrap_or(full);
        if !name.starts_with(PREFIX) || OF_TESTS.iter().any(|it| name.starts_with(it)) {
            continue;
        }
        match find(name) {
            Some(setting) => check_value(setting, full, value)?,
            None => unknown.push(UnknownSetting {
                name: full.to_owned(),
                nearest: nearest(name),
            }),
        }
    }
    Ok(unknown)
}

/// As [`check`], of this process's environment.
///
/// # Errors
/// As there.
pub fn check_environment() -> Result<Vec<UnknownSetting>, WrongSetting> {
    let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    check(variables.iter().map(|(name, value)| (&**name, &**value)))
}

/// The setting of this name.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// Refuses a value that the setting, which was given as `name`, cannot have.
pub(super) fn check_value(
    setting: &Setting,
    name: &str,
    value: &OsStr,
) -> Result<(), WrongSetting> {
    // An empty variable counts as none.
    if value.is_empty() || setting.kind.takes(value) {
        return Ok(());
    }
    Err(WrongSetting {
        name: name.to_owned(),
        value: value.to_string_lossy().into_owned(),
        allowed: setting.kind.allowed(),
    })
}

fn nearest(name: &str) -> Option<&'static str> {
    let distances = SETTINGS
        .iter()
        .filter(|setting| setting.reader != Reader::Fermata)
        .map(|setting| (strsim::levenshtein(name, setting.name), setting.name));
    distances
        .min()
        .filter(|(distance, _)| *distance <= SIMILAR)
        .map(|(_, nearest)| nearest)
}
