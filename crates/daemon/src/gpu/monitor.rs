//! The monitor: a process that tells what the machine's GPUs are and how they are, with NVIDIA's management library or,
//! where there is none, the CUDA driver. It makes no context, belongs to no session, and answers one question at a time.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::worker::{FailureKind, MONITOR_ARGUMENT, MONITOR_SOFT};
use fermata_nvml::ask::{MOST_BYTES, Outcome, Question, decode, encode};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};
use rustix::process::Signal;

use crate::failure::{OrFail, Result, fail};
use crate::gpu::driver::Driver;
use crate::proc::ProcessId;
use crate::sys::{self, Extra};
use crate::worker::{self, Variables};

/// How long an answer may take: a driver that no process uses takes seconds to start.
const ANSWER_TIME: Duration = Duration::from_secs(50);
/// How many monitors there are at most, of different drivers and variables.
const MOST: usize = 4;

/// All monitors of a daemon.
pub struct Monitors {
    home: PathBuf,
    log: PathBuf,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    monitors: Vec<Arc<Monitor>>,
    closed: bool,
}

struct Monitor {
    driver: Driver,
    variables: Variables,
    id: Option<ProcessId>,
    process: Mutex<Process>,
}

struct Process {
    child: Child,
    socket: OwnedFd,
    failed: bool,
}

impl Monitors {
    /// None yet; those of the installation at `home` will write to `log`.
    pub fn new(home: &Path, log: PathBuf) -> Self {
        Self {
            home: home.into(),
            log,
            running: Mutex::default(),
        }
    }

    /// What the monitor of `driver` answers, in a session with these variables.
    ///
    /// # Errors
    /// It does not start, or does not answer; the next question starts another.
    pub fn ask(
        &self,
        driver: &Driver,
        variables: &Variables,
        question: &Question,
    ) -> Result<Outcome> {
        let monitor = self.of(driver, variables)?;
        let answer = monitor.process.lock().ask(question);
        answer.or_fail(FailureKind::Internal, || {
            self.running
                .lock()
                .monitors
                .retain(|it| !Arc::ptr_eq(it, &monitor));
            format!("the monitor of `{}` does not answer", driver.path.display())
        })
    }

    /// Ends them all, for good.
    pub fn close(&self) {
        let mut running = self.running.lock();
        running.closed = true;
        for monitor in running.monitors.drain(..) {
            // One that stands still in the driver has its asker wait, and would live on.
            if let Some(id) = monitor.id {
                id.signal(Signal::KILL);
            }
        }
    }

    fn of(&self, driver: &Driver, variables: &Variables) -> Result<Arc<Monitor>> {
        let variables = describing(driver, variables);
        let mut running = self.running.lock();
        if running.closed {
            return Err(fail(FailureKind::Internal, "the daemon ends"));
        }
        let fits = |it: &Arc<Monitor>| it.driver == *driver && it.variables == variables;
        if let Some(monitor) = running.monitors.iter().find(|it| fits(it)) {
            return Ok(monitor.clone());
        }
        let process = self.start(driver, &variables);
        let process = process.or_fail(FailureKind::Host, || {
            format!("cannot start a monitor of `{}`", driver.path.display())
        })?;
        let monitor = Arc::new(Monitor {
            driver: driver.clone(),
            variables,
            id: ProcessId::of(process.child.id()),
            process: Mutex::new(process),
        });
        if running.monitors.len() == MOST {
            running.monitors.remove(0);
        }
        running.monitors.push(monitor.clone());
        Ok(monitor)
    }

    fn start(&self, driver: &Driver, variables: &Variables) -> io::Result<Process> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.log)?;
        let mut command = Command::new(worker::program(&self.home));
        let kind = if driver.soft { MONITOR_SOFT } else { "gpu" };
        command.args([MONITOR_ARGUMENT, kind]).arg(&driver.path);
        command.args(driver.nvml(&self.home));
        command
            .current_dir("/")
            .env_remove("LD_PRELOAD")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let extra = Extra {
            setsid: true,
            ..Extra::fds(vec![theirs])
        };
        sys::prepare(&mut command, extra);
        Ok(Process {
            child: command.spawn()?,
            socket: ours,
            failed: false,
        })
    }
}

/// The variables of a monitor: those that say which devices softgpu has. What a program may see of a machine
/// (`CUDA_VISIBLE_DEVICES`) NVML does not ask, and numbers devices by their places on the bus.
fn describing(driver: &Driver, variables: &Variables) -> Variables {
    let order = ("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".into());
    if !driver.soft {
        return [order].into();
    }
    let mut kept = variables.clone();
    kept.retain(|name, _| name.starts_with("FERMATA_SOFTGPU_"));
    kept
}

impl Process {
    fn ask(&mut self, question: &Question) -> io::Result<Outcome> {
        let answer = match self.failed {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => self.exchange(question),
        };
        // One that answers late would answer the next question with it.
        self.failed |= answer.is_err();
        answer
    }

    fn exchange(&self, question: &Question) -> io::Result<Outcome> {
        send(&self.socket, &encode(question), SendFlags::NOSIGNAL)?;
        let until = Instant::now() + ANSWER_TIME;
        let mut room = vec![0; MOST_BYTES];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let limit = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(
                &mut [PollFd::new(&self.socket, PollFlags::IN)],
                Some(&limit),
            ) {
                Ok(0) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {
                    let (bytes, _) = recv(&self.socket, &mut room[..], RecvFlags::empty())?;
                    let answer = room.get(..bytes).and_then(decode);
                    return answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_sees_every_device_of_the_machine() {
        let set = |names: &[&str]| -> Variables {
            let one = |name: &&str| ((*name).to_owned(), "1".into());
            names.iter().map(one).collect()
        };
        let variables = set(&["CUDA_VISIBLE_DEVICES", "FERMATA_SOFTGPU_DEVICES"]);
        let driver = |soft| Driver {
            path: "/x/libcuda.so.1".into(),
            soft,
        };
        let soft = describing(&driver(true), &variables);
        assert_eq!(soft, set(&["FERMATA_SOFTGPU_DEVICES"]));
        let real = describing(&driver(false), &variables);
        assert!(real.keys().eq(["CUDA_DEVICE_ORDER"]), "{real:?}");
    }
}
