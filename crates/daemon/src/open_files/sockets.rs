//! Finds the sockets that the processes of a program hold.

use std::collections::HashMap;
use std::time::Duration;

use fermata_control::wait;

use crate::proc;

/// A program and the kernel's tables change while they are read: what stands in the way of a checkpoint is looked for so often.
const LOOKS: u32 = 3;
/// Between two looks.
const TURN: Duration = Duration::from_millis(10);

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

/// What the last look finds, of [`LOOKS`] unless one finds nothing. Each look has to read the processes of the program anew.
pub fn settled<T>(mut look: impl FnMut() -> Vec<T>) -> Vec<T> {
    let free = || match look() {
        found if found.is_empty() => Ok(()),
        found => Err(found),
    };
    settles(free).err().unwrap_or_default()
}

/// What the last look says, of [`LOOKS`] unless one succeeds. Each look has to read the processes of the program anew.
///
/// # Errors
/// That of the last look.
pub fn settles<T, E>(mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut left = LOOKS;
    // Polled: the kernel tells nobody of a change to its tables.
    let last = wait::until(Duration::MAX, TURN, || {
        let said = look();
        left -= 1;
        (said.is_ok() || left == 0).then_some(said)
    });
    last.expect("the wait ends with the last look")
}

/// The sockets that processes hold, by inode.
pub fn holders(processes: &[u32]) -> HashMap<u64, Holder> {
    let mut held = HashMap::new();
    for pid in processes {
        for (descriptor, target) in proc::descriptors(*pid) {
            let inode = target
                .to_str()
                .and_then(|it| it.strip_prefix("socket:[")?.strip_suffix(']'))
                .and_then(|it| it.parse().ok());
            if let Some(inode) = inode {
                held.entry(inode).or_insert(Holder {
                    pid: *pid,
                    descriptor,
                });
            }
        }
    }
    held
}

#[cfg(test)]
pub(super) mod scene {
    use std::time::Duration;

    use fermata_control::wait;

    const LIMIT: Duration = Duration::from_secs(120);
    const TURN: Duration = Duration::from_millis(1);

    /// What `look` finds once it `holds`, or else at the deadline. A child that another test starts has what this process has
    /// open until it executes its program, and keeps it open that long when this process has closed it.
    pub fn soon<T>(mut look: impl FnMut() -> T, holds: impl Fn(&T) -> bool) -> T {
        // Polled: the kernel tells nobody that a descriptor is closed.
        let found = wait::until(LIMIT, TURN, || {
            let found = look();
            holds(&found).then_some(found)
        });
        found.unwrap_or_else(look)
    }
}
