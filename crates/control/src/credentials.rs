//! Who is at the other end of a Unix socket, as the kernel noted when it was connected. The crate's only unsafe code.
//!
//! `rustix` has the same call and takes the process id for a number above 0; it is 0 when the other process is not
//! in this one's PID namespace, as the daemon is for a restored program.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// A process at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Its process id in this process's numbering; none if it has none there.
    pub(crate) pid: Option<u32>,
    /// Its effective user; of a socket that listened, that of the process which made it listen.
    pub(crate) user: u32,
}

/// Asks for those of `socket`.
pub(crate) fn of_peer(socket: impl AsFd) -> io::Result<Credentials> {
    let mut found = libc::ucred {
        pid: 0,
        uid: libc::uid_t::MAX,
        gid: libc::gid_t::MAX,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `found`, which is plain data of that size; both live.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut found).cast(),
            &mut bytes,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes as usize != size_of::<libc::ucred>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Credentials {
        pid: u32::try_from(found.pid).ok().filter(|pid| *pid > 0),
        user: found.uid,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("a socket pair");
        let found = of_peer(&one).expect("credentials");
        assert_eq!(found.pid, Some(std::process::id()));
        assert_eq!(found.user, rustix::process::geteuid().as_raw());
    }
}
