//! Measures the memory of a program's processes and the free disk space, and checks that an image fits.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fermata_control::worker::FailureKind;
use fermata_store::FreeSpace;

use crate::failure::{Hint, Result, fail};
use crate::proc;

/// What an image needs on the disk beside chunks and pages.
pub const MARGIN: u64 = 16 << 20;

/// Resident bytes of the tree below `root`, shared ones counted once per process.
pub fn resident_bytes(root: u32) -> u64 {
    let of = |pid: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    };
    proc::tree(root).into_iter().filter_map(of).sum()
}

/// Bytes of memory that all processes of the tree below `root` have written, those that several have in common for each.
pub fn written_bytes(root: u32) -> u64 {
    let all = proc::tree(root).into_iter();
    all.map(|pid| proc::written_bytes(pid, false)).sum()
}

/// Bytes that an image needs at most, if nothing of it is there already.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// In its own folder: files of the host process.
    pub files: u64,
    /// In the store: chunks of buffers.
    pub chunks: u64,
}

impl Needs {
    /// Refuses when the file systems of the image's folder and of the store have not room for it.
    ///
    /// # Errors
    /// As [`check_space`].
    pub fn check(&self, folder: &Path, store: &Path) -> Result<()> {
        if are_on_one(folder, store) {
            return check_space(folder, self.files.saturating_add(self.chunks));
        }
        check_space(folder, self.files)?;
        check_space(store, self.chunks)
    }

    /// Bytes of it on the file system of `folder`.
    pub fn at(&self, folder: &Path, store: &Path) -> u64 {
        match are_on_one(folder, store) {
            true => self.files.saturating_add(self.chunks),
            false => self.files,
        }
    }
}

/// Whether two folders are on one file system.
fn are_on_one(one: &Path, other: &Path) -> bool {
    file_system(one) == file_system(other)
}

/// The device number of a folder, or of where it will be made.
fn file_system(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find_map(|it| fs::metadata(it).ok())?;
    Some(there.dev())
}

/// Refuses when the file system of `folder` has not room for `bytes`.
///
/// # Errors
/// `User`, with both numbers.
pub fn check_space(folder: &Path, bytes: u64) -> Result<()> {
    let Some(free) = free_bytes(folder) else {
        return Ok(());
    };
    if free >= bytes {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let message = format!(
        "the image needs up to {} MiB in `{}`, which has {} MiB left",
        mib(bytes),
        folder.display(),
        mib(free)
    );
    Err(fail(FailureKind::User, message)
        .hint("free some space, or remove images with `fermata images rm` and `fermata images gc`"))
}

/// Bytes that a user may still write below `folder`, or where it will be made. A file system in memory may be larger than what the
/// host has left.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    FreeSpace::of(folder).map(|it| it.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the test below finds a file system in memory that is larger than all memory.
    const FOLDER: &str = "FERMATA_TEST_FOLDER";

    #[test]
    fn a_file_system_in_memory_has_no_more_room_than_the_host_has_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "mount -t tmpfs -o size=64T none \"$0\" && exec \"$@\"";
        let test = "images::space::tests::room_in_a_file_system_of_64_tib";
        let done = std::process::Command::new("unshare")
            .args(["--map-root-user", "--mount", "--", "sh", "-ec", script])
            .arg(folder.path())
            .arg(std::env::current_exe().expect("this test"))
            .args(["--exact", test, "--ignored"])
            .env(FOLDER, folder.path())
            .output()
            .expect("started");
        let told = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && told.contains("1 passed"),
            "{done:?}"
        );
    }

    #[test]
    #[ignore = "is started by the test above"]
    fn room_in_a_file_system_of_64_tib() {
        let folder = std::env::var_os(FOLDER).expect("set by the test above");
        let free = free_bytes(Path::new(&folder)).expect("told");
        assert!(free > 1 << 20 && free < 1 << 44, "{free}");
    }

    #[test]
    fn each_part_of_an_image_needs_room_where_it_goes() {
        let (disk, memory) = (Path::new("/not/there"), Path::new("/dev/shm"));
        let needs = |files, chunks| Needs { files, chunks };
        assert_eq!(needs(1, 2).at(disk, disk), 3);
        assert_eq!(needs(1, 2).at(memory, disk), 1);
        for (needs, place) in [
            (needs(u64::MAX, 1), "/dev/shm"),
            (needs(1, u64::MAX), "/not/there"),
        ] {
            let failure = needs.check(memory, disk).expect_err("too much");
            assert!(failure.message.contains(place), "{}", failure.message);
            assert!(needs.check(disk, disk).is_err());
        }
        assert!(needs(1, 1).check(memory, disk).is_ok());
    }

    #[test]
    fn a_full_disk_is_foreseen() {
        assert!(check_space(Path::new("/"), 1).is_ok());
        let failure = check_space(Path::new("/tmp/not/there"), u64::MAX).expect_err("too much");
        assert_eq!(failure.kind, FailureKind::User);
    }
}
