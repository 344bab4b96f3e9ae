//! The system calls that have no safe wrapper: requests to a userfaultfd and to `/proc/PID/pagemap`, memory of other
//! processes, and `ptrace`. With `demand/sys.rs` and `smaps/sys.rs` the only unsafe code of the crate.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const UFFD_API: u64 = 0xaa;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
/// `GETSIGMASK` and `SETSIGMASK` of ptrace, which libc lacks for some targets.
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
/// What `kcmp` compares: the memory of two processes.
const KCMP_VM: libc::c_int = 1;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanArgument {
    pub size: u64,
    pub flags: u64,
    pub start: u64,
    pub end: u64,
    pub walk_end: u64,
    pub vec: u64,
    pub vec_len: u64,
    pub max_pages: u64,
    pub inverted: u64,
    pub mask: u64,
    pub any: u64,
    pub returned: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

fn check(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// `PAGEMAP_SCAN` into `regions`; how many were written.
pub fn scan(
    pagemap: BorrowedFd<'_>,
    argument: &mut ScanArgument,
    regions: &mut [Region],
) -> io::Result<usize> {
    argument.size = size_of::<ScanArgument>() as u64;
    argument.vec = regions.as_mut_ptr() as u64;
    argument.vec_len = regions.len() as u64;
    // SAFETY: the argument has the layout that the request takes, and names a live vector with its length.
    check(unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, argument) })
}

/// `O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY`: the last needs no privilege, and suffices, for nothing is waited for.
pub const USERFAULTFD_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK | 1) as u64;

/// A userfaultfd for the memory of this process.
pub fn userfaultfd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let number = unsafe { libc::syscall(libc::SYS_userfaultfd, USERFAULTFD_FLAGS) };
    let number = check(number as libc::c_int)?;
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(number as libc::c_int) })
}

/// Agrees on asynchronous write protection.
pub fn handshake(uffd: BorrowedFd<'_>) -> io::Result<()> {
    let mut api = [UFFD_API, FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED, 0_u64];
    // SAFETY: `struct uffdio_api` is three words.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API, &mut api) }).map(drop)
}

/// Has writes to `range`, one mapping, be noted.
pub fn register(uffd: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    let mut argument = [range.start, range.end - range.start, REGISTER_MODE_WP, 0];
    // SAFETY: `struct uffdio_register` is four words.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER, &mut argument) }).map(drop)
}

/// Has writes to `range` be noted no longer; what was cut where it ends is one mapping again.
pub fn unregister(uffd: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    let mut argument = [range.start, range.end - range.start];
    // SAFETY: `struct uffdio_range` is two words.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_UNREGISTER, &mut argument) }).map(drop)
}

/// Ends the write protection of pages in `range`.
pub fn unprotect(uffd: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    let mut argument = [range.start, range.end - range.start, 0_u64];
    // SAFETY: `struct uffdio_writeprotect` is three words.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_WRITEPROTECT, &mut argument) }).map(drop)
}

/// Reads `ranges` of a process one behind the other into `buffers`; how many bytes came before what cannot be read.
pub fn read_process(
    pid: u32,
    ranges: &[Range<u64>],
    buffers: &mut [&mut [u8]],
) -> io::Result<usize> {
    let local: Vec<libc::iovec> = buffers
        .iter_mut()
        .map(|buffer| libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        })
        .collect();
    let remote: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: (range.end - range.start) as usize,
        })
        .collect();
    // SAFETY: the kernel writes at most as many bytes into each buffer as it has; the other addresses are those of `pid`.
    let read = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Memory of this process whose pages are there: writing it needs none from the kernel. Its content is undefined but
