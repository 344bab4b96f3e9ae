//! Profiles: what restores of an image have learnt, for the next one. They lie in the image's folders, and no hash covers them.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::manifest::PROFILE;
use crate::read_limited;

/// The profile in `folder`, if there is one of at most `most` bytes.
pub fn read_profile(folder: &Path, most: u64) -> Option<Vec<u8>> {
    read_limited(&folder.join(PROFILE), most).ok()
}

/// Puts a profile into `folder`, whole or not at all.
///
/// # Errors
/// The folder cannot be written; what was there is as before.
pub fn write_profile(folder: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = folder.join(format!(".{PROFILE}-{}", std::process::id()));
    // One that a process of this number has left, or somebody's link to another file.
    let _ = fs::remove_file(&beside);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&beside, folder.join(PROFILE)));
    if written.is_err() {
        // What is left of it helps nobody.
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_profile_is_replaced_as_a_whole_and_no_other_file_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        assert_eq!(read_profile(path, 10), None);
        let other = path.join("other");
        fs::write(&other, b"other").expect("written");
        let beside = path.join(format!(".{PROFILE}-{}", std::process::id()));
        for link in [&beside, &path.join(PROFILE)] {
            symlink(&other, link).expect("linked");
        }
        assert_eq!(read_profile(path, 10), None, "a link is not followed");
        write_profile(path, b"learnt").expect("written");
        assert_eq!(read_profile(path, 10), Some(b"learnt".to_vec()));
        assert_eq!(read_profile(path, 5), None);
        assert_eq!(fs::read(&other).expect("read"), b"other");
        assert!(!beside.exists());
        let none = path.join("none");
        assert!(write_profile(&none, b"learnt").is_err());
    }
}
