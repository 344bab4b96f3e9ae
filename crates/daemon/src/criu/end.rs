//! The end of a CRIU that the daemon has started.

use std::process::Child;
use std::time::Duration;

use fermata_control::wait;
use rustix::process::{Pid, Signal, kill_process_group};

/// Waits for a CRIU that is about to end and leads a process group, kills it when it does not end within `limit`, and then
/// its children: CRIU has some sleep while it asks the kernel what it can do, and they outlive a CRIU that is killed.
pub(crate) fn end(child: &mut Child, limit: Duration) {
    wait::child_ends(child, limit);
    // It is not reaped yet, so that nobody else's group can have its number. It fails only when the whole group has ended.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}
