//! Ends what is left of closed connections where a program is about to listen, or to be connected, again.
//!
//! One end of a connection outlives it by a minute (`TIME_WAIT`). As long as it is at a port none may listen there, unless
//! the ended socket had `SO_REUSEADDR`. [`super::reuse`] gives that to the connections which a program has at a checkpoint. Those
//! that had ended before it, and those that were made after it, do not have it. And as long as it has its two addresses no other
//! connection may have them: for a second between addresses of the loopback device, else for all of the minute (`tcp_tw_reuse`,
//! ip-sysctl). So the kernel is asked to forget them (`SOCK_DESTROY`, sock_diag(7)), if both ends were on this host, where no
//! packet of theirs is under way any more.
//!
//! | offset of the request | bytes | field |
//! | --- | --- | --- |
//! | 0 | 16 | header: length, type, flags, sequence number, sender |
//! | 16 | 4 | family, protocol, two that are 0 |
//! | 20 | 4 | states, of no meaning here |
//! | 24 | 4 | own and other port, most significant byte first |
//! | 28 | 16 + 16 | own and other address |
//! | 60 | 4 + 8 | interface; cookie, all ones for none |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
    sockopt,
};

use super::dumped::Addresses;
use super::{Ends, live};

const SOCK_DESTROY: u16 = 21;
/// `NLM_F_REQUEST`, `NLM_F_ACK`: the kernel answers in any case.
const FLAGS: u16 = 1 | 4;
const IPPROTO_TCP: u8 = 6;
const LENGTH: u32 = 72;
/// The kernel answers at once.
const ANSWER: Duration = Duration::from_secs(1);

/// Forgets the ended connections that have addresses which a program is about to have again, in this process's network namespace.
/// What the kernel does not forget may keep it from being restored, which CRIU says then.
pub fn forget(wanted: &Addresses) {
    if *wanted == Addresses::default() {
        // To ask for ended connections takes the kernel milliseconds, for which a restore would wait.
        return;
    }
    let at = |own: SocketAddr, it: &SocketAddr| {
        let everywhere = it.ip().is_unspecified() || it.ip() == own.ip();
        it.port() == own.port() && everywhere
    };
    let mut ended = live::ended();
    ended.retain(|it| {
        let stands_in_the_way =
            wanted.listening.iter().any(|to| at(it.own, to)) || wanted.connected.contains(it);
        it.is_local() && stands_in_the_way
    });
    let Ok(diagnosis) = connect() else { return };
    for ends in ended {
        // It may have come to its end by itself.
        let _ = destroy(&diagnosis, ends);
    }
}

fn connect() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let made = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(SOCK_DIAG),
    )?;
    sockopt::set_socket_timeout(&made, sockopt::Timeout::Recv, Some(ANSWER))?;
    Ok(made)
}

