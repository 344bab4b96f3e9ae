//! Starts processes with features that `std` lacks: descriptors at fixed numbers, own sessions, new and foreign namespaces. The
//! only unsafe code of the crate.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use fermata_hostmem::WITHOUT_IO_URING;

/// The first descriptor after standard input, output and error.
const FIRST: RawFd = 3;

/// The descriptor with the answers in a CRIU of ours; above those that it is given otherwise.
pub const KERNEL_DESCRIPTOR: i32 = 99;

/// The socket at which a CRIU of ours asks for mappings; `fermata-pagefilter` has the same number.
const MAPPINGS_DESCRIPTOR: RawFd = 98;

/// What a new process gets beyond what [`Command`] says.
#[derive(Default)]
pub struct Extra {
    /// Descriptors; the process finds them at 3, 4, 5, ...
    pub fds: Vec<OwnedFd>,
    /// Whether it leads a session of its own.
    pub setsid: bool,
    /// Whether its children live in a new PID namespace, and it in a new mount namespace.
    pub unshare: bool,
    /// Whether it lives in a new mount namespace.
    pub own_mounts: bool,
    /// Whether it lives in a new network namespace; see [`raise_loopback`].
    pub own_network: bool,
    /// Namespaces it enters; a PID namespace counts for its children.
    pub namespaces: Vec<OwnedFd>,
    /// Whether it gets the limits that this process had when it was started.
    pub former_limits: bool,
    /// Its file mode creation mask; else this process's.
    pub umask: Option<u32>,
    /// Whether it and all below it can make no io_uring, where this process may see to that ([`deny_io_uring`]).
    pub without_io_uring: bool,
    /// Whether it and all below it have System V memory, semaphores and queues of their own, where this process may see to that:
    /// CRIU dumps them only so.
    pub own_ipc: bool,
    /// What CRIU knows of the kernel; its descriptor [`KERNEL_DESCRIPTOR`].
    pub kernel: Option<Arc<OwnedFd>>,
    /// Where CRIU asks for mappings; its descriptor [`MAPPINGS_DESCRIPTOR`].
    pub mappings: Option<OwnedFd>,
    /// Whether it gets those two that this process has got, if it has: for helpers on the way to a CRIU.
    pub hands_on: bool,
}

impl Extra {
    /// Only descriptors.
    pub fn fds(fds: Vec<OwnedFd>) -> Self {
        Self {
            fds,
            ..Self::default()
        }
    }
}

/// Limits of this process before [`raise_limits`]: of files that are open, and of a file's bytes.
static FORMER: OnceLock<[(Limit, libc::rlimit); 2]> = OnceLock::new();

type Limit = libc::__rlimit_resource_t;

/// Fewer open files than this are not enough for a session.
const FEWEST_FILES: libc::rlim_t = 256;

/// Lets this process have as many files open as it may, and as large ones: a session takes half a dozen, and its images are
/// larger than files of a shell with a limit. Who has CAP_SYS_RESOURCE may have more than the hard limit. What it starts by [`prepare`] gets the
/// same, except programs, which get the former limits: some go wrong with large ones.
///
/// # Errors
/// A limit is too low and cannot be raised; the text says which.
pub fn raise_limits() -> Result<(), String> {
    const FILES: libc::rlim_t = 1 << 20;
    let files = raise(libc::RLIMIT_NOFILE, FILES, FEWEST_FILES)?;
    let size = raise(libc::RLIMIT_FSIZE, libc::RLIM_INFINITY, libc::RLIM_INFINITY)?;
    FORMER.get_or_init(|| [(libc::RLIMIT_NOFILE, files), (libc::RLIMIT_FSIZE, size)]);
    Ok(())
}

/// Raises one limit to `most`, as far as that is permitted; what it was.
fn raise(limit: Limit, most: libc::rlim_t, least: libc::rlim_t) -> Result<libc::rlimit, String> {
    // SAFETY: plain data, which the call below fills.
    let mut former: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live variable.
    if unsafe { libc::getrlimit(limit, &mut former) } != 0 {
        return Ok(former);
    }
    let to = |current: libc::rlim_t, hard: libc::rlim_t| libc::rlimit {
        rlim_cur: current,
        rlim_max: hard,
    };
    let as_permitted = to(
        former.rlim_max.min(most).max(former.rlim_cur),
        former.rlim_max,
    );
    let tries = [
        to(least.max(as_permitted.rlim_cur), former.rlim_max.max(least)),
        as_permitted,
    ];
    // SAFETY: the pointers are to live variables.
    let set = tries
        .iter()
        .find(|it| unsafe { libc::setrlimit(limit, *it) } == 0);
    let reached = set.map_or(former.rlim_cur, |it| it.rlim_cur);
    if reached >= least {
        return Ok(former);
    }
    Err(match limit {
        libc::RLIMIT_NOFILE => format!(
            "this process may have {reached} files open and needs {least}: `ulimit -n {least}` in the shell that starts it"
        ),
        _ => format!(
            "this process may write files of {reached} bytes at most, which an image can exceed: `ulimit -f unlimited` in \
             the shell that starts it"
        ),
    })
}

