//! The mappings of a process with their flags, as `/proc/PID/smaps` has them, but without its numbers.
//!
//! The kernel counts the pages of a process for that file: 15 to 20 ms for each GiB of small pages. Their flags are in no
//! other file. So a program in the kernel (BPF, Linux 6.1) hands out the range and the flags of each mapping, 1 us for each:
//!
//! ```text
//!  /sys/kernel/btf/vmlinux ─► btf: where a mapping has its flags ─► kernel: loads the program once, holds it against smaps
//!  process ─► kernel: [start, end, flags] ... ─┬─► text: lines of maps, each with a line of flags
//!             /proc/PID/maps ──────────────────┘
//! ```
//! What does not fit together is an error; the file of the kernel's own is as good, and slower.

mod btf;
mod kernel;
mod sys;
mod text;

use std::fs;
use std::io;
use std::sync::OnceLock;

use self::kernel::Flags;
pub use self::text::{private_of_files, without_file};

/// The lines of `/proc/PID/smaps` that name the mappings of process `pid`, which stands still, and those with their flags, as
/// far as they say more than the first: `VmFlags` lacks what a mapping is permitted.
///
/// # Errors
/// The kernel hands no flags out, or the process does not stand still.
pub fn describe(pid: u32) -> io::Result<Vec<u8>> {
    joined(flags().ok_or(io::ErrorKind::Unsupported)?, pid)
}

fn joined(flags: &Flags, pid: u32) -> io::Result<Vec<u8>> {
    let marked = flags.of(pid)?;
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    text::join(&maps, &marked).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether this kernel hands out flags of mappings. The first call takes about 20 ms.
pub fn can_describe() -> bool {
    flags().is_some()
}

fn flags() -> Option<&'static Flags> {
    static FLAGS: OnceLock<Option<Flags>> = OnceLock::new();
    FLAGS.get_or_init(|| Flags::load().ok()).as_ref()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// What CRIU reads of a file.
    fn read(smaps: &[u8]) -> Vec<String> {
        let lines = String::from_utf8_lossy(smaps);
        let wanted = |line: &&str| {
            let first = line.split(' ').next().unwrap_or("");
            line.starts_with("VmFlags:") || first.contains('-')
        };
        let known = |line: &str| match line.strip_prefix("VmFlags:") {
            Some(names) => text::known(names).join(" "),
            None => line.to_owned(),
        };
        lines.lines().filter(wanted).map(known).collect()
    }

    /// Where no program can be loaded, that must be for want of type information, of the right or of BPF, and nothing is
    /// described: CRIU then reads the kernel's own file.
    fn check_refused(error: &io::Error) {
        let lacks = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
        let is_known = lacks.contains(&error.kind()) || error.raw_os_error() == Some(libc::ENOSYS);
        assert!(is_known, "{error}");
        assert!(!can_describe());
        let refused = describe(std::process::id()).map_err(|it| it.kind());
        assert_eq!(refused, Err(io::ErrorKind::Unsupported));
    }

    /// A process that has begun, and waits for input.
    fn waiting() -> Child {
        let mut command = Command::new("cat");
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("started");
        let (input, output) = (child.stdin.as_mut(), child.stdout.as_mut());
        input.expect("piped").write_all(b"x").expect("written");
        let mut byte = [0];
        output.expect("piped").read_exact(&mut byte).expect("read");
        child
    }

    #[test]
    fn mappings_are_described_as_in_smaps() {
        let flags = match Flags::unchecked() {
            Ok(flags) => flags,
            Err(error) => return check_refused(&error),
        };
        let mut child = waiting();
        let told = joined(&flags, child.id()).expect("described");
        let smaps = fs::read(format!("/proc/{}/smaps", child.id())).expect("read");
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(read(&told), read(&smaps));
        assert!(read(&told).len() > 20);
        joined(&flags, u32::MAX).expect_err("no such process");
    }
}
