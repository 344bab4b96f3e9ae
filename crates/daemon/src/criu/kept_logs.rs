//! What CRIU said of restores that failed: kept when their sessions' folders go, for the hint that names it. The last few
//! are kept, so that restores that fail again and again do not fill the folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::failure::{Failure, Hint};

/// So many are kept.
const MOST: usize = 8;

/// Keeps the log at `from` of the failed restore of session `name`, in `folder`; the answer is where.
pub fn keep(folder: &Path, name: &str, from: &Path) -> PathBuf {
    let copy = folder.join(format!("restore-{name}.log"));
    // The failure itself is what the user is told; without the copy there is no hint.
    if fs::copy(from, &copy).is_ok() {
        prune(folder, &copy);
    }
    copy
}

fn prune(folder: &Path, newest: &Path) {
    let age = |path: &PathBuf| {
        let changed = path.symlink_metadata().and_then(|it| it.modified());
        changed.unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let mut logs = all(folder);
    logs.retain(|it| it != newest);
    logs.sort_by_key(age);
    let excess = (logs.len() + 1).saturating_sub(MOST);
    for old in &logs[..excess.min(logs.len())] {
        // One that cannot be removed is tried again.
        let _ = fs::remove_file(old);
    }
}

fn all(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let is_log = |path: &PathBuf| {
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or("");
        name.starts_with("restore-") && name.ends_with(".log")
    };
    let paths = entries.flatten().map(|it| it.path());
    paths.filter(is_log).collect()
}

/// The folder that a failure points to goes with it: names the log's copy, if there is one.
pub fn keep_hint(failure: Failure, copy: &Path) -> Failure {
    let hint = match copy.exists() {
        true => format!("CRIU's log is `{}`", copy.display()),
        false => String::new(),
    };
    failure.hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_logs_of_failed_restores_are_kept_and_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let from = folder.path().join("from");
        let other = folder.path().join("restores.log");
        fs::write(&other, "another's").expect("written");
        for number in 0..3 * MOST {
            fs::write(&from, format!("{number}")).expect("written");
            let copy = keep(folder.path(), &format!("s{number}"), &from);
            let said = fs::read_to_string(&copy).expect("kept");
            assert_eq!(said, format!("{number}"));
            assert!(all(folder.path()).len() <= MOST);
        }
        assert_eq!(all(folder.path()).len(), MOST);
        assert!(other.exists());
        fs::remove_file(&from).expect("removed");
        assert!(!keep(folder.path(), "none", &from).exists());
    }
}
