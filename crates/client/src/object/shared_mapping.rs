//! Finds memory that the program may share with other processes, and the file behind it, and memory that the calling thread runs on.
//!
//! ```text
//!   start-end        perms offset   device inode  path                    of /proc/self/maps
//!   7f12…000-7f12…   rw-s  00000000 00:01  4711   /dev/shm/ring (deleted)
//! ```
//! A file without a name (memory of `MAP_ANONYMOUS`, a removed file) is opened by its mapped range, which the kernel allows
//! to privileged processes; a file with a name can be opened by its name, too.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;

use fermata_abi::op::Address;

use crate::object::mirror::PAGE;
use crate::thread::alloc;

/// Part of a file that is mapped.
#[derive(Debug)]
pub struct Part {
    /// The file.
    pub file: File,
    /// Where the range begins in it, in bytes.
    pub offset: u64,
}

/// The kind of memory behind a range of the program's addresses.
#[derive(Debug)]
pub enum Backing {
    /// Memory of this process only.
    Private,
    /// The same, but the calling thread runs on it: its stack and its thread block.
    Running,
    /// A part of a file that is mapped as shared.
    Shared(Part),
    /// Shared in parts that are not one piece of one file, or of a file that cannot be opened; or the kernel's table cannot be
    /// read.
    Unknown,
}

/// A line of the kernel's table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line<'t> {
    start: Address,
    end: Address,
    shared: bool,
    offset: u64,
    inode: u64,
    path: &'t str,
}

impl Line<'_> {
    /// Whether a thread runs on the pages from `start` to `end`, as far as they are on this line: on its stack from `stack` on,
    /// where its stack pointer is, or on the page of its thread block.
    ///
    /// The C library puts a thread's block at the end of its stack, but not the first thread's. Of any other stack (a coroutine's)
    /// the end is not known.
    fn is_run_on(
        &self,
        (start, end): (Address, Address),
        (stack, block): (Address, Address),
    ) -> bool {
        let holds = |at: Address| self.start <= at && at < self.end;
        let page = |at: Address| at.align_down(PAGE);
        let top = if stack < block && holds(block) {
            page(block) + PAGE
        } else if self.path == "[stack]" {
            self.end
        } else {
            page(stack) + PAGE
        };
        let on_stack = holds(stack) && start < top && stack < end;
        on_stack || (start <= block && block < end)
    }
}

/// The memory behind the `size` bytes at `start`, which are whole, mapped pages.
pub fn at(start: Address, size: u64) -> Backing {
    let Ok(table) = fs::read("/proc/self/maps") else {
        return Backing::Unknown;
    };
    let table = String::from_utf8_lossy(&table);
    let end = start.saturating_add(size);
    let lines = table.lines().filter_map(line);
    let within: Vec<_> = lines
        .filter(|it| it.start < end && start < it.end)
        .collect();
    let Some(first) = within.first().filter(|_| within.iter().any(|it| it.shared)) else {
        let block = Address::from_raw(alloc::thread_pointer() as u64);
        let own = (stack_pointer(), block);
        return match within.iter().any(|it| it.is_run_on((start, end), own)) {
            true => Backing::Running,
            false => Backing::Private,
        };
    };
    // One file, in one piece.
    let follows = |pair: &[Line<'_>]| {
        let [one, next] = pair else { return false };
        one.end == next.start
            && (one.shared, one.inode) == (next.shared, next.inode)
            && one.offset + (one.end - one.start) == next.offset
    };
    let covered = first.start <= start && within.last().is_some_and(|it| end <= it.end);
    if !covered || !within.windows(2).all(follows) {
        return Backing::Unknown;
    }
    match open(first) {
        Some(file) => Backing::Shared(Part {
            file,
            offset: first.offset + (start - first.start),
        }),
        None => Backing::Unknown,
    }
}

/// The calling thread's stack pointer: its callers' variables lie above.
fn stack_pointer() -> Address {
    let pointer: u64;
    // SAFETY: reading the register changes nothing.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    Address::from_raw(pointer)
}

fn open(line: &Line<'_>) -> Option<File> {
    let by_range = format!("/proc/self/map_files/{:x}-{:x}", line.start, line.end);
    let open = |path: &str| OpenOptions::new().read(true).write(true).open(path);
    let file = open(&by_range).or_else(|_| open(line.path)).ok()?;
    // Another file may have this name by now.
    (file.metadata().ok()?.ino() == line.inode).then_some(file)
}

