//! Files that CRIU fills during a dump, made before it.
//!
//! CRIU makes a file for each thread and four for each process, while the program stands still. That takes 30 microseconds for each
//! on some file systems, and half a millisecond on others. CRIU opens files that are there already, empties them and fills them.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::proc;

/// Those that every dump has.
const ALWAYS: [&str; 4] = ["files.img", "inventory.img", "pstree.img", "seccomp.img"];
/// As many as are made at most.
const MOST: usize = 4096;

/// Empty files. Those that CRIU has not filled go with this value.
#[derive(Debug, Default)]
pub struct MadeAhead(Vec<PathBuf>);

impl MadeAhead {
    /// Makes, in `dir`, those for the processes that the one with number `root` and its descendants are now. What is missing, CRIU
    /// makes.
    pub fn of(root: u32, dir: &Path) -> Self {
        let mut made = Self::default();
        for name in ALWAYS {
            made.make(dir, name);
        }
        for (number, pid) in proc::tree(root).into_iter().enumerate() {
            let threads = proc::inner_threads(pid);
            if made.0.len() + threads.len() > MOST {
                break;
            }
            // Tables of descriptors are numbered from 2 on; processes may share one.
            made.make(dir, &format!("fdinfo-{}.img", number + 2));
            if let Some(inner) = proc::inner_pid(pid) {
                for what in ["fs", "ids", "mm"] {
                    made.make(dir, &format!("{what}-{inner}.img"));
                }
            }
            for thread in threads {
                made.make(dir, &format!("core-{thread}.img"));
            }
        }
        made
    }

    fn make(&mut self, dir: &Path, name: &str) {
        let path = dir.join(name);
        let mut new = OpenOptions::new();
        if new
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .is_ok()
        {
            self.0.push(path);
        }
    }
}

impl Drop for MadeAhead {
    fn drop(&mut self) {
        // CRIU begins each file with four bytes that say what it is.
        let unused = |path: &&PathBuf| fs::metadata(path).is_ok_and(|it| it.len() == 0);
        for path in self.0.iter().filter(unused) {
            // If one cannot be removed, it looks as if CRIU had dumped what has ended; a copy of that fails then.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(dir: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(dir).expect("readable");
        let name = |it: std::io::Result<fs::DirEntry>| it.expect("readable").file_name();
        entries
            .map(|it| name(it).into_string().expect("a plain name"))
            .collect()
    }

    #[test]
    fn files_of_threads_and_processes_are_made_and_go_if_they_stay_empty() {
        let dir = tempfile::tempdir().expect("made");
        fs::write(dir.path().join("mm-1.img"), "").expect("written");
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv().is_err());
        let me = std::process::id();
        let made = MadeAhead::of(me, dir.path());
        let there = names(dir.path());
        let inner = proc::inner_pid(me).expect("it runs");
        for name in [
            format!("core-{inner}.img"),
            format!("mm-{inner}.img"),
            "fdinfo-2.img".to_owned(),
            "pstree.img".to_owned(),
        ] {
            assert!(there.contains(&name), "{name} of {there:?}");
        }
        let cores = there.iter().filter(|it| it.starts_with("core-")).count();
        assert!(cores >= 2, "{there:?}");
        fs::write(dir.path().join("pstree.img"), "tree").expect("written");
        drop(made);
        drop(done);
        assert!(thread.join().expect("ended"));
        // What others have made stays.
        let left = ["mm-1.img", "pstree.img"].map(str::to_owned);
        assert_eq!(names(dir.path()), BTreeSet::from(left));
    }
}
