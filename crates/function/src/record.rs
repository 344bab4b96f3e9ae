//! What a function is on disk: an image, and where its program listens.
//!
//! ```text
//!  IMAGES/.functions/NAME.json   FunctionRecord: replaced as a whole, for its owner only
//!         NAME-function-1/       the image
//! ```
//! An image that is removed leaves its record, which says what is missing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fermata_control::user::Endpoint;
use fermata_store::image::check_name;
use fermata_store::{StoreError, make_folder, read_limited};
use serde::{Deserialize, Serialize};

/// Folder of the records in the folder of images.
const FOLDER: &str = ".functions";
/// Version of the file.
const VERSION: u32 = 1;
/// The most bytes that a record may have.
const MOST_BYTES: u64 = 1 << 20;

/// A function as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionRecord {
    /// Version of the file.
    pub version: u32,
    /// The function's name.
    pub name: String,
    /// The image's folder.
    #[serde(with = "fermata_control::text::path")]
    pub image: PathBuf,
    /// Where the program listens.
    pub listens: Endpoint,
    /// Program and arguments. Its environment is in the image, with the rest of its memory.
    pub argv: Vec<String>,
    /// Working folder.
    pub cwd: String,
    /// When it was made, as RFC 3339 has it.
    pub created: String,
}

/// Why a function cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is none of that name.
    #[error("there is no function `{0}`")]
    NotFound(String),
    /// The name cannot be one of a file.
    #[error("`{0}` cannot be the name of a function")]
    BadName(String),
    /// The file is not what this release writes.
    #[error("cannot understand `{}`", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A later release has written it.
    #[error("`{}` was written by a later release (version {version})", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The folder or the file cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system refuses an operation.
    #[error("cannot {operation} `{}`", .path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The functions in a folder of images.
#[derive(Debug, Clone)]
pub struct Functions {
    folder: PathBuf,
}

impl FunctionRecord {
    /// Of this release's version.
    pub fn new(name: &str, image: &Path, listens: Endpoint, created: String) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            image: image.into(),
            listens,
            argv: Vec::new(),
            cwd: String::new(),
            created,
        }
    }
}

impl Functions {
    /// Those whose images are in `images`.
    pub fn of(images: &Path) -> Self {
        Self {
            folder: images.join(FOLDER),
        }
    }

    /// The function of that name.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn load(&self, name: &str) -> Result<FunctionRecord, RecordError> {
        let path = self.path(name)?;
        if fs::symlink_metadata(&path).is_err_and(|it| it.kind() == io::ErrorKind::NotFound) {
            return Err(RecordError::NotFound(name.to_owned()));
        }
        let bytes = read_limited(&path, MOST_BYTES)?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |source| RecordError::Damaged {
            path: path.clone(),
            source,
        };
        let Version { version } = serde_json::from_slice(&bytes).map_err(damaged)?;
        if version > VERSION {
            return Err(RecordError::Newer { path, version });
        }
        serde_json::from_slice(&bytes).map_err(damaged)
    }

    /// The names of all functions, sorted.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>, RecordError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|source| self.failed("read the folder", source))?,
        };
        let names = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_suffix(".json")?.to_owned();
            check_name(&name).ok().map(|()| name)
        });
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Writes a function down, in place of one of its name.
    ///
    /// # Errors
    /// The folder cannot be written; what was there stays.
    pub fn save(&self, record: &FunctionRecord) -> Result<(), RecordError> {
        let path = self.path(&record.name)?;
        make_folder(&self.folder)?;
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            file.write_all(&serde_json::to_vec_pretty(record)?)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|source| RecordError::Io {
            operation: "write",
            path: path.clone(),
            source,
        })
    }

    /// Removes a function; its image is as it was.
    ///
    /// # Errors
    /// There is none, or its file cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), RecordError> {
        let path = self.path(name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(RecordError::NotFound(name.to_owned()))
            }
            other => other.map_err(|source| RecordError::Io {
                operation: "remove",
                path,
                source,
            }),
        }
    }

    fn path(&self, name: &str) -> Result<PathBuf, RecordError> {
        check_name(name).map_err(|_| RecordError::BadName(name.to_owned()))?;
        Ok(self.folder.join(format!("{name}.json")))
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> RecordError {
        RecordError::Io {
            operation,
            path: self.folder.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn record(name: &str) -> FunctionRecord {
        let listens = Endpoint::Tcp(([127, 0, 0, 1], 8000).into());
        FunctionRecord::new(name, Path::new("/images/x"), listens, "now".to_owned())
    }

    #[test]
    fn a_function_is_found_as_it_was_written_and_by_its_owner_only() {
        let images = tempfile::tempdir().expect("a folder");
        let functions = Functions::of(images.path());
        assert_eq!(functions.names().expect("none"), [""; 0]);
        for name in ["b", "a"] {
            functions.save(&record(name)).expect("written");
        }
        assert_eq!(functions.names().expect("names"), ["a", "b"]);
        assert_eq!(functions.load("a").expect("read"), record("a"));
        let file = images.path().join(".functions/a.json");
        let mode = fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = FunctionRecord {
            listens: Endpoint::Unix("@name".into()),
            ..record("a")
        };
        functions.save(&other).expect("replaced");
        assert_eq!(functions.load("a").expect("read"), other);
        functions.remove("a").expect("removed");
        assert!(matches!(functions.load("a"), Err(RecordError::NotFound(_))));
        assert!(matches!(
            functions.remove("a"),
            Err(RecordError::NotFound(_))
        ));
    }

    #[test]
    fn bad_names_and_bad_files_are_errors_that_name_them() {
        let images = tempfile::tempdir().expect("a folder");
        let functions = Functions::of(images.path());
        for name in ["", "../x", ".x", "a/b"] {
            assert!(
                matches!(functions.load(name), Err(RecordError::BadName(_))),
                "{name}"
            );
        }
        functions.save(&record("a")).expect("written");
        let file = images.path().join(".functions/a.json");
        fs::write(&file, "{\"version\": 9}").expect("written");
        assert!(matches!(
            functions.load("a"),
            Err(RecordError::Newer { version: 9, .. })
        ));
        fs::write(&file, "{\"version\": 1}").expect("written");
        let text = functions.load("a").expect_err("damaged").to_string();
        assert!(text.contains("a.json"), "{text}");
    }
}
