//! Failpoints: a test stops a process at one named moment of a checkpoint or restore. Without the test's variable they do nothing.
//!
//! `FERMATA_TEST_MOMENTS` names a folder. A thread that comes to a moment while that folder holds a file of the moment's
//! name makes `NAME.reached` there, with the number of its process, and waits until the file or the folder is gone. Without
//! the variable nothing is looked for. What can die at a moment, and what must be left, is told in `tests/e2e/tests/deaths.rs`; it is here because all
//! who come to one use the store.
//!
//! | moment | who | what is done then |
//! | --- | --- | --- |
//! | `spare-made` | daemon | a worker that is to wait for a session has started, and cannot be found yet |
//! | `prepare` | worker | nothing yet of what a protocol makes ready before the stop |
//! | `parked` | daemon | the program stands still, and is noted down |
//! | `detached` | daemon | its agent has let go, the worker has not been asked to |
//! | `ahead` | daemon | host memory has been copied, CRIU has not been started |
//! | `dump` | daemon | CRIU is ready, and has not been told to stop the program's processes |
//! | `stopped` | worker | nothing yet of the device's part in the stop: digests, copies |
//! | `copy` | worker | a piece of device memory is about to be copied to the host |
//! | `write` | worker | a chunk has been hashed, and is about to be written |
//! | `packs` | worker | packs have their names, their indices do not |
//! | `reattach` | daemon | the program is about to be woken |
//! | `welcome` | daemon | it has come, and has no end of a ring |
//! | `serve` | daemon | it has one, the worker has been asked for nothing |
//! | `resumed` | daemon | the program goes on, which has not been noted down |
//! | `commit` | daemon | the image is complete but for its manifest |
//! | `manifest` | daemon | it has its manifest, and not its name |
//! | `named` | daemon | it has its name, and is not in the store's list |
//! | `objects` | worker | a restored session's objects are there, nothing of its data is |
//! | `pause-checked` | daemon | what a pause has put aside is whole, and not noted down as that |
//! | `pause-noted` | daemon | it is, the workers have not been ended |
//! | `pause-vacated` | daemon | one of them has given its memory back, and has not been ended |
//! | `resume-loaded` | daemon | the workers of a paused session have loaded, which has not been noted down |
//! | `resume-noted` | daemon | it is, no process has been woken |
//! | `foreign-locked` | daemon | a program that Fermata has not started is locked, its device memory is where it was |
//! | `foreign-moved` | daemon | the driver has moved that into host memory |
//! | `foreign-back` | daemon | CRIU has dumped it, it is about to be brought back |
//! | `foreign-return` | daemon | CRIU has restored such a program, which the driver has not been told to bring back |
//! | `made` | daemon | CRIU has restored the program, which runs unless it waits for its worker; its session knows no process of it |
//! | `restored` | daemon | CRIU has restored the program, which is parked and noted down |

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

const FOLDER: &str = "FERMATA_TEST_MOMENTS";
/// Between two looks at whether it goes on.
const TURN: Duration = Duration::from_millis(1);

/// Comes to the moment `name`; see the module.
pub fn pass(name: &str) {
    static MOMENTS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let moments = MOMENTS.get_or_init(|| std::env::var_os(FOLDER).map(PathBuf::from));
    if let Some(folder) = moments {
        pass_in(folder, name);
    }
}

fn pass_in(folder: &Path, name: &str) {
    let held = folder.join(name);
    if !held.exists() {
        return;
    }
    // A test that cannot see it says so itself. Several threads may come at once.
    let (thread, number) = (std::thread::current().id(), std::process::id().to_string());
    let new = folder.join(format!("{name}.{number}.{thread:?}.new"));
    let _ = std::fs::write(&new, number)
        .and_then(|()| std::fs::rename(&new, folder.join(format!("{name}.reached"))));
    while held.exists() {
        // Polled: only tests hold a moment, by a file that they remove when they like.
        std::thread::sleep(TURN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_held_stands_still() {
        let folder = tempfile::tempdir().unwrap();
        pass("commit");
        pass_in(folder.path(), "commit");
        let held = folder.path().join("commit");
        std::fs::write(&held, "").unwrap();
        pass_in(folder.path(), "manifest");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| pass_in(folder.path(), "commit"));
            let reached = folder.path().join("commit.reached");
            while !reached.exists() {
                std::thread::sleep(TURN);
            }
            assert!(!thread.is_finished());
            std::fs::remove_file(&held).unwrap();
            thread.join().unwrap();
        });
    }
}
