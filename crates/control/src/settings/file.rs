//! Reads one configuration file: TOML with a line `key = value` for each setting.
//!
//! A key is the name of a setting without `FERMATA_`, in lower case. Every key and value is checked, whether this
//! process uses the setting or not. An error names the file, the line and the key.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::check::{CONFIG, PREFIX, SIMILAR};
use super::table::{Kind, Reader, SETTINGS, Setting};
use crate::trust::{self, TrustError};

/// A configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the configuration file `{}`", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Somebody else can change it.
    #[error("cannot trust the configuration file")]
    Trust(#[from] TrustError),
    /// A line of it is wrong.
    #[error("`{}`, line {line}: {what}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
}

/// A setting of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) setting: &'static Setting,
    pub(super) value: OsString,
    /// The line, from 1.
    pub(super) line: usize,
}

/// The settings of one file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) entries: Vec<Entry>,
}

impl File {
    /// Reads the file at `path`; `None` if there is none.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, FileError> {
        match trust::check_file(path) {
            Err(e) if e.is_absent() => return Ok(None),
            checked => checked?,
        }
        let text = fs::read_to_string(path).map_err(|source| FileError::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(path, &text).map(Some)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let wrong = |at: Range<usize>, what: String| FileError::Line {
            path: path.into(),
            line: line_of(text, at.start),
            what,
        };
        let table = DeTable::parse(text).map_err(|e| {
            let at = e.span().unwrap_or(0..0);
            wrong(at, e.message().replace('\n', ", "))
        })?;
        let mut entries = Vec::new();
        for (key, value) in table.get_ref() {
            let name: &str = key.get_ref();
            let setting = find(name).map_err(|what| wrong(key.span(), what))?;
            let value = value_of(setting, name, value).map_err(|what| wrong(value.span(), what))?;
            let line = line_of(text, key.span().start);
            entries.push(Entry {
                setting,
                value,
                line,
            });
        }
        let path = path.into();
        Ok(Self { path, entries })
    }

    /// What it says of setting `name`.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|it| it.setting.name == name)
    }
}

/// The key of a setting; `None` if a file cannot have it.
pub(super) fn key(setting: &Setting) -> Option<String> {
    let readers = [
        Reader::All,
        Reader::Daemon,
        Reader::Worker,
        Reader::Program,
        Reader::Start,
    ];
    // The file does not say where it is.
    let possible = readers.contains(&setting.reader) && setting.name != CONFIG;
    let key = setting.name.strip_prefix(PREFIX)?.to_ascii_lowercase();
    possible.then_some(key)
}

fn find(name: &str) -> Result<&'static Setting, String> {
    let mut keys = SETTINGS.iter().filter_map(|it| Some((key(it)?, it)));
    if let Some((_, setting)) = keys.find(|(key, _)| key == name) {
        return Ok(setting);
    }
    let nearest = SETTINGS
        .iter()
        .filter_map(key)
        .map(|key| (strsim::levenshtein(name, &key), key))
        .min()
        .filter(|(distance, _)| *distance <= SIMILAR);
    Err(match nearest {
        Some((_, nearest)) => format!("there is no key `{name}`; did you mean `{nearest}`?"),
        None => format!("there is no key `{name}`"),
    })
}

/// The value as the environment would have it.
fn value_of(
    setting: &Setting,
    name: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<OsString, String> {
    let refused = |shown: &str| {
        let allowed = match setting.kind {
            Kind::Path => Kind::AbsolutePath.allowed(),
            kind => kind.allowed(),
        };
        format!("`{name}` is `{shown}`, and must be {allowed}")
    };
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        other => return Err(refused(other.type_str())),
    };
    let value = OsString::from(&text);
    // A relative path would depend on the folder in which a command happens to be called.
    let takes = match setting.kind {
        Kind::Path => setting.kind.takes(&value) && Kind::AbsolutePath.takes(&value),
        kind => !text.is_empty() && kind.takes(&value),
    };
    takes.then_some(value).ok_or_else(|| refused(&text))
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    before.matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, String> {
        File::parse(Path::new("/etc/fermata.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_are_the_names_of_settings() {
        let text = "# ours\nspare_workers = 4\ncache = \"16G\"\nimage_dir = '/data'\n\
                    softgpu_compute_capability = 8.0\nmemory_tier = 1_024\n";
        let file = parse(text).expect("a file");
        let value = |name| {
            file.entry(name)
                .map(|it| (it.value.to_str().unwrap_or(""), it.line))
        };
        assert_eq!(value("FERMATA_SPARE_WORKERS"), Some(("4", 2)));
        assert_eq!(value("FERMATA_CACHE"), Some(("16G", 3)));
        assert_eq!(value("FERMATA_IMAGE_DIR"), Some(("/data", 4)));
        assert_eq!(
            value("FERMATA_SOFTGPU_COMPUTE_CAPABILITY"),
            Some(("8.0", 5))
        );
        assert_eq!(value("FERMATA_MEMORY_TIER"), Some(("1024", 6)));
        assert_eq!(value("FERMATA_CRIU"), None);
    }

    #[test]
    fn wrong_keys_and_values_name_file_line_and_key() {
        for (text, line, words) in [
            ("\ncashe = 1", 2, &["`cashe`", "did you mean `cache`?"][..]),
            ("library = '/x'", 1, &["no key `library`"]),
            ("config = '/x'", 1, &["no key `config`"]),
            ("build = '/x'", 1, &["no key `build`"]),
            ("[daemon]\ncache = 1", 1, &["no key `daemon`"]),
            (
                "cache = 'lots'",
                1,
                &["`cache` is `lots`", "a number of bytes"],
            ),
            ("cache = ''", 1, &["`cache` is ``"]),
            ("cache = true", 1, &["`cache` is `boolean`"]),
            ("cache = 0x10", 1, &["`cache`"]),
            (
                "image_dir = 'images'",
                1,
                &["`image_dir` is `images`", "an absolute path"],
            ),
            ("cache = 1\ncache = 2", 2, &["duplicate key"]),
            ("cache = 1\n\nlog_dir =", 3, &[]),
        ] {
            let error = parse(text).expect_err(text);
            let place = format!("`/etc/fermata.toml`, line {line}: ");
            assert!(error.starts_with(&place), "{text}: {error}");
            for word in words {
                assert!(error.contains(word), "{text}: {error}");
            }
        }
    }

    #[test]
    fn a_file_that_others_can_change_is_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fermata.toml");
        assert!(File::read(&path).expect("nothing to read").is_none());
        fs::write(&path, "cache = 1\n").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        assert_eq!(
            File::read(&path).expect("read").map(|it| it.entries.len()),
            Some(1)
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("set");
        let refused = File::read(&path).expect_err("not read");
        assert!(
            matches!(&refused, FileError::Trust(TrustError::Mode { .. })),
            "{refused:?}"
        );
    }
}
