//! The daemon's own log: one line per event, in a file of limited size in the runtime folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fermata_store::image::{rfc3339, unix_now};
use parking_lot::Mutex;

/// A log beyond this is moved aside, replacing the one moved before.
const LIMIT_BYTES: u64 = 4 << 20;

/// The log.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: Mutex<File>,
}

impl Log {
    /// Appends to the log at `path`.
    ///
    /// # Errors
    /// It cannot be created or written.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let file = Mutex::new(append(&path)?);
        Ok(Self { path, file })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one line. A full disk loses it; the daemon goes on.
    pub fn line(&self, text: &str) {
        let mut file = self.file.lock();
        let line = format!("{} {}\n", rfc3339(unix_now()), text.replace('\n', " "));
        let _ = file.write_all(line.as_bytes());
        if file.metadata().is_ok_and(|m| m.len() > LIMIT_BYTES) {
            let _ = std::fs::rename(&self.path, self.path.with_extension("log.1"));
            if let Ok(new) = append(&self.path) {
                *file = new;
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}
