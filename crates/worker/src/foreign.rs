//! Checkpoints foreign programs through the driver's own interface: the worker's executable as a helper process that
//! serves no program and makes no context.
//!
//! It is a process of its own because a driver's call has no deadline, and because it must outlive the daemon: when the
//! daemon ends in the middle, the helper unlocks the programs that it has locked.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fermata_control::foreign::{
    DriverStand, DriverStep, FOREIGN_ARGUMENT, FromHelper, Refusal, ToHelper,
};
use fermata_control::worker::Device;
use fermata_control::{Connection, wait};
use fermata_device::{Driver, DriverError, ProcessStand, UuidPair};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::output;

/// The longest single wait for a request; the wait is then repeated.
const IDLE: Duration = Duration::from_secs(3600);
/// How long CRIU may hold a process after the daemon's end: until it has dumped everything.
const TRACED: Duration = Duration::from_secs(3600);
/// How often the helper checks whether CRIU still does.
const TURN: Duration = Duration::from_millis(50);

/// How long a process may take to end once its calls go on.
const ENDING: Duration = Duration::from_secs(10);
/// How long one that was killed may take until its memory is gone.
const DYING: Duration = Duration::from_millis(500);

/// The helper's end of the conversation.
type Link = Connection<ToHelper, FromHelper>;

/// Which libraries a helper loads.
pub struct Foreign {
    driver: PathBuf,
    nvml: Option<PathBuf>,
}

/// Whether this process is to be such a helper, by its arguments.
pub fn wanted() -> Option<Foreign> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == FOREIGN_ARGUMENT).then_some(())?;
    Some(Foreign {
        driver: arguments.next()?.into(),
        nvml: arguments.next().map(PathBuf::from),
    })
}

/// A driver, and the processes that are locked with it.
struct Helper<'f, D> {
    driver: D,
    nvml: Option<&'f Path>,
    held: Vec<u32>,
}

/// What a driver does with processes.
trait Calls: Sync {
    fn stand(&self, pid: u32) -> Result<ProcessStand, DriverError>;
    fn lock(&self, pid: u32, limit: Duration) -> Result<(), DriverError>;
    fn checkpoint(&self, pid: u32) -> Result<(), DriverError>;
    fn restore(&self, pid: u32, pairs: &[UuidPair]) -> Result<(), DriverError>;
    fn unlock(&self, pid: u32) -> Result<(), DriverError>;
}

impl Calls for Driver {
    fn stand(&self, pid: u32) -> Result<ProcessStand, DriverError> {
        self.process_stand(pid)
    }

    fn lock(&self, pid: u32, limit: Duration) -> Result<(), DriverError> {
        self.lock_process(pid, limit)
    }

    fn checkpoint(&self, pid: u32) -> Result<(), DriverError> {
        self.checkpoint_process(pid)
    }

    fn restore(&self, pid: u32, pairs: &[UuidPair]) -> Result<(), DriverError> {
        self.restore_process(pid, pairs)
    }

    fn unlock(&self, pid: u32) -> Result<(), DriverError> {
        self.unlock_process(pid)
    }
}

/// A process that a request names. Made before the driver is asked anything of it: then its end is its own, not that of a later
/// process of the number.
struct Life {
    pid: u32,
    end: Result<OwnedFd, Errno>,
}

impl Life {
    fn of(pid: u32) -> Self {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let open = |it| pidfd_open(it, PidfdFlags::empty());
        let end = number.ok_or(Errno::SRCH).and_then(open);
        Self { pid, end }
    }

    /// Those of all processes of a request.
    fn of_all(pids: &[u32]) -> Vec<Self> {
        pids.iter().copied().map(Self::of).collect()
    }

    /// Whether the process has ended, or does within `limit`. One whose memory is gone runs no more, and may take long to free
    /// it.
    fn is_over(&self, limit: Duration) -> bool {
        match &self.end {
            Ok(end) => wait::becomes_readable(end, limit) || !has_memory(self.pid),
            Err(error) => *error == Errno::SRCH,
        }
    }

    /// What the driver refuses of a process that has ended is done: nothing of it is left to be done.
    fn unless_over(&self, limit: Duration, done: Result<(), Refusal>) -> Result<(), Refusal> {
        done.or_else(|refusal| match self.is_over(limit) {
            true => Ok(()),
            false => Err(refusal),
        })
    }
}

