//! Folders in which a program has sockets and temporary files. CRIU makes the sockets again at their paths, but not the folders,
//! which may be gone by then: programs remove those that they have made when they end, and another machine never had them.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, FileType};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::owner::Owner;
use crate::criu;

/// The list, in the folder of CRIU's files.
const FILE: &str = "folders.json";

/// A folder as it was at the dump.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Folder {
    #[serde(with = "fermata_control::text::path")]
    path: PathBuf,
    mode: u32,
    user: u32,
    group: u32,
}

impl Folder {
    fn owner(&self) -> Owner {
        Owner {
            user: self.user,
            group: self.group,
            mode: self.mode,
        }
    }
}

/// What is noted down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Noted {
    /// The outer ones first.
    folders: Vec<Folder>,
    sockets: BTreeSet<PathBuf>,
}

/// Notes down the folders that the sockets of the dump in `host`, and other `files`, are in. To be called while the program
/// stands still.
///
/// # Errors
/// CRIU's list cannot be read, or this one not be written.
pub fn note_down(host: &Path, files: impl Iterator<Item = PathBuf>) -> io::Result<()> {
    let sockets = criu::files::sockets(host)?;
    let all: Vec<PathBuf> = sockets.iter().cloned().chain(files).collect();
    let above = all.iter().flat_map(|path| path.ancestors().skip(1));
    let paths: BTreeSet<&Path> = above.collect();
    let folder = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        Some(Folder {
            path: path.into(),
            mode: meta.mode() & 0o7777,
            user: meta.uid(),
            group: meta.gid(),
        })
    };
    let folders = paths.into_iter().filter_map(folder).collect();
    let noted = Noted { folders, sockets };
    fs::write(host.join(FILE), serde_json::to_vec(&noted)?)
}

/// Folders that have been made for a restore; they and the program's sockets in them go again with this.
#[derive(Debug, Default)]
pub struct Made {
    folders: Vec<PathBuf>,
    sockets: BTreeSet<PathBuf>,
}

impl Made {
    /// Makes what is missing of the folders that were noted down in `host`.
    ///
    /// # Errors
    /// The folder that cannot be made, and why; nothing is left then.
    pub fn again(host: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let list = host.join(FILE);
        let text = match fs::read(&list) {
            Ok(text) => text,
            // Images of earlier releases have none.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err((list, e)),
        };
        let noted: Noted = serde_json::from_slice(&text).map_err(|e| (list, e.into()))?;
        let mut made = Self {
            folders: Vec::new(),
            sockets: noted.sockets,
        };
        for folder in noted.folders {
            made.add(&folder).map_err(|e| (folder.path, e))?;
        }
        Ok(made)
    }

    fn add(&mut self, folder: &Folder) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&folder.path) {
            Ok(()) => self.folders.push(folder.path.clone()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(e) => return Err(e),
        }
        folder.owner().take(&folder.path, FileType::is_dir)
    }

    /// They belong to the program from now on.
    pub fn keep(mut self) {
        self.folders.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for folder in self.folders.iter().rev() {
            for socket in self.sockets.iter().filter(|s| s.parent() == Some(folder)) {
                // CRIU may not have come so far.
                let _ = fs::remove_file(socket);
            }
            // One in which somebody has put something else meanwhile stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(host: &Path, folders: &[(&Path, u32)], sockets: &[&Path]) {
        let folder = |(path, mode): &(&Path, u32)| Folder {
            path: (*path).into(),
            mode: *mode,
            user: rustix::process::getuid().as_raw(),
            group: rustix::process::getgid().as_raw(),
        };
        let noted = Noted {
            folders: folders.iter().map(folder).collect(),
            sockets: sockets.iter().map(|path| PathBuf::from(*path)).collect(),
        };
        let text = serde_json::to_vec(&noted).expect("text");
        fs::write(host.join(FILE), text).expect("written");
    }

    #[test]
    fn what_is_missing_is_made_and_goes_with_a_failure() {
        let dir = tempfile::tempdir().expect("a folder");
        let (outer, inner) = (dir.path().join("a"), dir.path().join("a/b"));
        let (socket, other) = (inner.join("socket"), dir.path().join("socket"));
        let folders = [(dir.path(), 0o777), (&*outer, 0o755), (&*inner, 0o750)];
        noted(dir.path(), &folders, &[&socket, &other]);
        fs::write(&other, "").expect("written");
        let made = Made::again(dir.path()).expect("made");
        let mode = |path: &Path| fs::metadata(path).map(|m| m.mode() & 0o7777).ok();
        assert_eq!((mode(&outer), mode(&inner)), (Some(0o755), Some(0o750)));
        // What is there stays as it is.
        assert_ne!(mode(dir.path()), Some(0o777));
        fs::write(&socket, "").expect("written");
        drop(made);
        assert!(!outer.exists() && other.exists());
        Made::again(dir.path()).expect("made").keep();
        assert!(inner.exists());
    }

    #[test]
    fn what_cannot_be_made_is_named_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let (outer, file) = (dir.path().join("a"), dir.path().join("file"));
        fs::write(&file, "").expect("written");
        let below = file.join("b");
        noted(dir.path(), &[(&outer, 0o755), (&below, 0o755)], &[]);
        let (path, _) = Made::again(dir.path()).expect_err("refused");
        assert_eq!(path, below);
        assert!(!outer.exists());
        fs::remove_file(dir.path().join(FILE)).expect("removed");
        assert!(Made::again(dir.path()).is_ok());
    }
}
