//! The TCP connections that processes hold, so that the kernel need not look for them in a table whose size goes with the machine's memory.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::ioctl_fionread;
use rustix::net::{AddressFamily, getpeername, getsockname, sockopt};

use super::{Ends, is_tcp};
use crate::open_files::sockets::{Holder, duplicate, inode};
use crate::proc;

/// More are not listed.
const MOST: usize = 256;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConnection {
    family: AddressFamily,
    inode: u64,
    ends: Ends,
}

/// The connections of these processes, which stand still, each once. None if that cannot be told: one of them has a TCP socket that neither listens nor has
/// two ends, or bytes in a Unix socket, with which a connection may be on its way.
///
/// # Errors
/// One of them has ended, or may not be examined.
pub fn connections(tree: &[u32]) -> io::Result<Option<Vec<TcpConnection>>> {
    let (mut seen, mut all) = (HashSet::new(), Vec::new());
    for pid in tree {
        for each in proc::each_descriptor(*pid)? {
            let (descriptor, target) = each?;
            let Some(inode) = inode(&target).filter(|it| seen.insert(*it)) else {
                continue;
            };
            let socket = duplicate(Holder {
                pid: *pid,
                descriptor,
            })?;
            match examine(&socket, inode)? {
                Socket::Connected(_) if all.len() == MOST => return Ok(None),
                Socket::Connected(it) => all.push(it),
                Socket::Another => {}
                Socket::Unknown => return Ok(None),
            }
        }
    }
    Ok(Some(all))
}

/// What a socket is.
enum Socket {
    Connected(TcpConnection),
    /// Something that is no connection, and has none on its way.
    Another,
    Unknown,
}

fn examine(socket: &OwnedFd, inode: u64) -> io::Result<Socket> {
    let family = sockopt::socket_domain(socket)?;
    if is_tcp(socket)? {
        if sockopt::socket_acceptconn(socket)? {
            return Ok(Socket::Another);
        }
        let own = getsockname(socket)?;
        let ends = getpeername(socket).ok().flatten().and_then(|other| {
            Some(Ends {
                own: SocketAddr::try_from(own).ok()?,
                other: SocketAddr::try_from(other).ok()?,
            })
        });
        return Ok(ends.map_or(Socket::Unknown, |ends| {
            Socket::Connected(TcpConnection {
                family,
                inode,
                ends,
            })
        }));
    }
    if family == AddressFamily::UNIX
        && !sockopt::socket_acceptconn(socket)?
        && ioctl_fionread(socket)? > 0
    {
        return Ok(Socket::Unknown);
    }
    Ok(Socket::Another)
}

impl TcpConnection {
    /// As `fermata-pagefilter` reads it: family, and in the upper half the interface; inode; own port and, in the next 16 bits, the other one, as on the
    /// wire; own address and the other one, of 16 bytes each.
    pub fn encode(&self) -> [u64; 7] {
        let ports = [self.ends.own, self.ends.other].map(|it| u64::from(it.port().to_be()));
        // A connection to an address that is good for one interface only is bound to that.
        let interface = match self.ends.other {
            SocketAddr::V6(it) => it.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let family = u64::from(self.family.as_raw()) | u64::from(interface) << 32;
        let [[a, b], [c, d]] = [self.ends.own, self.ends.other].map(words);
        [family, self.inode, ports[0] | ports[1] << 16, a, b, c, d]
    }
}

/// The address, padded with zeros.
fn words(at: SocketAddr) -> [u64; 2] {
    let mut bytes = [0; 16];
    match at.ip() {
        IpAddr::V4(it) => bytes[..4].copy_from_slice(&it.octets()),
        IpAddr::V6(it) => bytes = it.octets(),
    }
    let (first, last) = bytes.as_chunks::<8>().0.split_at(1);
    [first[0], last[0]].map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{SocketAddrV6, TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use rustix::net::{SocketFlags, SocketType, socket_with};

    use super::*;
    use crate::looks::scene::soon;

    /// What is told of a process that has these descriptors and no other socket.
    fn told(first: OwnedFd, second: OwnedFd) -> Option<Vec<TcpConnection>> {
        let mut command = Command::new("sleep");
        let piped = command.arg("1000").stderr(Stdio::null());
        let mut child = piped.stdin(first).stdout(second).spawn().expect("started");
        // While it starts it opens and closes files.
        let told = soon(|| connections(&[child.id()]), Result::is_ok);
        child.kill().expect("killed");
        child.wait().expect("waited");
        told.expect("examined")
    }

    #[test]
    fn connections_are_told_from_other_sockets() {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("opened"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let listening = || OwnedFd::from(listener.try_clone().expect("cloned"));
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
        assert_eq!(told(null(), null()), Some(vec![]));
        assert_eq!(told(listening(), udp.into()), Some(vec![]));
        let ends = Ends {
            own: stream.local_addr().expect("connected"),
            other: stream.peer_addr().expect("connected"),
        };
        let all = told(listening(), stream.into()).expect("they are told");
        assert_eq!((all.len(), all[0].ends), (1, ends));
        let unconnected = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        assert_eq!(told(unconnected.expect("made"), null()), None);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let theirs = || OwnedFd::from(theirs.try_clone().expect("cloned"));
        assert_eq!(told(theirs(), null()), Some(vec![]));
        (&ours).write_all(b"x").expect("written");
        assert_eq!(
            told(theirs(), null()),
            None,
            "a connection may come with these bytes"
        );
        connections(&[u32::MAX]).expect_err("there is no such process");
    }

    #[test]
    fn a_connection_is_written_as_the_kernel_asks_for_it() {
        let held = |own: &str, other: &str, family| TcpConnection {
            family,
            inode: 77,
            ends: Ends {
                own: own.parse().expect("an address"),
                other: other.parse().expect("an address"),
            },
        };
        let [family, inode, ports, own, rest, other, _] =
            held("1.2.3.4:258", "5.6.7.8:772", AddressFamily::INET).encode();
        assert_eq!((family, inode, rest), (2, 77, 0));
        assert_eq!(ports.to_ne_bytes()[..4], [1, 2, 3, 4]);
        assert_eq!(
            (
                own.to_ne_bytes()[..4].to_vec(),
                other.to_ne_bytes()[..4].to_vec()
            ),
            (vec![1, 2, 3, 4], vec![5, 6, 7, 8])
        );
        let mut held = held("[fe80::1]:1", "[fe80::2]:2", AddressFamily::INET6);
        held.ends.other = SocketAddrV6::new("fe80::2".parse().expect("an address"), 2, 0, 3).into();
        let [family, _, _, _, own, _, other] = held.encode();
        assert_eq!(family, 10 | 3 << 32);
        assert_eq!((own.to_ne_bytes()[7], other.to_ne_bytes()[7]), (1, 2));
    }
}
