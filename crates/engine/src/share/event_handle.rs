//! Stores the driver's handle of an event in a file, because workers pass descriptors to each other.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;

use super::{Result, ShareError};

/// Bytes of the driver's handle of an event.
const LENGTH: usize = 64;

/// A file that holds the handle.
///
/// # Errors
/// There is no memory or descriptor for it.
pub fn write(handle: &[u8; LENGTH]) -> Result<OwnedFd> {
    let file = rustix::fs::memfd_create("fermata-event", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|error| ShareError::Offer(error.into()))?);
    file.write_all(handle).map_err(ShareError::Offer)?;
    Ok(file.into())
}

/// The handle in a file of another worker.
///
/// # Errors
/// It holds none.
pub fn read(file: OwnedFd) -> Result<[u8; LENGTH]> {
    let mut handle = [0; LENGTH];
    let read = File::from(file).read_exact_at(&mut handle, 0);
    read.map_err(ShareError::Ask)?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_often_as_its_file_is_passed_on() {
        let handle = std::array::from_fn(|n| n as u8);
        let file = write(&handle).unwrap();
        let again = file.try_clone().unwrap();
        assert_eq!(read(file).unwrap(), handle);
        assert_eq!(read(again).unwrap(), handle);
        let nothing = OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(read(nothing).is_err());
    }
}
