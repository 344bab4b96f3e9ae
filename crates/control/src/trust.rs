//! Whom a process that connects to a daemon trusts: its own user and root only.
//!
//! ```text
//!  lstat folder ─► lstat socket ─► connect ─► SO_PEERCRED ─► the first byte
//! ```
//! The folder and the socket must be what they seem (no symbolic link), belong to the user or to root, and be
//! writable by their owner alone. What is at the path may change between the check and the connection: who
//! listens is therefore asked of the kernel once more, before a byte is sent.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a folder or a socket is not used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It cannot be made or examined.
    #[error("cannot {step} `{}`", .path.display())]
    Io {
        /// Such as "examine".
        step: &'static str,
        /// The folder or socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It belongs to somebody else.
    #[error("`{}` belongs to user {owner}, and this process runs as user {user}", .path.display())]
    Owner {
        /// The folder or socket.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's user.
        user: u32,
    },
    /// Others may write to it.
    #[error("other users may write to `{}`, whose mode is {mode:03o}", .path.display())]
    Mode {
        /// The folder or socket.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is something else: a symbolic link, or a file.
    #[error("`{}` is no {what}", .path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it must be.
        what: &'static str,
    },
    /// Another user's process listens there.
    #[error("a process of user {owner} listens at `{}`, and this process runs as user {user}", .path.display())]
    Peer {
        /// The socket.
        path: PathBuf,
        /// The user of the process that listens.
        owner: u32,
        /// This process's user.
        user: u32,
    },
}

impl TrustError {
    /// Whether there is nothing at the path.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Checks that the socket at `path`, and its folder, are this user's or root's: for a message without a connection, whose
/// reader cannot be asked for.
///
/// # Errors
/// There is none, or it is somebody else's.
pub fn check_socket(path: &Path) -> Result<(), TrustError> {
    Trust::own().check_socket(path)
}

/// Checks that the file at `path`, which may be a symbolic link, is this user's or root's, and that only its owner can
/// write to it.
///
/// # Errors
/// There is none, it is no file, or it is somebody else's.
pub fn check_file(path: &Path) -> Result<(), TrustError> {
    let found = fs::metadata(path).map_err(|source| TrustError::Io {
        step: "examine",
        path: path.into(),
        source,
    })?;
    Trust::own().check(path, &found, found.is_file(), "file")
}

/// The users whom a process trusts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trust {
    user: u32,
    /// Root; tests replace it.
    administrator: u32,
}

impl Trust {
    /// Of this process: its effective user, and root.
    pub(crate) fn own() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            administrator: 0,
        }
    }

    /// Of a user who is neither this one nor root.
    #[cfg(test)]
    pub(crate) fn of_another_user() -> Self {
        let user = rustix::process::geteuid().as_raw() + 1;
        Self {
            user,
            administrator: user,
        }
    }

    fn includes(self, user: u32) -> bool {
        user == self.user || user == self.administrator
    }

    /// Checks the socket at `path` and its folder.
    pub(crate) fn check_socket(self, path: &Path) -> Result<(), TrustError> {
        let socket = examine(path)?;
        if let Some(folder) = path.parent() {
            let found = examine(folder)?;
            self.check(
                folder,
                &found,
                found.is_dir(),
                "folder (it may be a symbolic link)",
            )?;
        }
        let is_socket = socket.file_type().is_socket();
        self.check(path, &socket, is_socket, "socket")
    }

    /// Checks who listens at `path`.
    pub(crate) fn check_peer(self, path: &Path, owner: u32) -> Result<(), TrustError> {
        if self.includes(owner) {
            return Ok(());
        }
        Err(TrustError::Peer {
            path: path.into(),
            owner,
            user: self.user,
        })
    }

    fn check(
        self,
        path: &Path,
        found: &Metadata,
        right_kind: bool,
        what: &'static str,
    ) -> Result<(), TrustError> {
        let path = path.to_owned();
        if !right_kind {
            return Err(TrustError::Kind { path, what });
        }
        if !self.includes(found.uid()) {
            let (owner, user) = (found.uid(), self.user);
            return Err(TrustError::Owner { path, owner, user });
        }
        let mode = found.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(TrustError::Mode { path, mode });
        }
        Ok(())
    }
}

