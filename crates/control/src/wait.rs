//! Waits with a deadline for what happens in other processes.
//!
//! | what is waited for | how |
//! | --- | --- |
//! | another thread of this process | a condition variable, a channel or a futex, where the state is |
//! | the end of a process | a descriptor of it: [`child_ends`], [`process_ends`] |
//! | an answer, a line, a connection | a blocking read, `poll` of the descriptor |
//! | what nothing tells: another process's memory, a file, a daemon that has to be asked | [`until`], which looks again and again |
//!
//! Whoever calls [`until`] says in a comment why nothing tells. `cargo xtask check` counts these calls with the sleeps.

use std::os::fd::AsFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

/// Between two looks at a process of which no descriptor can be had.
const LOOK: Duration = Duration::from_millis(5);

/// Looks every `turn` until `look` finds something; `None` when it has found nothing within `limit`. It looks at least once,
/// and once more at the end.
pub fn until<T>(limit: Duration, turn: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return None;
        }
        // The one pause between two looks at what nothing tells.
        std::thread::sleep(turn.min(left));
    }
}

/// Waits until a child has ended, which stays to be reaped; false if it has not within `limit`.
pub fn child_ends(child: &Child, limit: Duration) -> bool {
    let pid = Pid::from_child(child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let lives = || matches!(waitid(WaitId::Pid(pid), options), Ok(None));
    process_ends(pid, limit, lives)
}

/// Waits until process `pid` has ended; false if it has not within `limit`. `lives` tells whether the process that is meant
/// has that number still.
pub fn process_ends(pid: Pid, limit: Duration, lives: impl Fn() -> bool) -> bool {
    let descriptor = pidfd_open(pid, PidfdFlags::empty());
    // Looked at after it was opened: then it is this process's, not that of a later one of the number.
    if !lives() {
        return true;
    }
    match descriptor {
        Ok(descriptor) => becomes_readable(&descriptor, limit),
        // Polled: no descriptor is left for this process, or the kernel is older than Linux 5.3.
        Err(_) => until(limit, LOOK, || (!lives()).then_some(())).is_some(),
    }
}

/// Waits until there is something to read at a descriptor, or its other end is gone; false if not within `limit`.
pub fn becomes_readable(descriptor: impl AsFd, limit: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Err(Errno::INTR) => {}
            found => return matches!(found, Ok(1..)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn what_is_looked_for_is_found_or_given_up() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            (looks == 3).then_some(looks)
        };
        assert_eq!(until(LONG, Duration::ZERO, third), Some(3));
        assert_eq!(until(Duration::ZERO, LONG, || None::<()>), None);
        assert_eq!(until(Duration::MAX, LONG, || Some(())), Some(()));
    }

    #[test]
    fn the_end_of_a_child_is_seen_and_the_child_stays_to_be_reaped() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("started");
        assert!(!child_ends(&child, Duration::from_millis(1)));
        child.kill().expect("killed");
        assert!(child_ends(&child, LONG));
        assert!(child_ends(&child, Duration::ZERO));
        let status = child.wait().expect("reaped");
        assert_eq!(status.code(), None);
    }

    #[test]
    fn a_process_that_is_not_meant_any_more_has_ended() {
        let own = rustix::process::getpid();
        assert!(process_ends(own, LONG, || false));
        assert!(!process_ends(own, Duration::from_millis(1), || true));
    }
}
