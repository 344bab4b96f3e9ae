//! Messages on a Unix stream socket.
//!
//! ```text
//!   0        4                  4 + length
//!   ├────────┼──────────────────┤
//!   │ length │ JSON             │   length: u32, little-endian, at most MAX_FRAME
//!   └────────┴──────────────────┘
//!   descriptors travel with the first byte (SCM_RIGHTS), at most MAX_FDS
//! ```
//! Every wait has a limit. Descriptors arrive close-on-exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::credentials;
use crate::error::ControlError;
use crate::trust::Trust;

/// The longest JSON text of a message, in bytes.
pub const MAX_FRAME: usize = 8 << 20;
/// The most descriptors one message carries.
pub const MAX_FDS: usize = 8;
/// How long a message that has begun may take to pass.
const MESSAGE_TIME: Duration = Duration::from_secs(10);

/// One end of a conversation that receives `In` and sends `Out`.
///
/// One thread may send while another receives; two senders (or two receivers) must take turns.
#[derive(Debug)]
pub struct Connection<In, Out> {
    socket: OwnedFd,
    peer: String,
    types: PhantomData<fn(Out) -> In>,
}

impl<In: DeserializeOwned, Out: Serialize> Connection<In, Out> {
    /// Wraps a connected stream socket; `peer` names the other end in errors.
    pub fn new(socket: OwnedFd, peer: impl Into<String>) -> Self {
        Self {
            socket,
            peer: peer.into(),
            types: PhantomData,
        }
    }

    /// Connects to the socket at `path`, if this user or root has made it and listens there. Nothing is sent.
    ///
    /// # Errors
    /// [`ControlError::Connect`] when no process listens there, [`ControlError::Untrusted`] when another user does, or
    /// when another user could put a socket there.
    pub fn connect(path: &Path, peer: impl Into<String>) -> Result<Self, ControlError> {
        Self::connect_trusting(path, peer.into(), Trust::own())
    }

    fn connect_trusting(path: &Path, peer: String, trust: Trust) -> Result<Self, ControlError> {
        match trust.check_socket(path) {
            Err(source) if !source.is_absent() => {
                return Err(ControlError::Untrusted { peer, source });
            }
            // Where nothing is, connecting says so.
            _ => {}
        }
        let open = || -> io::Result<OwnedFd> {
            let socket = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| ControlError::Connect {
            peer: peer.clone(),
            path: path.display().to_string(),
            source,
        })?;
        let connection = Self::new(socket, peer);
        match trust.check_peer(path, connection.peer_uid()?) {
            Ok(()) => Ok(connection),
            Err(source) => Err(ControlError::Untrusted {
                peer: connection.peer,
                source,
            }),
        }
    }

    /// The other end's name in errors.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The user id of the process at the other end, as the kernel recorded it at connect time.
    ///
    /// # Errors
    /// [`ControlError::Io`] when the kernel does not say.
    pub fn peer_uid(&self) -> Result<u32, ControlError> {
        credentials::of_peer(&self.socket)
            .map(|peer| peer.user)
            .map_err(|e| self.io("read the credentials of", e))
    }

