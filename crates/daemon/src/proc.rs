//! Reads from `/proc` about processes. A process may end at any moment, so a missing process is not an error here.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use fermata_control::wait;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// In the flags of a thread: it has begun to end.
const PF_EXITING: u32 = 0x4;

/// A process, told from later ones with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    /// Number as the daemon sees it.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

impl ProcessId {
    /// A process that has ended before its number was known. No process has this one.
    pub const ENDED: Self = Self {
        pid: u32::MAX,
        start: 0,
    };

    /// The live process with this number.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self {
            pid,
            start: stat(pid)?.start,
        })
    }

    /// Whether any thread of it has not ended: its first one may have. Until the last one has, the process may hold memory, files and
    /// sockets.
    pub fn alive(&self) -> bool {
        stat(self.pid).is_some_and(|s| s.start == self.start && !s.is_last_zombie())
    }

    /// Waits until all its threads have ended; false if they have not within `limit`.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let ended = |pid| wait::process_ends(pid, limit, || self.alive());
        pid_of(self.pid).is_none_or(ended)
    }

    /// Whether it has ended, or no thread of it runs any more: the rest of its end may take long, for it frees its memory.
    pub fn is_ending(&self) -> bool {
        !self.alive() || !any_thread_runs(self.pid)
    }

    /// As [`ProcessId::is_ending`], at the latest after `limit`. It waits for the whole end, so that usually nothing of it is left.
    pub fn is_ending_within(&self, limit: Duration) -> bool {
        self.is_ending() || self.ends_within(limit) || self.is_ending()
    }

    /// Whether its first thread has ended while others run: to CRIU it is a zombie, which it cannot dump with threads.
    pub fn is_headless(&self) -> bool {
        stat(self.pid).is_some_and(|s| s.start == self.start && s.state == 'Z') && !self.is_ending()
    }

    /// Whether a signal has stopped it.
    pub fn is_stopped(&self) -> bool {
        stat(self.pid).is_some_and(|s| s.start == self.start && s.state == 'T')
    }

    /// Sends it `signal`, if it still runs.
    pub fn signal(&self, signal: Signal) {
        if self.alive()
            && let Some(pid) = pid_of(self.pid)
        {
            // Fails only when it has just ended.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Whether a child still runs.
pub fn runs(child: &Child) -> bool {
    ProcessId::of(child.id()).is_some_and(|it| it.alive())
}

/// Waits until all these processes have ended; false if one has not by `until`.
pub fn all_end(processes: &[ProcessId], until: Instant) -> bool {
    let left = || until.saturating_duration_since(Instant::now());
    let ended = processes.iter().filter(|it| it.ends_within(left()));
    ended.count() == processes.len()
}

/// The parts of `/proc/PID/stat` that are used.
struct Stat {
    state: char,
    parent: u32,
    /// `PF_*` of the kernel.
    flags: u32,
    /// How many threads the process has, with its first one as long as that is not waited for.
    threads: u32,
    start: u64,
    /// Where its stack began when it was executed; zero if that may not be seen.
    stack: u64,
}

impl Stat {
    /// Of a process: whether all its threads have ended.
    fn is_last_zombie(&self) -> bool {
        self.state == 'Z' && self.threads <= 1
    }
}

fn stat(pid: u32) -> Option<Stat> {
    stat_of(&text(format!("/proc/{pid}/stat")).ok()?)
}

fn stat_of(text: &str) -> Option<Stat> {
    // The name in parentheses may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        flags: fields.nth(4)?.parse().ok()?,
        threads: fields.nth(10)?.parse().ok()?,
        start: fields.nth(1)?.parse().ok()?,
        stack: fields.nth(5)?.parse().ok()?,
    })
}

/// Whether any thread of a process runs: it has not begun to end, nor been killed. What cannot be read may run.
fn any_thread_runs(pid: u32) -> bool {
    match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(threads) => threads.flatten().any(|it| runs_on(&it.path())),
        Err(error) => !is_of_ended(&error),
    }
}

