//! The settings of Fermata: which there are, what values they take, and where they are read from.
//!
//! The command, the daemon, the worker and the library in the program read their settings by this table. A value that
//! a setting cannot have is an error where it is read first, never a default; a name that looks like a setting and is
//! none is told with the nearest one that there is. docs/settings.md has the same table.

mod check;
mod file;
mod sources;
mod table;
mod value;

pub use check::{UnknownSetting, WrongSetting, check, check_environment};
use check::{check_value, find};
pub use file::FileError;
pub use sources::{Origin, SettingsError, complete, example, find as find_value, load, value};
pub use table::{ALLOW, IO_URING, Kind, Reader, SETTINGS, SYSTEM_V, Setting};
pub use value::bytes_of;

/// The number that setting `name` has in this process, a count or bytes; none if it is not set.
///
/// # Errors
/// It is no such number.
pub fn number(name: &str) -> Result<Option<u64>, WrongSetting> {
    let Some(value) = value(name) else {
        return Ok(None);
    };
    if let Some(setting) = find(name) {
        check_value(setting, name, &value)?;
    }
    Ok(value.to_str().and_then(bytes_of))
}

/// Whether setting `name`, which is 0 or 1, is 1 in this process; what holds if it is not set, or has no such value, is in the table.
pub fn is_on(name: &str) -> bool {
    let by_default = find(name).is_some_and(|it| it.default == "1");
    let given = number(name).ok().flatten();
    given.map_or(by_default, |it| it == 1)
}

/// The table of docs/settings.md: a line for each setting that users have.
pub fn document() -> String {
    let mut text = String::from(
        "| setting | read by | value | what it does | if not set |\n| --- | --- | --- | --- | --- |\n",
    );
    for setting in public() {
        text.push_str(&format!(
            "| `{}` | {} | {} | {} | {} |\n",
            setting.name,
            setting.reader.name(),
            setting.kind.allowed(),
            setting.purpose,
            setting.default
        ));
    }
    text
}

/// The settings that users have.
pub fn public() -> impl Iterator<Item = &'static Setting> {
    let public = |it: &&Setting| it.reader != Reader::Fermata && it.reader != Reader::Build;
    SETTINGS.iter().filter(public)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn checked(name: &str, value: &str) -> Result<Vec<UnknownSetting>, WrongSetting> {
        check([(OsStr::new(name), OsStr::new(value))].into_iter())
    }

    #[test]
    fn wrong_values_name_the_setting_the_value_and_what_is_allowed() {
        for (name, bad, good) in [
            ("FERMATA_CACHE", "lots", "41G"),
            ("FERMATA_SPARE_WORKERS", "-1", "0"),
            ("FERMATA_SPARE_WORKERS", "1.5", "2"),
            ("FERMATA_PARK_SIGNAL", "65", "40"),
            ("FERMATA_CRIU", "criu", "/usr/sbin/criu"),
            ("FERMATA_SOFTGPU_DEVICES", "65", "4"),
            ("FERMATA_SOFTGPU_COMPUTE_CAPABILITY", "9", "9.0"),
            ("FERMATA_WORKER_FERMATA_WRITE_RATE", "fast", "1G"),
        ] {
            let wrong = checked(name, bad).expect_err(name);
            let text = wrong.to_string();
            assert!(
                text.contains(name) && text.contains(bad) && text.contains("must be"),
                "{text}"
            );
            assert_eq!(checked(name, good), Ok(Vec::new()), "{name}={good}");
            assert_eq!(checked(name, ""), Ok(Vec::new()), "{name} is empty");
        }
    }

    #[test]
    fn unknown_names_are_told_with_the_nearest() {
        let unknown = |name| checked(name, "1").expect("no wrong value");
        assert_eq!(unknown("FERMATA_CASHE")[0].nearest, Some("FERMATA_CACHE"),);
        assert!(
            unknown("FERMATA_CASHE")[0]
                .to_string()
                .contains("did you mean")
        );
        assert_eq!(unknown("FERMATA_ZZZZZZZZZZ")[0].nearest, None);
        for other in [
            "HOME",
            "FERMATA_TEST_X",
            "FERMATA_WORKER_X",
            "FERMATA_BUILD",
        ] {
            assert_eq!(unknown(other), []);
        }
    }

    #[test]
    fn the_documentation_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
        let text = std::fs::read_to_string(path).expect("docs/settings.md");
        assert!(
            text.contains(&document()),
            "docs/settings.md must have this table:\n{}",
            document()
        );
    }
}
