//! TCP connections of a program: which of them an image can hold.
//!
//! ```text
//!  both ends in the session   whole: state and unread bytes of both ends are in the image
//!  other end closed           whole, if nothing that it has sent is still on its way
//!  other end elsewhere        refused before the stop, or closed in the image (`--tcp-close`)
//!  not accepted yet           likewise
//! ```
//! `live` reads the kernel's tables before a program is stopped; `dumped` judges what CRIU has written, for a connection
//! may have been made since, and makes it fit for a restore. `reuse` and `lingering` let what is restored
//! listen where it did. `held` lists them for CRIU.

pub mod dumped;
pub mod held;
pub mod lingering;
pub mod live;
pub mod reuse;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, sockopt};

/// The addresses of a connection, seen from one of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ends {
    /// The address of this end.
    pub own: SocketAddr,
    /// That of the other.
    pub other: SocketAddr,
}

impl Ends {
    /// The same connection, seen from its other end.
    pub fn reversed(self) -> Self {
        Self {
            own: self.other,
            other: self.own,
        }
    }

    /// Whether both ends are on this host.
    fn is_local(self) -> bool {
        self.other.ip().is_loopback() || self.other.ip() == self.own.ip()
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} to {}", self.own, self.other)
    }
}

fn is_tcp(socket: &OwnedFd) -> io::Result<bool> {
    let internet = [AddressFamily::INET, AddressFamily::INET6];
    Ok(sockopt::socket_type(socket)? == SocketType::STREAM
        && internet.contains(&sockopt::socket_domain(socket)?))
}

/// States of a TCP socket, numbered as in `/proc/net/tcp` and in CRIU's images.
mod state {
    pub const ESTABLISHED: u32 = 1;
    pub const SYN_RECEIVED: u32 = 3;
    pub const FIN_WAIT_1: u32 = 4;
    pub const TIME_WAIT: u32 = 6;
    pub const CLOSED: u32 = 7;
    pub const CLOSE_WAIT: u32 = 8;
    pub const LAST_ACK: u32 = 9;
    pub const LISTEN: u32 = 10;
    pub const CLOSING: u32 = 11;

    /// Whether the other end has said that it sends no more.
    pub fn has_heard_all(state: u32) -> bool {
        matches!(state, CLOSE_WAIT | LAST_ACK | CLOSING)
    }

    /// Whether this end has said so, and the other has not confirmed it.
    pub fn ends_unheard(state: u32) -> bool {
        matches!(state, FIN_WAIT_1 | LAST_ACK | CLOSING)
    }
}