/// Whether the thread with this folder in `/proc` runs.
fn runs_on(thread: &Path) -> bool {
    let read = |name: &str| {
        fs::read(thread.join(name)).map(|it| String::from_utf8_lossy(&it).into_owned())
    };
    let (stat, status) = match (read("stat"), read("status")) {
        (Ok(stat), Ok(status)) => (stat, status),
        (Err(error), _) | (_, Err(error)) => return !is_of_ended(&error),
    };
    let ends = stat_of(&stat)
        .is_some_and(|it| matches!(it.state, 'Z' | 'X') || it.flags & PF_EXITING != 0);
    !ends && !is_killed(&status)
}

/// Whether a thread has `SIGKILL` to come, by its `/proc/PID/task/TID/status`: each thread of a process that is killed does.
fn is_killed(status: &str) -> bool {
    let pending = status.lines().find_map(|it| it.strip_prefix("SigPnd:"));
    let signals = pending.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    signals.is_some_and(|it| (it >> (Signal::KILL.as_raw() - 1)) & 1 != 0)
}

/// Whether a file of `/proc` cannot be read because its process, or thread, has ended.
fn is_of_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// A file of `/proc`; names of programs in it need not be UTF-8.
fn text(path: String) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// The name of a process; empty when it has ended.
pub fn name_of(pid: u32) -> String {
    let name = text(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Numbers of all processes.
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

/// `root` and everything below it, parents first.
pub fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in all() {
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut tree = vec![root];
    let mut next = 0;
    while next < tree.len() {
        tree.extend(children.remove(&tree[next]).unwrap_or_default());
        next += 1;
    }
    tree
}

/// The same of processes that stand still, without a look at any others: while they run, some could be missed.
pub fn still_tree(root: u32) -> Vec<u32> {
    let all: io::Result<Vec<u32>> = below(root).collect();
    all.unwrap_or_else(|_| tree(root))
}

/// `root` and everything below it, parents first, each looked for below the one before only when it is asked for; an error for one whose
/// children cannot be told. Of processes that run some may be missed.
fn below(root: u32) -> impl Iterator<Item = io::Result<u32>> {
    let mut found = VecDeque::from([root]);
    let mut last = None;
    std::iter::from_fn(move || {
        if let Some(last) = last.take() {
            match children(last) {
                Ok(children) => found.extend(children),
                Err(error) => return Some(Err(error)),
            }
        }
        last = found.pop_front();
        last.map(Ok)
    })
}

/// The children of a process: those of each of its threads. All of them if it stands still.
fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(entry?.path().join("children"))?;
        children.extend(
            text.split_whitespace()
                .filter_map(|it| it.parse::<u32>().ok()),
        );
    }
    Ok(children)
}

/// The parent, grandparent, ... of a process, itself first.
pub fn ancestors(pid: u32) -> Vec<u32> {
    let mut line = vec![pid];
    let mut current = pid;
    while let Some(stat) = stat(current) {
        if stat.parent == 0 || line.contains(&stat.parent) {
            break;
        }
        current = stat.parent;
        line.push(current);
    }
    line
}

/// Whether two processes have executed the same program at the same time: the address of the stack, which the kernel chooses at random
/// then, is that of the parent in a process that was forked.
pub fn are_forked(one: u32, other: u32) -> bool {
    let stack = |pid| stat(pid).map_or(0, |it| it.stack);
    stack(one) != 0 && stack(one) == stack(other)
}

/// Bytes of memory that a process has written and, unless `alone`, may have in common with others.
pub fn written_bytes(pid: u32, alone: bool) -> u64 {
    let (file, name) = match alone {
        true => ("smaps_rollup", "Private_Dirty"),
        false => ("status", "RssAnon"),
    };
    let text = text(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes_of(&text, name)
}

/// The bytes that a file of `/proc` tells, in KiB, on its first line called `name`; none if it has no such line.
pub fn bytes_of(text: &str, name: &str) -> u64 {
    let mut lines = text
        .lines()
        .filter_map(|it| it.strip_prefix(name)?.strip_prefix(':'));
    let kib = lines.next().and_then(|it| it.trim().strip_suffix("kB"));
    kib.and_then(|it| it.trim().parse::<u64>().ok())
        .map_or(0, |it| it << 10)
}

/// Processes in whose environment `name` was `value` when they were executed.
pub fn marked(name: &str, value: &str) -> Vec<u32> {
    let mark = format!("{name}={value}");
    let mut found = all();
    found.retain(|pid| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|e| e.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
    });
    found
}

