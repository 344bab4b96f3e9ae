//! Reading and writing past the page cache where the file system and the caller's buffer allow it.
//!
//! Direct I/O needs memory, offset and length at multiples of [`BLOCK`]. Chunks start at such
//! offsets; a caller's buffer that is aligned goes to the disk as it is, any other is copied.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::{Result, StoreError, sync};

/// Alignment of chunks in packs and of direct I/O, in bytes.
pub const BLOCK: usize = 4096;

/// Rounds up to a multiple of [`BLOCK`].
pub(crate) fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK as u64)
}

/// Zeroed memory that starts at a multiple of [`BLOCK`], for direct I/O.
pub struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// Allocates `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let memory = vec![0u8; len + BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK);
        Self { memory, start, len }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Whether the buffer's address suits direct I/O.
pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(BLOCK) == 0
}

/// Opens for writing by direct I/O, or through the page cache where the file system has no direct I/O. The file is its
/// owner's alone from then on.
pub(crate) fn open(path: &Path, flags: OFlags, op: &'static str) -> Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(path, flags | OFlags::DIRECT, sync::FILE_MODE) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => {
            // Some file systems create the file before they refuse the flag.
            rustix::fs::open(path, flags.difference(OFlags::EXCL), sync::FILE_MODE)
        }
        other => other,
    };
    let file = fd.map_err(|e| StoreError::io(op, path, 0, e))?;
    rustix::fs::fchmod(&file, sync::FILE_MODE)
        .map_err(|e| StoreError::io("protect", path, 0, e))?;
    Ok(File::from(file))
}

/// Has what is written to `file` from now on stay in the page cache.
pub(crate) fn through_cache(file: impl AsFd) {
    // Where there is no such flag, it does so already.
    if let Ok(flags) = rustix::fs::fcntl_getfl(file.as_fd()) {
        let _ = rustix::fs::fcntl_setfl(file, flags.difference(OFlags::DIRECT));
    }
}

/// Opens a regular file for reading by direct I/O, or through the page cache as above.
pub(crate) fn open_regular(path: &Path, op: &'static str) -> Result<File> {
    match sync::open_checked(path, OFlags::DIRECT, op) {
        Err(StoreError::Io { source, .. })
            if [Errno::INVAL, Errno::OPNOTSUPP]
                .iter()
                .any(|it| source.raw_os_error() == Some(it.raw_os_error())) =>
        {
            sync::open_checked(path, OFlags::empty(), op)
        }
        other => other,
    }
}

/// Writes all of `bytes` at `offset`. For a direct file everything must be aligned.
pub(crate) fn write_all(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file.as_fd(), bytes, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads at `offset` until `bytes` is full or the file ends; returns how much was read. For a
/// direct file everything must be aligned.
pub(crate) fn read_full(file: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(file.as_fd(), &mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_memory_is_aligned() {
        for len in [0, 1, BLOCK, 3 * BLOCK + 1] {
            let b = AlignedBuf::new(len);
            assert!(is_aligned(&b));
            assert_eq!(b.len(), len);
        }
    }
}