    /// The process at the other end, as the kernel recorded it at connect time, in this process's
    /// numbering.
    ///
    /// # Errors
    /// [`ControlError::Io`] when the kernel does not say, or it has no number here: it is in a PID namespace that this
    /// process does not see.
    pub fn peer_pid(&self) -> Result<u32, ControlError> {
        credentials::of_peer(&self.socket)
            .and_then(|peer| peer.pid.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(|e| self.io("read the process id of", e))
    }

    /// Ends the conversation for both sides; a thread blocked in [`Self::recv`] wakes.
    pub fn shutdown(&self) {
        // Fails only when the peer is gone already, which is what is asked for.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Sends one message with `fds` (at most [`MAX_FDS`]).
    ///
    /// # Errors
    /// [`ControlError::Closed`] when the peer is gone, [`ControlError::Stalled`] when it does not
    /// read for ten seconds; both leave the connection useless.
    pub fn send(&self, message: &Out, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        if fds.len() > MAX_FDS {
            return Err(ControlError::TooManyDescriptors {
                peer: self.peer.clone(),
            });
        }
        let mut frame = vec![0u8; 4];
        serde_json::to_writer(&mut frame, message).map_err(|source| ControlError::Malformed {
            peer: self.peer.clone(),
            source,
        })?;
        let length = frame.len() - 4;
        if length > MAX_FRAME {
            return Err(self.too_long(length));
        }
        frame[..4].copy_from_slice(&(length as u32).to_le_bytes());

        let until = Instant::now() + MESSAGE_TIME;
        let mut sent = 0;
        while sent < frame.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(ControlError::TooManyDescriptors {
                    peer: self.peer.clone(),
                });
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let piece = [IoSlice::new(&frame[sent..])];
            match rustix::net::sendmsg(&self.socket, &piece, &mut control, flags) {
                Ok(bytes) => sent += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    if !self.wait(PollFlags::OUT, until, "send to")? {
                        return Err(self.stalled("send to"));
                    }
                }
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    return Err(ControlError::Closed {
                        peer: self.peer.clone(),
                    });
                }
                Err(e) => return Err(self.io("send to", e.into())),
            }
        }
        Ok(())
    }

    /// Waits up to `limit` for a message to begin, then receives it with its descriptors.
    ///
    /// # Errors
    /// [`ControlError::Timeout`] when none began (the connection stays good),
    /// [`ControlError::Closed`] when the peer ended the conversation. After any other error the
    /// connection is useless.
    pub fn recv(&self, limit: Duration) -> Result<(In, Vec<OwnedFd>), ControlError> {
        if !self.wait(PollFlags::IN, Instant::now() + limit, "wait for")? {
            return Err(ControlError::Timeout {
                peer: self.peer.clone(),
                waited: limit,
            });
        }
        let until = Instant::now() + MESSAGE_TIME;
        let mut fds = Vec::new();
        let mut header = [0u8; 4];
        self.fill(&mut header, &mut fds, until)?;
        let length = u32::from_le_bytes(header) as usize;
        if length > MAX_FRAME {
            return Err(self.too_long(length));
        }
        let mut body = vec![0u8; length];
        self.fill(&mut body, &mut fds, until)?;
        let message = serde_json::from_slice(&body).map_err(|source| ControlError::Malformed {
            peer: self.peer.clone(),
            source,
        })?;
        Ok((message, fds))
    }

    /// Reads until `buffer` is full, collecting descriptors.
    fn fill(
        &self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        until: Instant,
    ) -> Result<(), ControlError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut piece = [IoSliceMut::new(&mut buffer[filled..])];
            match rustix::net::recvmsg(&self.socket, &mut piece, &mut control, flags) {
                Ok(got) => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(rights) = message {
                            fds.extend(rights);
                        }
                    }
                    if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
                        return Err(ControlError::TooManyDescriptors {
                            peer: self.peer.clone(),
                        });
                    }
                    if got.bytes == 0 {
                        return Err(ControlError::Closed {
                            peer: self.peer.clone(),
                        });
                    }
                    filled += got.bytes;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    if !self.wait(PollFlags::IN, until, "receive from")? {
                        return Err(self.stalled("receive from"));
                    }
                }
                Err(rustix::io::Errno::CONNRESET) => {
                    return Err(ControlError::Closed {
                        peer: self.peer.clone(),
                    });
                }
                Err(e) => return Err(self.io("receive from", e.into())),
            }
        }
        Ok(())
    }

    /// Whether the socket became ready (or hung up) before `until`.
    fn wait(
        &self,
        flags: PollFlags,
        until: Instant,
        step: &'static str,
    ) -> Result<bool, ControlError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let limit = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut set = [PollFd::new(&self.socket, flags)];
            match poll(&mut set, Some(&limit)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(e) => return Err(self.io(step, e.into())),
            }
        }
    }

    fn io(&self, step: &'static str, source: io::Error) -> ControlError {
        ControlError::Io {
            peer: self.peer.clone(),
            step,
            source,
        }
    }

    fn stalled(&self, step: &'static str) -> ControlError {
        ControlError::Stalled {
            peer: self.peer.clone(),
            step,
        }
    }

    fn too_long(&self, bytes: usize) -> ControlError {
        ControlError::TooLong {
            peer: self.peer.clone(),
            bytes,
            limit: MAX_FRAME,
        }
    }
}