fn destroy(diagnosis: &OwnedFd, ends: Ends) -> io::Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(diagnosis, &request(ends), SendFlags::empty(), &kernel)?;
    let mut answer = [0; 512];
    let (_, length) = recv(diagnosis, &mut answer[..], RecvFlags::empty())?;
    // Behind its header: 0, or a negative error.
    let error = answer.get(16..20).filter(|_| length >= 20);
    let error = error.and_then(|it| it.try_into().ok());
    match error.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn request(ends: Ends) -> Vec<u8> {
    let family = match ends.own {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    let header = [
        &LENGTH.to_ne_bytes()[..],
        &SOCK_DESTROY.to_ne_bytes(),
        &FLAGS.to_ne_bytes(),
        &[0; 8],
    ];
    let what = [&[family, IPPROTO_TCP, 0, 0][..], &u32::MAX.to_ne_bytes()];
    let ports = [
        ends.own.port().to_be_bytes(),
        ends.other.port().to_be_bytes(),
    ];
    let addresses = [bytes(ends.own.ip()), bytes(ends.other.ip())];
    let anywhere = [&[0; 4][..], &[0xff; 8]];
    [
        header.concat(),
        what.concat(),
        ports.concat(),
        addresses.concat(),
        anywhere.concat(),
    ]
    .concat()
}

/// An address in 16 bytes; one of IPv4 is the first four.
fn bytes(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(it) => bytes[..4].copy_from_slice(&it.octets()),
        IpAddr::V6(it) => bytes = it.octets(),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use rustix::net::bind;

    use super::*;
    use crate::looks::scene::soon;

    const LOCAL: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];

    /// A socket for a connection from or to such an address.
    fn tcp(ip: IpAddr) -> OwnedFd {
        let family = match ip {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket")
    }

    fn is_remembered(ends: Ends) -> bool {
        live::ended().contains(&ends)
    }

    /// A connection that has ended, and is remembered at the end that listened, or at the other one. The listener goes on.
    fn ended(ip: IpAddr, by_listener: bool) -> (TcpListener, Ends) {
        let listener = TcpListener::bind((ip, 0)).expect("listens");
        // Without the option that this listener has, as most programs make theirs.
        sockopt::set_socket_reuseaddr(&listener, false).expect("set");
        let at = listener.local_addr().expect("an address");
        // At a port of its own: one that the kernel picks for a connection may be that of others, too, which go elsewhere.
        let client = tcp(ip);
        bind(&client, &SocketAddr::new(ip, 0)).expect("bound");
        rustix::net::connect(&client, &at).expect("connected");
        let client = TcpStream::from(client);
        let other = client.local_addr().expect("an address");
        let (accepted, _) = listener.accept().expect("accepted");
        let (first, mut second) = match by_listener {
            true => (accepted, client),
            false => (client, accepted),
        };
        drop(first);
        assert_eq!(second.read(&mut [0]).expect("the end"), 0);
        drop(second);
        let ends = Ends { own: at, other };
        let ends = if by_listener { ends } else { ends.reversed() };
        let remembered = soon(|| is_remembered(ends), |it| *it);
        assert!(remembered, "it is not remembered");
        (listener, ends)
    }

    /// An address at which a connection has ended.
    fn lingering(ip: IpAddr) -> SocketAddr {
        ended(ip, true).1.own
    }

    fn listening(at: SocketAddr) -> Addresses {
        Addresses {
            listening: vec![at],
            connected: Vec::new(),
        }
    }

    fn connected(ends: Ends) -> Addresses {
        Addresses {
            listening: Vec::new(),
            connected: vec![ends, ends.reversed()],
        }
    }

    fn bind_again(at: SocketAddr) -> rustix::io::Result<()> {
        let again = tcp(at.ip());
        sockopt::set_socket_reuseaddr(&again, true)?;
        bind(&again, &at)
    }

    #[test]
    fn a_port_where_connections_have_ended_can_be_listened_at() {
        for ip in LOCAL {
            let (at, other) = (lingering(ip), lingering(ip));
            assert_eq!(bind_again(at), Err(rustix::io::Errno::ADDRINUSE));
            forget(&listening(at));
            assert_eq!(soon(|| bind_again(at), Result::is_ok), Ok(()));
            // Of another port nothing is forgotten.
            assert_eq!(bind_again(other), Err(rustix::io::Errno::ADDRINUSE));
            let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), other.port());
            forget(&listening(everywhere));
            assert_eq!(soon(|| bind_again(other), Result::is_ok), Ok(()));
        }
    }

    #[test]
    fn addresses_between_which_a_connection_has_ended_can_be_connected_again() {
        for ip in LOCAL {
            let (listener, ends) = ended(ip, false);
            let (_kept, other) = ended(ip, false);
            forget(&connected(ends));
            assert!(!is_remembered(ends), "{ends}");
            // Of other addresses nothing is forgotten.
            assert!(is_remembered(other), "{other}");
            let again = tcp(ip);
            bind(&again, &ends.own).expect("bound");
            rustix::net::connect(&again, &ends.other).expect("connected again");
            drop(listener);
        }
    }
}
