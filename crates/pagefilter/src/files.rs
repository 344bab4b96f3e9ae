//! CRIU's question which file a mapping is of.
//!
//! CRIU looks for each mapping in `/proc/PID/map_files`, in which only those of files are, and the kernel takes some microseconds to find
//! that one is not there. A process has hundreds of mappings without a file. The daemon lists them: it reads in `/proc/PID/maps` that they
//! have neither device nor inode.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use libc::{c_char, c_int};

use crate::list::{List, Pages};
use crate::process;

/// Mappings without a file of the process that CRIU dumps.
static WITHOUT: List = List::new();
/// CRIU's descriptor of that process's folder.
static FOLDER: AtomicI32 = AtomicI32::new(-1);

/// Takes the list in `file` as that of process `pid`, whose folder CRIU opens next.
pub fn take(pid: u32, file: c_int) {
    FOLDER.store(-1, Relaxed);
    WITHOUT.take(pid, file);
}

/// CRIU has opened a folder with the files of mappings.
pub fn opened(folder: c_int) {
    let owner = process::of(folder, b"/map_files");
    let is_known = owner.is_some() && owner == WITHOUT.pid();
    FOLDER.store(if is_known { folder } else { -1 }, Relaxed);
}

/// `fstatat(2)`: the system call, but for the file of a mapping that has none.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatat64(
    folder: c_int,
    path: *const c_char,
    answer: *mut libc::stat64,
    flags: c_int,
) -> c_int {
    let is_asked = folder >= 0
        && folder == FOLDER.load(Relaxed)
        && flags == libc::AT_SYMLINK_NOFOLLOW
        && !path.is_null();
    // SAFETY: the caller's path is a string.
    if is_asked && has_none(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        // SAFETY: the place of this thread's error number.
        unsafe { *libc::__errno_location() = libc::ENOENT };
        return -1;
    }
    // SAFETY: the caller's own call.
    unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, answer, flags) as c_int }
}

/// Whether the mapping of this name, `FIRST-LAST` in hexadecimal, is one without a file.
fn has_none(name: &[u8]) -> bool {
    let asked = mapping(name);
    let is_listed = |all: &[Pages]| asked.is_some_and(|it| all.binary_search(&it).is_ok());
    WITHOUT.with(is_listed)
}

fn mapping(name: &[u8]) -> Option<Pages> {
    let dash = name.iter().position(|byte| *byte == b'-')?;
    let number = |digits: &[u8]| u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
    Some([number(name.get(..dash)?)?, number(name.get(dash + 1..)?)?])
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::io;

    use super::*;
    use crate::list::written;
    use crate::mappings::openat64;

    /// What CRIU is told of the file of a mapping.
    fn ask(folder: c_int, name: &str, flags: c_int) -> Option<io::ErrorKind> {
        let name = CString::new(name).expect("a name");
        // SAFETY: the name is a string, and the answer as long as is expected.
        unsafe {
            let mut answer = core::mem::zeroed();
            let told = fstatat64(folder, name.as_ptr(), &raw mut answer, flags);
            (told != 0).then(|| io::Error::last_os_error().kind())
        }
    }

    fn open(path: &std::ffi::CStr) -> c_int {
        // SAFETY: strings that live as long as the calls.
        let folder = unsafe {
            let own = libc::open(c"/proc/self".as_ptr(), libc::O_PATH);
            let folder = openat64(own, path.as_ptr(), libc::O_RDONLY, 0);
            libc::close(own);
            folder
        };
        assert!(folder >= 0);
        folder
    }

    #[test]
    fn mappings_without_a_file_are_not_looked_for() {
        let maps = fs::read_to_string("/proc/self/maps").expect("read");
        let line = maps.lines().find(|it| it.contains('/')).expect("a library");
        let name = line.split(' ').next().expect("its addresses");
        let asked = mapping(name.as_bytes()).expect("addresses");
        let no_follow = libc::AT_SYMLINK_NOFOLLOW;
        let not_there = Some(io::ErrorKind::NotFound);
        let own = std::process::id();
        // Such a list lies, so that it can be seen who answers.
        let lists: [&[Pages]; 3] = [&[], &[[1, 2], asked, [u64::MAX - 1, u64::MAX]], &[[1, 2]]];
        for (list, expected) in lists.into_iter().zip([None, not_there, None]) {
            take(own, written(list));
            let folder = open(c"map_files");
            assert_eq!(ask(folder, name, no_follow), expected);
            assert_eq!(ask(folder, "1-2", no_follow), not_there);
            let named = format!("/proc/self/map_files/{name}");
            assert_eq!(ask(libc::AT_FDCWD, &named, no_follow), None);
            assert_eq!(
                ask(folder, &format!("../map_files/{name}"), no_follow),
                None
            );
            // SAFETY: this test's own.
            unsafe { libc::close(folder) };
        }
        // That of another process, and another folder than that of mappings.
        take(1, written(&[asked]));
        let folder = open(c"map_files");
        assert_eq!(ask(folder, name, no_follow), None);
        take(own, written(&[asked]));
        let other = open(c"task");
        assert_eq!(ask(other, ".", no_follow), None);
        assert_eq!(FOLDER.load(Relaxed), -1);
        // SAFETY: this test's own.
        assert_eq!(unsafe { libc::close(folder) + libc::close(other) }, 0);
    }

    #[test]
    fn names_are_addresses() {
        assert_eq!(mapping(b"7ff0-8000"), Some([0x7ff0, 0x8000]));
        for other in ["", "-", "7ff0", "7ff0-", "x-8000", "7ff0-8000 "] {
            assert_eq!(mapping(other.as_bytes()), None, "{other}");
        }
    }
}