impl<In, Out> AsFd for Connection<In, Out> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<In, Out> From<Connection<In, Out>> for OwnedFd {
    fn from(connection: Connection<In, Out>) -> Self {
        connection.socket
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::agent::{FromAgent, ToAgent};

    fn pair() -> (
        Connection<FromAgent, ToAgent>,
        Connection<ToAgent, FromAgent>,
    ) {
        let (a, b) = UnixStream::pair().expect("a socket pair");
        (
            Connection::new(a.into(), "agent"),
            Connection::new(b.into(), "daemon"),
        )
    }

    /// Until a test gives up: what it waits for comes, however busy the machine is.
    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (daemon, agent) = pair();
        let (left, right) = UnixStream::pair().expect("a socket pair");
        let welcome = ToAgent::Welcome {
            protocol: 1,
            resume: true,
        };
        daemon
            .send(&welcome, &[left.as_fd(), right.as_fd()])
            .expect("sent");
        daemon.send(&ToAgent::Detach, &[]).expect("sent");
        drop((left, right));
        let (got, fds) = agent.recv(SOON).expect("received");
        assert_eq!((got, fds.len()), (welcome, 2));
        assert_eq!(agent.recv(SOON).expect("received").0, ToAgent::Detach);
        let mut fds = fds.into_iter().map(UnixStream::from);
        let (mut left, mut right) = (fds.next().expect("one"), fds.next().expect("two"));
        left.write_all(b"x").expect("written");
        drop(left);
        let mut text = String::new();
        right.read_to_string(&mut text).expect("read");
        assert_eq!(text, "x");
    }

    #[test]
    fn nothing_is_sent_to_a_socket_of_another_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("listens");
        let connect = |trust| {
            Connection::<ToAgent, FromAgent>::connect_trusting(&path, "the daemon".into(), trust)
        };
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("protected");
        let refused = connect(Trust::of_another_user());
        assert!(
            matches!(refused, Err(ControlError::Untrusted { .. })),
            "{refused:?}"
        );
        listener.set_nonblocking(true).expect("set");
        assert!(listener.accept().is_err(), "it was not even called");
        connect(Trust::own()).expect("the user's own is called");
        listener.accept().expect("called");
    }

    #[test]
    fn silence_is_a_timeout_and_a_hangup_is_closed() {
        let (daemon, agent) = pair();
        assert!(
            agent
                .recv(Duration::from_millis(20))
                .expect_err("nothing sent")
                .is_timeout()
        );
        daemon.send(&ToAgent::Resume, &[]).expect("sent");
        assert_eq!(agent.recv(SOON).expect("received").0, ToAgent::Resume);
        drop(daemon);
        assert!(agent.recv(SOON).expect_err("closed").is_closed());
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let (a, mut b) = UnixStream::pair().expect("a socket pair");
        let connection: Connection<FromAgent, ToAgent> = Connection::new(a.into(), "agent");
        b.write_all(&u32::MAX.to_le_bytes()).expect("written");
        assert!(matches!(
            connection.recv(SOON),
            Err(ControlError::TooLong { .. })
        ));
        let (a, mut b) = UnixStream::pair().expect("a socket pair");
        let connection: Connection<FromAgent, ToAgent> = Connection::new(a.into(), "agent");
        b.write_all(b"\x08\0\0\0\"Nobody\"").expect("written");
        assert!(matches!(
            connection.recv(SOON),
            Err(ControlError::Malformed { .. })
        ));
    }

    #[test]
    fn long_messages_pass_a_small_socket_buffer() {
        let (daemon, agent) = pair();
        let reason = "x".repeat(3 << 20);
        let message = ToAgent::Reject { status: 1, reason };
        let copy = message.clone();
        let sender = std::thread::spawn(move || daemon.send(&copy, &[]));
        assert_eq!(agent.recv(SOON).expect("received").0, message);
        sender.join().expect("joined").expect("sent");
    }
}
