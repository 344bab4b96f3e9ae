//! The system calls behind device memory, restricted to the window that belongs to it.
//!
//! No Rust reference ever points into the window, so mapping, protecting and unmapping there cannot
//! pull memory from under Rust code; what lies outside is refused.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::exec::{WINDOW_BASE, WINDOW_END};

/// Smallest unit of protection and mapping.
pub const PAGE: u64 = 4096;

/// What the CPU may do with mapped pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

fn prot(protection: Protection) -> ProtFlags {
    match protection {
        Protection::None => ProtFlags::empty(),
        Protection::Read => ProtFlags::READ,
        Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    }
}

/// Whether the range lies in the window, is page-aligned and not empty.
fn in_window(address: u64, len: u64) -> Result<*mut c_void, Errno> {
    let end = address.checked_add(len).ok_or(Errno::INVAL)?;
    if len == 0
        || address < WINDOW_BASE
        || end > WINDOW_END
        || !(address | len).is_multiple_of(PAGE)
    {
        return Err(Errno::INVAL);
    }
    Ok(std::ptr::with_exposed_provenance_mut(address as usize))
}

/// Maps zeroed private memory at `address`, committed when touched.
///
/// # Errors
/// `EEXIST` when something is mapped there already.
pub fn map_fresh(address: u64, len: u64, protection: Protection) -> Result<(), Errno> {
    let pointer = in_window(address, len)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the range lies in the window and NOREPLACE leaves existing mappings alone.
    let got =
        unsafe { rustix::mm::mmap_anonymous(pointer, len as usize, prot(protection), flags) }?;
    if got != pointer {
        // A kernel that does not know NOREPLACE took the address for a hint.
        // SAFETY: the mapping was made just above and nobody knows of it.
        unsafe { rustix::mm::munmap(got, len as usize) }?;
        return Err(Errno::EXIST);
    }
    if len >= 2 << 20 && protection != Protection::None {
        // SAFETY: the range was mapped just above; the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(pointer, len as usize, Advice::LinuxHugepage) };
    }
    Ok(())
}

/// Replaces what is mapped at `address` by inaccessible pages that stay reserved.
///
/// # Errors
/// As the operating system says.
pub fn reset_to_reserved(address: u64, len: u64) -> Result<(), Errno> {
    let pointer = in_window(address, len)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: only pages of the window are replaced, to which no Rust reference points.
    unsafe { rustix::mm::mmap_anonymous(pointer, len as usize, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Maps zeroed private memory in place of reserved pages.
///
/// # Errors
/// As the operating system says.
pub fn map_again(address: u64, len: u64) -> Result<(), Errno> {
    let pointer = in_window(address, len)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: only pages of the window are replaced, to which no Rust reference points.
    unsafe {
        rustix::mm::mmap_anonymous(pointer, len as usize, prot(Protection::ReadWrite), flags)
    }?;
    Ok(())
}

/// Maps `file` from `offset` at `address`, shared, in place of what is there.
///
/// # Errors
/// As the operating system says.
pub fn map_file(
    address: u64,
    len: u64,
    file: &OwnedFd,
    offset: u64,
    protection: Protection,
) -> Result<(), Errno> {
    let pointer = in_window(address, len)?;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: only pages of the window are replaced, to which no Rust reference points.
    unsafe {
        rustix::mm::mmap(
            pointer,
            len as usize,
            prot(protection),
            flags,
            file.as_fd(),
            offset,
        )
    }?;
    Ok(())
}

/// Changes what may be done with pages of the window.
///
/// # Errors
/// As the operating system says.
pub fn protect(address: u64, len: u64, protection: Protection) -> Result<(), Errno> {
    let pointer = in_window(address, len)?;
    let flags = match protection {
        Protection::None => MprotectFlags::empty(),
        Protection::Read => MprotectFlags::READ,
        Protection::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: only pages of the window change, to which no Rust reference points.
    unsafe { rustix::mm::mprotect(pointer, len as usize, flags) }
}

/// Unmaps pages of the window.
///
/// # Errors
/// As the operating system says.
pub fn unmap(address: u64, len: u64) -> Result<(), Errno> {
    let pointer = in_window(address, len)?;
    // SAFETY: only pages of the window go away, to which no Rust reference points.
    unsafe { rustix::mm::munmap(pointer, len as usize) }
}

/// An anonymous file of `len` zero bytes that other processes can map.
///
/// # Errors
/// As the operating system says.
pub fn memory_file(name: &str, len: u64) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, len)?;
    Ok(file)
}