/// Closes every descriptor but standard input, output and error: those that the starter of this process left open by
/// mistake, which would stay open as long as this process lives, and in all that it starts.
///
/// To be called before this process has opened anything itself.
pub fn close_inherited() {
    // SAFETY: the caller says that nothing in this process owns a descriptor from 3 on.
    if unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST as libc::c_uint,
            libc::c_uint::MAX,
            0,
        )
    } == 0
    {
        return;
    }
    // A kernel before 5.9.
    let numbers: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number >= FIRST)
        .collect();
    for number in numbers {
        // SAFETY: as above; the folder's own descriptor is closed by now, which `close` answers with an error.
        unsafe { libc::close(number) };
    }
}

/// Marks all descriptors from `first` on to be closed at the next exec. Descriptors of this crate are already; the
/// call is for those that a library has opened. A kernel before 5.11 does not know it.
///
/// # Safety
/// Only between fork and exec.
unsafe fn close_at_exec(first: RawFd) {
    let (first, last) = (first as libc::c_uint, libc::c_uint::MAX);
    // SAFETY: a plain system call on this process's own table of descriptors.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}

/// Lets `command` start its process with `extra`, no signal blocked, and no descriptor but standard input, output and
/// error and those of `extra`. The descriptors stay open here until `command` is dropped.
pub fn prepare(command: &mut Command, extra: Extra) {
    let hook = move || -> io::Result<()> {
        // SAFETY: every call below is a plain system call, safe between fork and exec; the
        // descriptors are open because `extra` is owned by this closure.
        unsafe {
            for namespace in &extra.namespaces {
                check(libc::setns(namespace.as_raw_fd(), 0))?;
            }
            if extra.unshare {
                check(libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS))?;
            }
            if extra.own_mounts {
                check(libc::unshare(libc::CLONE_NEWNS))?;
            }
            if extra.own_network {
                check(libc::unshare(libc::CLONE_NEWNET))?;
            }
            if extra.own_ipc {
                // Without the right to it no checkpoint can be taken either.
                libc::unshare(libc::CLONE_NEWIPC);
            }
            if extra.setsid {
                check(libc::setsid())?;
            }
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            check(libc::sigprocmask(
                libc::SIG_SETMASK,
                &none,
                std::ptr::null_mut(),
            ))?;
            // Before their numbers are somebody else's.
            let mut fixed = [
                (extra.kernel.as_deref(), KERNEL_DESCRIPTOR, -1),
                (extra.mappings.as_ref(), MAPPINGS_DESCRIPTOR, -1),
            ];
            for (fd, _, copy) in &mut fixed {
                if let Some(fd) = fd {
                    *copy = above_targets(fd)?;
                }
            }
            place(&extra.fds)?;
            close_at_exec(FIRST + extra.fds.len() as RawFd);
            for (_, number, copy) in fixed {
                if copy >= 0 {
                    check(libc::dup2(copy, number))?;
                } else if extra.hands_on {
                    // It may not have got one.
                    libc::fcntl(number, libc::F_SETFD, 0);
                }
            }
            if let Some(umask) = extra.umask {
                libc::umask(umask & 0o777);
            }
            if extra.former_limits {
                for (limit, former) in FORMER.get().into_iter().flatten() {
                    check(libc::setrlimit(*limit, former))?;
                }
            }
            if extra.without_io_uring {
                deny_io_uring();
            }
            Ok(())
        }
    };
    // SAFETY: the hook allocates nothing and takes no lock.
    unsafe { command.pre_exec(hook) };
}

/// Installs [`WITHOUT_IO_URING`] in this process without `no_new_privs`, so that its setuid programs stay what they are. The
/// kernel permits that with CAP_SYS_ADMIN. Without that, or in a kernel without seccomp, nothing is denied: then no checkpoint
/// can be taken either, or it is refused if the program holds an io_uring.
///
/// # Safety
/// Only between fork and exec.
unsafe fn deny_io_uring() {
    let program = libc::sock_fprog {
        len: WITHOUT_IO_URING.len() as libc::c_ushort,
        filter: WITHOUT_IO_URING
            .as_ptr()
            .cast::<libc::sock_filter>()
            .cast_mut(),
    };
    // SAFETY: the program is a constant of as many instructions, each eight bytes as the kernel lays them out, which the
    // kernel copies. Older kernels slow filtered programs down without the flag.
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    };
}

