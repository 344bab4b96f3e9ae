//! Where a process finds its settings: the environment first, then the configuration files.
//!
//! ```text
//!  FERMATA_NAME ─► the file that FERMATA_CONFIG names                                    ─► default
//!               └► $XDG_CONFIG_HOME/fermata/fermata.toml ─► /etc/fermata/fermata.toml   ─┘
//! ```
//! Commands and the daemon read the files once, when they start. Workers and the library in the program read no file:
//! the daemon gives them what is theirs through the environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::check::{CONFIG, FOR_WORKERS, UnknownSetting, WrongSetting, check_environment};
use super::file::{self, File, FileError};
use super::table::{Reader, SETTINGS, Setting};

/// The file of the whole machine.
const SYSTEM: &str = "/etc/fermata/fermata.toml";
/// A file without settings.
const NOTHING: &str = "/dev/null";

static FILES: OnceLock<Vec<File>> = OnceLock::new();

/// The settings of a process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// One of the environment.
    #[error(transparent)]
    Environment(#[from] WrongSetting),
    /// A configuration file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file that was asked for is not there.
    #[error("`FERMATA_CONFIG` is `{}`, and there is no such file", .0.display())]
    Missing(PathBuf),
}

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A variable of the environment.
    Environment,
    /// A line of a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// It is not set.
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Environment => f.write_str("environment"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Reads this process's configuration files and checks its environment: once, when it starts. Returns variables that are
/// named like settings and are none.
///
/// # Errors
/// The first setting with a wrong value, or a file that cannot be used.
pub fn load() -> Result<Vec<UnknownSetting>, SettingsError> {
    let unknown = check_environment()?;
    let files = read(&|name| std::env::var_os(name).filter(|it| !it.is_empty()))?;
    // The first reading counts.
    let _ = FILES.set(files);
    Ok(unknown)
}

/// The value of setting `name` in this process and where it comes from.
pub fn find(name: &str) -> (Option<OsString>, Origin) {
    let files = FILES.get().map_or(&[][..], Vec::as_slice);
    find_in(std::env::var_os(name), files, name)
}

/// The value of setting `name` in this process; `None` if it is not set.
pub fn value(name: &str) -> Option<OsString> {
    find(name).0
}

/// Adds what the configuration files say for workers and programs to a program's environment that does not say it.
pub fn complete(environment: &mut Vec<(OsString, OsString)>) {
    let files = FILES.get().map_or(&[][..], Vec::as_slice);
    complete_from(files, environment);
}

fn find_in(
    environment: Option<OsString>,
    files: &[File],
    name: &str,
) -> (Option<OsString>, Origin) {
    if let Some(value) = environment.filter(|it| !it.is_empty()) {
        return (Some(value), Origin::Environment);
    }
    for file in files {
        if let Some(entry) = file.entry(name) {
            let (path, line) = (file.path.clone(), entry.line);
            return (Some(entry.value.clone()), Origin::File { path, line });
        }
    }
    (None, Origin::Default)
}

fn complete_from(files: &[File], environment: &mut Vec<(OsString, OsString)>) {
    let for_programs =
        |it: &&Setting| matches!(it.reader, Reader::Worker | Reader::Program | Reader::Start);
    for setting in SETTINGS.iter().filter(for_programs) {
        let names = [
            setting.name.to_owned(),
            format!("{FOR_WORKERS}{}", setting.name),
        ];
        let is_set = |(name, value): &(OsString, OsString)| {
            names.iter().any(|it| OsStr::new(it) == name) && !value.is_empty()
        };
        if environment.iter().any(is_set) {
            continue;
        }
        if let (Some(value), _) = find_in(None, files, setting.name) {
            environment.retain(|(name, _)| name != OsStr::new(setting.name));
            environment.push((setting.name.into(), value));
        }
    }
}

/// The files of a process with this environment, the first one counts most.
fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<File>, SettingsError> {
    if let Some(named) = variable(CONFIG).map(PathBuf::from) {
        if named == Path::new(NOTHING) {
            return Ok(Vec::new());
        }
        let file = File::read(&named)?.ok_or(SettingsError::Missing(named))?;
        return Ok(vec![file]);
    }
    let files = searched(variable).into_iter().map(|path| File::read(&path));
    let found: Result<Vec<Option<File>>, FileError> = files.collect();
    Ok(found?.into_iter().flatten().collect())
}

/// Where files are looked for if none is named.
fn searched(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|it| it.is_absolute())
    };
    let own = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let own = own.map(|folder| folder.join("fermata/fermata.toml"));
    own.into_iter().chain([SYSTEM.into()]).collect()
}

