//! What stands in the way of a checkpoint, found before the program is stopped.

use std::fs;
use std::path::{Path, PathBuf};

use fermata_control::worker::FailureKind;

use crate::failure::{Hint, Result, fail};
use crate::proc;

/// Something a process holds that CRIU refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The process.
    pub pid: u32,
    /// What it holds, naming the descriptor.
    pub what: String,
    /// What can be done.
    pub hint: &'static str,
}

/// All obstacles in the tree below `root`.
pub fn obstacles(root: u32) -> Vec<Obstacle> {
    proc::tree(root).into_iter().flat_map(of_process).collect()
}

fn of_process(pid: u32) -> Vec<Obstacle> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let (reason, hint) = refused(&target)?;
            let number = entry.file_name().to_string_lossy().into_owned();
            let name = proc::name(pid).unwrap_or_default();
            let what = format!("process {pid} ({name}) holds {reason}, descriptor {number}");
            Some(Obstacle { pid, what, hint })
        })
        .collect()
}

/// Why CRIU does not dump a descriptor with this target.
fn refused(target: &Path) -> Option<(String, &'static str)> {
    let text = target.to_str()?;
    if text == "anon_inode:[io_uring]" {
        return Some((
            "an io_uring".into(),
            "CRIU cannot dump io_uring: switch it off in the program or its libraries",
        ));
    }
    if text.starts_with("/dev/nvidia") {
        return Some((
            format!("the GPU device `{text}`"),
            "a library talks to the driver past Fermata: it may carry a static CUDA runtime; link \
             with `-cudart shared`",
        ));
    }
    const HARMLESS: [&str; 9] = [
        "null", "zero", "full", "random", "urandom", "tty", "ptmx", "shm", "pts",
    ];
    let device = text.strip_prefix("/dev/")?;
    let first = device.split('/').next().unwrap_or(device);
    (!HARMLESS.contains(&first)).then(|| {
        (
            format!("the device `{text}`"),
            "close it before the checkpoint",
        )
    })
}

/// Refuses a tree with obstacles.
///
/// # Errors
/// `NotCheckpointable`, naming the first.
pub fn check_tree(root: u32) -> Result<()> {
    match obstacles(root).into_iter().next() {
        None => Ok(()),
        Some(o) => {
            let message = format!("the program cannot be checkpointed: {}", o.what);
            Err(fail(FailureKind::NotCheckpointable, message).hint(o.hint))
        }
    }
}

/// Resident bytes of the tree below `root`, shared ones counted once per process.
pub fn resident_bytes(root: u32) -> u64 {
    let of = |pid: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    };
    proc::tree(root).into_iter().filter_map(of).sum()
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
    fn what_criu_refuses_is_named() {
        let refused = |text: &str| refused(Path::new(text)).map(|(what, _)| what);
        assert_eq!(
            refused("anon_inode:[io_uring]").as_deref(),
            Some("an io_uring")
        );
        assert_eq!(
            refused("/dev/nvidia0").as_deref(),
            Some("the GPU device `/dev/nvidia0`")
        );
        assert_eq!(
            refused("/dev/fuse").as_deref(),
            Some("the device `/dev/fuse`")
        );
        for fine in [
            "/dev/null",
            "/dev/pts/3",
            "/dev/shm/x",
            "/tmp/f",
            "socket:[1]",
            "pipe:[2]",
        ] {
            assert_eq!(refused(fine), None, "{fine}");
        }
    }

    #[test]
    fn a_full_disk_is_foreseen() {
        assert!(check_space(Path::new("/"), 1).is_ok());
        let failure = check_space(Path::new("/tmp/not/there"), u64::MAX).expect_err("too much");
        assert_eq!(failure.kind, FailureKind::User);
    }
}
