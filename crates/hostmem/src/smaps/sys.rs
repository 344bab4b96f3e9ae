//! `bpf(2)`, and mappings to hold the answers against.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::PAGE;

const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const ITER_CREATE: libc::c_int = 33;
/// `BPF_PROG_TYPE_TRACING` and `BPF_TRACE_ITER`.
const TRACING: u32 = 26;
const ITERATOR: u32 = 28;

/// `union bpf_attr` of `PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u32; 4],
    version_and_flags: [u32; 2],
    name: [u8; 16],
    interface: u32,
    attach: u32,
    debug: [u32; 2],
    functions: [u32; 4],
    lines: [u32; 3],
    attach_to: u32,
    attach_program: u32,
    relocations: u32,
}

/// `union bpf_attr` of `LINK_CREATE`.
#[repr(C)]
struct Link {
    program: u32,
    target: u32,
    attach: u32,
    flags: u32,
    information: u64,
    length: u32,
    rest: u32,
}

fn bpf<T>(command: libc::c_int, argument: &T) -> io::Result<OwnedFd> {
    // SAFETY: the argument is one of the structs above, of the layout that the command takes, as long as is said; what it
    // points to lives as long as the call.
    let number = unsafe { libc::syscall(libc::SYS_bpf, command, argument, size_of::<T>()) };
    match libc::c_int::try_from(number) {
        // SAFETY: a new descriptor, which nothing else owns.
        Ok(number @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Loads a program that is called for each element; `function` is the number of the kernel's declaration of it.
pub fn load(instructions: &[u64], function: u32) -> io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..8].copy_from_slice(b"mappings");
    let load = Load {
        kind: TRACING,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        name,
        attach: ITERATOR,
        attach_to: function,
        ..Load::default()
    };
    bpf(PROG_LOAD, &load)
}

/// A file that has the program called for each mapping of thread `tid` when it is read.
pub fn iterate(program: BorrowedFd<'_>, tid: u32) -> io::Result<OwnedFd> {
    // `union bpf_iter_link_info` of tasks: a thread, a process, a descriptor of one.
    let information = [tid, 0, 0];
    let link = Link {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach: ITERATOR,
        flags: 0,
        information: information.as_ptr() as u64,
        length: size_of_val(&information) as u32,
        rest: 0,
    };
    let link = bpf(LINK_CREATE, &link)?;
    // The file holds what it needs of the link.
    bpf(ITER_CREATE, &[link.as_raw_fd(), 0])
}

/// Pages of this process, each a mapping with an advice of its own and one that may be dropped, until this is dropped.
pub struct Advised(*mut libc::c_void, usize);

/// Those advices that a mapping keeps.
const ADVICE: [libc::c_int; 8] = [
    libc::MADV_SEQUENTIAL,
    libc::MADV_RANDOM,
    libc::MADV_DONTFORK,
    libc::MADV_WIPEONFORK,
    libc::MADV_DONTDUMP,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_MERGEABLE,
];

/// Makes them.
pub fn advised() -> io::Result<Advised> {
    let length = (ADVICE.len() + 2) * PAGE as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let pages = Advised(start, length);
    for (index, advice) in ADVICE.into_iter().enumerate() {
        // SAFETY: a page of the new mapping, which nothing refers to. A kernel may lack an advice.
        unsafe { libc::madvise(start.byte_add(index * PAGE as usize), PAGE as usize, advice) };
    }
    let flags = libc::MAP_DROPPABLE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: another page of it. A kernel may lack such mappings.
    unsafe {
        let page = start.byte_add(ADVICE.len() * PAGE as usize);
        libc::mmap(page, PAGE as usize, libc::PROT_NONE, flags, -1, 0)
    };
    Ok(pages)
}

impl Drop for Advised {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.0, self.1) };
    }
}
