//! CRIU's question for mappings.
//!
//! CRIU reads `/proc/PID/smaps` for the flags of mappings, and the kernel counts every page of the process for it, 15 to 20 ms
//! for each GiB. The daemon has a faster way (`fermata-hostmem`, `smaps`): it is asked for a file with the lines that CRIU
//! reads (`daemon`). With it come lists, in this order:
//!
//! | list | of | for |
//! | --- | --- | --- |
//! | 1 | mappings without a file | `files` |
//! | 2 | pages that need not be dumped | `left_out` |
//! | 3 | private mappings of files | `files` |
//! | 4 | pages that the program has made inaccessible, if the kernel tells | `guards` |
//!
//! When CRIU has dumped all processes it makes a list of them, `pstree.img`. The daemon is told: what is left of
//! the dump has nothing to do with their memory.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::{c_char, c_int, c_uint};

use crate::daemon::DAEMON;
use crate::{files, guards, left_out, process};

/// The longest number of a process.
const MOST_DIGITS: usize = 16;

/// What the daemon is told when all processes are dumped.
const ALL_DUMPED: &[u8] = b"dumped";

/// Whether the daemon has answered.
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// `openat(2)`: the system call, but for the mappings of a process. The folder with their files is noted, and that all processes are dumped
/// is told.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the caller's path is a string.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    if name == Some(c"smaps")
        && let Some(file) = ask(folder)
    {
        return file;
    }
    // SAFETY: the caller's own call.
    let opened = unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) as c_int };
    if opened >= 0 && name == Some(c"map_files") {
        files::opened(opened);
    }
    if name == Some(c"pstree.img") && flags & libc::O_CREAT != 0 && ANSWERS.load(Relaxed) {
        DAEMON.tell(ALL_DUMPED);
    }
    opened
}

/// The daemon's answer for the process whose folder in `/proc` this is.
fn ask(folder: c_int) -> Option<c_int> {
    let pid = process::of(folder, b"")?;
    let mut digits = [0; MOST_DIGITS];
    let [file, without, left, private, guarded] =
        DAEMON.ask(process::decimal(pid, &mut digits)?)?;
    ANSWERS.store(true, Relaxed);
    files::take(pid, without, private);
    left_out::take(pid, left);
    guards::take(pid, guarded);
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_daemon_the_kernel_answers() {
        // SAFETY: strings that live as long as the calls.
        unsafe {
            let folder = libc::open(c"/proc/self".as_ptr(), libc::O_PATH);
            let file = openat64(folder, c"smaps".as_ptr(), libc::O_RDONLY, 0);
            assert!(file >= 0);
            let mut byte = 0_u8;
            assert_eq!(libc::read(file, (&raw mut byte).cast(), 1), 1);
            libc::close(file);
            libc::close(folder);
        }
    }
}
