//! Removing a folder that a process which is ending may still write to.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fermata_control::worker::FailureKind;

use crate::failure::{OrFail, Result};

/// Removes a folder that somebody may still be writing to, for so long at most; that it is not there is fine.
///
/// # Errors
/// The system refuses.
pub fn remove_all(dir: &Path, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    loop {
        match fs::remove_dir_all(dir) {
            Err(e)
                if e.kind() == std::io::ErrorKind::DirectoryNotEmpty && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                let what = || format!("cannot remove `{}`", dir.display());
                return Err(e).or_fail(FailureKind::User, what);
            }
            _ => return Ok(()),
        }
    }
}
