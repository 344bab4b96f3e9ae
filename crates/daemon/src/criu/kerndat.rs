//! What CRIU has found out about the kernel, kept for the next CRIU.
//!
//! Each CRIU asks the kernel what it can do, which takes half of a dump's or a restore's time, unless it finds
//! the answers in `/run/criu.kdat`. It writes them only where `/run` is in memory, for they must not
//! outlive the kernel; in containers it is on disk. So:
//!
//! ```text
//!  once    CRIU in a mount namespace with a /run of its own ─► criu.kdat ─► a memory file of the daemon
//!  then    /run/criu.kdat ─► /proc/self/fd/99, and every CRIU of ours gets that file as descriptor 99
//! ```
//! For everybody else the link leads nowhere, which is as if there were no file; nothing is left that
//! another kernel could meet.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::criu::end;
use crate::criu::environment;
use crate::sys::{self, Extra};

/// Where CRIU looks; fixed when it is built.
const CACHE: &str = "/run/criu.kdat";
/// How long CRIU may take to ask.
const PROBE_TIME: Duration = Duration::from_secs(60);
/// The answers are about 1 KiB; more is something else.
const MOST_BYTES: u64 = 1 << 20;

/// The answers.
#[derive(Debug, Clone)]
pub struct Kerndat(Arc<OwnedFd>);

impl Kerndat {
    /// Has the CRIU that `command` starts ask the kernel; `helper` is the daemon's executable. None where
    /// CRIU keeps the answers itself, or where this does not work: then it asks each time.
    pub fn probe(helper: &Path, command: &[PathBuf]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || Path::new(CACHE).is_file() {
            return None;
        }
        let mut probe = Command::new(helper);
        probe.arg(crate::helpers::modes::KERNDAT).args(command);
        probe.stdin(Stdio::null()).stderr(Stdio::null());
        environment::clean(&mut probe);
        let extra = Extra {
            own_mounts: true,
            ..Extra::default()
        };
        sys::prepare(&mut probe, extra);
        let answers = probe.output().ok().filter(|it| it.status.success())?.stdout;
        let held = hold(&answers).ok()?;
        let kept = Self(Arc::new(held));
        kept.is_linked().then_some(kept)
    }

    /// The file for [`sys::KERNEL_DESCRIPTOR`] of a CRIU, if it will look there.
    pub fn file(&self) -> Option<Arc<OwnedFd>> {
        self.is_linked().then(|| self.0.clone())
    }

    /// Makes the link if nothing is there. Another CRIU may have taken it away.
    fn is_linked(&self) -> bool {
        let target = PathBuf::from(format!("/proc/self/fd/{}", sys::KERNEL_DESCRIPTOR));
        match fs::read_link(CACHE) {
            Ok(found) => found == target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::os::unix::fs::symlink(target, CACHE).is_ok()
            }
            Err(_) => false,
        }
    }
}

fn hold(answers: &[u8]) -> io::Result<OwnedFd> {
    if answers.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut file = File::from(memfd_create("criu.kdat", MemfdFlags::CLOEXEC)?);
    file.write_all(answers)?;
    Ok(file.into())
}

/// `__kerndat CRIU ARGUMENTS`, in a mount namespace of its own: writes CRIU's answers to standard output.
pub fn helper(command: &[std::ffi::OsString]) -> io::Result<i32> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", "/run", "tmpfs", flags, None)?;
    let (program, rest) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    // Any question makes it ask everything; this one is about what every kernel in use has.
    let mut criu = Command::new(program)
        .args(rest)
        .args(["check", "--feature", "pidfd_store"])
        .stdout(Stdio::null())
        // It stops children of its own. In the daemon's process group that would end the daemon: a group that
        // loses its last parent outside, here the command that has started the daemon, is sent SIGHUP if
        // anybody in it is stopped.
        .process_group(0)
        .spawn()?;
    end::end(&mut criu, PROBE_TIME);
    let mut answers = Vec::new();
    File::open(CACHE)?
        .take(MOST_BYTES)
        .read_to_end(&mut answers)?;
    io::stdout().write_all(&answers)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn answers_are_read_from_their_beginning_each_time() {
        assert!(hold(&[]).is_err());
        let file = hold(b"abc").expect("a memory file");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        for _ in 0..2 {
            assert_eq!(fs::read(&path).expect("its bytes"), b"abc");
        }
    }
}
