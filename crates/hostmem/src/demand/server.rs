//! Serves the processes of one restored program, in one thread that also watches other descriptors.
//!
//! CRIU connects to the socket and sends, for each process, its number in 4 bytes and then one byte with a userfaultfd; a
//! negative number is a process without memory. [`RESTORED`] in place of a number says that the processes are about to run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};

use super::bytes::{DONE, HELD, receive_byte};
use super::content::PageFiles;
use super::learnt::Learnt;
use super::process::{BUFFER, Outcome, Process};
use super::process_pages::ProcessPages;
use super::share::Share;
use crate::error::{Error, Result};
use crate::image::at_once;
use crate::working_set;

/// `LAZY_PAGES_RESTORE_FINISHED`, which is larger than any process number.
const RESTORED: i32 = 0x5253_5446;
/// Between two tries while the program changes its memory, or CRIU makes it, in nanoseconds.
const SOON: i64 = 200_000;
const SOON_MADE: i64 = 50_000;
/// Bytes that are read at most before there is a place for them, of all processes.
const MOST_AHEAD: u64 = 256 << 20;

/// What a turn has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The caller's descriptor with this index can be read.
    Ready(usize),
    /// Something was done.
    Worked,
    /// All pages are there, and every process is as if there had been no server.
    Complete,
}

