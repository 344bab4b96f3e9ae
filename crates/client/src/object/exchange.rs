//! Replaces the memory behind pages of the program by other memory with the same content, while the program runs.
//!
//! ```text
//!   for each part: copy it ─► copy it once more ─► replace its pages
//!                             └─ one block of machine code ─┘
//! ```
//! Other threads of the program run meanwhile, because only the agent can park them. A write between a part's second copy, whose
//! pages are in the caches, and its replacement is lost: the call waits for the lock of the address space, exchanges the mapping,
//! and has other cores drop the old pages. The first and the last page may hold other data of the program, which other threads do
//! change (the heap's own, too). Each is a part of its own, and a mapping of its own before it is copied, so that the call need not
//! split one. The time left is 3 to 8 µs in the median and up to 30 µs in 99 of 100 cases; where another thread has the lock or the
//! core, it is milliseconds.
//!
//! A part of the calling thread's stack may lie in the pages, too: a coroutine's is not recognised. Therefore nothing may be written
//! to it between copy and replacement.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use fermata_abi::op::Address;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::object::mirror::PAGE;

/// The most bytes of a part: both copies of it fit into a core's cache.
const PART: u64 = 256 << 10;

/// Replaces whole pages by the beginning of a file, which is as long and may have any content.
///
/// # Errors
/// What the system says; `FAULT` if nothing is mapped there. The program finds the content that was there before.
pub fn by_file(start: Address, size: u64, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let copy =
        unsafe { rustix::mm::mmap(null_mut(), size as usize, both, MapFlags::SHARED, file, 0)? };
    let flags = (MapFlags::SHARED | MapFlags::FIXED).bits() as usize;
    let number = file.as_raw_fd() as usize;
    let replaced = in_parts(size, |at, len| {
        let page = (start + at).raw() as usize;
        write(page, len, file, at)?;
        split_off(page, len);
        let to = copy.wrapping_byte_add(at as usize);
        let arguments = [page, len, both.bits() as usize, flags, number, at as usize];
        // SAFETY: both ranges are mapped, as `write` has just read the one and the other is a part of `copy`. The call maps
        // over the pages what has just been copied from them.
        unsafe { copy_then_call(page, to, len, libc::SYS_mmap, arguments) }
            .inspect_err(|_| join(page, len))
    });
    // SAFETY: the mapping is this function's own.
    let _ = unsafe { rustix::mm::munmap(copy, size as usize) };
    replaced.map_err(|(errno, done)| {
        if done > 0 {
            by_private(start, done);
        }
        errno
    })
}

/// Calls `replace` with each part. If the system does not split the mapping, as with huge pages of hugetlbfs, the whole is one part.
///
/// # Errors
/// That of `replace`, and the bytes that were replaced before.
fn in_parts(
    size: u64,
    mut replace: impl FnMut(u64, usize) -> Result<(), Errno>,
) -> Result<(), (Errno, u64)> {
    let mut at_offset = |(at, len)| replace(at, len).map_err(|errno| (errno, at));
    match parts(size).try_for_each(&mut at_offset) {
        Err((Errno::INVAL, 0)) => at_offset((0, size as usize)),
        replaced => replaced,
    }
}

/// Replaces whole pages, which are mapped, by private memory. Pages for which the system has no memory stay as they are.
pub fn by_private(start: Address, size: u64) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping overlaps nothing.
    let copy =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), size as usize, both, MapFlags::PRIVATE) };
    let Ok(copy) = copy else { return };
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    for (at, len) in parts(size) {
        let page = (start + at).raw() as usize;
        let to = copy.wrapping_byte_add(at as usize);
        let from: *const u8 = with_exposed_provenance(page);
        if !is_readable(page, len) {
            continue;
        }
        split_off(page, len);
        // SAFETY: both ranges are mapped and `len` long.
        unsafe { std::ptr::copy_nonoverlapping(from, to.cast(), len) };
        let arguments = [to.addr(), len, len, flags, page, 0];
        // SAFETY: as above. The call moves over the pages what has just been copied from them.
        let moved = unsafe { copy_then_call(page, to, len, libc::SYS_mremap, arguments) };
        if moved.is_err() {
            join(page, len);
            // SAFETY: what was not moved is this function's own.
            let _ = unsafe { rustix::mm::munmap(to, len) };
        }
    }
}

