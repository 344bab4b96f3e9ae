//! Removes a folder to which a process that is ending may still write.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use fermata_control::wait;
use fermata_control::worker::FailureKind;

use crate::failure::{OrFail, Result};

/// The time between two attempts.
const TURN: Duration = Duration::from_millis(10);

/// Removes a folder to which another process may still write, trying for `patience`; succeeds if it does not exist.
///
/// # Errors
/// The system refuses.
pub fn remove_all(dir: &Path, patience: Duration) -> Result<()> {
    let remove = || match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let is_final = |removed: &io::Result<()>| {
        let error = removed.as_ref().err();
        error.is_none_or(|e| e.kind() != io::ErrorKind::DirectoryNotEmpty)
    };
    // Polled: who writes there is any process, and what it has made is the only sign of it.
    let removed = wait::until(patience, TURN, || Some(remove()).filter(is_final));
    removed
        .unwrap_or_else(remove)
        .or_fail(FailureKind::User, || {
            format!("cannot remove `{}`", dir.display())
        })
}
