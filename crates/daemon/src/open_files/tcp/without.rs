//! Whether processes have no TCP connections. Most have none, and then the kernel need not look for any in a table whose size goes with the
//! machine's memory.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::io::ioctl_fionread;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::open_files::sockets::{Holder, duplicate};

/// Whether none of these processes, which stand still, has a TCP socket but such as listen. One with bytes in a Unix socket may have one on
/// its way there.
///
/// # Errors
/// One of them has ended, or may not be examined.
pub fn have_none(tree: &[u32]) -> io::Result<bool> {
    let mut seen = HashSet::new();
    for pid in tree {
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let entry = entry?;
            let target = fs::read_link(entry.path())?;
            let is_socket = target.as_os_str().as_bytes().starts_with(b"socket:[");
            if !is_socket || !seen.insert(target) {
                continue;
            }
            let number = entry.file_name();
            let number = number.to_str().and_then(|it| it.parse().ok());
            let socket = duplicate(Holder {
                pid: *pid,
                descriptor: number.ok_or(io::ErrorKind::InvalidData)?,
            })?;
            if !is_no_connection(&socket)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn is_no_connection(socket: &OwnedFd) -> io::Result<bool> {
    let internet = [AddressFamily::INET, AddressFamily::INET6];
    let family = sockopt::socket_domain(socket)?;
    if internet.contains(&family) {
        let is_stream = sockopt::socket_type(socket)? == SocketType::STREAM;
        return Ok(!is_stream || sockopt::socket_acceptconn(socket)?);
    }
    if family == AddressFamily::UNIX && !sockopt::socket_acceptconn(socket)? {
        return Ok(ioctl_fionread(socket)? == 0);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::looks::scene::soon;

    /// Whether a process without a connection has these descriptors and still none.
    fn told(first: OwnedFd, second: OwnedFd) -> bool {
        let mut command = Command::new("sleep");
        let piped = command.arg("1000").stderr(Stdio::null());
        let mut child = piped.stdin(first).stdout(second).spawn().expect("started");
        // While it starts it opens and closes files.
        let told = soon(|| have_none(&[child.id()]), Result::is_ok);
        child.kill().expect("killed");
        child.wait().expect("waited");
        told.expect("examined")
    }

    #[test]
    fn sockets_that_are_no_connections_are_told_from_those_that_are() {
        let null = || OwnedFd::from(fs::File::open("/dev/null").expect("opened"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let listening = || OwnedFd::from(listener.try_clone().expect("cloned"));
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
        assert!(told(null(), null()));
        assert!(told(listening(), udp.into()));
        assert!(!told(listening(), stream.into()));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let theirs = || OwnedFd::from(theirs.try_clone().expect("cloned"));
        assert!(told(theirs(), null()));
        (&ours).write_all(b"x").expect("written");
        assert!(
            !told(theirs(), null()),
            "a socket may come with these bytes"
        );
        have_none(&[u32::MAX]).expect_err("there is no such process");
    }
}
