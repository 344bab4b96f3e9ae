//! The network of an instance, and connections made within it.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

use fermata_control::user::Endpoint;
use fermata_function::Link;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How long a program may take to accept the kernel's half of a connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// The network namespace of a program. It is there as long as this is.
#[derive(Debug)]
pub struct Network(File);

impl Network {
    /// That of process `pid`, which has one of its own.
    ///
    /// # Errors
    /// The process has ended.
    pub fn of(pid: u32) -> io::Result<Self> {
        let network = File::open(format!("/proc/{pid}/ns/net"))?;
        let own = std::fs::metadata("/proc/self/ns/net")?;
        if network.metadata()?.ino() == own.ino() {
            // The number is another process's by now.
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self(network))
    }

    /// Connects to a socket in it.
    ///
    /// # Errors
    /// No program listens there, or this process may not enter it.
    pub fn connect(&self, to: &Endpoint) -> io::Result<Link> {
        // A thread of its own: it does not come back.
        let work = || -> io::Result<Link> {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            connect(to)
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("connect".into());
            let joined = thread.spawn_scoped(scope, work)?.join();
            joined.unwrap_or_else(|_| Err(io::Error::other("the connecting thread ended")))
        })
    }
}

fn connect(to: &Endpoint) -> io::Result<Link> {
    match to {
        Endpoint::Tcp(address) => {
            TcpStream::connect_timeout(&reachable(*address), CONNECT_TIME).map(Link::Tcp)
        }
        Endpoint::Unix(name) => {
            let name = name.to_os();
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => UnixAddr::from_abstract_name(name)?,
                None => UnixAddr::from_pathname(&name)?,
            };
            UnixStream::connect_addr(&address).map(Link::Unix)
        }
    }
}

/// An address at which a program answers that listens at all of a family.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