fn examine(path: &Path) -> Result<Metadata, TrustError> {
    fs::symlink_metadata(path).map_err(|source| TrustError::Io {
        step: "examine",
        path: path.into(),
        source,
    })
}

/// Makes `folder` if it is missing, and lets only this user into it, whatever the umask is.
///
/// # Errors
/// It is no folder, belongs to another user (root too: what is written there would be root's to change), or cannot
/// be made.
pub fn private_folder(folder: &Path) -> Result<(), TrustError> {
    let failed = |step| {
        move |source| TrustError::Io {
            step,
            path: folder.into(),
            source,
        }
    };
    let mut made = DirBuilder::new();
    made.recursive(true).mode(0o700);
    made.create(folder).map_err(failed("make the folder"))?;
    let found = examine(folder)?;
    let path = || folder.to_owned();
    if !found.is_dir() {
        let what = "folder (it may be a symbolic link)";
        return Err(TrustError::Kind { path: path(), what });
    }
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        let path = path();
        return Err(TrustError::Owner { path, owner, user });
    }
    if found.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))
            .map_err(failed("protect the folder"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A private folder with a socket, and the trust of its owner.
    fn scene() -> (tempfile::TempDir, PathBuf, UnixListener) {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run");
        private_folder(&run).expect("made");
        let socket = run.join("sock");
        let listener = UnixListener::bind(&socket).expect("listens");
        fs::set_permissions(&socket, Permissions::from_mode(0o600)).expect("protected");
        (folder, socket, listener)
    }

    #[test]
    fn a_socket_of_the_user_in_a_private_folder_is_trusted() {
        let (_folder, socket, _listener) = scene();
        Trust::own().check_socket(&socket).expect("trusted");
        let gone = Trust::own().check_socket(&socket.with_extension("x"));
        assert!(gone.expect_err("nothing is there").is_absent());
    }

    #[test]
    fn folders_and_sockets_that_others_can_change_are_not_trusted() {
        let (folder, socket, _listener) = scene();
        let run = folder.path().join("run");
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        for (path, good) in [(&run, 0o700), (&socket, 0o600)] {
            for bad in [0o720, 0o702, 0o777] {
                mode(path, bad).expect("set");
                let refused = Trust::own().check_socket(&socket);
                assert!(
                    matches!(&refused, Err(TrustError::Mode { path: named, .. }) if named == path),
                    "{refused:?}"
                );
            }
            mode(path, good).expect("set");
        }
        Trust::own().check_socket(&socket).expect("trusted again");
    }

    #[test]
    fn links_in_place_of_folders_and_sockets_are_not_followed() {
        let (folder, socket, _listener) = scene();
        let (run, link) = (folder.path().join("run"), folder.path().join("link"));
        symlink(&run, &link).expect("linked");
        symlink(&socket, run.join("other")).expect("linked");
        for path in [link.join("sock"), run.join("other")] {
            let refused = Trust::own().check_socket(&path);
            assert!(
                matches!(refused, Err(TrustError::Kind { .. })),
                "{refused:?}"
            );
        }
        assert!(matches!(
            private_folder(&link),
            Err(TrustError::Kind { .. })
        ));
    }

    #[test]
    fn what_belongs_to_another_user_is_not_trusted() {
        let (folder, socket, _listener) = scene();
        let own = rustix::process::geteuid().as_raw();
        let checked = Trust::of_another_user().check_socket(&socket);
        let run = folder.path().join("run");
        assert!(
            matches!(&checked, Err(TrustError::Owner { path, owner, .. }) if *owner == own && *path == run),
            "{checked:?}"
        );
        let peer = Trust::of_another_user().check_peer(&socket, own);
        assert!(matches!(peer, Err(TrustError::Peer { owner, .. }) if owner == own));
    }

    #[test]
    fn a_private_folder_is_private_under_any_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run");
        fs::create_dir(&run).expect("made");
        fs::set_permissions(&run, Permissions::from_mode(0o777)).expect("opened");
        private_folder(&run).expect("protected");
        let mode = fs::metadata(&run).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
