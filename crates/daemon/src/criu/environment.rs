//! The environment that CRIU is started with.

use std::process::Command;

/// Makes CRIU follow a process to its last system call by its calls, instead of by a breakpoint: the kernel
/// takes 10 to 20 ms to begin with those. The name is that of CRIU's tests; the number is not a fault.
const NO_BREAKPOINTS: (&str, &str) = ("CRIU_FAULT", "130");

/// Takes variables of the daemon's own environment away that would change CRIU or its loader, and sets what it
/// needs.
pub fn clean(command: &mut Command) {
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "CRIU_CONFIG_FILE"] {
        command.env_remove(name);
    }
    command.env(NO_BREAKPOINTS.0, NO_BREAKPOINTS.1);
}