fn line(text: &str) -> Option<Line<'_>> {
    let mut rest = text;
    let mut next = || {
        let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after.trim_start();
        field
    };
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = next().split_once('-')?;
    let shared = next().as_bytes().get(3) == Some(&b's');
    let offset = number(next())?;
    let _device = next();
    let inode = next().parse().ok()?;
    Some(Line {
        start: Address::from_raw(number(start)?),
        end: Address::from_raw(number(end)?),
        shared,
        offset,
        inode,
        path: rest,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, SeekFrom};

    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

    use super::*;

    const PAGE: usize = super::PAGE as usize;

    #[test]
    fn a_line_of_the_table_is_read() {
        let text = "7f0012340000-7f0012350000 rw-s 00003000 00:19 4711                       /dev/shm/a b (deleted)";
        let expected = Line {
            start: Address::from_raw(0x7f00_1234_0000),
            end: Address::from_raw(0x7f00_1235_0000),
            shared: true,
            offset: 0x3000,
            inode: 4711,
            path: "/dev/shm/a b (deleted)",
        };
        assert_eq!(line(text), Some(expected));
        let private = line("7f00-7f10 r-xp 00000000 00:00 0").expect("a line");
        assert!(!private.shared && private.path.is_empty());
        assert_eq!(line("nothing"), None);
    }

    #[test]
    fn memory_that_the_calling_thread_runs_on_is_told_from_other_memory() {
        let of_thread = std::thread::spawn(|| {
            let words = std::hint::black_box([1u8; 4 * PAGE]);
            let heap = vec![1u8; 4 * PAGE];
            let pages = |at: *const u8| at_page(Address::of(at));
            let block = Address::from_raw(alloc::thread_pointer() as u64);
            assert!(matches!(pages(&raw const words[0]), Backing::Running));
            assert!(matches!(
                pages(&raw const words[3 * PAGE]),
                Backing::Running
            ));
            assert!(matches!(at_page(block), Backing::Running));
            assert!(matches!(pages(&raw const heap[PAGE]), Backing::Private));
        });
        of_thread.join().expect("all as expected");
        let address = Address::from_raw;
        let range = |page: u64| (address(page << 12), address((page + 1) << 12));
        // The first thread's stack, below and above the stack pointer, and its block elsewhere.
        let stack = line("7ff0000-7ff8000 rw-p 00000000 00:00 0                  [stack]");
        let stack = stack.expect("a line");
        let own = (address(0x7ff_4010), address(0x7f_0000_0740));
        let runs = |page| stack.is_run_on(range(page), own);
        assert_eq!([0x7ff3, 0x7ff4, 0x7ff7].map(runs), [false, true, true]);
        // A coroutine's.
        let other = Line {
            path: "",
            ..stack.clone()
        };
        let runs = |page| other.is_run_on(range(page), own);
        assert_eq!([0x7ff3, 0x7ff4, 0x7ff5].map(runs), [false, true, false]);
        // A thread's, beside memory that is mapped above it.
        let own = (address(0x7ff_4010), address(0x7ff_5740));
        let runs = |page| other.is_run_on(range(page), own);
        assert_eq!(
            [0x7ff3, 0x7ff4, 0x7ff5, 0x7ff6].map(runs),
            [false, true, true, false]
        );
    }

    fn at_page(address: Address) -> Backing {
        at(address.align_down(super::PAGE), super::PAGE)
    }

    #[test]
    fn shared_memory_is_told_from_the_programs_own_and_its_file_is_found() {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: fresh mappings at addresses of the kernel's choice.
        let (own, shared) = unsafe {
            (
                mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, both, MapFlags::PRIVATE),
                mmap_anonymous(std::ptr::null_mut(), 4 * PAGE, both, MapFlags::SHARED),
            )
        };
        let (own, shared) = (own.expect("mapped"), shared.expect("mapped"));
        let address = |it: *mut std::ffi::c_void| Address::of(it);
        assert!(matches!(at(address(own), PAGE as u64), Backing::Private));
        // SAFETY: the page is mapped, writable and nobody else's.
        unsafe { shared.cast::<u8>().add(2 * PAGE).write(7) };
        let Backing::Shared(Part { mut file, offset }) =
            at(address(shared) + PAGE as u64, 2 * PAGE as u64)
        else {
            panic!("it is shared");
        };
        assert_eq!(offset, PAGE as u64);
        let mut byte = [0];
        file.seek(SeekFrom::Start(offset + PAGE as u64))
            .expect("a place");
        file.read_exact(&mut byte).expect("read");
        assert_eq!(byte, [7]);
        // Another file behind the first page: no one file lies there.
        let other =
            rustix::fs::memfd_create(c"other", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&other, PAGE as u64).expect("bytes");
        // SAFETY: it replaces a page of the test's own mapping.
        unsafe {
            mmap(
                shared.byte_add(PAGE),
                PAGE,
                both,
                MapFlags::SHARED | MapFlags::FIXED,
                &other,
                0,
            )
            .expect("mapped");
        }
        assert!(matches!(
            at(address(shared), 2 * PAGE as u64),
            Backing::Unknown
        ));
        // SAFETY: both mappings are the test's own.
        unsafe {
            munmap(own, 2 * PAGE).expect("unmapped");
            munmap(shared, 4 * PAGE).expect("unmapped");
        }
    }
}