impl Foreign {
    /// Answers the daemon's requests until it has gone, then releases the processes that are still locked.
    pub fn serve(&self, daemon: &Link) {
        let driver = match Driver::load(&self.driver) {
            Ok(driver) => driver,
            Err(error) => {
                let why = with_causes(&error);
                output::tell(&why);
                // An error means that the daemon has gone.
                let _ = daemon.recv(IDLE);
                let _ = daemon.send(&FromHelper::NoDriver(why), &[]);
                return;
            }
        };
        let mut helper = Helper {
            driver,
            nvml: self.nvml.as_deref(),
            held: Vec::new(),
        };
        loop {
            let answer = match daemon.recv(IDLE) {
                Ok((request, _)) => helper.answer(request),
                Err(error) if error.is_timeout() => continue,
                Err(_) => break,
            };
            if daemon.send(&answer, &[]).is_err() {
                break;
            }
        }
        helper.release();
    }
}

impl Helper<'_, Driver> {
    fn answer(&mut self, request: ToHelper) -> FromHelper {
        let done = match request {
            ToHelper::Describe => return self.describe(),
            ToHelper::Stands { pids } => return FromHelper::Stands(self.stands(&pids)),
            ToHelper::Lock { pids, limit_ms } => self.lock(&pids, Duration::from_millis(limit_ms)),
            ToHelper::Checkpoint { pids } => self.checkpoint(&pids),
            ToHelper::Restore { pids, pairs } => self.restore(&pids, &pairs),
            ToHelper::BringBack { pids } => self.bring_back(&pids),
            ToHelper::BringBackHeld => self.bring_back_held(),
            ToHelper::Forget => {
                self.held.clear();
                Ok(())
            }
        };
        match done {
            Ok(()) => FromHelper::Done,
            Err(refusal) => FromHelper::Refused(refusal),
        }
    }

    fn describe(&self) -> FromHelper {
        let facts = (0..self.driver.device_count()).map(|it| self.driver.device_facts(it));
        let device = |facts: fermata_device::DeviceFacts| Device {
            name: facts.name.clone(),
            uuid: facts.uuid_text(),
            memory: facts.memory,
            compute_capability: facts.compute_capability(),
        };
        FromHelper::Described {
            version: self.driver.version(),
            able: self.driver.has_process_checkpoint(),
            // A device that cannot be asked cannot be recorded either.
            devices: facts.flatten().map(device).collect(),
        }
    }

    fn stands(&self, pids: &[u32]) -> Vec<DriverStand> {
        let bytes = self.nvml.map(fermata_nvml::memory_by_process);
        let bytes = bytes.and_then(Result::ok).unwrap_or_default();
        let stand = |pid: &u32| match self.driver.stand(*pid) {
            Err(error) => DriverStand::Unknown(error.name.into_owned()),
            Ok(ProcessStand::Running) => DriverStand::Running {
                device_bytes: bytes.get(pid).copied(),
            },
            Ok(ProcessStand::Locked) => DriverStand::Locked,
            Ok(ProcessStand::Checkpointed) => DriverStand::Checkpointed,
            Ok(ProcessStand::Failed) => DriverStand::Failed,
        };
        pids.iter().map(stand).collect()
    }
}