/// A server.
#[derive(Debug)]
pub struct Server {
    /// The dump's files, and the folder in which CRIU works.
    dump: PathBuf,
    work: PathBuf,
    /// What the pages hold.
    files: Box<dyn PageFiles>,
    /// What earlier restores have learnt, and processes of this one that have ended.
    learnt: Learnt,
    /// Those of processes that CRIU has not begun to make, by their number.
    prepared: BTreeMap<u32, ProcessPages>,
    /// How many bytes have been read before there was a place for them.
    ahead: u64,
    /// The socket, or the connection, while CRIU restores.
    criu: Option<Criu>,
    /// Since when the processes run, once they do.
    restored: Option<Instant>,
    /// Page faults that were answered.
    faults: u64,
    /// Process 1 of the namespace, which holds each descriptor as well.
    holder: Option<OwnedFd>,
    /// Whether it was asked to let go of them.
    asked: bool,
    processes: Vec<Process>,
    /// The process whose turn it is to be filled, and whether it could not be.
    turn: usize,
    refused: bool,
    /// Of the time, for pages that nobody waits for and that do not come first.
    share: Share,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Criu {
    Expected(OwnedFd),
    Connected(OwnedFd),
}

/// Who has something to say.
#[derive(Debug, Clone, Copy)]
enum Source {
    Other(usize),
    Criu,
    Holder,
    Process(usize),
}

impl Server {
    /// Listens at `path`, of at most 100 bytes, for a CRIU that restores the dump in `dump` and works in `work`, with the pages' content from
    /// `files`; `holder` leads to [`super::hold()`].
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(
        dump: &Path,
        work: &Path,
        files: Box<dyn PageFiles>,
        path: &Path,
        holder: OwnedFd,
    ) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, 1)?;
        Ok(Self {
            dump: dump.into(),
            work: work.into(),
            files,
            learnt: Learnt::default(),
            prepared: BTreeMap::new(),
            ahead: 0,
            criu: Some(Criu::Expected(socket)),
            restored: None,
            faults: 0,
            holder: Some(holder),
            asked: false,
            processes: Vec::new(),
            turn: 0,
            refused: false,
            share: Share::default(),
            buffer: vec![0; BUFFER],
        })
    }

    /// The same with what earlier restores have learnt.
    #[must_use]
    pub fn knowing(mut self, learnt: Learnt) -> Self {
        self.learnt = learnt;
        self
    }

    /// The same for pages on a disk from which others bring data that the program needs, too: pages that nobody waits for, and that do not
    /// come first, take this part of the time, until [`Self::take_disk`].
    #[must_use]
    pub fn sharing(mut self, part: f64) -> Self {
        self.share = Share::of(part);
        self
    }

    /// Nobody else needs the disk any more.
    pub fn take_disk(&mut self) {
        self.share = Share::default();
    }

    /// For the time until CRIU connects: makes ready what the pages' content comes from. What processes need first is read then, by
    /// [`Self::turn`].
    pub fn prepare(&mut self) {
        self.files.prepare();
        let known = working_set::processes(&self.dump);
        let known: BTreeSet<u32> = known.into_iter().chain(self.learnt.processes()).collect();
        for pid in known {
            // What is wrong is told when CRIU has made the process.
            let Ok(pages) = ProcessPages::new(&self.dump, &*self.files, &self.learnt, pid) else {
                continue;
            };
            pages.ask_first();
            self.prepared.insert(pid, pages);
        }
    }

    /// What earlier restores have learnt, and this one.
    pub fn learnt(&self) -> Learnt {
        let mut learnt = self.learnt.clone();
        for process in &self.processes {
            process.tell(&mut learnt);
        }
        learnt
    }

    /// How long the processes have run, and how many page faults they had meanwhile for which they waited.
    pub fn waits(&self) -> (Duration, u64) {
        let time = self.restored.map(|it| it.elapsed());
        (time.unwrap_or_default(), self.faults)
    }

    /// Does what there is to do, a little at a time, and waits if there is nothing; returns at once when one of `others` can be
    /// read.
    ///
    /// # Errors
    /// Pages cannot be brought. The caller must end the processes before it drops the server.
    pub fn turn(&mut self, others: &[BorrowedFd<'_>]) -> Result<Turn> {
        let ready = self.wait(others);
        let ready = ready.map_err(Error::pages("wait for events", 0))?;
        let mut made = Vec::new();
        let mut gone = Vec::new();
        for source in ready {
            match source {
                Source::Other(index) => return Ok(Turn::Ready(index)),
                Source::Holder => {
                    self.holder = None;
                    if self.asked {
                        return Ok(Turn::Complete);
                    }
                    // It has ended, and the program with it: the caller will know.
                }
                Source::Criu => self.hear().map_err(Error::pages("hear CRIU", 0))??,
                Source::Process(index) => {
                    let heard = self.processes[index].heed(&mut self.buffer, &mut made)?;
                    gone.extend(Some(index).filter(|_| heard == Outcome::Gone));
                }
            }
        }
        for process in &mut self.processes {
            // What could not be answered before.
            process.answer(&mut self.buffer)?;
            self.faults += process.take_faults();
        }
        self.remove(gone);
        self.processes.extend(made);
        match self.restored {
            Some(_) => self.ahead()?,
            None => self.before()?,
        }
        Ok(Turn::Worked)
    }

    /// Reads pages that come first, and brings them, while CRIU restores the processes.
    fn before(&mut self) -> Result<()> {
        if self.reads() {
            let made = self.processes.iter_mut().map(Process::pages);
            let all = made.chain(self.prepared.values_mut());
            let unread = all.filter(|it| it.is_unread());
            // That of which least was read: many ranks get the same.
            let next = unread.min_by_key(|it| it.bytes_ahead());
            let read = next.map_or(Ok(0), ProcessPages::read_ahead);
            // What is wrong is told when it is brought.
            self.ahead += read.unwrap_or(MOST_AHEAD);
        }
        self.refused = false;
        if self.has_first() {
            self.turn = (self.turn + 1) % self.processes.len();
            let begun = self.processes[self.turn].begin(&mut self.buffer)?;
            self.refused = begun == Outcome::Later;
        }
        Ok(())
    }

    /// Whether something is to be read before there is a place for it.
    fn reads(&self) -> bool {
        let made = self.processes.iter().any(Process::is_unread);
        let unread = made || self.prepared.values().any(ProcessPages::is_unread);
        unread && self.restored.is_none() && self.ahead < MOST_AHEAD
    }

    /// Brings pages that are not waited for, or ends the work if there are none.
    fn ahead(&mut self) -> Result<()> {
        // A child that has all it needs is on its own; others are held by the holder, too.
        self.processes
            .retain(|it| !(it.is_forked() && it.is_complete()));
        let incomplete = |it: &Process| !it.is_complete();
        if !self.processes.iter().any(incomplete) {
            if let (Some(holder), false) = (&self.holder, self.asked) {
                self.asked = true;
                // Fails only when it has ended.
                let _ = rustix::net::send(holder, &[DONE], SendFlags::NOSIGNAL);
            }
            return Ok(());
        }
        if self.share.rest().is_some() {
            return Ok(());
        }
        self.turn = (self.turn + 1) % self.processes.len();
        let faults_come = self.processes.iter().any(Process::has_faults);
        let (first, begun) = (self.has_first(), Instant::now());
        let filled = self.processes[self.turn].fill(faults_come, &mut self.buffer)?;
        if !first {
            self.share.worked(begun.elapsed());
        }
        self.refused = filled == Outcome::Later;
        let gone = Some(self.turn).filter(|_| filled == Outcome::Gone);
        self.remove(gone.into_iter().collect());
        Ok(())
    }

    /// Whether something is to come before all that nobody waits for.
    fn has_first(&self) -> bool {
        self.processes.iter().any(Process::has_first)
    }

    /// Waits until there is something to do.
    fn wait(&self, others: &[BorrowedFd<'_>]) -> io::Result<Vec<Source>> {
        let mut sources: Vec<Source> = (0..others.len()).map(Source::Other).collect();
        let mut set: Vec<_> = others
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let mut add = |source, fd| {
            sources.push(source);
            set.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        };
        if let Some(Criu::Expected(fd) | Criu::Connected(fd)) = &self.criu {
            add(Source::Criu, fd.as_fd());
        }
        if let Some(fd) = &self.holder {
            add(Source::Holder, fd.as_fd());
        }
        for (index, process) in self.processes.iter().enumerate() {
            add(Source::Process(index), process.uffd().as_fd());
        }
        match poll(&mut set, self.patience().as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let ready = sources
            .into_iter()
            .zip(&set)
            .filter(|(_, it)| !it.revents().is_empty());
        Ok(ready.map(|(source, _)| source).collect())
    }

    /// How long to wait for something new.
    fn patience(&self) -> Option<Timespec> {
        let wait = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let reads = self.reads();
        if self.processes.iter().any(Process::is_waited_for) {
            return Some(wait(SOON));
        }
        let soon = if self.restored.is_some() {
            SOON
        } else {
            SOON_MADE
        };
        if self.refused && !reads {
            return Some(wait(soon));
        }
        if let Some(rest) = self.share.rest() {
            return Some(wait(rest.subsec_nanos().into()));
        }
        let works = match self.restored {
            Some(_) => !self.asked,
            None => reads || self.has_first(),
        };
        works.then_some(wait(0))
    }

    fn remove(&mut self, mut gone: Vec<usize>) {
        gone.sort_unstable();
        for index in gone.into_iter().rev() {
            let process = self.processes.swap_remove(index);
            process.tell(&mut self.learnt);
        }
    }

    /// Takes a connection, or one message.
    fn hear(&mut self) -> io::Result<Result<()>> {
        let connection = match &self.criu {
            Some(Criu::Connected(connection)) => connection,
            Some(Criu::Expected(socket)) => {
                let connection = accept_with(socket, SocketFlags::CLOEXEC)?;
                self.criu = Some(Criu::Connected(connection));
                return Ok(Ok(()));
            }
            None => return Ok(Ok(())),
        };
        let mut number = [0; 4];
        let (bytes, _) = recv(connection, &mut number, RecvFlags::WAITALL)?;
        if bytes != number.len() {
            // It has ended without having restored anything; what it has begun is ended by the caller.
            self.criu = None;
            return Ok(Ok(()));
        }
        match i32::from_ne_bytes(number) {
            RESTORED => {
                self.restored = Some(Instant::now());
                self.prepared.clear();
                self.criu = None;
            }
            pid if pid > 0 => {
                let uffd = receive(connection)?;
                let uffd = uffd.ok_or_else(|| io::Error::other("it sends no descriptor"))?;
                if let Some(holder) = &self.holder {
                    send(holder, &uffd)?;
                }
                let pid = pid as u32;
                match self.pages_of(pid) {
                    Ok(pages) => self.processes.push(Process::new(pages, pid, uffd)),
                    Err(error) => return Ok(Err(error)),
                }
            }
            _ => {}
        }
        Ok(Ok(()))
    }

    /// The pages of a process that CRIU makes now.
    fn pages_of(&mut self, pid: u32) -> Result<ProcessPages> {
        let mut pages = match self.prepared.remove(&pid) {
            Some(pages) => pages,
            None => ProcessPages::new(&self.dump, &*self.files, &self.learnt, pid)?,
        };
        // It was not known before CRIU began.
        let at_once = at_once(&self.work, pid).map_err(Error::pages("read the image", pid))?;
        for range in at_once {
            pages.missing.remove(range);
        }
        Ok(pages)
    }
}

fn send(holder: &OwnedFd, uffd: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = [uffd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&rights));
    let message = [IoSlice::new(&[HELD])];
    sendmsg(holder, &message, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// One byte, and the descriptor that comes with it.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    Ok(receive_byte(socket)?.and_then(|(_, fd)| fd))
}
