//! Files that NVIDIA's driver leaves in `/dev/shm` when a process ends that had events of several processes
//! (`cuIpcGetEventHandle`), other than by itself:
//!
//! ```text
//!   cuda.shm.USER.PROCESS.NUMBER        in hexadecimal digits, as seen with driver 580
//! ```

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::getuid;

/// Where the driver puts them.
const FOLDER: &str = "/dev/shm";

/// Removes those of a worker that has ended, whose number was `pid`. What another process still has mapped stays there.
pub fn remove(pid: u32) {
    remove_in(Path::new(FOLDER), pid);
}

fn remove_in(folder: &Path, pid: u32) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let of_pid = name.to_str().and_then(process_of) == Some(pid);
        let own = || {
            entry
                .metadata()
                .is_ok_and(|it| it.uid() == getuid().as_raw())
        };
        if of_pid && own() {
            // Somebody else may have removed it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The process that made a file of this name.
fn process_of(name: &str) -> Option<u32> {
    let mut fields = name.strip_prefix("cuda.shm.")?.split('.');
    let (_user, process, number) = (fields.next()?, fields.next()?, fields.next()?);
    u32::from_str_radix(number, 16).ok()?;
    let process = u32::from_str_radix(process, 16).ok();
    process.filter(|_| fields.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_process_go_and_all_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = [
            "cuda.shm.0.20fc.1",
            "cuda.shm.0.20fc.2",
            "cuda.shm.0.20fd.1",
            "cuda.shm.0.20fc",
            "other.0.20fc.1",
        ];
        for name in names {
            fs::write(folder.path().join(name), "").expect("written");
        }
        remove_in(folder.path(), 0x20fc);
        let left: Vec<bool> = names
            .iter()
            .map(|it| folder.path().join(it).exists())
            .collect();
        assert_eq!(left, [false, false, true, true, true]);
    }
}
