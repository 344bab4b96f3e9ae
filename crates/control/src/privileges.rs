//! What a process needs to dump and restore others with CRIU.
//!
//! CRIU makes namespaces, mounts `/proc` and sets what a process cannot set for itself. The kernel permits that to root of
//! the machine alone: file capabilities of CRIU are not enough, because the processes that prepare a restore need them as
//! well, and in a user namespace root is not root of the machine.

use std::fs;

/// The initial user namespace; the number is fixed in the kernel (`PROC_USER_INIT_INO`).
const INITIAL: &str = "user:[4026531837]";
/// What must not be taken away from root, by number.
const NEEDED: [(u32, &str); 2] = [(19, "CAP_SYS_PTRACE"), (21, "CAP_SYS_ADMIN")];

/// Why processes cannot be dumped and restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    /// What is missing.
    pub what: String,
    /// What to do.
    pub hint: &'static str,
}

/// What this process lacks; none if it lacks nothing.
pub fn lacking() -> Option<Lacking> {
    let user = rustix::process::geteuid().as_raw();
    let namespace = fs::read_link("/proc/self/ns/user").ok();
    let namespace = namespace.as_ref().and_then(|it| it.to_str());
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    judge(user, namespace, capabilities(&status))
}

fn judge(user: u32, namespace: Option<&str>, capabilities: u64) -> Option<Lacking> {
    if user != 0 {
        let what =
            format!("checkpoints and restores need root, for CRIU; the daemon runs as user {user}");
        return Some(Lacking {
            what,
            hint: "start the program as root, `sudo fermata run`: root has a daemon of its own, and a session stays with \
                   the daemon that started it",
        });
    }
    // A kernel without user namespaces has no such link.
    if namespace.is_some_and(|it| it != INITIAL) {
        return Some(Lacking {
            what: "checkpoints and restores need root of the machine, for CRIU; this is root of a user namespace, as in a \
                   rootless container"
                .to_owned(),
            hint: "start the daemon outside, or in a container without a user namespace of its own, such as `sudo docker \
                   run --privileged`",
        });
    }
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(number, _)| capabilities >> number & 1 == 0)
        .map(|(_, name)| *name)
        .collect();
    (!missing.is_empty()).then(|| Lacking {
        what: format!(
            "checkpoints and restores need {}, for CRIU, which the daemon does not have",
            missing.join(" and ")
        ),
        hint: "start the container with `--privileged`, or with `--cap-add` for each of them",
    })
}

/// The effective capabilities in `/proc/PID/status`.
fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_of_the_machine_lacks_nothing() {
        let all = capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n");
        assert_eq!(judge(0, Some(INITIAL), all), None);
        assert_eq!(judge(0, None, all), None);
        let what = |user, namespace, capabilities| {
            judge(user, namespace, capabilities)
                .map(|it| it.what)
                .unwrap_or_default()
        };
        assert!(what(1000, Some(INITIAL), all).contains("user 1000"));
        assert!(what(0, Some("user:[4026532001]"), all).contains("user namespace"));
        let without = what(0, Some(INITIAL), all & !(1 << 21));
        assert!(
            without.contains("CAP_SYS_ADMIN") && !without.contains("PTRACE"),
            "{without}"
        );
    }
}
