//! Tells CRIU the mappings of processes while they stand still, faster than the kernel's own file does.
//!
//! ```text
//!  CRIU opens /proc/PID/smaps ─► `fermata-pagefilter` ─► PID ─► [thread] ─► PID and a file in memory, or PID only
//! ```
//! A process is named by its number in its own namespace, as CRIU names it. Without a file CRIU reads the kernel's.

use std::fs::File;
use std::io::{self, IoSlice, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};

use crate::proc;

/// The longest question.
const MOST_BYTES: usize = 16;

/// Answers for the tree below `root` until the returned end is closed everywhere. Where the kernel's file must do, every
/// question fails at once: without a socket, its number could be one of CRIU's own.
pub(crate) fn serve(root: u32) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    if fermata_hostmem::can_describe() {
        let answer = move || while answer(&ours, root).is_ok_and(|more| more) {};
        // Without a thread the other end is closed.
        let _ = std::thread::Builder::new()
            .name("mappings".into())
            .spawn(answer);
    }
    Some(theirs)
}

/// Answers one question; whether there was one.
fn answer(socket: &OwnedFd, root: u32) -> io::Result<bool> {
    let mut question = [0; MOST_BYTES];
    let (length, _) = recv(socket, &mut question[..], RecvFlags::empty())?;
    if length == 0 {
        return Ok(false);
    }
    let question = &question[..length];
    let number = str::from_utf8(question).ok();
    let inner: Option<u32> = number.and_then(|it| it.parse().ok());
    let file = inner.and_then(|it| describe(root, it).ok());
    let rights: Vec<_> = file.iter().map(|it| it.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !rights.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&rights));
    }
    sendmsg(
        socket,
        &[IoSlice::new(question)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(true)
}

/// The mappings of the process of the tree below `root` that has number `inner` in its namespace.
fn describe(root: u32, inner: u32) -> io::Result<File> {
    let pid = find(root, inner).ok_or(io::ErrorKind::NotFound)?;
    let text = fermata_hostmem::describe(pid)?;
    let mut file = File::from(memfd_create("mappings", MemfdFlags::CLOEXEC)?);
    file.write_all(&text)?;
    file.rewind()?;
    Ok(file)
}

fn find(root: u32, inner: u32) -> Option<u32> {
    let mut tree = proc::still_tree(root).into_iter();
    tree.find(|pid| proc::inner_pid(*pid) == Some(inner))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_answer_names_the_process_that_was_asked_for() {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.expect("a socket pair");
        let asked = b"4294967295";
        rustix::net::send(&theirs, asked, SendFlags::NOSIGNAL).expect("asked");
        assert!(answer(&ours, std::process::id()).expect("answered"));
        let mut text = [0; MOST_BYTES];
        let (length, _) = recv(&theirs, &mut text[..], RecvFlags::empty()).expect("an answer");
        assert_eq!(&text[..length], asked);
    }

    #[test]
    fn a_process_outside_of_the_tree_is_not_told_of() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .expect("started");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let mut text = String::new();
        let told = describe(child.id(), child.id()).map(|mut it| it.read_to_string(&mut text));
        let other = describe(child.id(), std::process::id());
        let found = [child.id(), std::process::id()].map(|inner| find(child.id(), inner));
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(found, [Some(child.id()), None]);
        other.expect_err("not below it");
        match told {
            Ok(read) => {
                read.expect("read");
                assert!(text.contains("VmFlags: "), "{text}");
            }
            // CRIU then reads the kernel's file. Where that may be so is tested in `fermata-hostmem`.
            Err(error) => {
                assert!(!fermata_hostmem::can_describe(), "{error}");
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            }
        }
    }
}
