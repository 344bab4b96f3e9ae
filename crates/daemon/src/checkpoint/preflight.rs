//! Finds obstacles to a checkpoint before the program is stopped.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use fermata_control::worker::FailureKind;
use fermata_hostmem::Maps;

use crate::failure::{Hint, Result, fail};
use crate::looks::settled;
use crate::open_files::gpu_files::{GPU, mapped_device, opened_by};
use crate::open_files::tcp::live;
use crate::open_files::unix_sockets;
use crate::proc::{self, ProcessId};
use crate::session::Processes;

/// The names of mappings of System V memory begin with this.
const SYSTEM_V: &[u8] = b"/SYSV";

/// Something in a process that cannot be checkpointed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The process.
    pub pid: u32,
    /// The object, with its descriptor, or the process that holds this one.
    pub what: String,
    /// What the user can do.
    pub hint: String,
    /// Whether it is a connection, which `--tcp-close` leaves out.
    pub connection: bool,
    /// Whether it is a GPU device, which the driver's own checkpoint closes.
    pub gpu: bool,
}

impl Obstacle {
    /// What `fermata doctor NAME` calls it.
    pub fn subject(&self) -> &'static str {
        match self.connection {
            true => "connections",
            false => "program",
        }
    }
}

/// The obstacles that count in the tree below `root`, the first of the processes of a session.
pub fn obstacles(
    root: u32,
    processes: impl FnMut() -> Processes,
    counts: impl Fn(&Obstacle) -> bool,
) -> Vec<Obstacle> {
    found_in(|| proc::tree(root), processes, counts)
}

/// The obstacles that count in the tree of a program that runs. Each look reads the tree anew: in an older one, what a process
/// has left to a child that it has started since is held by a process outside.
fn found_in(
    mut tree: impl FnMut() -> Vec<u32>,
    mut processes: impl FnMut() -> Processes,
    counts: impl Fn(&Obstacle) -> bool,
) -> Vec<Obstacle> {
    settled(|| {
        let mut found = look(&tree(), &processes());
        found.retain(&counts);
        found
    })
}

/// All obstacles in a tree of processes, of which these are a session's, at one look.
pub fn look(tree: &[u32], processes: &Processes) -> Vec<Obstacle> {
    let mut found: Vec<Obstacle> = processes
        .agents
        .iter()
        .copied()
        .filter_map(stopped)
        .collect();
    found.extend(tree.iter().copied().filter_map(traced));
    found.extend(tree.iter().copied().filter_map(headless));
    found.extend(tree.iter().copied().flat_map(of_process));
    found.extend(live::unsaved(tree).into_iter().map(|it| Obstacle {
        pid: it.holder.pid,
        what: holds(it.holder.pid, it.holder.descriptor, &it.what),
        hint: it.hint.to_owned(),
        connection: true,
        gpu: false,
    }));
    // Connections to these are the client library's, which closes them before the dump.
    let ours: Vec<u32> = processes
        .workers
        .iter()
        .copied()
        .chain([std::process::id()])
        .collect();
    found.extend(
        unix_sockets::unsaved(tree, &ours)
            .into_iter()
            .map(|it| Obstacle {
                pid: it.holder.pid,
                what: holds(it.holder.pid, it.holder.descriptor, &it.what),
                hint: it.hint.to_owned(),
                connection: false,
                gpu: false,
            }),
    );
    found
}

/// A process that a signal has stopped: its threads cannot reach a point where they can be parked.
fn stopped(pid: u32) -> Option<Obstacle> {
    let process = ProcessId::of(pid).filter(ProcessId::is_stopped)?;
    Some(Obstacle {
        pid,
        what: format!("process {} is stopped by a signal", shown(process.pid)),
        hint: "let it go on, `kill -CONT` and its number, and stop it again after the checkpoint"
            .to_owned(),
        connection: false,
        gpu: false,
    })
}

/// A process that a debugger traces: CRIU has to trace it itself.
fn traced(pid: u32) -> Option<Obstacle> {
    let tracer = proc::tracer(pid)?;
    if proc::ancestors(tracer).contains(&std::process::id()) {
        // This is the daemon's own CRIU: another checkpoint is under way.
        return None;
    }
    let what = format!(
        "process {} is traced by process {}",
        shown(pid),
        shown(tracer)
    );
    Some(Obstacle {
        pid,
        what,
        hint: "detach the debugger".to_owned(),
        connection: false,
        gpu: false,
    })
}