impl<D: Calls> Helper<'_, D> {
    fn lock(&mut self, pids: &[u32], limit: Duration) -> Result<(), Refusal> {
        for life in Life::of_all(pids) {
            let pid = life.pid;
            // Recorded before the answer: if the daemon ends now, `release` still finds the process.
            self.held.push(pid);
            let done = self.driver.lock(pid, limit);
            let done = done.map_err(|error| refusal(pid, DriverStep::Lock, &error));
            if let Err(refusal) = life.unless_over(DYING, done) {
                self.held.pop();
                // The first reason is of more use than a failure of the way back.
                let _ = self.bring_back_held();
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn checkpoint(&self, pids: &[u32]) -> Result<(), Refusal> {
        let one = |life: &Life| {
            let done = self.driver.checkpoint(life.pid);
            let done = done.map_err(|error| refusal(life.pid, DriverStep::Checkpoint, &error));
            life.unless_over(DYING, done)
        };
        at_once(&Life::of_all(pids), one)
    }

    /// Moves the device memory of checkpointed processes back to GPUs.
    fn restore(&self, pids: &[u32], pairs: &[(String, String)]) -> Result<(), Refusal> {
        let parsed = |(old, new): &(String, String)| Some((parse_uuid(old)?, parse_uuid(new)?));
        let pairs: Vec<UuidPair> = pairs.iter().filter_map(parsed).collect();
        at_once(&Life::of_all(pids), |life| self.restore_one(life, &pairs))
    }

    fn restore_one(&self, life: &Life, pairs: &[UuidPair]) -> Result<(), Refusal> {
        let done = self.driver.restore(life.pid, pairs);
        let done = done.map_err(|error| refusal(life.pid, DriverStep::Restore, &error));
        life.unless_over(DYING, done)
    }

    /// Restores what is checkpointed, and unlocks it.
    fn bring_back(&mut self, pids: &[u32]) -> Result<(), Refusal> {
        let one = |life: &Life| {
            let pid = life.pid;
            let stand = self.driver.stand(pid);
            if stand == Ok(ProcessStand::Checkpointed) {
                self.restore_one(life, &[])?;
            }
            let refused = match stand {
                Ok(ProcessStand::Running) => return Ok(()),
                Ok(ProcessStand::Locked | ProcessStand::Checkpointed) => {
                    return self.unlock_one(life);
                }
                Ok(ProcessStand::Failed) => Refusal {
                    pid,
                    step: DriverStep::Restore,
                    code: 0,
                    name: "the driver says that it has failed".into(),
                },
                Err(error) => refusal(pid, DriverStep::Restore, &error),
            };
            life.unless_over(DYING, Err(refused))
        };
        let done = at_once(&Life::of_all(pids), one);
        self.held.retain(|it| !pids.contains(it));
        done
    }

    /// The same for the processes that this helper has locked. Those that it was refused are held by another one.
    fn bring_back_held(&mut self) -> Result<(), Refusal> {
        self.bring_back(&self.held.clone())
    }

    /// Lets calls of a process go on. One that does its last ones may have ended before the driver has the answer: the
    /// driver calls that an error, but the process has run.
    fn unlock_one(&self, life: &Life) -> Result<(), Refusal> {
        let done = self.driver.unlock(life.pid);
        let done = done.map_err(|error| refusal(life.pid, DriverStep::Unlock, &error));
        life.unless_over(ENDING, done)
    }

    /// The daemon has gone: releases the processes that are still locked, once CRIU has let go of them.
    fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let free = || !self.held.iter().any(|pid| is_traced(*pid));
        let begun = Instant::now();
        // Polled: the kernel tells only the tracer of its end.
        wait::until(TRACED, TURN, || free().then_some(()));
        let held = self.held.clone();
        let back = self.bring_back_held();
        let waited = begun.elapsed().as_secs_f64();
        output::tell(&match back {
            Ok(()) => format!("processes {held:?} go on, {waited:.1} s after the daemon's end"),
            Err(it) => format!(
                "process {} cannot go on: {:?}: {}",
                it.pid, it.step, it.name
            ),
        });
    }
}

/// Does `one` for all of them, each in a thread; the first refusal.
fn at_once(
    lives: &[Life],
    one: impl Fn(&Life) -> Result<(), Refusal> + Sync,
) -> Result<(), Refusal> {
    let done: Vec<_> = std::thread::scope(|scope| {
        let begin = |life| {
            let one = &one;
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || one(life));
            (life, thread)
        };
        let threads: Vec<_> = lives.iter().map(begin).collect();
        let end =
            |(life, thread): (&Life, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| {
                // If no thread can be started, the work is done here. A thread that panicked has logged it.
                thread.map_or_else(|_| one(life), |it| it.join().unwrap_or(Ok(())))
            };
        threads.into_iter().map(end).collect()
    });
    done.into_iter().collect()
}

fn refusal(pid: u32, step: DriverStep, error: &DriverError) -> Refusal {
    Refusal {
        pid,
        step,
        code: error.code,
        name: error.name.to_string(),
    }
}

/// Whether any thread of a process is traced.
fn is_traced(pid: u32) -> bool {
    any_thread(pid, "TracerPid:", |tracer| tracer != "0")
}

/// Whether any thread of a process has memory: those of one that was killed give it up before they end.
fn has_memory(pid: u32) -> bool {
    any_thread(pid, "VmSize:", |_| true)
}

/// Whether the status of any thread of a process has a line that begins with `key`, and of which the rest `is` so.
fn any_thread(pid: u32, key: &str, is: impl Fn(&str) -> bool) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let has_line = |thread: std::fs::DirEntry| {
        let status = std::fs::read(thread.path().join("status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status).into_owned();
        let line = status.lines().find_map(|it| it.strip_prefix(key));
        line.is_some_and(|it| is(it.trim()))
    };
    threads.flatten().any(has_line)
}

/// The bytes of a UUID as [`fermata_device::DeviceFacts::uuid_text`] writes it.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.strip_prefix("GPU-")?.split('-').collect();
    let mut bytes = [0; 16];
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |it| it.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::process::Command;
    use std::sync::Mutex;

    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    fn refused() -> Result<(), Refusal> {
        Err(Refusal {
            pid: 1,
            step: DriverStep::Checkpoint,
            code: 1,
            name: "refused".into(),
        })
    }

    #[test]
    fn what_is_refused_of_a_process_that_has_ended_is_done() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("started");
        let life = Life::of(child.id());
        assert!(has_memory(child.id()) && !has_memory(u32::MAX));
        assert!(life.unless_over(Duration::ZERO, refused()).is_err());
        assert!(life.unless_over(Duration::ZERO, Ok(())).is_ok());
        child.kill().expect("killed");
        assert!(life.unless_over(LONG, refused()).is_ok());
        // It is not reaped yet, then it is.
        assert!(Life::of(child.id()).is_over(Duration::ZERO));
        child.wait().expect("reaped");
        assert!(life.is_over(Duration::ZERO));
        assert!(Life::of(u32::MAX).is_over(Duration::ZERO));
    }

    /// A driver that several helpers call.
    struct Played(Mutex<HashMap<u32, ProcessStand>>);

    impl Played {
        /// Brings a process from one of these stands to another.
        fn step(
            &self,
            pid: u32,
            from: &[ProcessStand],
            to: ProcessStand,
        ) -> Result<(), DriverError> {
            let mut stands = self.0.lock().expect("whole");
            let stand = stands.get_mut(&pid).filter(|it| from.contains(it));
            *stand.ok_or_else(illegal_state)? = to;
            Ok(())
        }
    }

    impl Calls for &Played {
        fn stand(&self, pid: u32) -> Result<ProcessStand, DriverError> {
            let stands = self.0.lock().expect("whole");
            stands.get(&pid).copied().ok_or_else(illegal_state)
        }

        fn lock(&self, pid: u32, _: Duration) -> Result<(), DriverError> {
            self.step(pid, &[ProcessStand::Running], ProcessStand::Locked)
        }

        fn checkpoint(&self, pid: u32) -> Result<(), DriverError> {
            self.step(pid, &[ProcessStand::Locked], ProcessStand::Checkpointed)
        }

        fn restore(&self, pid: u32, _: &[UuidPair]) -> Result<(), DriverError> {
            self.step(pid, &[ProcessStand::Checkpointed], ProcessStand::Locked)
        }

        fn unlock(&self, pid: u32) -> Result<(), DriverError> {
            self.step(pid, &[ProcessStand::Locked], ProcessStand::Running)
        }
    }

    fn illegal_state() -> DriverError {
        DriverError {
            call: "played",
            code: 401,
            name: "CUDA_ERROR_ILLEGAL_STATE".into(),
        }
    }

    #[test]
    fn what_another_helper_has_locked_stays_so() {
        let sleeper = || Command::new("sleep").arg("1000").spawn().expect("started");
        let mut children = [sleeper(), sleeper()];
        let [a, b] = [children[0].id(), children[1].id()];
        let running = [(a, ProcessStand::Running), (b, ProcessStand::Running)];
        let driver = Played(Mutex::new(HashMap::from(running)));
        let helper = || Helper {
            driver: &driver,
            nvml: None,
            held: Vec::new(),
        };
        let (mut first, mut second) = (helper(), helper());
        let stands = || [a, b].map(|it| (&driver).stand(it).ok());
        let [running, saved] = [ProcessStand::Running, ProcessStand::Checkpointed].map(Some);
        first.lock(&[b], Duration::ZERO).expect("locked");
        first.checkpoint(&[b]).expect("saved");
        let refused = second.lock(&[a, b], Duration::ZERO);
        assert_eq!(refused.map_err(|it| it.pid), Err(b));
        assert_eq!(stands(), [running, saved], "all are locked, or none");
        second.bring_back_held().expect("it holds none");
        assert_eq!(stands(), [running, saved]);
        first.bring_back_held().expect("it runs again");
        assert_eq!(stands(), [running, running]);
        for child in &mut children {
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    #[test]
    fn a_uuid_is_read_as_it_is_written() {
        let text = "GPU-6665726d-6174-612d-736f-667467707500";
        assert_eq!(parse_uuid(text), Some(*b"fermata-softgpu\0"));
        for wrong in [
            "",
            "GPU-12",
            "MIG-6665726d-6174-612d-736f-667467707500",
            "GPU-\u{e9}",
        ] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }
}
