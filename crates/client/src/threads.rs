//! The threads of this process, as the kernel lists them. Allocates nothing through the C library.

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Thread ids of the process.
///
/// # Errors
/// `/proc` is not there or not readable.
pub fn list() -> Result<Vec<i32>, Errno> {
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

/// What the kernel says of a thread in `/proc/self/task/TID/status`.
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
    /// Whether the thread will run no more instruction of the program.
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

/// Nanoseconds for which a thread has had a core (`/proc/PID/schedstat`); `None` if the kernel does not tell.
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
    fn the_own_thread_is_listed_and_runs() {
        let own = crate::gate::gettid();
        assert!(list().unwrap().contains(&own));
        let status = status(own).unwrap();
        assert!(!status.is_dead() && !status.name.is_empty());
        let told = std::path::Path::new("/proc/self/schedstat").exists();
        assert_eq!(time_run(own).is_some(), told);
    }
}
