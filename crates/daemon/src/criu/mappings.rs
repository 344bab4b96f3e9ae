//! Tells CRIU the mappings of processes while they stand still, faster than the kernel's own file does, and which of their
//! pages it need not dump.
//!
//! ```text
//!  CRIU opens /proc/PID/smaps ─► `fermata-pagefilter` ─► PID ─► [thread] ─┬► PID, a file, a list of pages
//!                                                                         ├► PID, a file
//!                                                                         └► PID
//! ```
//! A process is named by its number in its own namespace, as CRIU names it. Without a file CRIU reads the kernel's. The list is
//! that of a process that has begun since the memory of the one that forked it is tracked: pages that both still have in common
//! are in the copy of that one (`crate::host`).

use std::fs::File;
use std::io::{self, IoSlice, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};

use crate::proc;

/// The longest question.
const MOST_BYTES: usize = 16;

/// Pages that a process has from another, whose memory is tracked.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub pid: u32,
    pub from: u32,
    /// Ascending.
    pub pages: Vec<Range<u64>>,
}

/// The pages that CRIU was told to leave out, of all processes.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeftOut(Arc<Mutex<Vec<Arc<Inherited>>>>);

impl LeftOut {
    fn add(&self, inherited: Arc<Inherited>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(inherited);
    }

    /// Takes all that was told so far.
    pub fn take(&self) -> Vec<Arc<Inherited>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *all)
    }
}

/// What is asked about.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub root: u32,
    pub left_out: LeftOut,
}

/// Answers for a tree until the returned end is closed everywhere.
pub(crate) fn serve(tree: Tree) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let answer = move || {
        // The first time that takes long, and the program does not stand still yet.
        fermata_hostmem::can_describe();
        let mut lists = None;
        while answer(&ours, &tree, &mut lists).is_ok_and(|more| more) {}
    };
    // Without a thread every question fails at once. Without a socket, its number could be one of CRIU's own.
    let _ = std::thread::Builder::new()
        .name("mappings".into())
        .spawn(answer);
    Some(theirs)
}

/// Answers one question; whether there was one. `lists` are none before the first.
fn answer(socket: &OwnedFd, tree: &Tree, lists: &mut Option<Arc<Lists>>) -> io::Result<bool> {
    let mut question = [0; MOST_BYTES];
    let (length, _) = recv(socket, &mut question[..], RecvFlags::empty())?;
    if length == 0 {
        return Ok(false);
    }
    let question = &question[..length];
    let number = str::from_utf8(question).ok();
    let inner: Option<u32> = number.and_then(|it| it.parse().ok());
    let lists = lists.get_or_insert_with(|| Lists::begin(tree.root));
    let files = inner.and_then(|it| tree.tell(it, lists).ok());
    let files = files.unwrap_or_default();
    let rights: Vec<_> = files.iter().map(|it| it.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
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

impl Tree {
    /// The mappings of the process that has number `inner` in its namespace, and the list of pages if there are some.
    fn tell(&self, inner: u32, lists: &Lists) -> io::Result<Vec<File>> {
        let mut pids = lists.0.iter().map(|it| it.pid);
        let pid = pids.find(|pid| proc::inner_pid(*pid) == Some(inner));
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        let mut files = vec![mappings(pid)?];
        // Without it CRIU dumps all.
        if let Some(inherited) = lists.of(pid)
            && let Ok(list) = in_memory(&encode(&inherited.pages))
        {
            files.push(list);
            self.left_out.add(inherited.clone());
        }
        Ok(files)
    }
}

/// The lists of all processes of a tree, which stand still, parents first.
#[derive(Debug)]
struct Lists(Vec<List>);

#[derive(Debug)]
struct List {
    pid: u32,
    inherited: OnceLock<Option<Arc<Inherited>>>,
}

impl Lists {
    /// Has them made for the tree below `root` while CRIU is busy with its first processes.
    fn begin(root: u32) -> Arc<Self> {
        let list = |pid| List {
            pid,
            inherited: OnceLock::new(),
        };
        let lists = proc::still_tree(root).into_iter().map(list);
        let lists = Arc::new(Self(lists.collect()));
        let all = Arc::clone(&lists);
        let make = move || {
            for list in &all.0 {
                all.of(list.pid);
            }
        };
        // Without a thread each is made when it is asked for.
        let _ = std::thread::Builder::new()
            .name("mappings".into())
            .spawn(make);
        lists
    }

    /// What process `pid`, which is not tracked itself, has from the nearest of its ancestors that is.
    fn of(&self, pid: u32) -> Option<&Arc<Inherited>> {
        let list = self.0.iter().find(|it| it.pid == pid)?;
        let make = || self.make(pid).ok().flatten().map(Arc::new);
        list.inherited.get_or_init(make).as_ref()
    }

    fn make(&self, pid: u32) -> io::Result<Option<Inherited>> {
        if fermata_hostmem::is_tracked(pid)? {
            return Ok(None);
        }
        for from in proc::ancestors(pid).into_iter().skip(1) {
            if !self.0.iter().any(|it| it.pid == from) {
                break;
            }
            if fermata_hostmem::is_tracked(from)? {
                let pages = fermata_hostmem::inherited(pid, from)?;
                let some = !pages.is_empty();
                return Ok(some.then_some(Inherited { pid, from, pages }));
            }
        }
        Ok(None)
    }
}

/// What CRIU reads of `/proc/PID/smaps`, or that file where there is no faster way.
fn mappings(pid: u32) -> io::Result<File> {
    match fermata_hostmem::describe(pid) {
        Ok(text) => in_memory(&text),
        Err(_) => File::open(format!("/proc/{pid}/smaps")),
    }
}

/// First and last address of each, as this machine has numbers in memory.
fn encode(pages: &[Range<u64>]) -> Vec<u8> {
    let ends = pages.iter().flat_map(|it| [it.start, it.end]);
    ends.flat_map(u64::to_ne_bytes).collect()
}

fn in_memory(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("mappings", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn tree(root: u32) -> Tree {
        Tree {
            root,
            left_out: LeftOut::default(),
        }
    }

    #[test]
    fn an_answer_names_the_process_that_was_asked_for() {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.expect("a socket pair");
        let asked = b"4294967295";
        rustix::net::send(&theirs, asked, SendFlags::NOSIGNAL).expect("asked");
        assert!(answer(&ours, &tree(std::process::id()), &mut None).expect("answered"));
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
        let told = tree(child.id()).tell(child.id(), &Lists::begin(child.id()));
        let other = tree(child.id()).tell(std::process::id(), &Lists::begin(child.id()));
        let _ = child.kill();
        let _ = child.wait();
        let other = other.expect_err("not below it");
        assert_eq!(other.kind(), io::ErrorKind::NotFound);
        let mut files = told.expect("it is in the tree");
        assert_eq!(
            files.len(),
            1,
            "it has nothing from a process that is tracked"
        );
        files[0].read_to_string(&mut text).expect("read");
        assert!(text.contains("VmFlags: "), "{text}");
    }
}
