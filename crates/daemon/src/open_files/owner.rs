//! Owner and mode of what a restore has just made under a name. Others may write in the folder where it lies, and put something
//! else in its place: only what this process has made is changed, and symbolic links are not followed.

use std::fs::{self, File, FileType, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;

/// Whom a file belongs to, and who may use it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub user: u32,
    pub group: u32,
    pub mode: u32,
}

impl Owner {
    /// Gives the file at `path` to this owner, if it is of the type that this process has made there.
    ///
    /// # Errors
    /// There is something else, or it cannot be changed.
    pub fn take(self, path: &Path, is_type: fn(&FileType) -> bool) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = File::from(open(path, flags, Mode::empty())?);
        let meta = made.metadata()?;
        // A file system may have given it to that user already.
        let is_ours = [geteuid().as_raw(), self.user].contains(&meta.uid());
        if !is_type(&meta.file_type()) || !is_ours {
            let message = "something else has been put in its place";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        // The path of an open file leads to that file, whatever lies under its name.
        let open = format!("/proc/self/fd/{}", made.as_raw_fd());
        chown(&open, Some(self.user), Some(self.group))?;
        fs::set_permissions(&open, Permissions::from_mode(self.mode))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_in_its_place_is_not_changed() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        let owner = Owner {
            user: geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            mode: 0o751,
        };
        let mode = |name: &str| fs::metadata(at(name)).map(|it| it.mode() & 0o7777).ok();
        fs::create_dir(at("folder")).expect("made");
        fs::set_permissions(at("folder"), Permissions::from_mode(0o700)).expect("set");
        symlink(at("folder"), at("link")).expect("linked");
        fs::write(at("file"), "").expect("written");
        fs::set_permissions(at("file"), Permissions::from_mode(0o600)).expect("set");
        for name in ["link", "file"] {
            let error = owner
                .take(&at(name), FileType::is_dir)
                .expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{name}");
        }
        assert_eq!((mode("folder"), mode("file")), (Some(0o700), Some(0o600)));
        owner
            .take(&at("folder"), FileType::is_dir)
            .expect("changed");
        assert_eq!(mode("folder"), Some(0o751));
    }
}
