//! The pages of a process that CRIU need not dump, because they are in a copy that the daemon has.
//!
//! The list comes with the mappings of the process (`mappings`), which CRIU asks for before it asks for pages. It is a file of
//! first and last addresses, ascending. CRIU has one thread, and dumps one process after the other.

use core::mem::size_of;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use libc::{c_int, c_void};

use crate::process;

/// First and last address (exclusive) of pages that follow each other.
pub type Pages = [u64; 2];

/// The list in memory, and the process that it is of.
static PID: AtomicU32 = AtomicU32::new(0);
static FIRST: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Takes the list in `file`, which is closed, as that of process `pid`, in decimal, in place of the one before. One that cannot
/// be read is as none: CRIU dumps all.
pub fn take(pid: &[u8], file: c_int) {
    let former = COUNT.swap(0, Relaxed);
    if former > 0 {
        // SAFETY: the list that was mapped here with this length, which nothing names any more.
        unsafe { libc::munmap(FIRST.load(Relaxed), former * size_of::<Pages>()) };
    }
    // SAFETY: the calls take numbers, and a buffer that is as long as they expect; a mapping is made at a place of the kernel's
    // choice. The file is this function's own.
    unsafe {
        let mut information = core::mem::zeroed::<libc::stat>();
        let known = libc::fstat(file, &raw mut information) == 0;
        let count = match known {
            true => information.st_size as usize / size_of::<Pages>(),
            false => 0,
        };
        let bytes = count * size_of::<Pages>();
        let (null, private) = (ptr::null_mut(), libc::MAP_PRIVATE);
        let first = libc::mmap(null, bytes, libc::PROT_READ, private, file, 0);
        libc::close(file);
        if let Some(pid) = decimal(pid)
            && first != libc::MAP_FAILED
        {
            PID.store(pid, Relaxed);
            FIRST.store(first, Relaxed);
            COUNT.store(count, Relaxed);
        }
    }
}

/// Hands to `then` the pages of the process whose page map this is that need not be dumped.
pub fn with<R>(pagemap: c_int, then: impl FnOnce(&[Pages]) -> R) -> R {
    let count = COUNT.load(Relaxed);
    if count == 0 || owner(pagemap) != Some(PID.load(Relaxed)) {
        return then(&[]);
    }
    // SAFETY: the mapping has so many pairs of numbers, and is removed by the next `take` at the earliest.
    then(unsafe { slice::from_raw_parts(FIRST.load(Relaxed).cast(), count) })
}

/// The process of a descriptor of `/proc/PID/pagemap`.
fn owner(pagemap: c_int) -> Option<u32> {
    let mut target = [0; 64];
    decimal(process::of(pagemap, b"/pagemap", &mut target)?)
}

fn decimal(digits: &[u8]) -> Option<u32> {
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::os::fd::{AsRawFd as _, IntoRawFd as _};

    use super::*;

    fn list(pages: &[Pages]) -> c_int {
        let path = std::env::temp_dir().join(format!("fermata-list-{}", std::process::id()));
        let mut file = File::create(&path).expect("a file");
        for number in pages.iter().flatten() {
            file.write_all(&number.to_ne_bytes()).expect("written");
        }
        let file = File::open(&path).expect("the same file");
        fs::remove_file(&path).expect("removed");
        file.into_raw_fd()
    }

    #[test]
    fn a_list_is_that_of_one_process_until_the_next_comes() {
        let own = File::open("/proc/self/pagemap").expect("opened");
        let first = File::open("/proc/1/stat").expect("opened");
        let own_pid = std::process::id().to_string();
        let told = |file: &File| with(file.as_raw_fd(), <[Pages]>::to_vec);
        assert!(told(&own).is_empty());
        let pages = [[0x1000, 0x3000], [0x5000, 0x6000]];
        take(own_pid.as_bytes(), list(&pages));
        assert_eq!(told(&own), pages);
        assert!(told(&first).is_empty(), "it is no page map of this process");
        take(own_pid.as_bytes(), list(&[]));
        assert!(told(&own).is_empty());
        take(b"1", list(&pages));
        assert!(told(&own).is_empty(), "it is of another process");
        take(own_pid.as_bytes(), list(&pages[1..]));
        assert_eq!(told(&own), pages[1..]);
        take(own_pid.as_bytes(), -1);
        assert!(told(&own).is_empty(), "it cannot be read");
    }
}
