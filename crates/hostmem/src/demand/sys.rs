//! The requests to a userfaultfd that answers page faults, and what it reports.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::PAGE;

const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const PAGE_FAULT: u8 = 0x12;
const FORK: u8 = 0x13;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;

/// Bytes of `struct uffd_msg`.
const MESSAGE: usize = 32;
/// Messages that are read at once.
const MESSAGES: usize = 32;

/// What the kernel has to say of a process.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for the page with this address.
    Fault(u64),
    /// It has made a child, with this descriptor.
    Fork(OwnedFd),
    /// It has moved memory.
    Remap { from: Range<u64>, to: u64 },
    /// It has discarded the content of memory.
    Remove(Range<u64>),
    /// It has unmapped memory.
    Unmap(Range<u64>),
}

/// How the kernel takes pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// So many bytes are there now, and who waited for them goes on.
    Done(u64),
    /// There is an event that has not been read, or is not over.
    Changing,
    /// The range is not one mapping of those that are watched, or a part of one.
    NotMapped,
    /// The first page is there already.
    Present,
    /// The process has no memory any more.
    Gone,
    /// The kernel has no memory for it now.
    NoMemory,
}

/// What has come; nothing if nothing has.
pub fn read(uffd: &OwnedFd) -> io::Result<Vec<Message>> {
    let mut buffer = [0_u64; MESSAGE * MESSAGES / 8];
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    let bytes = unsafe {
        libc::read(
            uffd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            size_of_val(&buffer),
        )
    };
    let Ok(bytes) = usize::try_from(bytes) else {
        let error = io::Error::last_os_error();
        let none = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
        return match none.contains(&error.kind()) {
            true => Ok(Vec::new()),
            false => Err(error),
        };
    };
    buffer[..bytes / 8]
        .chunks_exact(MESSAGE / 8)
        .map(|words| {
            // One byte that names the event, seven without meaning, three words.
            let (kind, a, b, c) = (words[0] as u8, words[1], words[2], words[3]);
            Ok(match kind {
                // Flags, address.
                PAGE_FAULT => Message::Fault(b),
                // SAFETY: the kernel has opened this descriptor for the reader of the message.
                FORK => Message::Fork(unsafe { OwnedFd::from_raw_fd(a as u32 as libc::c_int) }),
                REMAP => Message::Remap {
                    from: a..a.saturating_add(c),
                    to: b,
                },
                REMOVE => Message::Remove(a..b),
                UNMAP => Message::Unmap(a..b),
                other => {
                    let text = format!("the kernel reports an unknown event {other:#x}");
                    return Err(io::Error::other(text));
                }
            })
        })
        .collect()
}

/// Puts `content`, whole pages, at address `to`.
pub fn copy(uffd: &impl AsFd, to: u64, content: &[u8]) -> io::Result<Answer> {
    // `struct uffdio_copy`: to, from, bytes, mode, bytes that were copied.
    let mut argument = [to, content.as_ptr() as u64, content.len() as u64, 0, 0_u64];
    // SAFETY: the argument has the layout that the request takes; the kernel reads `content`, and writes to the memory of
    // another process.
    let result =
        unsafe { libc::ioctl(uffd.as_fd().as_raw_fd(), UFFDIO_COPY, argument.as_mut_ptr()) };
    answer(result, argument[4])
}

/// Puts an empty page at `page`.
pub fn zero(uffd: &impl AsFd, page: u64) -> io::Result<Answer> {
    // `struct uffdio_zeropage`: start, bytes, mode, bytes that were filled.
    let mut argument = [page, PAGE, 0, 0_u64];
    // SAFETY: as above.
    let result = unsafe {
        libc::ioctl(
            uffd.as_fd().as_raw_fd(),
            UFFDIO_ZEROPAGE,
            argument.as_mut_ptr(),
        )
    };
    answer(result, argument[3])
}

/// Has threads that wait for a page of `range` look again.
pub fn wake(uffd: &impl AsFd, range: &Range<u64>) -> io::Result<()> {
    let mut argument = [range.start, range.end - range.start];
    // SAFETY: `struct uffdio_range` is two words.
    let result =
        unsafe { libc::ioctl(uffd.as_fd().as_raw_fd(), UFFDIO_WAKE, argument.as_mut_ptr()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn answer(result: libc::c_int, done: u64) -> io::Result<Answer> {
    // A part may have been done before the error.
    let error = match result {
        0 => return Ok(Answer::Done(done)),
        _ if done as i64 > 0 => return Ok(Answer::Done(done)),
        _ => io::Error::last_os_error(),
    };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(Answer::Changing),
        Some(libc::ENOENT) => Ok(Answer::NotMapped),
        Some(libc::EEXIST) => Ok(Answer::Present),
        // Kernels before 4.13 say ENOSPC.
        Some(libc::ESRCH | libc::ENOSPC) => Ok(Answer::Gone),
        Some(libc::ENOMEM) => Ok(Answer::NoMemory),
        _ => Err(error),
    }
}
