//! CRIU's question for pages.
//!
//! CRIU asks the kernel by one call, `ioctl(PAGEMAP_SCAN)`, which pages of a mapping have content. This library answers
//! that call by the kernel as well, with one condition more: the mapping must not be write-protected by an asynchronous
//! userfaultfd. Such mappings are those that `fermata-hostmem` tracks; for all others nothing changes.

use libc::{c_int, c_long, c_ulong, c_void};

/// `PAGEMAP_SCAN`, from Linux 6.7 on.
const PAGEMAP_SCAN: c_ulong = 0xc060_6610;

/// Mappings with asynchronous write protection.
const WP_ALLOWED: u64 = 1 << 0;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    inverted: u64,
    mask: u64,
    any: u64,
    returned: u64,
}

/// CRIU's question for pages with content, with the condition; none for other questions.
fn narrowed(scan: &Scan) -> Option<Scan> {
    let asks = scan.size == size_of::<Scan>() as u64
        && scan.flags == 0
        && scan.inverted == ZERO | FILE
        && scan.mask == ZERO | FILE
        && scan.any == PRESENT | SWAPPED;
    asks.then_some(Scan {
        inverted: scan.inverted | WP_ALLOWED,
        mask: scan.mask | WP_ALLOWED,
        ..*scan
    })
}

/// `ioctl(2)`: the system call, but for CRIU's question for pages.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let call = |argument: *mut c_void| -> c_long {
        // SAFETY: the caller's own call, or one whose argument lies on this stack.
        unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) }
    };
    let scan = argument.cast::<Scan>();
    // The kernel takes the low 32 bits.
    if request as u32 != PAGEMAP_SCAN as u32 || scan.is_null() || !scan.is_aligned() {
        return call(argument) as c_int;
    }
    // SAFETY: an argument of this request is a `struct pm_scan_arg`, aligned by the line above.
    match narrowed(unsafe { &*scan }) {
        None => call(argument) as c_int,
        Some(mut own) => {
            let answer = call((&raw mut own).cast());
            // SAFETY: as above; the kernel writes this field, too.
            unsafe { (*scan).walk_end = own.walk_end };
            answer as c_int
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Scan = Scan {
        size: 96,
        flags: 0,
        start: 0x1000,
        end: 0x9000,
        walk_end: 0,
        vec: 8,
        vec_len: 9,
        max_pages: 0,
        inverted: ZERO | FILE,
        mask: ZERO | FILE,
        any: PRESENT | SWAPPED,
        returned: PRESENT | SWAPPED,
    };

    #[test]
    fn only_the_question_for_pages_is_narrowed() {
        assert_eq!(size_of::<Scan>(), 96);
        let narrowed_one = narrowed(&ASKED).expect("CRIU's question");
        assert_eq!(narrowed_one.mask, ASKED.mask | WP_ALLOWED);
        assert_eq!(narrowed_one.inverted, ASKED.inverted | WP_ALLOWED);
        assert_eq!((narrowed_one.start, narrowed_one.vec), (0x1000, 8));
        // The one for guard pages, one that protects, one of another kernel's length.
        let guards = Scan {
            inverted: 0,
            mask: 1 << 8,
            any: 0,
            ..ASKED
        };
        let protects = Scan { flags: 1, ..ASKED };
        let longer = Scan { size: 104, ..ASKED };
        for other in [guards, protects, longer] {
            assert_eq!(narrowed(&other), None);
        }
    }
}
