//! CRIU's question for pages that the program has made inaccessible (`MADV_GUARD_INSTALL`).
//!
//! CRIU asks the kernel for them in all of the address space, and the kernel looks at every page of the process for it, more than a millisecond for each GiB.
//! The daemon does that on several threads while CRIU is busy with something else, and lists them.

use libc::c_int;

use crate::list::{List, Pages};
use crate::process;

/// Those of the process that CRIU dumps.
static GUARDS: List = List::new();

/// Takes the list in `file` as that of process `pid`; without one the kernel is asked.
pub fn take(pid: u32, file: c_int) {
    GUARDS.take(pid, file);
}

/// Hands to `then` the pages of the process whose page map this is, if they are listed.
pub fn with<R>(pagemap: c_int, then: impl FnOnce(&[Pages]) -> R) -> Option<R> {
    let listed = GUARDS.pid()?;
    (process::of(pagemap, b"/pagemap") == Some(listed)).then(|| GUARDS.with(then))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;
    use crate::list::written;

    #[test]
    fn pages_are_those_of_the_process_that_is_listed() {
        let own = File::open("/proc/self/pagemap").expect("opened");
        let maps = File::open("/proc/self/maps").expect("opened");
        let pid = std::process::id();
        let told = |file: &File| with(file.as_raw_fd(), <[Pages]>::to_vec);
        assert_eq!(told(&own), None, "none is listed");
        for pages in [&[[0x1000, 0x3000]][..], &[]] {
            take(pid, written(pages));
            assert_eq!(told(&own).as_deref(), Some(pages));
            assert_eq!(told(&maps), None, "it is no page map");
        }
        take(1, written(&[[0x1000, 0x3000]]));
        assert_eq!(told(&own), None, "they are another process's");
        take(pid, -1);
        assert_eq!(told(&own), None, "they cannot be read");
    }
}
