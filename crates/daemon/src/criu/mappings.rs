//! Tells CRIU what it asks about processes while they stand still, faster than the kernel does, and which of their
//! pages it need not dump.
//!
//! ```text
//!  CRIU opens /proc/PID/smaps ─► `fermata-pagefilter` ─► PID ─────────► [thread] ─┬► PID, a file, lists
//!                                                                                 └► PID
//!  CRIU asks for TCP sockets ──► `fermata-pagefilter` ─► "connections" ─► [thread] ─┬► "connections", a list of them
//!                                                                                   └► "connections"
//! ```
//! A process is named by its number in its own namespace, as CRIU names it. Without a file CRIU asks the kernel. The lists, in this order:
//!
//! | list | of | for CRIU |
//! | --- | --- | --- |
//! | 1 | mappings of no file | need not be looked for |
//! | 2 | what is in a copy (`crate::host`): of a process that is tracked most of its mappings, and of one that has begun since the pages that it still has in common with the one that forked it | need not be dumped |
//! | 3 | private mappings of files | need not be looked at |
//! | 4 | inaccessible pages, if the kernel tells | need not be looked for |
//!
//! CRIU says when all of them stand still, some milliseconds before it asks for the first ([`Tree::stands_still`]); the answers are made
//! meanwhile. A question that comes earlier has no answer but the kernel's. CRIU takes one process after the other, and its code has left one when it asks for the
//! next, and the last one when it writes the list of all (`dumped`, which has no answer; [`Tree::dumped`]).

use std::fs::File;
use std::io::{self, IoSlice, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fermata_hostmem::Known;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};

use crate::open_files::tcp::held;
use crate::parallel::cores;
use crate::proc::{self, ProcessId};

/// The longest question.
const MOST_BYTES: usize = 16;
/// What CRIU says instead of a question when it has dumped all processes; `fermata-pagefilter` has the same.
const ALL_DUMPED: &[u8] = b"dumped";
/// Its question for the processes' TCP connections.
const CONNECTIONS: &[u8] = b"connections";
/// The most descriptors that come with an answer.
const MOST_FILES: usize = 5;
/// The parts of an answer, and the most threads that make some before they are asked for.
const PARTS: usize = 3;
const MOST_THREADS: usize = 6;
/// The most threads that look at the pages of one process.
const MOST_LOOKING: usize = 4;

/// How long pages may be looked for that a process has in common with another; CRIU waits for an answer for a second.
const TIME: Duration = Duration::from_millis(500);

/// What CRIU was told to leave out of a process.
#[derive(Debug)]
pub(crate) struct LeftOut {
    pub process: ProcessId,
    /// Its number in CRIU's files.
    pub inner: u32,
    /// The process in whose copy it is; that of the process itself, which is tracked, if there is none.
    pub from: Option<u32>,
    /// Pages, ascending; of a process that is tracked, whole mappings.
    pub pages: Vec<Range<u64>>,
}

/// A tree of processes that is dumped, what is known of it, and what CRIU was told.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: u32,
    known: Arc<OnceLock<Vec<Known>>>,
    answers: Arc<OnceLock<Arc<Answers>>>,
    course: Arc<Course>,
}

/// How far CRIU has come.
#[derive(Debug, Default)]
struct Course {
    state: Mutex<State>,
    /// Signalled when a process has been dumped, and at the end.
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What it was told to leave out.
    left_out: Vec<Arc<LeftOut>>,
    /// The processes that it has asked for, in this order; it has dumped all but the last, and that as well if it says so.
    asked: Vec<ProcessId>,
    all_dumped: bool,
    /// Whether it has asked for one again that it had dumped, or for one after all.
    returned: bool,
    ended: bool,
}

impl Tree {
    /// That below process `root`, of which nothing is known yet.
    pub fn new(root: u32) -> Self {
        Self {
            root,
            known: Arc::default(),
            answers: Arc::default(),
            course: Arc::default(),
        }
    }

    /// These are the processes that are tracked, before CRIU stops them.
    pub fn know(&self, known: Vec<Known>) {
        // Only what comes first counts.
        let _ = self.known.set(known);
    }

    /// Has the answers made, if the processes stand still, which they do once CRIU traces them all; none if they do not.
    pub fn stands_still(&self) -> Option<&Answers> {
        let is_still = self.answers.get().is_some() || proc::tracer(self.root).is_some();
        is_still.then(|| self.answers())
    }

