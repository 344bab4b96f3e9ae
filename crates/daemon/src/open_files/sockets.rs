//! Finds the sockets that the processes of a program hold.

use std::collections::HashMap;
use std::time::Duration;

use fermata_control::wait;

use crate::proc;

/// The kernel's tables of sockets change while they are read: what stands in the way of a checkpoint is looked at so often.
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

/// What `look` finds, which looks [`LOOKS`] times unless it finds nothing.
pub fn settled(mut look: impl FnMut() -> Vec<Unsaved>) -> Vec<Unsaved> {
    let (mut found, mut left) = (Vec::new(), LOOKS);
    // Polled: the kernel tells nobody of a change to its tables.
    wait::until(Duration::MAX, TURN, || {
        found = look();
        left -= 1;
        (found.is_empty() || left == 0).then_some(())
    });
    found
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
