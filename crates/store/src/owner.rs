//! Whether somebody else could have written, or could change, what is about to be used.
//!
//! A program that is restored does what its image says, with the rights of the user that restores it. So every file and
//! folder of an image, and of its store, must belong to that user or to root, and no other user may be able to write to
//! it. Write permission for others counts where they can reach the file: not behind a folder that they cannot enter.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::image::Image;
use crate::{Result, Store, StoreError};

const SEARCH: u32 = 0o011;
const WRITE: u32 = 0o022;

/// Users whose files are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    user: u32,
}

impl Owners {
    /// The user of this process, and root.
    pub fn trusted() -> Self {
        Self::with(rustix::process::geteuid().as_raw())
    }

    /// `user`, and root.
    pub fn with(user: u32) -> Self {
        Self { user }
    }

    /// Checks every file and folder of an image.
    ///
    /// # Errors
    /// `NotTrusted`, naming the file or folder and who could change it; `Io`.
    pub fn check_image(self, image: &Image) -> Result<()> {
        self.check_tree(image.dir())
    }

    /// Checks the folders of a store, its indexes and its packs.
    ///
    /// # Errors
    /// As [`Self::check_image`].
    pub fn check_store(self, store: &Store) -> Result<()> {
        let reach = self.check(store.dir(), SEARCH)?;
        self.check(&store.dir().join("version"), reach)?;
        let mut folders = [store.index_dir(), store.packs_dir()].into_iter();
        folders.try_for_each(|folder| self.check_below(&folder, reach))
    }

    /// Checks a folder and all that is in it.
    fn check_tree(self, folder: &Path) -> Result<()> {
        self.check_below(folder, SEARCH)
    }

    fn check_below(self, folder: &Path, reach: u32) -> Result<()> {
        let mut folders = vec![(folder.to_owned(), reach)];
        while let Some((folder, reach)) = folders.pop() {
            let reach = self.check(&folder, reach)?;
            let io = |e| StoreError::io("list", &folder, 0, e);
            for entry in std::fs::read_dir(&folder).map_err(io)? {
                let entry = entry.map_err(io)?;
                match entry.file_type().map_err(io)?.is_dir() {
                    true => folders.push((entry.path(), reach)),
                    false => drop(self.check(&entry.path(), reach)?),
                }
            }
        }
        Ok(())
    }

    /// Checks one file or folder, which only those of `reach` (bits as in [`SEARCH`]) can come to; the answer is who can
    /// come to what is in it.
    fn check(self, path: &Path, reach: u32) -> Result<u32> {
        let meta = match path.symlink_metadata() {
            // A profile is written anew while the program runs, and a store needs not all of its folders.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            other => other.map_err(|e| StoreError::io("examine", path, 0, e))?,
        };
        let (owner, mode) = (meta.uid(), meta.mode());
        if owner != self.user && owner != 0 {
            return not_trusted(path, format!("it belongs to user {owner}"));
        }
        let reach = reach & if meta.is_dir() { mode } else { SEARCH };
        // Permissions of a link mean nothing.
        let writers = mode & WRITE & (reach << 1);
        if writers != 0 && !meta.is_symlink() {
            let who = who(&meta, writers);
            return not_trusted(
                path,
                format!("{who} can write to it (mode {:04o})", mode & 0o7777),
            );
        }
        Ok(reach & SEARCH)
    }
}

fn who(meta: &Metadata, writers: u32) -> String {
    match writers & 0o002 {
        0 => format!("group {}", meta.gid()),
        _ => "everybody".to_owned(),
    }
}

fn not_trusted<T>(path: &Path, why: String) -> Result<T> {
    Err(StoreError::NotTrusted {
        path: path.into(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// What the check of a folder with one file says, by their modes.
    fn refused(folder: u32, file: u32) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let (inner, path) = (dir.path().join("image"), dir.path().join("image/state"));
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(&path, "").unwrap();
        mode(&path, file);
        mode(&inner, folder);
        let checked = Owners::trusted().check_tree(&inner);
        mode(&inner, 0o700);
        checked.err().map(|e| e.to_string())
    }

    #[test]
    fn write_permission_counts_where_others_can_come() {
        for (folder, file) in [
            (0o700, 0o600),
            (0o755, 0o644),
            (0o700, 0o666),
            (0o750, 0o602),
        ] {
            assert_eq!(refused(folder, file), None, "{folder:o} {file:o}");
        }
        for (folder, file, who) in [
            (0o777, 0o600, "everybody"),
            (0o770, 0o600, "group"),
            (0o755, 0o666, "everybody"),
            (0o755, 0o664, "group"),
            (0o701, 0o602, "everybody"),
        ] {
            let said = refused(folder, file).unwrap_or_default();
            assert!(said.contains(who), "{folder:o} {file:o}: {said}");
        }
    }

    #[test]
    fn files_of_other_users_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state"), "").unwrap();
        mode(dir.path(), 0o700);
        let own = rustix::process::geteuid().as_raw();
        assert!(Owners::with(own).check_tree(dir.path()).is_ok());
        let other = Owners::with(own + 1).check_tree(dir.path());
        // What root owns, everybody trusts.
        assert_eq!(other.is_ok(), own == 0);
        if own == 0 {
            std::os::unix::fs::chown(dir.path().join("state"), Some(4711), None).unwrap();
            let refused = Owners::trusted().check_tree(dir.path()).unwrap_err();
            assert!(refused.to_string().contains("user 4711"), "{refused}");
        }
    }
}
