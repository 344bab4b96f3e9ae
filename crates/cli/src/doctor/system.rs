//! The kernel, and what it permits this user.

use std::fs;

use fermata_control::user::Check;
use fermata_control::{Paths, privileges};

use super::verdict::{fail, ok, warn};

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;

/// Kernel release.
pub fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let found = format!("Linux {release}");
    match version(&release) {
        Some(v) if v >= (5, 11) => ok("kernel", found),
        Some(v) if v >= (5, 6) => warn(
            "kernel",
            found,
            "use Linux 5.11 or newer, so that restores can be lazy",
        ),
        _ => fail("kernel", found, "use Linux 5.11 or newer"),
    }
}

/// The first two numbers of a release.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether host pages can come on demand.
pub fn userfaultfd() -> Check {
    let open =
        fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|t| t.trim() == "1");
    let name = "lazy pages";
    if !fs::exists("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or(false) {
        return warn(
            name,
            "userfaultfd is not in this kernel",
            "restores read all host memory first (`--eager`)",
        );
    }
    if open || has(CAP_SYS_PTRACE) {
        return ok(
            name,
            "userfaultfd is permitted; host memory comes on demand at restore",
        );
    }
    warn(
        name,
        "userfaultfd is not permitted; restores read all host memory first",
        "as root: `sysctl vm.unprivileged_userfaultfd=1`",
    )
}

/// Whether host memory is copied while programs run. The check of the daemon has the same name.
pub fn host_memory(paths: &Paths) -> Check {
    let name = "host memory";
    let supported = match paths.home.join("lib/pagefilter.so").is_file() {
        true => fermata_hostmem::check_kernel(),
        false => Err("the installation has no `lib/pagefilter.so`"),
    };
    match supported {
        Ok(()) => ok(name, "checkpoints copy it while programs run"),
        Err(why) => warn(
            name,
            format!("checkpoints copy it while programs stand still: {why}"),
            "for short stops use Linux 6.7 or newer, run the daemon as root, and install the whole tree of Fermata",
        ),
    }
}

/// Whether other processes may be examined and rebuilt.
pub fn rights() -> Check {
    match privileges::lacking() {
        None => ok("privileges", "all that CRIU needs"),
        Some(it) => fail("privileges", it.what, it.hint),
    }
}

/// Whether a restored program can have process ids of its own.
pub fn namespaces() -> Check {
    let name = "namespaces";
    let limit: u64 = fs::read_to_string("/proc/sys/user/max_pid_namespaces")
        .ok()
        .and_then(|t| t.trim().parse().ok())
        .unwrap_or(0);
    if limit == 0 {
        return fail(
            name,
            "no process namespaces can be made",
            "as root: `sysctl user.max_pid_namespaces=10000`; in a container, allow them",
        );
    }
    if has(CAP_SYS_ADMIN) {
        return ok(name, "process namespaces can be made");
    }
    fail(
        name,
        "making process namespaces is not permitted",
        "run the daemon as root",
    )
}

/// Whether this process has a capability.
fn has(capability: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = line
        .and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
        .unwrap_or(0);
    set >> capability & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.0-rc1"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("4.2.1"), Some((4, 2)));
        assert_eq!(version("strange"), None);
    }
}