/// Puts `fds` at 3, 4, 5, ... without close-on-exec.
///
/// # Safety
/// Only between fork and exec: whatever had those numbers is closed.
unsafe fn place(fds: &[OwnedFd]) -> io::Result<()> {
    // Above the targets first, so that no source is overwritten before its turn.
    const MOST: usize = 512;
    let mut high = [-1; MOST];
    if fds.len() > MOST {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (slot, fd) in high.iter_mut().zip(fds) {
        *slot = above_targets(fd)?;
    }
    for (i, source) in high.iter().take(fds.len()).enumerate() {
        // SAFETY: the caller gave up the targets.
        check(unsafe { libc::dup2(*source, FIRST + i as RawFd) })?;
    }
    Ok(())
}

/// A copy of `fd` above every number that [`prepare`] gives out.
fn above_targets(fd: &OwnedFd) -> io::Result<RawFd> {
    // SAFETY: duplicating an open descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 128) })
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Takes over descriptor `number`, which the starter of this process placed there with [`prepare`].
/// None when it is not open.
pub fn inherited(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD only asks.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: open by the line above. The helper modes call this once per number, first thing, when
    // nothing else in the process owns descriptors above 2.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: as above.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    Some(fd)
}

/// Whether this process may use `userfaultfd`, which restoring with lazy pages takes.
pub fn userfaultfd_permitted() -> bool {
    // SAFETY: a new descriptor, closed at once; nothing is registered with it.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
        if fd < 0 {
            return false;
        }
        libc::close(fd as RawFd);
    }
    true
}

/// Makes the addresses of the loopback interface usable: in a new network namespace it is there, and down.
///
/// # Errors
/// The kernel refuses it.
pub fn raise_loopback() -> io::Result<()> {
    // SAFETY: a new descriptor, or an error.
    let socket =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: open by the line above, and owned by nothing else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: plain data; the name is ended by the zeros behind it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request is a live variable of the type that the call takes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) })?;
    Ok(())
}

/// Ends this process at once if its parent is gone; for helpers that make no sense without it.
pub fn die_with_parent() {
    // SAFETY: sets an attribute of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Kills every other process of the PID namespace whose process 1 this is, and returns at once.
pub fn kill_namespace() {
    // SAFETY: a plain system call. Outside a namespace of its own the caller would kill all that it may; so only process 1.
    unsafe {
        if libc::getpid() == 1 {
            libc::kill(-1, libc::SIGKILL);
        }
    }
}

/// Blocks SIGTERM and SIGINT in this thread and those it starts later, for [`wait_for_end`].
pub fn block_end_signals() {
    let set = end_signals();
    // SAFETY: `set` is initialised; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// Waits for SIGTERM or SIGINT, which [`block_end_signals`] has blocked.
pub fn wait_for_end() {
    let set = end_signals();
    let mut signal = 0;
    // SAFETY: both pointers are to live variables.
    while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
}

fn end_signals() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data which sigemptyset initialises.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        set
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn what_criu_knows_is_not_lost_to_the_other_descriptors() {
        let kernel = memfd_create("answers", MemfdFlags::CLOEXEC).expect("a memory file");
        // As many as there may be: its number is among theirs.
        let null = || OwnedFd::from(File::open("/dev/null").expect("opened"));
        let fds: Vec<OwnedFd> = (0..60).map(|_| null()).collect();
        assert!((3..63).contains(&kernel.as_raw_fd()), "{kernel:?}");
        let mut command = Command::new("sh");
        command.args(["-c", "readlink /proc/self/fd/99"]);
        let extra = Extra {
            kernel: Some(Arc::new(kernel)),
            ..Extra::fds(fds)
        };
        prepare(&mut command, extra);
        let said = command.output().expect("run").stdout;
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with("/memfd:answers"), "{said}");
    }

    #[test]
    fn a_new_process_gets_the_descriptors_meant_for_it_and_no_other() {
        let open = |number: &str| {
            let file = File::open("/dev/null").expect("opened");
            // As a library does that does not know of exec.
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect(number);
            file
        };
        let _leaked = [open("one"), open("two")];
        let given = OwnedFd::from(File::open("/dev/zero").expect("opened"));
        let kernel = memfd_create("answers", MemfdFlags::CLOEXEC).expect("a memory file");
        for (kernel, expected) in [(None, "0 1 2 3"), (Some(Arc::new(kernel)), "0 1 2 3 99")] {
            let mut command = Command::new("sh");
            command.args(["-c", "ls /proc/$$/fd; true"]);
            command.stdin(std::process::Stdio::null());
            let given = given.try_clone().expect("another");
            let extra = Extra {
                kernel,
                ..Extra::fds(vec![given])
            };
            prepare(&mut command, extra);
            let said = command.output().expect("run").stdout;
            let said = String::from_utf8_lossy(&said);
            let mut numbers: Vec<u32> = said.split_whitespace().flat_map(str::parse).collect();
            numbers.sort_unstable();
            let text: Vec<String> = numbers.iter().map(u32::to_string).collect();
            assert_eq!(text.join(" "), expected);
        }
    }

    #[test]
    fn a_new_process_gets_its_file_mode_mask() {
        let mut command = Command::new("sh");
        command.args(["-c", "umask"]);
        let extra = Extra {
            umask: Some(0o027),
            ..Extra::default()
        };
        prepare(&mut command, extra);
        let said = command.output().expect("run").stdout;
        assert_eq!(String::from_utf8_lossy(&said).trim(), "0027");
    }
}
