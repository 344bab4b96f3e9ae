//! CRIU's questions about files that have known answers.
//!
//! **Which file a mapping is of, and how that was opened.** CRIU looks for each mapping in `/proc/PID/map_files`, in which only those of files are, and
//! the kernel takes some microseconds to find one, or to find that it is not there. A process has hundreds of mappings. The daemon lists those without a file: it
//! reads in `/proc/PID/maps` that they have neither device nor inode. It also lists the private mappings of files. Whether
//! those were opened for writing makes no difference to such a mapping, so CRIU is told that they were not.
//!
//! **Which cgroup namespace a process is in.** If CRIU knows that there are such, it asks its code in the program for the cgroup of each thread, and each time
//! waits for an answer, although it restores no cgroups for us. So as long as a process is in CRIU's own, it is told that the kernel has none.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use libc::{c_char, c_int};

use crate::list::{List, Pages};
use crate::process;

/// Mappings without a file of the process that CRIU dumps.
static WITHOUT: List = List::new();
/// Its private mappings of files.
static PRIVATE: List = List::new();
/// CRIU's descriptor of that process's folder.
static FOLDER: AtomicI32 = AtomicI32::new(-1);
/// The number of CRIU's own cgroup namespace, once it is known.
static CGROUPS: AtomicU64 = AtomicU64::new(0);

/// Takes these lists, of mappings without a file and of private ones of files, as those of process `pid`, whose folder CRIU opens next.
pub fn take(pid: u32, without: c_int, private: c_int) {
    FOLDER.store(-1, Relaxed);
    WITHOUT.take(pid, without);
    PRIVATE.take(pid, private);
}

/// CRIU has opened a folder with the files of mappings.
pub fn opened(folder: c_int) {
    let owner = process::of(folder, b"/map_files");
    let is_known = owner.is_some() && owner == WITHOUT.pid();
    FOLDER.store(if is_known { folder } else { -1 }, Relaxed);
}

/// `fstatat(2)`: the system call, but for the file of a mapping that is listed, and for a cgroup namespace.
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
    // SAFETY: the caller's path is a string.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let is_asked = folder >= 0
        && folder == FOLDER.load(Relaxed)
        && flags == libc::AT_SYMLINK_NOFOLLOW
        && !answer.is_null();
    let asked = name
        .filter(|_| is_asked)
        .and_then(|it| mapping(it.to_bytes()));
    if asked.is_some_and(|it| is_in(&WITHOUT, it)) {
        return not_there();
    }
    if asked.is_some_and(|it| PRIVATE.pid() == WITHOUT.pid() && is_in(&PRIVATE, it)) {
        // SAFETY: the caller's answer is as long as is expected, and all zeros are one.
        unsafe {
            *answer = core::mem::zeroed();
            (*answer).st_mode = libc::S_IFLNK | libc::S_IRUSR;
        }
        return 0;
    }
    // SAFETY: the caller's own call.
    let told = unsafe { stat(folder, path, answer, flags) };
    let is_namespace = told == 0 && flags == 0 && name == Some(c"ns/cgroup");
    // SAFETY: the kernel has filled the answer.
    match is_namespace && own_cgroups() == Some(unsafe { (*answer).st_ino }) {
        true => not_there(),
        false => told,
    }
}

/// # Safety
/// As the system call with these arguments.
unsafe fn stat(
    folder: c_int,
    path: *const c_char,
    answer: *mut libc::stat64,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's own call.
    unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, answer, flags) as c_int }
}

fn not_there() -> c_int {
    // SAFETY: the place of this thread's error number.
    unsafe { *libc::__errno_location() = libc::ENOENT };
    -1
}

/// The number of the cgroup namespace that CRIU is in.
fn own_cgroups() -> Option<u64> {
    let known = CGROUPS.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    // SAFETY: the path is a string, and the answer as long as is expected.
    let own = unsafe {
        let mut answer = core::mem::zeroed::<libc::stat64>();
        let path = c"/proc/self/ns/cgroup".as_ptr();
        let told = stat(libc::AT_FDCWD, path, &raw mut answer, 0);
        (told == 0).then_some(answer.st_ino)
    };
    CGROUPS.store(own.unwrap_or(0), Relaxed);
    own
}

fn is_in(list: &List, mapping: Pages) -> bool {
    list.with(|all| all.binary_search(&mapping).is_ok())
}

/// The mapping of this name, `FIRST-LAST` in hexadecimal.
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
    use std::sync::{Mutex, MutexGuard};

    use super::*;
    use crate::list::written;
    use crate::mappings::openat64;

    /// Held by tests that take lists.
    fn alone() -> MutexGuard<'static, ()> {
        static LISTS: Mutex<()> = Mutex::new(());
        LISTS
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

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
        let _lists = alone();
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
            take(own, written(list), written(&[]));
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
        take(1, written(&[asked]), written(&[]));
        let folder = open(c"map_files");
        assert_eq!(ask(folder, name, no_follow), None);
        take(own, written(&[asked]), written(&[]));
        let other = open(c"task");
        assert_eq!(ask(other, ".", no_follow), None);
        assert_eq!(FOLDER.load(Relaxed), -1);
        // SAFETY: this test's own.
        assert_eq!(unsafe { libc::close(folder) + libc::close(other) }, 0);
    }

    #[test]
    fn private_mappings_of_files_are_of_files_that_are_read() {
        let _lists = alone();
        let own = std::process::id();
        let mode = |private: &[Pages]| {
            take(own, written(&[[1, 2]]), written(private));
            let folder = open(c"map_files");
            // SAFETY: the name is a string, the answer as long as is expected, and the folder this test's own.
            unsafe {
                let mut answer: libc::stat64 = core::mem::zeroed();
                let no_follow = libc::AT_SYMLINK_NOFOLLOW;
                let told = fstatat64(folder, c"3-4".as_ptr(), &raw mut answer, no_follow);
                libc::close(folder);
                (told == 0).then_some(answer.st_mode)
            }
        };
        // Such a list lies: there is no such mapping.
        assert_eq!(mode(&[[1, 3], [3, 4]]), Some(0o120_400));
        assert_eq!(mode(&[[1, 3]]), None);
        assert_eq!(mode(&[]), None);
    }

    #[test]
    fn a_process_in_criu_s_own_cgroup_namespace_is_in_none() {
        // SAFETY: strings that live as long as the calls, and answers as long as is expected.
        let told = |name: &std::ffi::CStr| unsafe {
            let folder = libc::open(c"/proc/self".as_ptr(), libc::O_PATH);
            let mut answer: libc::stat64 = core::mem::zeroed();
            let told = fstatat64(folder, name.as_ptr(), &raw mut answer, 0);
            libc::close(folder);
            (told, answer.st_ino)
        };
        assert_eq!(told(c"ns/cgroup").0, -1);
        assert_eq!(told(c"ns/ipc").0, 0);
        let own = CGROUPS.swap(1, Relaxed);
        assert_eq!(told(c"ns/cgroup"), (0, own), "it is in another");
        CGROUPS.store(own, Relaxed);
    }

    #[test]
    fn names_are_addresses() {
        assert_eq!(mapping(b"7ff0-8000"), Some([0x7ff0, 0x8000]));
        for other in ["", "-", "7ff0", "7ff0-", "x-8000", "7ff0-8000 "] {
            assert_eq!(mapping(other.as_bytes()), None, "{other}");
        }
    }
}