/// A file with all settings, as comments, to begin with.
pub fn example() -> String {
    let mut text = String::from(
        "# Settings of Fermata; what a variable of the environment says goes first.\n\
         # `fermata doctor --settings` prints them with where each comes from.\n",
    );
    let own = |it: &&Setting| !it.purpose.starts_with("tests: ");
    for setting in SETTINGS.iter().filter(own) {
        let Some(key) = file::key(setting) else {
            continue;
        };
        let (purpose, usual) = (setting.purpose, setting.default.replace('`', ""));
        let allowed = setting.kind.allowed().replace('`', "");
        text += &format!("\n# {purpose} ({allowed}); if not set: {usual}\n#{key} =\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::parse(Path::new(path), text).expect("a file")
    }

    #[test]
    fn the_environment_goes_before_the_users_file_and_that_before_the_systems() {
        let files = [
            file("/u", "cache = 2\nspare_workers = 3"),
            file("/s", "cache = 4\nlog_limit = 5"),
        ];
        let found = |environment: Option<&str>, name| {
            let (value, origin) = find_in(environment.map(OsString::from), &files, name);
            let value = value.map(|it| it.to_string_lossy().into_owned());
            format!("{} {origin}", value.unwrap_or_default())
        };
        assert_eq!(found(Some("1"), "FERMATA_CACHE"), "1 environment");
        assert_eq!(found(Some(""), "FERMATA_CACHE"), "2 /u:1");
        assert_eq!(found(None, "FERMATA_SPARE_WORKERS"), "3 /u:2");
        assert_eq!(found(None, "FERMATA_LOG_LIMIT"), "5 /s:2");
        assert_eq!(found(None, "FERMATA_CRIU"), " default");
    }

    #[test]
    fn files_are_looked_for_where_the_documentation_says() {
        let looked = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(it, _)| *it == name);
            searched(&|name| find(name).map(|(_, value)| OsString::from(value)))
        };
        let (home, config) = (("HOME", "/h"), ("XDG_CONFIG_HOME", "/c"));
        let system = || PathBuf::from(SYSTEM);
        assert_eq!(
            looked(&[home]),
            ["/h/.config/fermata/fermata.toml".into(), system()]
        );
        assert_eq!(
            looked(&[home, config]),
            ["/c/fermata/fermata.toml".into(), system()]
        );
        assert_eq!(looked(&[]), [system()]);
    }

    #[test]
    fn a_file_that_is_named_is_the_only_one_and_must_be_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, named) = (folder.path().join("fermata"), folder.path().join("x.toml"));
        std::fs::create_dir(&own).expect("made");
        std::fs::write(own.join("fermata.toml"), "cache = 1").expect("written");
        let files = |config: Option<&Path>| {
            let folder = folder.path();
            read(&|name| match name {
                "XDG_CONFIG_HOME" => Some(folder.into()),
                CONFIG => config.map(Into::into),
                _ => None,
            })
        };
        assert!(matches!(files(Some(&named)), Err(SettingsError::Missing(it)) if it == named));
        std::fs::write(&named, "cache = 2").expect("written");
        let paths = |files: Vec<File>| files.into_iter().map(|it| it.path).collect::<Vec<_>>();
        assert_eq!(paths(files(Some(&named)).expect("read")), [named]);
        assert!(files(Some(Path::new(NOTHING))).expect("read").is_empty());
        assert!(paths(files(None).expect("read")).contains(&own.join("fermata.toml")));
    }

    #[test]
    fn programs_get_what_is_theirs_unless_they_have_it() {
        let files = [file(
            "/s",
            "softgpu_devices = 2\nwrite_rate = '1G'\nhost_buffer = 9\ncache = 7",
        )];
        let mut environment: Vec<(OsString, OsString)> = vec![
            ("FERMATA_SOFTGPU_DEVICES".into(), "3".into()),
            ("FERMATA_WORKER_FERMATA_WRITE_RATE".into(), "2G".into()),
            ("FERMATA_HOST_BUFFER".into(), "".into()),
        ];
        complete_from(&files, &mut environment);
        let mut names: Vec<_> = environment
            .iter()
            .map(|(n, v)| format!("{}={}", n.to_string_lossy(), v.to_string_lossy()))
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "FERMATA_HOST_BUFFER=9",
                "FERMATA_SOFTGPU_DEVICES=3",
                "FERMATA_WORKER_FERMATA_WRITE_RATE=2G"
            ]
        );
    }

    #[test]
    fn the_example_is_a_file_once_its_settings_are_filled_in() {
        let text = example();
        File::parse(Path::new("/example"), &text).expect("only comments");
        for key in ["cache", "image_dir", "spare_workers", "write_rate"] {
            assert!(text.contains(&format!("\n#{key} =")), "{key}");
        }
    }
}
