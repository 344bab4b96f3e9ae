//! Small durable steps: make a folder, write a file beside and rename it, sync a folder, open a file that may have
//! been replaced by something else.
//!
//! Modes are set on what is made here, whatever the umask of the process is.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::{Result, StoreError, error};

/// Mode of every folder that the store makes.
pub(crate) const FOLDER_MODE: Mode = Mode::RWXU;
/// Mode of every file that the store makes.
pub(crate) const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Makes a folder that only its owner can enter, and its parents; an existing one is left as it is.
///
/// # Errors
/// `Full` or `Io`.
pub fn make_folder(path: &Path) -> Result<()> {
    let made = match rustix::fs::mkdir(path, FOLDER_MODE) {
        Err(Errno::NOENT) => match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() && parent != path => {
                make_folder(parent)?;
                rustix::fs::mkdir(path, FOLDER_MODE)
            }
            _ => Err(Errno::NOENT),
        },
        other => other,
    };
    match made {
        Ok(()) => match rustix::fs::chmod(path, FOLDER_MODE) {
            // Removed meanwhile, as a draft that is not locked yet: its user finds out.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(StoreError::io("protect folder", path, 0, e)),
        },
        Err(Errno::EXIST) if path.is_dir() => Ok(()),
        Err(e) => Err(StoreError::io("make folder", path, 0, e)),
    }
}

/// Opens a file that must be a regular one, for reading. Neither a link is followed, nor a FIFO waited for.
///
/// # Errors
/// `Damaged` for anything that is not a regular file; `Io`.
pub fn open_regular(path: &Path) -> Result<File> {
    open_checked(path, OFlags::empty(), "open")
}

/// As [`open_regular`], with more flags.
pub(crate) fn open_checked(path: &Path, flags: OFlags, op: &'static str) -> Result<File> {
    let all = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, all, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return error::damaged(path, "it is a symbolic link"),
        // A socket, or a device without a driver.
        Err(Errno::NXIO) => return error::damaged(path, NOT_REGULAR),
        Err(e) => return Err(StoreError::io(op, path, 0, e)),
    };
    let stat = rustix::fs::fstat(&file).map_err(|e| StoreError::io("examine", path, 0, e))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => error::damaged(path, NOT_REGULAR),
    }
}

const NOT_REGULAR: &str = "it is not a regular file";

/// Makes the folder's entries durable.
pub(crate) fn folder(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|f| f.sync_all())
        .map_err(|e| StoreError::io("sync", path, 0, e))
}

/// Creates a file for its owner only and writes and syncs it; it must not exist.
pub(crate) fn write_new(path: &Path, parts: &[&[u8]], sync: bool) -> Result<()> {
    let needed = parts.iter().map(|p| p.len() as u64).sum();
    let write = || {
        let mut f = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        f.set_permissions(Permissions::from_mode(0o600))?;
        for part in parts {
            f.write_all(part)?;
        }
        if sync { f.sync_all() } else { Ok(()) }
    };
    write().map_err(|e| StoreError::io("write", path, needed, e))
}

/// Renames over a free name; the folder's sync is the caller's.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(|e| StoreError::io("rename", from, 0, e))
}

/// Removes a file; that it is not there is fine.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", path, 0, e)),
        _ => Ok(()),
    }
}

/// Bytes of a file for which there is memory before they are read; it may say that it is much longer than it is.
const AT_ONCE: u64 = 1 << 20;

/// Reads a whole regular file that must not be longer than `limit`.
///
/// # Errors
/// As [`open_regular`], and `Damaged` for a longer file.
pub fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let io = |e| StoreError::io("read", path, 0, e);
    let file = open_regular(path)?;
    let length = file.metadata().map_err(io)?.len().min(AT_ONCE);
    // With room to see its end.
    let mut bytes = Vec::with_capacity(length as usize + 1);
    let mut some = file.take(limit.saturating_add(1));
    some.read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        let what = format!("longer than the {limit} bytes it may have");
        return Err(StoreError::Damaged {
            path: path.into(),
            what,
        });
    }
    Ok(bytes)
}

/// Sixteen random bytes, for names that no other file has.
pub(crate) fn unique() -> Result<[u8; 16]> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    File::open(path)
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| StoreError::io("read", path, 0, e))?;
    Ok(bytes)
}
