//! Where the daemon is: the next one after a restore, perhaps on another machine.
//!
//! A restored program has the environment of its first start, and lives in a PID namespace whose process 1 was started by
//! the daemon that restored it, with the path of its socket as an argument. That everybody may read.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use fermata_control::agent::{ENV_SOCKET, ENV_TOKEN, INIT_ARGUMENT};
use fermata_nvml::ask::SOCKET;

/// Where to ask, and as whom.
pub struct Home {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The session's token, which is another session's in a restored program: the daemon then goes by the process.
    pub token: String,
}

/// `None` outside of any session.
pub fn find() -> Option<Home> {
    let agents = match std::fs::read("/proc/1/cmdline")
        .ok()
        .as_deref()
        .and_then(restored_by)
    {
        Some(agents) => agents,
        None => PathBuf::from(std::env::var_os(ENV_SOCKET)?),
    };
    Some(Home {
        socket: beside(&agents)?,
        token: std::env::var(ENV_TOKEN).unwrap_or_default(),
    })
}

fn beside(agents: &Path) -> Option<PathBuf> {
    Some(agents.parent()?.join(SOCKET))
}

/// The socket for agents that process 1 was given, if a daemon has started it for a restore.
fn restored_by(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == 0).skip(1);
    (words.next()? == INIT_ARGUMENT.as_bytes()).then_some(())?;
    // What it is to do, and then the path.
    let path = words.nth(1).filter(|path| path.starts_with(b"/"))?;
    Some(OsString::from_vec(path.to_vec()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_program_asks_the_daemon_that_has_restored_it() {
        let line = b"/x/bin/fermatad\0__init\0{\"criu\":[]}\0/run/y/agent.sock\0";
        let agents = restored_by(line).expect("a path");
        assert_eq!(beside(&agents), Some("/run/y/nvml.sock".into()));
        // Of a release that gave no path, and other programs.
        assert_eq!(restored_by(b"/x/bin/fermatad\0__init\0{}\0"), None);
        assert_eq!(restored_by(b"/sbin/init\0splash\0"), None);
        assert_eq!(restored_by(b""), None);
    }
}