/// The process that traces process `pid`: a debugger, or CRIU.
pub fn tracer(pid: u32) -> Option<u32> {
    let text = text(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|pid| *pid != 0)
}

/// Whether a debugger, or CRIU, holds any process of the tree below `root`.
pub fn is_traced(root: u32) -> bool {
    tree(root).into_iter().any(|pid| tracer(pid).is_some())
}

/// A process's number in its own, innermost namespace.
pub fn inner_pid(pid: u32) -> Option<u32> {
    let text = text(format!("/proc/{pid}/status")).ok()?;
    innermost(&text, "NSpid:")
}

/// The numbers of its threads in its own PID namespace; none if it has ended.
pub fn inner_threads(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let inner = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        innermost(&status, "NSpid:")
    };
    let threads = threads.into_iter().flatten().flatten();
    threads.filter_map(inner).collect()
}

/// Whether the leader of a process's terminal session is outside of its PID namespace: the session has number 0 there.
pub fn is_led_from_outside(pid: u32) -> bool {
    let text = text(format!("/proc/{pid}/status")).unwrap_or_default();
    innermost(&text, "NSsid:") == Some(0)
}

/// The number of `/proc/PID/status` for the innermost namespace, from the line that begins with `key`.
fn innermost(status: &str, key: &str) -> Option<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix(key))?;
    line.split_whitespace().last()?.parse().ok()
}

/// The process that is `inner` in the PID namespace of `init`.
pub fn outer_pid(init: u32, inner: u32) -> Option<u32> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = namespace(init)?;
    let is_it =
        |pid: &u32| inner_pid(*pid) == Some(inner) && namespace(*pid).as_ref() == Some(&wanted);
    // One that is missed, because a process beside it has just ended, is looked for among all of the machine, which takes milliseconds.
    let all = || tree(init).into_iter();
    let near = below(init).flatten().find(is_it);
    near.or_else(|| all().find(is_it))
}

/// The PID, mount and network namespaces of a process, unless the first two are the daemon's own.
///
/// # Errors
/// The process has ended or belongs to somebody else.
pub fn foreign_namespaces(pid: u32) -> io::Result<Option<Vec<OwnedFd>>> {
    let theirs = PathBuf::from(format!("/proc/{pid}/ns"));
    let same = |name: &str| -> io::Result<bool> {
        let ours = fs::read_link(format!("/proc/self/ns/{name}"))?;
        Ok(fs::read_link(theirs.join(name))? == ours)
    };
    if same("pid")? && same("mnt")? {
        return Ok(None);
    }
    let open = |name: &str| File::open(theirs.join(name)).map(OwnedFd::from);
    Ok(Some(vec![open("pid")?, open("mnt")?, open("net")?]))
}

/// The open descriptors of a process, and what each leads to, as far as that can be told.
pub fn descriptors(pid: u32) -> Vec<(u32, PathBuf)> {
    each_descriptor(pid)
        .into_iter()
        .flatten()
        .flatten()
        .collect()
}

/// The same, with an error for each of which it cannot be told.
///
/// # Errors
/// The process has ended, or may not be examined.
pub fn each_descriptor(pid: u32) -> io::Result<impl Iterator<Item = io::Result<(u32, PathBuf)>>> {
    let target = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|it| it.parse().ok());
        let number = number.ok_or(io::ErrorKind::InvalidData)?;
        Ok((number, fs::read_link(entry.path())?))
    };
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.map(target))
}

