//! Memory and disk that sessions and images need.

use std::path::Path;

use fermata_control::Paths;
use fermata_control::user::Check;
use fermata_report::units;
use rustix::process::{Resource, getrlimit};

use super::verdict::{fail, ok, warn};

const GIB: u64 = 1 << 30;

/// How much memory may be locked; pinned buffers are.
pub fn locked_memory() -> Check {
    let name = "locked memory";
    match getrlimit(Resource::Memlock).current {
        None => ok(name, "no limit"),
        Some(limit) if limit >= GIB => ok(name, format!("up to {}", units::bytes(limit))),
        Some(limit) => warn(
            name,
            format!("up to {}", units::bytes(limit)),
            "`ulimit -l unlimited`, or `LimitMEMLOCK=infinity` for the service",
        ),
    }
}

/// How much shared memory there is; rings and pinned memory live in it.
pub fn shared_memory() -> Check {
    let name = "shared memory";
    match free(Path::new("/dev/shm")) {
        Some(bytes) if bytes >= GIB => ok(name, format!("{} free", units::bytes(bytes))),
        Some(bytes) => warn(
            name,
            format!("{} free in `/dev/shm`", units::bytes(bytes)),
            "`mount -o remount,size=50% /dev/shm`; for a container, `--shm-size`",
        ),
        None => warn(name, "no `/dev/shm`", "mount a tmpfs there"),
    }
}

/// How much room there is for images.
pub fn disk(paths: &Paths) -> Check {
    let name = "space";
    let existing = paths
        .images
        .ancestors()
        .find(|p| p.exists())
        .unwrap_or(Path::new("/"));
    let folder = paths.images.display();
    match free(existing) {
        Some(bytes) if bytes >= 10 * GIB => {
            ok(name, format!("{} free for `{folder}`", units::bytes(bytes)))
        }
        Some(bytes) if bytes >= GIB => {
            let found = format!("{} free for `{folder}`", units::bytes(bytes));
            warn(name, found, "set `FERMATA_IMAGE_DIR` to a larger disk")
        }
        Some(bytes) => {
            let found = format!("{} free for `{folder}`", units::bytes(bytes));
            fail(
                name,
                found,
                "free some space, or set `FERMATA_IMAGE_DIR` to a larger disk",
            )
        }
        None => fail(
            name,
            format!("`{folder}` cannot be examined"),
            "set `FERMATA_IMAGE_DIR`",
        ),
    }
}

fn free(path: &Path) -> Option<u64> {
    let s = rustix::fs::statvfs(path).ok()?;
    Some(s.f_bavail.saturating_mul(s.f_frsize))
}
