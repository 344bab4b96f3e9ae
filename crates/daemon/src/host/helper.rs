//! The helper process that gets userfaultfds of other processes: it traces them for a moment, which the daemon, the parent
//! of some of them, must not do itself.
//!
//! It sends one message for each process, in order: the descriptor, or the reason why there is none.

use std::ffi::OsString;
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::failure::chain;
use crate::helpers::modes::TRACK;
use crate::sys::{self, Extra};

/// Its socket.
const SOCKET: i32 = 3;
/// How long one process may take.
const TIME: Duration = Duration::from_secs(20);
/// The longest reason.
const MOST_BYTES: usize = 512;

/// A userfaultfd of each process of `pids`, or why there is none.
///
/// # Errors
/// The helper cannot be started, or does not answer.
pub fn acquire(executable: &Path, pids: &[u32]) -> io::Result<Vec<Result<OwnedFd, String>>> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut command = Command::new(executable);
    command.arg(TRACK).args(pids.iter().map(u32::to_string));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let extra = Extra {
        setsid: true,
        ..Extra::fds(vec![theirs])
    };
    sys::prepare(&mut command, extra);
    let mut child = command.spawn()?;
    drop(command);
    let answers = pids.iter().map(|_| answer(&ours)).collect();
    drop(ours);
    // It ends by itself: killed, it could leave a process with the registers of another call.
    std::thread::Builder::new()
        .name("reap".into())
        .spawn(move || child.wait())?;
    answers
}

fn answer(socket: &OwnedFd) -> io::Result<Result<OwnedFd, String>> {
    let limit = Timespec {
        tv_sec: TIME.as_secs() as i64,
        tv_nsec: 0,
    };
    if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut text = [0; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut text)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let reason = String::from_utf8_lossy(&text[..received.bytes]);
    Ok(descriptors.next().ok_or_else(|| reason.into_owned()))
}

/// `__track PID...`.
pub fn helper(pids: &[OsString]) -> io::Result<i32> {
    // It must not end while a process has the registers of another call.
    sys::block_end_signals();
    let socket = sys::inherited(SOCKET).ok_or(io::ErrorKind::NotFound)?;
    for pid in pids {
        let pid = pid.to_str().and_then(|it| it.parse().ok());
        let uffd = fermata_hostmem::acquire(pid.ok_or(io::ErrorKind::InvalidInput)?);
        let text = match &uffd {
            Ok(_) => "tracked".to_owned(),
            Err(error) => chain(error),
        };
        let rights: Vec<_> = uffd.iter().map(|it| it.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !rights.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&rights));
        }
        let bytes = &text.as_bytes()[..text.len().min(MOST_BYTES)];
        sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
    }
    Ok(0)
}
