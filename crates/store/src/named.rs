//! Reading a whole file that a user has named: a regular file of a size that one of its kind can have.
//!
//! A device such as `/dev/zero` never ends, and a FIFO waits for a writer: both are refused without reading.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Reads the file at `path`.
///
/// # Errors
/// The system's, or [`io::ErrorKind::InvalidInput`] with the reason when it is no regular file or longer than `limit`.
pub fn read_named(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Without NONBLOCK the opening of a FIFO waits.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    let found = file.metadata()?;
    if !found.is_file() {
        return refuse("it is no regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return refuse(format!("it is longer than {limit} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_sensible_size_are_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, fifo) = (dir.path().join("file"), dir.path().join("fifo"));
        std::fs::write(&file, "12345").expect("written");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("made");
        assert_eq!(read_named(&file, 5).expect("read"), b"12345");
        let refused = |path: &Path| read_named(path, 4).expect_err("refused");
        assert!(refused(&file).to_string().contains("4 bytes"));
        for path in [Path::new("/dev/zero"), &fifo, dir.path()] {
            assert_eq!(
                refused(path).kind(),
                io::ErrorKind::InvalidInput,
                "{path:?}"
            );
        }
        assert_eq!(
            refused(&dir.path().join("x")).kind(),
            io::ErrorKind::NotFound
        );
    }
}
