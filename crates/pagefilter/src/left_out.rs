//! The pages of a process that CRIU need not dump, because they are in a copy that the daemon has.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::c_int;

use crate::list::{List, Pages};
use crate::process;

/// Those of the process that CRIU dumps.
static LEFT_OUT: List = List::new();
/// Device and inode of the page map that was found to be that process's.
static KNOWN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Takes the list in `file` as that of process `pid`.
pub fn take(pid: u32, file: c_int) {
    LEFT_OUT.take(pid, file);
    KNOWN[1].store(0, Relaxed);
}

/// Hands to `then` the pages of the process whose page map this is that need not be dumped.
pub fn with<R>(pagemap: c_int, then: impl FnOnce(&[Pages]) -> R) -> R {
    match LEFT_OUT.pid() {
        Some(pid) if is_of(pagemap, pid) => LEFT_OUT.with(then),
        _ => then(&[]),
    }
}

/// Whether this is a descriptor of `/proc/PID/pagemap`. CRIU asks for each mapping by itself, and a link of `/proc` takes longer to read
/// than which file it is: a number that no other file of `/proc` has.
fn is_of(pagemap: c_int, pid: u32) -> bool {
    let is = process::identity(pagemap);
    let known = [KNOWN[0].load(Relaxed), KNOWN[1].load(Relaxed)];
    if is.is_some() && is == Some(known) && known[1] != 0 {
        return true;
    }
    let owner = process::of(pagemap, b"/pagemap");
    if owner == Some(pid)
        && let Some([device, inode]) = is
    {
        KNOWN[0].store(device, Relaxed);
        KNOWN[1].store(inode, Relaxed);
    }
    owner == Some(pid)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;
    use crate::list::written;

    #[test]
    fn pages_are_left_out_of_the_process_that_they_are_of() {
        let own = File::open("/proc/self/pagemap").expect("opened");
        let first = File::open("/proc/1/stat").expect("opened");
        let own_pid = std::process::id();
        let told = |file: &File| with(file.as_raw_fd(), <[Pages]>::to_vec);
        assert!(told(&own).is_empty());
        let pages = [[0x1000, 0x3000], [0x5000, 0x6000]];
        take(own_pid, written(&pages));
        for _ in 0..2 {
            assert_eq!(told(&own), pages);
            assert!(told(&first).is_empty(), "it is no page map of this process");
        }
        take(1, written(&pages));
        assert!(told(&own).is_empty(), "it is of another process");
        take(own_pid, written(&pages[1..]));
        assert_eq!(told(&own), pages[1..]);
        take(own_pid, -1);
        assert!(told(&own).is_empty(), "it cannot be read");
    }
}
