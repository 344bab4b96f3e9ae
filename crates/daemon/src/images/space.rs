//! What an image needs of memory and disk, and what there is.

use std::fs;
use std::path::{Path, PathBuf};

use fermata_control::worker::FailureKind;

use crate::failure::{Hint, Result, fail};
use crate::proc;

/// Resident bytes of the tree below `root`, shared ones counted once per process.
pub fn resident_bytes(root: u32) -> u64 {
    let of = |pid: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    };
    proc::tree(root).into_iter().filter_map(of).sum()
}

/// Bytes of memory that the host can still give.
pub fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|it| it.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
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

/// Bytes that a user may still write below `folder`, or where it will be made.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let mut folder: PathBuf = folder.into();
    while !folder.exists() {
        folder = folder.parent()?.into();
    }
    let stat = rustix::fs::statvfs(&folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_known() {
        assert!(available_memory().is_some_and(|it| it > 1 << 20));
    }

    #[test]
    fn a_full_disk_is_foreseen() {
        assert!(check_space(Path::new("/"), 1).is_ok());
        let failure = check_space(Path::new("/tmp/not/there"), u64::MAX).expect_err("too much");
        assert_eq!(failure.kind, FailureKind::User);
    }
}
