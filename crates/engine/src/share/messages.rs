//! The messages between workers of a session, and the paths of their sockets.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

/// How long another worker may take to answer.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Asks for a descriptor.
pub(super) const FETCH: u8 = 1;
/// Asks only whether it is shared.
pub(super) const LOOK_UP: u8 = 2;
/// It is shared; the descriptor comes along if it was asked for.
pub(super) const YES: u8 = 1;
/// It is not.
pub(super) const NO: u8 = 0;

/// Descriptors by the number of their content.
pub(super) type Offers = Arc<Mutex<BTreeMap<u64, OwnedFd>>>;

/// A short path for the socket `name` in `folder`, because a socket's path has a limit. It is valid while the
/// descriptor is open.
pub(super) fn short(folder: &Path, name: &str) -> io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    Ok((folder, path.into()))
}

/// Reads another worker's request: the question, and the number of the content.
pub(super) fn question(stream: &mut UnixStream) -> io::Result<(u8, u64)> {
    let mut bytes = [0; 9];
    stream.read_exact(&mut bytes)?;
    let number = bytes[1..].try_into().map_or(0, u64::from_le_bytes);
    Ok((bytes[0], number))
}
