//! Finds the sockets that the processes of a program hold.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::proc;

/// Who holds a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub descriptor: u32,
}

/// A socket of a program that an image cannot hold as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsaved {
    /// One process that holds it.
    pub holder: Holder,
    /// What it is, and why.
    pub what: String,
    /// What else can be done.
    pub hint: &'static str,
}

/// The sockets that processes hold, by inode.
pub fn holders(processes: &[u32]) -> HashMap<u64, Holder> {
    let mut held = HashMap::new();
    for pid in processes {
        for (descriptor, target) in proc::descriptors(*pid) {
            if let Some(inode) = inode(&target) {
                held.entry(inode).or_insert(Holder {
                    pid: *pid,
                    descriptor,
                });
            }
        }
    }
    held
}

/// The inode of the socket to which a descriptor leads; none if that is something else.
pub fn inode(target: &Path) -> Option<u64> {
    let number = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']');
    number?.parse().ok()
}

/// The socket that this process holds.
///
/// # Errors
/// The process has ended or closed it, or may not be examined. It may be another file by now.
pub fn duplicate(holder: Holder) -> io::Result<OwnedFd> {
    let number = |it: u32| i32::try_from(it).map_err(io::Error::other);
    let pid = Pid::from_raw(number(holder.pid)?).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let number = number(holder.descriptor)?;
    Ok(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?)
}
