//! The same address layout in every worker.
//!
//! A driver places device variables where the kernel gives it room. With a randomised layout that is
//! somewhere else in each process, and a program that knows a variable's address could not be restored.

use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Asks for what the process has, and changes nothing.
const ASK: libc::c_ulong = 0xffff_ffff;

/// Starts this program again without address randomisation, unless it runs so already. Returns if it does,
/// or if the system does not allow it: then only variables whose address happens to be the same come back.
pub fn fix() {
    // SAFETY: personality takes a number and changes how the next exec lays out this process.
    let (now, granted) = unsafe {
        let now = libc::personality(ASK);
        if now == -1 || now & libc::ADDR_NO_RANDOMIZE != 0 {
            return;
        }
        libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong);
        (now, libc::personality(ASK))
    };
    if granted & libc::ADDR_NO_RANDOMIZE == 0 {
        return;
    }
    let Ok(path) = std::env::current_exe() else { return };
    let failed: Error = Command::new(path).args(std::env::args_os().skip(1)).exec();
    // SAFETY: as above; whatever could not be started anew goes on as it was.
    unsafe { libc::personality(now as libc::c_ulong) };
    drop(failed);
}