    fn answers(&self) -> &Answers {
        self.answers.get_or_init(|| Answers::begin(self))
    }

    /// The process that CRIU has dumped as number `nth`, from 0, and what it was told to leave out of it: waits until CRIU is
    /// done with it. None at the end, also for those that nobody has asked for yet.
    pub fn dumped(&self, nth: usize) -> Option<(ProcessId, Option<Arc<LeftOut>>)> {
        let mut state = self.course.state.lock();
        let is_dumped = |it: &State| it.asked.len() > nth + usize::from(!it.all_dumped);
        while !is_dumped(&state) && !state.ended {
            self.course.moved.wait(&mut state);
        }
        let process = *state.asked.get(nth).filter(|_| !state.ended)?;
        let left_out = state.left_out.iter().find(|it| it.process == process);
        Some((process, left_out.cloned()))
    }

    /// CRIU says that it has dumped all processes.
    fn all_dumped(&self) {
        self.course.state.lock().all_dumped = true;
        self.course.moved.notify_all();
    }

    /// CRIU is done with all processes.
    pub fn end(&self) {
        self.course.state.lock().ended = true;
        self.course.moved.notify_all();
    }

    /// Says so at the latest when what this returns is dropped.
    pub fn ends(&self) -> EndOfDump<'_> {
        EndOfDump(self)
    }

    /// Whether CRIU has come back to a process that it had dumped.
    pub fn returned(&self) -> bool {
        self.course.state.lock().returned
    }

    /// What CRIU was told to leave out, once it has dumped all processes.
    pub fn left_out(&self) -> Vec<Arc<LeftOut>> {
        std::mem::take(&mut self.course.state.lock().left_out)
    }

    /// CRIU asks for a process, and is told to leave this out of it.
    pub fn asks(&self, process: ProcessId, left_out: Option<&Arc<LeftOut>>) {
        let mut state = self.course.state.lock();
        state.returned |= state.all_dumped;
        if state.asked.last() != Some(&process) {
            state.returned |= state.asked.contains(&process);
            state.asked.push(process);
            self.course.moved.notify_all();
        }
        if let Some(left_out) = left_out
            && !state.left_out.iter().any(|it| it.process == process)
        {
            state.left_out.push(left_out.clone());
        }
    }

    fn known(&self, pid: u32) -> Option<&Known> {
        self.known.get()?.iter().find(|it| it.pid() == pid)
    }
}

/// See [`Tree::ends`].
pub(crate) struct EndOfDump<'a>(&'a Tree);

impl Drop for EndOfDump<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Answers for a tree until the returned end is closed everywhere.
pub(crate) fn serve(tree: Tree) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let answer = move || {
        // The first time that takes long, and the program does not stand still yet.
        fermata_hostmem::can_describe();
        while answer(&ours, &tree).is_ok_and(|more| more) {}
    };
    // Without a thread every question fails at once. Without a socket, its number could be one of CRIU's own.
    start(answer);
    Some(theirs)
}