/// A process whose first thread has ended while others run, which CRIU cannot dump.
fn headless(pid: u32) -> Option<Obstacle> {
    ProcessId::of(pid).filter(ProcessId::is_headless)?;
    Some(Obstacle {
        pid,
        what: format!(
            "the first thread of process {} has ended, and others run",
            shown(pid)
        ),
        hint: "have the program's first thread wait for the others (`pthread_join`) instead of ending before them"
            .to_owned(),
        connection: false,
        gpu: false,
    })
}

/// System V memory in the machine's IPC namespace: CRIU dumps it only for a program with an IPC namespace of its own.
fn of_machine(pid: u32, maps: &Maps) -> Option<Obstacle> {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/ipc")).ok();
    let of_system_v = |file: &OsStr| file.as_bytes().starts_with(SYSTEM_V);
    let shared = maps.files().any(of_system_v);
    (shared && namespace("self") == namespace(&pid.to_string())).then(|| Obstacle {
        pid,
        what: format!(
            "process {} has System V memory (`shmget`) of the machine",
            shown(pid)
        ),
        hint: "start the program by `fermata run` without `FERMATA_SYSTEM_V=allow`: then it has its own"
            .to_owned(),
        connection: false,
        gpu: false,
    })
}

fn of_process(pid: u32) -> Vec<Obstacle> {
    // It may have ended.
    let maps = Maps::of(pid).unwrap_or_default();
    let descriptors = proc::descriptors(pid).into_iter();
    let mut found: Vec<Obstacle> = descriptors
        .filter_map(|(number, target)| {
            let (reason, hint) = refused(&target)?;
            let gpu = target.to_str().is_some_and(|it| it.starts_with(GPU));
            let (by, hint) = match gpu {
                true => opened_by(&maps),
                false => (String::new(), hint.to_owned()),
            };
            Some(Obstacle {
                pid,
                what: holds(pid, number, &reason) + &by,
                hint,
                connection: false,
                gpu,
            })
        })
        .collect();
    found.extend(of_machine(pid, &maps));
    if found.is_empty()
        && let Some(device) = mapped_device(&maps)
    {
        let (by, hint) = opened_by(&maps);
        found.push(Obstacle {
            pid,
            what: format!(
                "process {} has mapped the GPU device `{device}`{by}",
                shown(pid)
            ),
            hint,
            connection: false,
            gpu: true,
        });
    }
    found
}

fn holds(pid: u32, descriptor: u32, what: &str) -> String {
    format!(
        "process {} holds, as descriptor {descriptor}, {what}",
        shown(pid)
    )
}

/// Number and name of a process.
fn shown(pid: u32) -> String {
    format!("{pid} ({})", proc::name_of(pid))
}

/// Why CRIU does not dump a descriptor with this target.
fn refused(target: &Path) -> Option<(String, &'static str)> {
    let text = target.to_str()?;
    if text == "anon_inode:[io_uring]" {
        return Some((
            "an io_uring".into(),
            "CRIU cannot dump io_uring: start the program without `FERMATA_IO_URING=allow`, or switch it off in the program",
        ));
    }
    if text.starts_with(GPU) {
        // What can be done depends on the process: see `opened_by`.
        return Some((format!("the GPU device `{text}`"), ""));
    }
    const HARMLESS: [&str; 9] = [
        "null", "zero", "full", "random", "urandom", "tty", "ptmx", "shm", "pts",
    ];
    let device = text.strip_prefix("/dev/")?;
    let first = device.split('/').next().unwrap_or(device);
    (!HARMLESS.contains(&first)).then(|| {
        (
            format!("the device `{text}`"),
            "close it before the checkpoint",
        )
    })
}

/// Refuses a tree of processes with obstacles. With `tcp_close`, connections are no obstacles.
///
/// # Errors
/// `NotCheckpointable`, naming the first.
pub fn check_tree(root: u32, processes: impl FnMut() -> Processes, tcp_close: bool) -> Result<()> {
    let counts = |it: &Obstacle| !(it.connection && tcp_close);
    refuse(
        obstacles(root, processes, counts),
        "`fermata doctor NAME` lists them",
    )
}

