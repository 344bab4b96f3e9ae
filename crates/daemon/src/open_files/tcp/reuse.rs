//! Lets a restored program listen at once where the killed one did.
//!
//! The ends of a program's connections outlive it by a minute (`TIME_WAIT`). As long as one of them is at a port, none may listen
//! there, unless the ended socket had `SO_REUSEADDR`; sockets have what the listening one had that accepted them. CRIU restores a
//! socket with the options it was dumped with, so the sockets get it before the dump, once and for all.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::sockopt;

use super::is_tcp;
use crate::open_files::sockets::{duplicate, holders};

/// Sets the option on the TCP sockets of these processes. Where that fails, a restore may have to wait for a minute.
pub fn allow(processes: &[u32]) {
    for holder in holders(processes).into_values() {
        // It may have been closed, or be another file by now.
        let _ = duplicate(holder).and_then(|socket| allow_at(&socket));
    }
}

fn allow_at(socket: &OwnedFd) -> io::Result<()> {
    if is_tcp(socket)? && !sockopt::socket_reuseaddr(socket)? {
        sockopt::set_socket_reuseaddr(socket, true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{SocketAddr, TcpStream};
    use std::process::{Child, Command};

    use rustix::net::{
        AddressFamily, SocketFlags, SocketType, accept_with, bind, getsockname, listen, socket_with,
    };

    use super::*;
    use crate::looks::scene::soon;

    fn made() -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        Ok(socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            flags,
            None,
        )?)
    }

    fn listening(at: SocketAddr) -> io::Result<OwnedFd> {
        let made = made()?;
        bind(&made, &at)?;
        listen(&made, 1)?;
        Ok(made)
    }

    fn accepted(listener: &OwnedFd) -> OwnedFd {
        accept_with(listener, SocketFlags::CLOEXEC).expect("accepted")
    }

    fn bind_again(at: SocketAddr) -> rustix::io::Result<()> {
        let again = made().expect("a socket");
        sockopt::set_socket_reuseaddr(&again, true)?;
        bind(&again, &at)
    }

    /// A process that holds both.
    fn holding(listener: &OwnedFd, accepted: &OwnedFd) -> Child {
        let cloned = |it: &OwnedFd| it.try_clone().expect("cloned");
        let mut command = Command::new("sleep");
        command.arg("1000");
        command.stdin(cloned(listener)).stdout(cloned(accepted));
        command.spawn().expect("sleep starts")
    }

    #[test]
    fn a_port_can_be_listened_at_again_when_its_connections_have_just_ended() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let ended = |allowed: bool| {
            let listener = listening(any).expect("listens");
            let at = SocketAddr::try_from(getsockname(&listener).expect("a name")).expect("TCP");
            let before = TcpStream::connect(at).expect("connected");
            let own = accepted(&listener);
            // Another process, as this one has the sockets of other tests, too.
            let mut child = holding(&listener, &own);
            if allowed {
                allow(&[child.id()]);
            }
            child.kill().expect("killed");
            child.wait().expect("waited");
            let later = TcpStream::connect(at).expect("connected");
            let both = [(before, own), (later, accepted(&listener))];
            drop(listener);
            for (mut other, own) in both {
                // It waits for a minute who closes first.
                drop(own);
                assert_eq!(other.read(&mut [0]).expect("the end"), 0);
            }
            at
        };
        assert_eq!(bind_again(ended(false)), Err(rustix::io::Errno::ADDRINUSE));
        let at = ended(true);
        assert_eq!(soon(|| bind_again(at), Result::is_ok), Ok(()));
    }
}