/// Whether pages can be read: a forked child may not have all that its parent was replacing. Kernels before Linux 5.14 cannot tell,
/// and there they can.
fn is_readable(page: usize, len: usize) -> bool {
    let page = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: pages that are not there are an error; the advice changes no content.
    match unsafe { rustix::mm::madvise(page, len, Advice::LinuxPopulateRead) } {
        Ok(()) | Err(Errno::INVAL) => true,
        Err(_) => false,
    }
}

/// Makes a page that is to be replaced a mapping of its own. To differ from its neighbours it is left out of core dumps.
fn split_off(page: usize, len: usize) {
    if len as u64 == PAGE {
        advise(page, len, Advice::LinuxDontDump);
    }
}

/// Undoes [`split_off`] for a page that was not replaced.
fn join(page: usize, len: usize) {
    if len as u64 == PAGE {
        advise(page, len, Advice::LinuxDoDump);
    }
}

fn advise(page: usize, len: usize, advice: Advice) {
    // SAFETY: the advice concerns core dumps, not the content. Without it the replacement only takes longer.
    let _ = unsafe { rustix::mm::madvise(with_exposed_provenance_mut(page), len, advice) };
}

/// Writes `len` bytes to the file at `at`. The kernel reads them, so that memory which is not there is an error.
fn write(from: usize, len: usize, file: BorrowedFd<'_>, at: u64) -> Result<(), Errno> {
    let from: *const u8 = with_exposed_provenance(from);
    let mut done = 0;
    while done < len {
        // SAFETY: no reference is made to the bytes: other threads may change them, or have unmapped them.
        let wrote = unsafe {
            libc::pwrite(
                file.as_raw_fd(),
                from.wrapping_add(done).cast(),
                len - done,
                (at + done as u64) as i64,
            )
        };
        match usize::try_from(wrote) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(wrote) => done += wrote,
            Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                errno => return Err(errno.unwrap_or(Errno::IO)),
            },
        }
    }
    Ok(())
}

/// Offset and bytes of each part of some pages: the first page, what lies between in pieces, and the last page.
fn parts(size: u64) -> impl Iterator<Item = (u64, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = size - at;
        let len = if at == 0 || left <= PAGE {
            left.min(PAGE)
        } else {
            (left - PAGE).min(PART)
        };
        let part = (at, len as usize);
        at += len;
        (len > 0).then_some(part)
    })
}

