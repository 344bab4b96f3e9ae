//! Addresses of one process that the daemon has listed. A list comes with the mappings of the process (`mappings`), which CRIU asks
//! for before it asks for anything else of them. It is a file of first and last addresses, ascending. CRIU has one thread, and dumps
//! one process after the other.

use core::mem::size_of;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use libc::{c_int, c_void};

/// First and last address (exclusive) of pages that follow each other.
pub type Pages = [u64; 2];

/// A list in memory, of so many numbers each, and the process that it is of.
#[derive(Debug)]
pub struct List<const N: usize = 2> {
    pid: AtomicU32,
    first: AtomicPtr<c_void>,
    count: AtomicUsize,
}

impl<const N: usize> List<N> {
    /// One of nothing.
    pub const fn new() -> Self {
        Self {
            pid: AtomicU32::new(0),
            first: AtomicPtr::new(ptr::null_mut()),
            count: AtomicUsize::new(0),
        }
    }

    /// Takes the list in `file`, which is closed, as that of process `pid`, in place of the one before. One that cannot be read is
    /// of no process.
    pub fn take(&self, pid: u32, file: c_int) {
        self.pid.store(0, Relaxed);
        let former = self.count.swap(0, Relaxed);
        if former > 0 {
            // SAFETY: the list that was mapped here with this length, which nothing names any more.
            unsafe { libc::munmap(self.first.load(Relaxed), former * size_of::<[u64; N]>()) };
        }
        // SAFETY: the calls take numbers, and a buffer that is as long as they expect; a mapping is made at a place of the kernel's
        // choice. The file is this function's own.
        unsafe {
            let mut information = core::mem::zeroed::<libc::stat>();
            if libc::fstat(file, &raw mut information) != 0 {
                return;
            }
            let count = information.st_size as usize / size_of::<[u64; N]>();
            let bytes = count * size_of::<[u64; N]>();
            let (null, private) = (ptr::null_mut(), libc::MAP_PRIVATE);
            let first = match bytes {
                0 => null,
                _ => libc::mmap(null, bytes, libc::PROT_READ, private, file, 0),
            };
            libc::close(file);
            if first != libc::MAP_FAILED {
                self.pid.store(pid, Relaxed);
                self.first.store(first, Relaxed);
                self.count.store(count, Relaxed);
            }
        }
    }

    /// The process that it is of.
    pub fn pid(&self) -> Option<u32> {
        let pid = self.pid.load(Relaxed);
        (pid != 0).then_some(pid)
    }

    /// What is in it, for as long as `then` takes, which takes no other.
    pub fn with<R>(&self, then: impl FnOnce(&[[u64; N]]) -> R) -> R {
        let count = self.count.load(Relaxed);
        if count == 0 {
            return then(&[]);
        }
        // SAFETY: the mapping has so many arrays of numbers, and is removed by the next `take` at the earliest.
        then(unsafe { slice::from_raw_parts(self.first.load(Relaxed).cast(), count) })
    }
}

/// A descriptor of a file with such a list, for tests.
#[cfg(test)]
pub fn written(pages: &[Pages]) -> c_int {
    use std::io::{Seek as _, Write as _};
    use std::os::fd::IntoRawFd as _;

    let mut file = tests::nameless();
    for number in pages.iter().flatten() {
        file.write_all(&number.to_ne_bytes()).expect("written");
    }
    file.rewind().expect("at its beginning");
    file.into_raw_fd()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::FromRawFd as _;

    use super::*;

    pub(super) fn nameless() -> File {
        // SAFETY: the name is a string; the descriptor is this file's own.
        unsafe {
            let file = libc::memfd_create(c"list".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0);
            File::from_raw_fd(file)
        }
    }

    #[test]
    fn a_list_is_that_of_one_process_until_the_next_comes() {
        let list = List::new();
        let told = || (list.pid(), list.with(<[Pages]>::to_vec));
        assert_eq!(told(), (None, vec![]));
        let pages = [[0x1000, 0x3000], [0x5000, 0x6000]];
        list.take(7, written(&pages));
        assert_eq!(told(), (Some(7), pages.to_vec()));
        list.take(7, written(&[]));
        assert_eq!(told(), (Some(7), vec![]), "there are none");
        list.take(8, written(&pages[1..]));
        assert_eq!(told(), (Some(8), pages[1..].to_vec()));
        list.take(8, -1);
        assert_eq!(told(), (None, vec![]), "it cannot be read");
    }
}
