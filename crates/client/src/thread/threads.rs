//! Lists the threads of this process and reads their state from `/proc`. Allocates nothing through the C library.

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

/// How often threads are listed until two lists are the same.
const TRIES: usize = 64;

/// The ids of the process's threads; if threads begin and end meanwhile, ids of ended ones may be among them.
///
/// The kernel walks from thread to thread. If the thread it is at has just ended, a read stops there, and the next one
/// continues by count, which may skip a living thread. Such a list has a thread that the next list does not have.
///
/// # Errors
/// `/proc` is not mounted or not readable.
pub fn list() -> Result<Vec<i32>, Errno> {
    settled(once)
}

/// A list that `list` returns twice in a row; if there is none, the union of all its lists.
fn settled(mut list: impl FnMut() -> Result<Vec<i32>, Errno>) -> Result<Vec<i32>, Errno> {
    let mut last = list()?;
    let mut all = last.clone();
    for _ in 0..TRIES {
        let now = list()?;
        if now == last {
            return Ok(now);
        }
        all.extend(&now);
        last = now;
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn once() -> Result<Vec<i32>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(CWD, c"/proc/self/task", flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = RawDir::new(folder, buffer.spare_capacity_mut());
    let mut tids = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let tid: Option<i32> = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.parse().ok());
        tids.extend(tid);
    }
    Ok(tids)
}

/// The state of a thread from `/proc/self/task/TID/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// One letter: R, S, D, T, Z, X.
    pub state: char,
    /// Blocked signals, signal n being bit n - 1.
    pub blocked: u64,
}

impl Status {
    /// Whether the thread has ended or is ending.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Reads a thread's status; `None` if it has ended.
pub fn status(tid: i32) -> Option<Status> {
    let text = read(&format!("/proc/self/task/{tid}/status"))?;
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(str::trim)
    };
    Some(Status {
        name: field("Name:")?.to_owned(),
        state: field("State:")?.chars().next()?,
        blocked: u64::from_str_radix(field("SigBlk:")?, 16).ok()?,
    })
}

/// Whether a thread waits for a lock without a time limit (`/proc/self/task/TID/syscall`).
pub fn waits_for_lock(tid: i32) -> bool {
    read(&format!("/proc/self/task/{tid}/syscall")).is_some_and(|text| is_lock_wait(&text))
}

/// `number arg0 ... arg5 sp pc`, the first decimal, the others hexadecimal; `running` if in no call.
fn is_lock_wait(text: &str) -> bool {
    let mut fields = text.split_whitespace();
    let number = fields.next().and_then(|it| it.parse::<i64>().ok());
    let arguments: Vec<u64> = fields
        .map_while(|it| u64::from_str_radix(it.strip_prefix("0x")?, 16).ok())
        .collect();
    // FUTEX_WAIT and FUTEX_WAIT_BITSET with any flags; the fourth argument is the time limit.
    let waits = |command: u64| matches!(command & 0x7f, 0 | 9);
    number == Some(libc::SYS_futex)
        && matches!(arguments[..], [_, command, _, 0, ..] if waits(command))
}

/// Nanoseconds for which a thread has had a core (`/proc/self/task/TID/schedstat`); `None` if the kernel does not report it.
pub fn time_run(tid: i32) -> Option<u64> {
    let text = read(&format!("/proc/self/task/{tid}/schedstat"))?;
    text.split_whitespace().next()?.parse().ok()
}

/// Reads a small file whole.
pub fn read(path: &str) -> Option<String> {
    let file: OwnedFd =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = vec![0; 4096];
    let mut len = 0;
    while len < bytes.len() {
        match rustix::io::read(&file, &mut bytes[len..]) {
            Ok(0) => break,
            Ok(got) => len += got,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    bytes.truncate(len);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_leaves_out_a_thread_is_not_believed() {
        // Thread 2 ends while it is listed, and 3 is left out.
        let mut said = vec![vec![1, 2, 4], vec![1, 3, 4], vec![1, 3, 4]].into_iter();
        assert_eq!(settled(|| said.next().ok_or(Errno::IO)), Ok(vec![1, 3, 4]));
        let mut next = 10;
        let churn = || {
            next += 1;
            Ok(vec![1, next])
        };
        let all = settled(churn).unwrap();
        assert_eq!(all.first(), Some(&1));
        assert_eq!(all.len(), TRIES + 2);
        assert_eq!(settled(|| Err(Errno::NOENT)), Err(Errno::NOENT));
    }

    #[test]
    fn a_wait_with_a_limit_is_no_wait_for_a_lock() {
        assert!(is_lock_wait("202 0x7f 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f01"));
        assert!(is_lock_wait(
            "202 0x7f 0x189 0x2 0x0 0x0 0xffffffff 0x7ffd 0x7f01"
        ));
        assert!(!is_lock_wait(
            "202 0x7f 0x80 0x2 0x7ffe 0x0 0x0 0x7ffd 0x7f01"
        ));
        assert!(!is_lock_wait("202 0x7f 0x81 0x2 0x0 0x0 0x0 0x7ffd 0x7f01"));
        assert!(!is_lock_wait("230 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f01"));
        assert!(!is_lock_wait("running"));
    }

    #[test]
    fn the_own_thread_is_listed_and_runs() {
        let own = crate::thread::gate::gettid();
        assert!(list().unwrap().contains(&own));
        let status = status(own).unwrap();
        assert!(!status.is_dead() && !status.name.is_empty());
        let told = std::path::Path::new("/proc/self/schedstat").exists();
        assert_eq!(time_run(own).is_some(), told);
    }
}
