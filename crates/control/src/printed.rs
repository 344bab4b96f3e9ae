//! What a session's program has printed: a file to which it appends, and whose oldest part is dropped.
//!
//! ```text
//!  0                 start                 length
//!  ├─ hole: dropped ──┼─ what is kept ──────┤◄── appended
//! ```
//! Dropping makes a hole at the beginning of the file, so that its length, and every position in it, stays what it
//! was: a program that is being stopped or restored meanwhile, and who follows the file, notices nothing. A file
//! system without holes has the whole file emptied instead.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Holes begin and end at multiples of this.
const BLOCK: u64 = 4096;

/// The first position from `from` on at which `file` holds something; none if nothing comes any more.
///
/// # Errors
/// The system's.
pub fn next_kept(file: &File, from: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((from < file.metadata()?.len()).then_some(from)),
        Err(error) => Err(error.into()),
    }
}

/// Drops the oldest part of `file`, which is open for writing, if it takes more than `limit` bytes: half of that is
/// kept. Returns whether it did.
///
/// # Errors
/// The system's.
pub fn drop_oldest(file: &File, limit: u64) -> io::Result<bool> {
    let found = file.metadata()?;
    // Blocks of a file are counted by 512 bytes.
    if found.blocks().saturating_mul(512) <= limit || found.len() <= limit {
        return Ok(false);
    }
    let end = found.len().saturating_sub(limit / 2) / BLOCK * BLOCK;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, 0, end) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(0)?,
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn the_oldest_part_goes_and_positions_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let mut append = OpenOptions::new();
        let mut program = append.create(true).append(true).open(&path).expect("made");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("opened");
        const LIMIT: u64 = 256 << 10;
        let line = |number: u64| format!("{number:063}\n");
        let mut dropped = 0;
        for number in 0..40_000 {
            program.write_all(line(number).as_bytes()).expect("printed");
            if number % 512 == 511 {
                dropped += u64::from(drop_oldest(&file, LIMIT).expect("dropped"));
            }
        }
        assert!(dropped > 4, "{dropped}");
        let found = file.metadata().expect("asked");
        assert_eq!(found.len(), 40_000 * 64, "its length is what was printed");
        assert!(found.blocks() * 512 <= LIMIT + (512 * 64), "{found:?}");
        let start = next_kept(&file, 0).expect("asked").expect("something");
        assert!(start > 0 && start.is_multiple_of(BLOCK));
        assert!(found.len() - start >= LIMIT / 2);
        let mut first = [0; 64];
        file.read_exact_at(&mut first, start).expect("read");
        assert_eq!(first, line(start / 64).as_bytes());
        assert_eq!(next_kept(&file, found.len()).expect("asked"), None);
        drop_oldest(&file, LIMIT).expect("asked");
        assert!(!drop_oldest(&file, LIMIT).expect("asked"), "it is enough");
    }
}