/// Answers one question; whether there was one.
fn answer(socket: &OwnedFd, tree: &Tree) -> io::Result<bool> {
    let mut question = [0; MOST_BYTES];
    let (length, _) = recv(socket, &mut question[..], RecvFlags::empty())?;
    if length == 0 {
        return Ok(false);
    }
    let question = &question[..length];
    if question == ALL_DUMPED {
        tree.all_dumped();
        return Ok(true);
    }
    let files = tree.stands_still().and_then(|answers| match question {
        CONNECTIONS => Some(vec![in_memory(answers.connections()?).ok()?]),
        _ => {
            let inner = str::from_utf8(question).ok()?.parse().ok()?;
            answers.tell(tree, inner).ok()
        }
    });
    let files = files.unwrap_or_default();
    let rights: Vec<_> = files.iter().map(|it| it.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
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

/// The answers for all processes of a tree, which stand still.
#[derive(Debug)]
pub(crate) struct Answers {
    /// That for the first process, which CRIU asks for first; none if it has ended.
    root: Option<Answer>,
    pid: u32,
    /// Those for the others, parents first. To list them takes a look at each thread of the first.
    others: OnceLock<Vec<Answer>>,
    /// As `fermata-pagefilter` reads them; none if it cannot be told.
    connections: OnceLock<Option<Vec<u8>>>,
}

#[derive(Debug)]
struct Answer {
    process: ProcessId,
    /// Its number in its own namespace.
    inner: u32,
    mappings: OnceLock<Option<Mappings>>,
    left_out: OnceLock<Option<Arc<LeftOut>>>,
    guards: OnceLock<Option<Vec<Range<u64>>>>,
}

/// The mappings of a process.
#[derive(Debug)]
struct Mappings {
    /// As `/proc/PID/smaps` has them.
    text: Vec<u8>,
    without_file: Vec<Range<u64>>,
    private_of_files: Vec<Range<u64>>,
}

impl Answer {
    /// One that is not made yet; none for a process that has ended.
    fn new(pid: u32) -> Option<Self> {
        Some(Self {
            process: ProcessId::of(pid)?,
            inner: proc::inner_pid(pid)?,
            mappings: OnceLock::new(),
            left_out: OnceLock::new(),
            guards: OnceLock::new(),
        })
    }

    fn mappings(&self) -> Option<&Mappings> {
        let make = || {
            let text = fermata_hostmem::describe(self.process.pid).ok()?;
            Some(Mappings {
                without_file: fermata_hostmem::without_file(&text),
                private_of_files: fermata_hostmem::private_of_files(&text),
                text,
            })
        };
        self.mappings.get_or_init(make).as_ref()
    }

    fn left_out(&self, tree: &Tree) -> Option<&Arc<LeftOut>> {
        let make = || self.examine(tree).ok().flatten().map(Arc::new);
        self.left_out.get_or_init(make).as_ref()
    }

    fn guards(&self) -> Option<&[Range<u64>]> {
        let look = || {
            fermata_hostmem::guards(self.process.pid, threads())
                .ok()
                .flatten()
        };
        self.guards.get_or_init(look).as_deref()
    }

    /// What CRIU can leave out of the process.
    fn examine(&self, tree: &Tree) -> io::Result<Option<LeftOut>> {
        let pid = self.process.pid;
        let (from, pages) = match tree.known(pid) {
            Some(known) => (None, known.left_out(threads())?),
            None => {
                // The nearest of its ancestors that is tracked has forked it, or one that is not.
                let mut ancestors = proc::ancestors(pid).into_iter().skip(1);
                let Some(from) = ancestors.find(|pid| tree.known(*pid).is_some()) else {
                    return Ok(None);
                };
                let until = Instant::now() + TIME;
                (Some(from), fermata_hostmem::inherited(pid, from, until)?)
            }
        };
        let (process, inner) = (self.process, self.inner);
        let left_out = LeftOut {
            process,
            inner,
            from,
            pages,
        };
        Ok(Some(left_out).filter(|it| !it.pages.is_empty()))
    }
}

impl Answers {
    /// Of the tree below process `pid`; none is made yet.
    fn of(pid: u32) -> Self {
        Self {
            root: Answer::new(pid),
            pid,
            others: OnceLock::new(),
            connections: OnceLock::new(),
        }
    }

    /// Has those of `tree` made while CRIU is busy with something else.
    fn begin(tree: &Tree) -> Arc<Self> {
        let answers = Arc::new(Self::of(tree.root));
        let next = Arc::new(AtomicUsize::new(0));
        // CRIU asks for connections first, and then waits for all parts of the first one.
        let connections = Arc::clone(&answers);
        // Without a thread each is made when it is asked for.
        start(move || {
            connections.connections();
        });
        for _ in 0..PARTS {
            answers.help(tree, &next);
        }
        answers
    }

    /// Starts a thread that makes parts of answers, until none is left.
    fn help(self: &Arc<Self>, tree: &Tree, next: &Arc<AtomicUsize>) {
        let (answers, next, tree) = (Arc::clone(self), Arc::clone(next), tree.clone());
        start(move || {
            while let part = next.fetch_add(1, Ordering::Relaxed)
                && let Some(answer) = answers.all().nth(part / PARTS)
            {
                if part == PARTS {
                    // As many threads do it already.
                    let more = MOST_THREADS.min(PARTS * answers.others().len());
                    (PARTS..more).for_each(|_| answers.help(&tree, &next));
                }
                match part % PARTS {
                    0 => drop(answer.mappings()),
                    1 => drop(answer.left_out(&tree)),
                    _ => drop(answer.guards()),
                }
            }
        });
    }

    /// The TCP connections of all processes.
    fn connections(&self) -> Option<&[u8]> {
        let look = || {
            let others = self.others().iter().map(|it| it.process.pid);
            let tree: Vec<u32> = std::iter::once(self.pid).chain(others).collect();
            let all = held::connections(&tree).ok().flatten()?;
            let words = all.iter().flat_map(held::TcpConnection::encode);
            Some(words.flat_map(u64::to_ne_bytes).collect())
        };
        self.connections.get_or_init(look).as_deref()
    }

    fn others(&self) -> &[Answer] {
        self.others.get_or_init(|| {
            let tree = proc::still_tree(self.pid).into_iter();
            let others = tree.filter(|pid| *pid != self.pid);
            others.filter_map(Answer::new).collect()
        })
    }

    /// All of them; the others are listed only for who goes on behind the first.
    fn all(&self) -> impl Iterator<Item = &Answer> {
        let others = std::iter::once_with(|| self.others()).flatten();
        self.root.iter().chain(others)
    }

    /// The mappings of the process that has number `inner` in its namespace, and the lists for it.
    fn tell(&self, tree: &Tree, inner: u32) -> io::Result<Vec<File>> {
        let answer = self.all().find(|it| it.inner == inner);
        let answer = answer.ok_or(io::ErrorKind::NotFound)?;
        let nothing = || in_memory(&[]);
        // Where there is no faster way, the kernel's file.
        let (text, without, private) = match answer.mappings() {
            Some(it) => (
                in_memory(&it.text)?,
                in_memory(&encode(&it.without_file))?,
                in_memory(&encode(&it.private_of_files))?,
            ),
            None => {
                let file = File::open(format!("/proc/{}/smaps", answer.process.pid))?;
                (file, nothing()?, nothing()?)
            }
        };
        let left_out = answer.left_out(tree);
        let pages = left_out.map_or(&[][..], |it| &it.pages);
        let mut files = vec![text, without, in_memory(&encode(pages))?, private];
        if let Some(guards) = answer.guards() {
            files.push(in_memory(&encode(guards))?);
        }
        tree.asks(answer.process, left_out);
        Ok(files)
    }
}

/// Runs `work` on a thread of its own, if one can be started.
fn start(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new()
        .name("mappings".into())
        .spawn(work);
}

/// How many threads look at the pages of a process that stands still, and with it all of its own.
fn threads() -> usize {
    cores().clamp(1, MOST_LOOKING)
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
    use std::io::{IoSliceMut, Read as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};

    use super::*;
    use crate::looks::scene::soon;

    /// Asks for a process of a tree, and checks that the answer names it; how many files come with it.
    fn ask(tree: &Tree, asked: &str) -> usize {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.expect("a socket pair");
        rustix::net::send(&theirs, asked.as_bytes(), SendFlags::NOSIGNAL).expect("asked");
        assert!(answer(&ours, tree).expect("answered"));
        let mut text = [0; MOST_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut text)];
        let received = recvmsg(&theirs, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let length = received.expect("an answer").bytes;
        assert_eq!(&text[..length], asked.as_bytes());
        let rights = control.drain().map(|it| match it {
            RecvAncillaryMessage::ScmRights(rights) => rights.count(),
            _ => 0,
        });
        rights.sum()
    }

    /// How many files come with an answer: without one for what the kernel does not tell.
    fn files() -> usize {
        let guards = fermata_hostmem::guards(std::process::id(), 1);
        4 + usize::from(guards.expect("examined").is_some())
    }

    #[test]
    fn connections_are_listed_if_they_can_be_told() {
        let told = |input: Stdio, expected: usize| {
            let sleep = Command::new("sleep").arg("30").stdin(input).spawn();
            let mut child = sleep.expect("started");
            let tell = || {
                let tree = Tree::new(child.id());
                tree.answers();
                ask(&tree, "connections")
            };
            // While it starts it opens and closes files, and nothing can be told.
            let told = soon(tell, |it| *it == expected);
            child.kill().expect("killed");
            child.wait().expect("waited");
            told
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        assert_eq!(told(OwnedFd::from(listener).into(), 1), 1);
        assert_eq!(told(OwnedFd::from(stream).into(), 1), 1);
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        ours.write_all(b"x").expect("written");
        assert_eq!(told(OwnedFd::from(theirs).into(), 0), 0);
    }

    #[test]
    fn an_answer_names_the_process_that_was_asked_for() {
        let tree = Tree::new(std::process::id());
        tree.answers();
        assert_eq!(ask(&tree, &u32::MAX.to_string()), 0);
        assert_eq!(ask(&tree, &tree.root.to_string()), files());
    }

    #[test]
    fn nothing_is_told_of_a_program_that_runs() {
        let tree = Tree::new(std::process::id());
        assert_eq!(ask(&tree, &tree.root.to_string()), 0);
        assert_eq!(ask(&tree, "connections"), 0);
        assert!(
            tree.answers.get().is_none(),
            "later answers are of the stop"
        );
    }

    #[test]
    fn what_is_left_out_is_noted_once() {
        let tree = Tree::new(std::process::id());
        let answers = Answers::of(tree.root);
        let answer = answers.root.as_ref().expect("this process");
        let left_out = LeftOut {
            process: answer.process,
            inner: answer.inner,
            from: None,
            pages: vec![0x1000..0x3000, 0x5000..0x9000],
        };
        let told = answer.left_out.set(Some(Arc::new(left_out)));
        told.expect("it was not made yet");
        for _ in 0..2 {
            let files = answers
                .tell(&tree, answer.inner)
                .expect("it is in the tree");
            assert_eq!(files.len(), self::files(), "CRIU may ask again");
        }
        assert_eq!(tree.left_out().len(), 1);
    }

    #[test]
    fn a_process_is_dumped_when_criu_asks_for_the_next() {
        let tree = Tree::new(1);
        let [one, next, last] = [1, 2, 3].map(|pid| ProcessId { pid, start: 0 });
        let left_out = Arc::new(LeftOut {
            process: one,
            inner: 1,
            from: None,
            pages: Vec::new(),
        });
        tree.asks(one, Some(&left_out));
        tree.asks(one, Some(&left_out));
        let follow = {
            let tree = tree.clone();
            move || (0..).map_while(|nth| tree.dumped(nth)).collect::<Vec<_>>()
        };
        let following = std::thread::spawn(follow);
        tree.asks(next, None);
        assert!(tree.dumped(0).is_some_and(|(it, _)| it == one));
        tree.asks(last, None);
        assert!(tree.dumped(1).is_some_and(|(it, _)| it == next));
        assert!(!tree.returned());
        // It may have seen none of them.
        drop(tree.ends());
        let followed = following.join().expect("it ends");
        let dumped = [one, next];
        assert!(
            followed
                .iter()
                .map(|it| it.0)
                .eq(dumped[..followed.len()].iter().copied())
        );
        assert!(
            followed
                .iter()
                .all(|(it, told)| told.is_some() == (*it == one))
        );
        assert!(tree.dumped(0).is_none(), "the rest is left for the end");
        tree.asks(one, None);
        assert!(tree.returned());
    }

    #[test]
    fn the_last_process_is_dumped_when_criu_says_so() {
        let tree = Tree::new(1);
        let [one, last] = [1, 2].map(|pid| ProcessId { pid, start: 0 });
        tree.asks(one, None);
        tree.asks(last, None);
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.expect("a socket pair");
        rustix::net::send(&theirs, ALL_DUMPED, SendFlags::NOSIGNAL).expect("said");
        assert!(answer(&ours, &tree).expect("understood"));
        let mut byte = [0];
        let told = recv(&theirs, &mut byte[..], RecvFlags::DONTWAIT);
        told.expect_err("nobody waits for an answer");
        let dumped: Vec<_> = (0..2).filter_map(|nth| tree.dumped(nth)).collect();
        assert!(dumped.iter().map(|it| it.0).eq([one, last]));
        assert!(!tree.returned());
        // What follows is not known.
        tree.asks(last, None);
        assert!(tree.returned());
        drop(tree.ends());
        assert!(tree.dumped(2).is_none());
    }

    #[test]
    fn a_process_outside_of_the_tree_is_not_told_of() {
        let mut child = Command::new("sleep").arg("30").spawn().expect("started");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let mut text = String::new();
        let tree = Tree::new(child.id());
        let answers = tree.answers();
        let told = answers.tell(&tree, child.id());
        let other = answers.tell(&tree, std::process::id());
        let _ = child.kill();
        let _ = child.wait();
        let other = other.expect_err("not below it");
        assert_eq!(other.kind(), io::ErrorKind::NotFound);
        let mut told = told.expect("it is in the tree");
        assert_eq!(told.len(), files());
        assert_eq!(
            told[2].metadata().expect("a file").len(),
            0,
            "it has nothing from a process that is tracked"
        );
        assert!(
            told[3].metadata().expect("a file").len() > 0,
            "it has libraries"
        );
        told[0].read_to_string(&mut text).expect("read");
        assert!(text.contains("VmFlags: "), "{text}");
    }
}
