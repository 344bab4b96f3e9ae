//! The output of a session's program: keeps it in the session's log and in images.
//!
//! The log is the file that the program writes to. Beyond a limit its oldest part is dropped (`printed`), while its length
//! remains the number of bytes printed. An image has the part that was kept at its checkpoint. The start of that part follows
//! from its length and the log's length, which is in the image's record.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use fermata_control::printed;

use super::token::token;

/// Name of the log in a session's folder.
pub(super) const LOG: &str = "log";
/// How often at most a log is copied again because its oldest part was dropped during the copy.
const TRIES: u32 = 5;

/// Path of the log of the session whose folder `dir` is.
pub fn path(dir: &Path) -> PathBuf {
    let own = dir.join(LOG);
    fs::read_link(&own).unwrap_or(own)
}

/// Gives the log of session `name`, whose folder `dir` is new, a file of its own in `logs`; the folder has a link to
/// it.
///
/// # Errors
/// One of them cannot be made.
pub fn place(dir: &Path, logs: &Path, name: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(logs)?;
    // Daemons of several machines may share the folder.
    let log = logs.join(format!("{name}-{}.log", &token()?[..12]));
    let mut new = OpenOptions::new();
    new.write(true).create_new(true).mode(0o600).open(&log)?;
    symlink(&log, dir.join(LOG)).inspect_err(|_| {
        // Without the link, the log could not be found again.
        let _ = fs::remove_file(&log);
    })
}

/// Removes a log that is not in the session's folder `dir`, which is about to be removed itself.
pub fn displace(dir: &Path) {
    if let Ok(log) = fs::read_link(dir.join(LOG)) {
        // If it cannot be removed, an unused file stays.
        let _ = fs::remove_file(log);
    }
}

/// Copies what is kept of the first `length` bytes of a log to a new file.
///
/// # Errors
/// The log is shorter, or one of them cannot be read or written.
pub fn keep(log: &Path, to: &Path, length: u64) -> io::Result<()> {
    let mut source = File::open(log)?;
    if source.metadata()?.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    for _ in 0..TRIES {
        let start = start(&source, length)?;
        source.seek(SeekFrom::Start(start))?;
        let mut target = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(to)?;
        let copied = io::copy(&mut (&source).take(length - start), &mut target)?;
        if copied != length - start {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Else the copy begins with what was dropped while it was made.
        if self::start(&source, length)? == start {
            break;
        }
    }
    Ok(())
}

fn start(log: &File, length: u64) -> io::Result<u64> {
    let kept = printed::next_kept(log, 0)?;
    Ok(kept.map_or(length, |start| start.min(length)))
}

/// Makes the log of a session from the copy of an image, whose record says that it was `length` bytes long.
///
/// # Errors
/// One of them cannot be read or written.
pub fn bring_back(copy: &Path, log: &Path, length: u64) -> io::Result<()> {
    let mut source = File::open(copy)?;
    let start = length.saturating_sub(source.metadata()?.len());
    let mut target = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(log)?;
    target.set_len(start)?;
    target.seek(SeekFrom::Start(start))?;
    io::copy(&mut source, &mut target)?;
    Ok(())
}

pub fn shorten(log: &Path, limit: u64) -> io::Result<bool> {
    // Most are short.
    if fs::metadata(log)?.len() <= limit {
        return Ok(false);
    }
    let file = OpenOptions::new().read(true).write(true).open(log)?;
    printed::drop_oldest(&file, limit)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn an_image_has_what_was_kept_and_positions_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let [log, copy, other] = ["log", "copy", "other"].map(|name| dir.path().join(name));
        let text: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(&log, &text).expect("written");
        assert!(shorten(&log, 128 << 10).expect("shortened"));
        let length = text.len() as u64 - 100;
        keep(&log, &copy, length).expect("kept");
        let kept = fs::metadata(&copy).expect("made").len();
        assert!(kept < 70 << 10, "{kept}");
        bring_back(&copy, &other, length).expect("back");
        let back = File::open(&other).expect("opened");
        assert_eq!(back.metadata().expect("asked").len(), length);
        let start = printed::next_kept(&back, 0).expect("asked").expect("some");
        assert!(start <= length - kept);
        let mut bytes = vec![0; kept as usize];
        back.read_exact_at(&mut bytes, length - kept).expect("read");
        let (from, to) = ((length - kept) as usize, length as usize);
        assert_eq!(bytes, &text[from..to]);
        // One of an earlier release holds everything.
        fs::write(&copy, "whole").expect("written");
        bring_back(&copy, &other, 5).expect("back");
        assert_eq!(fs::read(&other).expect("read"), b"whole");
        let short = keep(&copy, &dir.path().join("none"), 6);
        assert_eq!(
            short.expect_err("shorter").kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