/// The working folder of a process.
pub fn working_folder(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Path of a process's executable.
pub fn executable(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Name of a process, as `ps` shows it.
pub fn name(pid: u32) -> Option<String> {
    Some(
        text(format!("/proc/{pid}/comm"))
            .ok()?
            .trim_end()
            .to_owned(),
    )
}

#[cfg(test)]
pub(crate) mod scene {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// A process whose first thread has ended, while another one holds a listening socket; and that one's port.
    pub(crate) fn headless() -> (Child, u16) {
        const PROGRAM: &str = r#"
import ctypes, platform, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=time.sleep, args=(1000,)).start()
print(listener.getsockname()[1], flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
"#;
        let mut python = Command::new("python3");
        python.args(["-c", PROGRAM]).stdout(Stdio::piped());
        let mut child = python.spawn().expect("python starts");
        let mut port = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut port).expect("read");
        let until = Instant::now() + Duration::from_secs(300);
        while super::stat(child.id()).is_none_or(|it| it.state != 'Z') {
            assert!(Instant::now() < until, "its first thread does not end");
        }
        (child, port.trim().parse().expect("a port"))
    }

    /// A process that ends with its input, which is a pipe.
    pub(crate) fn reader() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).spawn().expect("cat starts")
    }

    /// A process that runs until it is killed.
    pub(crate) fn sleeper() -> Child {
        let mut command = Command::new("sleep");
        command.arg("1000").spawn().expect("sleep starts")
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_found_by_its_parent_and_its_mark() {
        let mark = format!("unique-{}", std::process::id());
        let mut child = Command::new("sleep")
            .arg("1000")
            .env("FERMATA_TEST_MARK", &mark)
            .spawn()
            .expect("sleep starts");
        let me = std::process::id();
        let id = ProcessId::of(child.id()).expect("it runs");
        assert!(tree(me).contains(&child.id()));
        assert!(still_tree(me).contains(&child.id()));
        assert_eq!(still_tree(child.id()), [child.id()]);
        let inner = inner_pid(child.id()).expect("it runs");
        assert_eq!(outer_pid(me, inner), Some(child.id()));
        assert_eq!(outer_pid(me, u32::MAX), None);
        assert_eq!(outer_pid(child.id(), inner_pid(me).expect("it runs")), None);
        assert!(ancestors(child.id()).starts_with(&[child.id(), me]));
        assert_eq!(
            inner_pid(child.id()),
            inner_pid(child.id()).filter(|p| *p > 0)
        );
        assert!(foreign_namespaces(child.id()).expect("readable").is_none());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(300);
        while marked("FERMATA_TEST_MARK", &mark) != [child.id()] {
            assert!(std::time::Instant::now() < until, "the mark is not seen");
        }
        assert!(id.alive() && !id.is_stopped());
        id.signal(Signal::STOP);
        while !id.is_stopped() {
            assert!(std::time::Instant::now() < until, "it is not stopped");
        }
        assert!(id.alive());
        id.signal(Signal::KILL);
        child.wait().expect("waited");
        assert!(!id.alive());
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_until_its_last_one_has() {
        use std::net::TcpListener;

        let until = Instant::now() + Duration::from_secs(300);
        let (mut child, port) = scene::headless();
        let id = ProcessId::of(child.id()).expect("it runs");
        assert!(id.alive() && !id.is_ending() && runs(&child));
        assert!(id.is_headless());
        assert!(!id.ends_within(Duration::ZERO) && !id.is_ending_within(Duration::ZERO));
        assert!(!all_end(&[ProcessId::ENDED, id], Instant::now()));
        id.signal(Signal::KILL);
        assert!(all_end(&[ProcessId::ENDED, id], until));
        assert!(id.is_ending() && !id.alive() && !id.is_headless());
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the address is free");
        drop(listener);
        child.wait().expect("waited");
        assert!(id.is_ending_within(Duration::ZERO));
    }

    #[test]
    fn a_thread_that_was_killed_is_told_by_its_status() {
        let killed = |line: &str| is_killed(&format!("Name:\tx\n{line}\nShdPnd:\t00000000\n"));
        assert!(killed("SigPnd:\t0000000000000100"));
        assert!(!killed("SigPnd:\t0000000000004000") && !killed(""));
    }

    #[test]
    fn a_session_without_a_number_in_the_innermost_namespace_is_led_from_outside() {
        let led = |line: &str| innermost(&format!("Name:\tx\n{line}\nNSpid:\t7\n"), "NSsid:");
        assert_eq!(led("NSsid:\t512"), Some(512));
        assert_eq!(led("NSsid:\t512\t0"), Some(0));
        assert_eq!(led("NSsid:\t0"), Some(0));
        assert_eq!(led(""), None);
    }
}