/// Copies `len` bytes from `from` to `to`, then makes the system call `number` at once, with nothing written to memory between.
///
/// # Safety
/// Both ranges are mapped and do not overlap. What the call does is the caller's to answer for.
unsafe fn copy_then_call(
    from: usize,
    to: *mut libc::c_void,
    len: usize,
    number: libc::c_long,
    arguments: [usize; 6],
) -> Result<(), Errno> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: isize;
    // SAFETY: the copy stays in the caller's ranges (the direction flag is clear, as the ABI says); the call destroys rcx and r11.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            "mov rdi, {first}",
            "mov rsi, {second}",
            "syscall",
            first = in(reg) first,
            second = in(reg) second,
            inout("rax") number as isize => result,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rcx") len => _,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            out("r11") _,
            options(nostack)
        );
    }
    match result {
        -4095..0 => Err(Errno::from_raw_os_error(-result as i32)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn file(bytes: u64) -> rustix::fd::OwnedFd {
        let file = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.expect("a file");
        rustix::fs::ftruncate(&file, bytes).expect("bytes");
        file
    }

    #[test]
    fn the_first_and_the_last_page_are_parts_of_their_own() {
        let all = |size| parts(size).collect::<Vec<_>>();
        assert_eq!(all(PAGE), [(0, 4096)]);
        assert_eq!(all(2 * PAGE), [(0, 4096), (4096, 4096)]);
        let (part, page) = (PART as usize, PAGE as usize);
        let end = PAGE + PART + PAGE;
        assert_eq!(
            all(end + PAGE),
            [(0, page), (PAGE, part), (PAGE + PART, page), (end, page)]
        );
    }

    #[test]
    fn a_mapping_that_cannot_be_split_is_replaced_as_a_whole() {
        let (whole, mut seen) = (3 * PAGE as usize, Vec::new());
        let replaced = in_parts(3 * PAGE, |at, len| {
            seen.push((at, len));
            (len == whole).then_some(()).ok_or(Errno::INVAL)
        });
        assert_eq!(replaced, Ok(()));
        assert_eq!(seen, [(0, PAGE as usize), (0, whole)]);
        // What follows the first part is another mapping.
        let replaced = in_parts(3 * PAGE, |at, _| {
            (at == 0).then_some(()).ok_or(Errno::INVAL)
        });
        assert_eq!(replaced, Err((Errno::INVAL, PAGE)));
    }

    #[test]
    fn pages_keep_their_content_when_a_file_and_then_private_memory_replaces_them() {
        for pages in [1, 2, 3, 70, 150] {
            let size = pages * PAGE;
            let both = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            let memory = unsafe {
                rustix::mm::mmap_anonymous(null_mut(), size as usize, both, MapFlags::PRIVATE)
            };
            let memory = memory.expect("mapped").cast::<u8>();
            let start = Address::from_raw(memory.expose_provenance() as u64);
            // SAFETY: the test's own memory, used by nothing else meanwhile.
            let bytes = || unsafe { std::slice::from_raw_parts_mut(memory, size as usize) };
            let pattern = |n: usize| (n / 4096 * 7 + n) as u8;
            (0..size as usize).for_each(|n| bytes()[n] = pattern(n));
            let file = file(size);
            by_file(start, size, file.as_fd()).expect("replaced");
            assert!(bytes().iter().enumerate().all(|(n, it)| *it == pattern(n)));
            let last = size - 1;
            bytes()[last as usize] ^= 0xff;
            let mut seen = [0];
            rustix::io::pread(&file, &mut seen, last).expect("read");
            assert_eq!(seen[0], !pattern(last as usize), "the file is the memory");
            by_private(start, size);
            bytes()[0] ^= 0xff;
            rustix::io::pread(&file, &mut seen, 0).expect("read");
            assert_eq!(seen[0], pattern(0), "the file is no longer the memory");
            bytes()[0] ^= 0xff;
            bytes()[last as usize] ^= 0xff;
            assert!(bytes().iter().enumerate().all(|(n, it)| *it == pattern(n)));
            // SAFETY: the mapping is the test's own.
            unsafe { rustix::mm::munmap(memory.cast(), size as usize).expect("unmapped") };
        }
    }

    /// A process has a limited number of mappings.
    #[test]
    fn parts_that_were_replaced_are_one_mapping_again() {
        let size = 64 * PART;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), size as usize, both, MapFlags::PRIVATE)
        };
        let memory = memory.expect("mapped");
        let start = memory.expose_provenance() as u64;
        let mappings = || {
            let table = std::fs::read_to_string("/proc/self/maps").expect("the table");
            let first = |line: &str| u64::from_str_radix(line.split('-').next()?, 16).ok();
            let starts = table.lines().filter_map(first);
            starts
                .filter(|it| (start..start + size).contains(it))
                .count()
        };
        let file = file(size);
        by_file(Address::from_raw(start), size, file.as_fd()).expect("replaced");
        assert_eq!(mappings(), 1);
        by_private(Address::from_raw(start), size);
        assert!(mappings() <= 3, "{} mappings", mappings());
        // SAFETY: the mapping is the test's own.
        unsafe { rustix::mm::munmap(memory, size as usize).expect("unmapped") };
    }

    /// A stack that the C library has not made is not recognised.
    #[test]
    fn the_stack_of_the_calling_thread_can_be_replaced() {
        let thread = std::thread::spawn(|| {
            let mut word = 41u64;
            let start = Address::of(&raw mut word).align_down(PAGE);
            let file = file(PAGE);
            by_file(start, PAGE, file.as_fd()).expect("replaced");
            word = std::hint::black_box(word) + 1;
            by_private(start, PAGE);
            std::hint::black_box(word)
        });
        assert_eq!(thread.join().expect("no crash"), 42);
    }

    /// As in a child that does not inherit a page.
    #[test]
    fn pages_that_are_not_there_are_left_alone() {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let size = 4 * PAGE;
        // SAFETY: a fresh mapping at an address of the kernel's choice, a page of which is taken away again.
        let memory = unsafe {
            let at = rustix::mm::mmap_anonymous(null_mut(), size as usize, both, MapFlags::PRIVATE);
            let at = at.expect("mapped");
            at.cast::<u8>().write(7);
            rustix::mm::munmap(at.wrapping_byte_add(3 * PAGE as usize), PAGE as usize)
                .expect("unmapped");
            at
        };
        by_private(Address::from_raw(memory.expose_provenance() as u64), size);
        // SAFETY: the pages that are left are the test's own.
        unsafe {
            assert_eq!(memory.cast::<u8>().read(), 7);
            rustix::mm::munmap(memory, 3 * PAGE as usize).expect("unmapped");
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let file = file(PAGE);
        let nowhere = Address::from_raw(PAGE);
        assert_eq!(by_file(nowhere, PAGE, file.as_fd()), Err(Errno::FAULT));
    }
}
