//! Our own files.

use std::path::Path;

use fermata_control::Paths;
use fermata_control::user::{Check, CheckState};

use super::verdict::{check, ok};
use crate::daemon;

const HINT: &str = "install the whole tree, or set `FERMATA_HOME` to it";

/// Executables and libraries that sessions need.
pub fn checks(paths: &Paths) -> Vec<Check> {
    let lib = paths.home.join("lib");
    let files = [
        ("fermatad", daemon::executable(paths), CheckState::Fail),
        (
            "worker",
            paths.home.join("bin/fermata-worker"),
            CheckState::Fail,
        ),
        ("client", lib.join("client/libcuda.so.1"), CheckState::Fail),
        (
            "softgpu",
            lib.join("softgpu/libcuda.so.1"),
            CheckState::Warn,
        ),
    ];
    files
        .into_iter()
        .map(|(name, path, missing)| file(name, &path, missing))
        .collect()
}

fn file(name: &str, path: &Path, missing: CheckState) -> Check {
    let shown = format!("`{}`", path.display());
    if path.is_file() {
        return ok(name, shown);
    }
    check(name, missing, format!("{shown} is missing"), HINT)
}
