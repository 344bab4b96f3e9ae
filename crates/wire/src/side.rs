//! The side socket: a sequenced-packet socket between program and worker, for descriptors and for what
//! the worker sends on its own account. One packet is one postcard message, with at most one
//! descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use fermata_abi::op::{Address, FileId, ToProgram};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::WireError;

/// Longest packet.
const PACKET: usize = 4096;

/// What the program sends over the side socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromProgram {
    /// The memory of a host region, with its descriptor, sent before the `Op::HostMap` that names the
    /// same address.
    Region {
        /// Where it is mapped in the program.
        address: Address,
        /// Bytes.
        size: u64,
    },
    /// A file with a module image, sent before the operation that names the same number.
    File {
        /// The number.
        file: FileId,
    },
    /// The file of a region of `HostKind::Shared`, with its descriptor, sent before the `Op::HostMap` that names the same address,
    /// or when the worker has said that it lacks it.
    Shared {
        /// Where it is mapped in the program.
        address: Address,
        /// Bytes.
        size: u64,
        /// Where they begin in the file.
        offset: u64,
    },
}

/// One end of the side socket.
///
/// The socket's hang-up is how each side learns that the other died, so no other process may keep a copy of
/// either end.
#[derive(Debug)]
pub struct Side(OwnedFd);

impl Side {
    /// A new pair of connected ends.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn pair() -> Result<(OwnedFd, OwnedFd), WireError> {
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| WireError::io("create the side socket", errno))
    }

    /// Uses an end received from the daemon.
    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Program to worker, with the descriptor of a region or a file.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn send_region(&self, message: &FromProgram, fd: BorrowedFd<'_>) -> Result<(), WireError> {
        self.send(message, Some(fd))
    }

    /// Worker to program, with a descriptor for [`ToProgram::Region`].
    ///
    /// # Errors
    /// The program is gone.
    pub fn send_to_program(
        &self,
        message: &ToProgram,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), WireError> {
        self.send(message, fd)
    }

    /// What the program sent, with its descriptor; `None` if nothing comes within `timeout`.
    ///
    /// # Errors
    /// The program is gone, or its packet is malformed.
    pub fn receive_from_program(
        &self,
        timeout: Duration,
    ) -> Result<Option<(FromProgram, Option<OwnedFd>)>, WireError> {
        self.receive(timeout, "program")
    }

    /// What the worker sent, with its descriptor; `None` if nothing comes within `timeout`.
    ///
    /// # Errors
    /// The worker is gone, or its packet is malformed.
    pub fn receive_from_worker(
        &self,
        timeout: Duration,
    ) -> Result<Option<(ToProgram, Option<OwnedFd>)>, WireError> {
        self.receive(timeout, "worker")
    }

    fn send<T: Serialize>(&self, message: &T, fd: Option<BorrowedFd<'_>>) -> Result<(), WireError> {
        let mut buffer = [0; PACKET];
        let encode = |source| WireError::Encode {
            what: "frame",
            source,
        };
        let bytes = postcard::to_slice(message, &mut buffer).map_err(encode)?;
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        loop {
            match sendmsg(
                &self.0,
                &[IoSlice::new(bytes)],
                &mut control,
                SendFlags::NOSIGNAL,
            ) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(WireError::io("send over the side socket", errno)),
            }
        }
    }

    fn receive<T: DeserializeOwned>(
        &self,
        timeout: Duration,
        who: &'static str,
    ) -> Result<Option<(T, Option<OwnedFd>)>, WireError> {
        if !self.readable(timeout)? {
            return Ok(None);
        }
        let mut buffer = [0; PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = match recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            flags,
        ) {
            Ok(got) if got.bytes == 0 => return Err(WireError::PeerGone(who)),
            Ok(got) => got.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(errno) => return Err(WireError::io("receive from the side socket", errno)),
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let decode = |source| WireError::Decode {
            what: "frame",
            position: 0,
            source,
        };
        let message = postcard::from_bytes(&buffer[..got]).map_err(decode)?;
        Ok(Some((message, fd)))
    }

    fn readable(&self, timeout: Duration) -> Result<bool, WireError> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let time = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match poll(&mut fds, Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(WireError::io("wait for the side socket", errno)),
        }
    }
}

impl AsFd for Side {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