/// initialized.
#[derive(Debug)]
pub struct Prepared {
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to this value alone, and is reached through references to it only.
unsafe impl Send for Prepared {}
// SAFETY: as above.
unsafe impl Sync for Prepared {}

impl Prepared {
    /// So many bytes, more than none.
    pub fn new(length: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        for advice in [
            libc::MADV_HUGEPAGE,
            libc::MADV_DONTFORK,
            libc::MADV_POPULATE_WRITE,
        ] {
            // SAFETY: the new mapping, which nothing refers to. A kernel that lacks an advice is slower.
            unsafe { libc::madvise(start, length, advice) };
        }
        Ok(Self {
            start: start.cast(),
            length,
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is this value's own, as long as is said, and zero where it was never written.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it is left.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Registers of a stopped thread.
pub type Registers = libc::user_regs_struct;

fn ptrace(
    request: libc::c_uint,
    tid: u32,
    address: usize,
    data: *mut libc::c_void,
) -> io::Result<()> {
    // SAFETY: the callers below pass what each request takes: a number, or a live variable of the size that it writes or
    // reads.
    let result = unsafe { libc::ptrace(request, tid as libc::pid_t, address, data) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Attaches to a thread without stopping it; its system calls will be told from signals.
pub fn seize(tid: u32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD as usize as *mut libc::c_void;
    ptrace(libc::PTRACE_SEIZE, tid, 0, options)
}

/// Has a thread stop.
pub fn interrupt(tid: u32) -> io::Result<()> {
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, std::ptr::null_mut())
}

/// Lets a stopped thread go.
pub fn detach(tid: u32) -> io::Result<()> {
    ptrace(libc::PTRACE_DETACH, tid, 0, std::ptr::null_mut())
}

/// Lets a stopped thread run to the begin or the end of its next system call, with signal `signal` unless that is 0.
pub fn to_system_call(tid: u32, signal: i32) -> io::Result<()> {
    let signal = signal as usize as *mut libc::c_void;
    ptrace(libc::PTRACE_SYSCALL, tid, 0, signal)
}

/// Lets a stopped thread run on, with signal `signal` unless that is 0.
pub fn go_on(tid: u32, signal: i32) -> io::Result<()> {
    let signal = signal as usize as *mut libc::c_void;
    ptrace(libc::PTRACE_CONT, tid, 0, signal)
}

/// The registers of a stopped thread.
pub fn registers(tid: u32) -> io::Result<Registers> {
    let mut registers = MaybeUninit::<Registers>::uninit();
    ptrace(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr().cast())?;
    // SAFETY: the call has filled it.
    Ok(unsafe { registers.assume_init() })
}

/// Sets the registers of a stopped thread.
pub fn set_registers(tid: u32, registers: &Registers) -> io::Result<()> {
    let mut registers = *registers;
    ptrace(libc::PTRACE_SETREGS, tid, 0, (&raw mut registers).cast())
}

/// The blocked signals of a stopped thread.
pub fn blocked(tid: u32) -> io::Result<u64> {
    let mut mask = 0_u64;
    ptrace(
        PTRACE_GETSIGMASK,
        tid,
        size_of::<u64>(),
        (&raw mut mask).cast(),
    )?;
    Ok(mask)
}

/// Sets the blocked signals of a stopped thread.
pub fn block(tid: u32, mut mask: u64) -> io::Result<()> {
    ptrace(
        PTRACE_SETSIGMASK,
        tid,
        size_of::<u64>(),
        (&raw mut mask).cast(),
    )
}

/// Where a stopped thread has its `struct rseq`, if it uses restartable sequences.
pub fn restartable_sequences(tid: u32) -> Option<u64> {
    // `struct ptrace_rseq_configuration` is three words, the first of them the address.
    let mut words = [0_u64; 3];
    let asked = ptrace(
        PTRACE_GET_RSEQ_CONFIGURATION,
        tid,
        size_of_val(&words),
        (&raw mut words).cast(),
    );
    asked.ok().map(|()| words[0]).filter(|it| *it != 0)
}

/// Whether a stopped thread gets a signal for each of its system calls (`PR_SET_SYSCALL_USER_DISPATCH`).
pub fn dispatches_system_calls(tid: u32) -> bool {
    // `struct ptrace_sud_config` is four words, the first of them the mode.
    let mut words = [0_u64; 4];
    let asked = ptrace(
        PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
        tid,
        size_of_val(&words),
        (&raw mut words).cast(),
    );
    asked.is_ok() && words[0] != 0
}

/// Filter `number` of a stopped thread's system calls, if it has `length` instructions, each a `struct sock_filter`.
pub fn filter(tid: u32, number: usize, length: usize) -> io::Result<Option<Vec<u64>>> {
    let ask = |program: *mut u64| {
        // SAFETY: with a null pointer the kernel only counts the instructions; with the other one it writes as many as it
        // has counted, and those of an installed filter do not change.
        let count = unsafe {
            libc::ptrace(
                PTRACE_SECCOMP_GET_FILTER,
                tid as libc::pid_t,
                number,
                program,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    };
    if ask(std::ptr::null_mut())? != length {
        return Ok(None);
    }
    let mut program = vec![0; length];
    ask(program.as_mut_ptr())?;
    Ok(Some(program))
}

/// Whether two processes have the same memory, not only equal memory.
pub fn same_memory(a: u32, b: u32) -> io::Result<bool> {
    // SAFETY: the call takes numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0_u64, 0_u64) };
    match order {
        -1 => Err(io::Error::last_os_error()),
        order => Ok(order == 0),
    }
}

/// What a thread that this one traces has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It has stopped with a signal; the second number is the event behind it.
    Stopped(i32, i32),
    /// It has ended.
    Ended,
}

/// Asks without waiting what thread `tid` has come to; `None` if to nothing yet.
pub fn event(tid: u32) -> io::Result<Option<Event>> {
    let mut status = 0;
    // SAFETY: the status is a live variable.
    let found = unsafe {
        libc::waitpid(
            tid as libc::pid_t,
            &mut status,
            libc::__WALL | libc::WNOHANG,
        )
    };
    Ok(match found {
        0 => None,
        -1 => return Err(io::Error::last_os_error()),
        _ if libc::WIFSTOPPED(status) => Some(Event::Stopped(libc::WSTOPSIG(status), status >> 16)),
        _ => Some(Event::Ended),
    })
}