/// Refuses if there are obstacles; `others` tells the user where to find those after the first.
///
/// # Errors
/// `NotCheckpointable`, naming the first.
pub fn refuse(obstacles: Vec<Obstacle>, others: &str) -> Result<()> {
    let more = obstacles.len().saturating_sub(1);
    let Some(first) = obstacles.into_iter().next() else {
        return Ok(());
    };
    let mut message = format!("the program cannot be checkpointed: {}", first.what);
    if more > 0 {
        message += &format!(" (and {more} more: {others})");
    }
    Err(fail(FailureKind::NotCheckpointable, message).hint(first.hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_criu_refuses_is_named() {
        let refused = |text: &str| refused(Path::new(text)).map(|(what, _)| what);
        assert_eq!(
            refused("anon_inode:[io_uring]").as_deref(),
            Some("an io_uring")
        );
        assert_eq!(
            refused("/dev/nvidia0").as_deref(),
            Some("the GPU device `/dev/nvidia0`")
        );
        assert_eq!(
            refused("/dev/fuse").as_deref(),
            Some("the device `/dev/fuse`")
        );
        for fine in [
            "/dev/null",
            "/dev/pts/3",
            "/dev/shm/x",
            "/tmp/f",
            "socket:[1]",
            "pipe:[2]",
        ] {
            assert_eq!(refused(fine), None, "{fine}");
        }
    }

    #[test]
    fn a_stopped_process_and_a_connection_to_elsewhere_are_found() {
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::AsRawFd as _;
        use std::time::{Duration, Instant};

        // The other end is ours, not that of the program.
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let at = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(at).expect("connected");
        let _other = listener.accept().expect("accepted");
        let input = stream.try_clone().expect("cloned");
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .stdin(std::os::fd::OwnedFd::from(input))
            .spawn()
            .expect("sleep starts");
        let pid = child.id();
        let uses = Processes {
            agents: vec![pid],
            ..Processes::default()
        };
        assert!(stream.as_raw_fd() > 2);
        let until = Instant::now() + Duration::from_secs(120);
        // Before it executes the other program it is this one, with all its descriptors.
        while proc::name_of(pid) != "sleep" {
            assert!(Instant::now() < until, "it does not start");
        }
        let refused = check_tree(pid, Processes::default, false).expect_err("a connection");
        for word in [
            "sleep",
            "descriptor 0",
            &at.to_string(),
            "outside the session",
        ] {
            assert!(refused.message.contains(word), "{}", refused.message);
        }
        assert!(refused.hint.contains("--tcp-close"));
        check_tree(pid, || uses.clone(), true).expect("it may be closed");
        let process = ProcessId::of(pid).expect("it runs");
        process.signal(rustix::process::Signal::STOP);
        while !process.is_stopped() {
            assert!(Instant::now() < until, "it is not stopped");
        }
        let refused = check_tree(pid, || uses.clone(), true).expect_err("stopped");
        assert!(refused.hint.contains("kill -CONT"), "{}", refused.hint);
        // One that does not use CUDA is left to CRIU.
        check_tree(pid, Processes::default, true).expect("CRIU can dump it");
        process.signal(rustix::process::Signal::KILL);
        child.wait().expect("waited");
    }

    #[test]
    fn a_process_whose_first_thread_alone_has_ended_is_found() {
        let (mut child, _) = proc::scene::headless();
        let refused = check_tree(child.id(), Processes::default, true).expect_err("CRIU cannot");
        let whose = format!("the first thread of process {}", child.id());
        assert!(refused.message.contains(&whose), "{}", refused.message);
        child.kill().expect("killed");
        // What is ending is no obstacle, whether it has been waited for or not.
        let process = ProcessId::of(child.id()).expect("its parent has not waited");
        assert!(process.ends_within(std::time::Duration::from_secs(120)));
        check_tree(child.id(), Processes::default, true).expect("it has ended");
        child.wait().expect("waited");
    }

    #[test]
    fn what_a_process_has_left_to_a_child_that_it_starts_is_no_obstacle() {
        use std::os::fd::OwnedFd;
        use std::os::unix::net::UnixStream;
        use std::process::Command;

        let (one, other) = UnixStream::pair().expect("a pair");
        let held_by = |end: UnixStream| {
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(OwnedFd::from(end));
            command.spawn().expect("sleep starts")
        };
        let (mut parent, mut child) = (held_by(one), held_by(other));
        let mut looks = 0;
        let trees = || {
            looks += 1;
            match looks {
                // The child is started after this look at the tree.
                1 => vec![parent.id()],
                _ => vec![parent.id(), child.id()],
            }
        };
        // Before a child executes its program it has all descriptors of the test.
        let is_input = |it: &Obstacle| it.what.contains("descriptor 0,");
        assert_eq!(found_in(trees, Processes::default, is_input), []);
        assert!(looks > 1);
        let parent_only = || vec![parent.id()];
        let found = found_in(parent_only, Processes::default, is_input);
        assert_eq!(found.len(), 1, "{found:?}");
        for it in [&mut parent, &mut child] {
            it.kill().expect("killed");
            it.wait().expect("waited");
        }
    }
}
