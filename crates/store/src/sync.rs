//! Small durable steps: make a folder, write a file beside and rename it, sync a folder.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::{Result, StoreError};

/// Makes a folder only its owner can enter, and its parents; an existing one is left as it is.
pub(crate) fn make_folder(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| StoreError::io("make folder", path, 0, e))
}

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

/// Reads a whole file that must not be longer than `limit`.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e: std::io::Error| StoreError::io("read", path, 0, e))?;
    if bytes.len() as u64 > limit {
        let what = format!("longer than the {limit} bytes it may have");
        return Err(StoreError::Damaged {
            path: path.into(),
            what,
        });
    }
    Ok(bytes)
}

/// Sixteen bytes nobody else has.
pub(crate) fn unique() -> Result<[u8; 16]> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    File::open(path)
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| StoreError::io("read", path, 0, e))?;
    Ok(bytes)
}
