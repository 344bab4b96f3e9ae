//! Pages that a process has made inaccessible are found, on one thread as on several.

use std::ops::Range;

const PAGE: u64 = 4096;
const LENGTH: u64 = 192 << 20;
/// Where pieces meet that are asked about at once, if a piece begins with the mapping.
const SEAM: u64 = 64 << 20;
/// `MADV_GUARD_INSTALL`, from Linux 6.13 on.
const INSTALL: i32 = 102;

/// The kernel's release, as far as it counts here.
fn kernel() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("read");
    let mut numbers = text.split(['.', '-']).map_while(|it| it.parse().ok());
    (
        numbers.next().expect("a number"),
        numbers.next().expect("another"),
    )
}

#[test]
fn guards_are_those_that_were_installed() {
    let own = std::process::id();
    if fermata_hostmem::guards(own, 2).expect("examined").is_none() {
        assert!(
            kernel() < (6, 15),
            "this kernel tells which pages are inaccessible"
        );
        return;
    }
    // SAFETY: a mapping of this test's own, of which parts are made inaccessible.
    let at = unsafe {
        let (access, how) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let at = libc::mmap(std::ptr::null_mut(), LENGTH as usize, access, how, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        for (first, bytes) in [(0, PAGE), (SEAM - 4 * PAGE, 8 * PAGE)] {
            let part = at.byte_add(first as usize);
            assert_eq!(
                libc::madvise(part, bytes as usize, INSTALL),
                0,
                "a kernel that tells can install"
            );
        }
        at
    };
    let start = at as u64;
    let installed = [
        start..start + PAGE,
        start + SEAM - 4 * PAGE..start + SEAM + 4 * PAGE,
    ];
    let is_here = |it: &Range<u64>| (start..start + LENGTH).contains(&it.start);
    for threads in [1, 4] {
        let guards = fermata_hostmem::guards(own, threads)
            .expect("examined")
            .expect("told");
        // The harness's own threads may have some as well.
        let here: Vec<_> = guards.into_iter().filter(is_here).collect();
        assert_eq!(here, installed);
    }
    // SAFETY: the mapping above.
    unsafe { libc::munmap(at, LENGTH as usize) };
    fermata_hostmem::guards(u32::MAX, 2).expect_err("there is no such process");
}
