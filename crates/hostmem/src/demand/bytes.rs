//! What passes between the process that brings pages and the one that holds their descriptors: single bytes.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// A descriptor comes with this byte.
pub(super) const HELD: u8 = b'h';
/// Nothing is missing any more.
pub(super) const DONE: u8 = b'd';

/// The next byte, with a descriptor if one comes with it; none at the end.
pub(super) fn receive_byte(socket: &OwnedFd) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        flags,
    )?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok((received.bytes == 1).then_some((byte[0], fd)))
}
