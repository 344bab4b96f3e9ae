//! Gives every worker the same address layout.
//!
//! The driver places device variables at addresses that the kernel chooses. With a randomised layout they differ in each
//! process, and a program that knows a variable's address could not be restored. For the same reason, the mappings that
//! exist when a module is loaded must be the same in a restore as they were for the program.

use std::ffi::c_void;
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

use fermata_wire::{Config, WireError, create};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The argument of personality(2) that only asks for the current value.
const ASK: libc::c_ulong = 0xffff_ffff;

/// Executes this program again without address randomisation. Returns if it runs without already, or if the system does
/// not allow it: then a restore succeeds only if variables happen to get the same addresses.
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
    let Ok(path) = std::env::current_exe() else {
        return;
    };
    let failed: Error = Command::new(path).args(std::env::args_os().skip(1)).exec();
    // SAFETY: as above. The exec has failed, so this restores the old value for the process that goes on.
    unsafe { libc::personality(now as libc::c_ulong) };
    drop(failed);
}

/// Reserves the addresses that a program's ring will take while a session is loaded, because they were taken when the
/// program loaded its modules.
pub(crate) struct RingPlace {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the mapping has no access and is only ever unmapped.
unsafe impl Send for RingPlace {}

impl RingPlace {
    /// Takes the place.
    ///
    /// # Errors
    /// The system has no memory files or addresses left.
    pub fn take() -> Result<Self, WireError> {
        let ring = create(&Config::default())?;
        let size = rustix::fs::fstat(&ring).map(|stat| usize::try_from(stat.st_size).unwrap_or(0));
        let mapped = size.and_then(|bytes| {
            // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
            let start = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    bytes,
                    ProtFlags::empty(),
                    MapFlags::SHARED | MapFlags::NORESERVE,
                )?
            };
            Ok(Self { start, bytes })
        });
        mapped.map_err(|_| WireError::Layout("there is no room for it"))
    }
}

impl Drop for RingPlace {
    fn drop(&mut self) {
        // SAFETY: `take` has made this mapping with exactly this length, only this object unmaps it, and no reference into
        // it exists, because it has no access.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}
