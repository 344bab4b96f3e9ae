//! The process that calls the driver for foreign programs, and the conversation with it.
//!
//! It answers each request, in their order. A call of the driver that takes too long is still made to its end, and its answer
//! comes late: it is then passed over when the next request is answered. After any other failure of the conversation the
//! link is shut down, so that every later request fails, and the helper brings back what it has locked.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fermata_control::foreign::{DriverStand, FOREIGN_ARGUMENT, FromHelper, Refusal, ToHelper};
use fermata_control::worker::{Device, FailureKind};
use fermata_control::{Connection, ControlError};

use super::words::{self, LOCK_TIME};
use crate::daemon::Daemon;
use crate::failure::{Failure, Hint as _, OrFail as _, Result, fail};
use crate::gpu::driver::Driver;
use crate::sys::{self, Extra};
use crate::worker::{self, Variables};

/// How long a driver may take to start, and to say how processes stand.
const ASK_TIME: Duration = Duration::from_secs(60);
/// What an answer may take beyond what the driver was given.
const MARGIN: Duration = Duration::from_secs(30);
/// How long the driver may take to move device memory, and bytes that it moves in a second at least.
const MOVE_TIME: Duration = Duration::from_secs(300);
const LEAST_RATE: u64 = 256 << 20;

/// A helper. When it is dropped it brings back what it has locked and not been told to forget, and ends.
pub(super) struct Helper {
    link: Connection<FromHelper, ToHelper>,
    /// Requests that it has not answered yet.
    unanswered: AtomicU32,
    child: Option<Child>,
    /// The driver that it calls.
    pub driver: Driver,
}

/// A driver and its GPUs.
pub(super) struct Described {
    /// `cuDriverGetVersion`.
    pub version: i32,
    /// All GPUs.
    pub devices: Vec<Device>,
}

impl Helper {
    /// Starts one that calls `driver`, with these variables.
    ///
    /// # Errors
    /// `Host` when it does not start.
    pub fn start(daemon: &Daemon, driver: &Driver, variables: &Variables) -> Result<Self> {
        let program = worker::program(&daemon.paths.home);
        let what = || format!("cannot start `{}`", program.display());
        let (ours, theirs) = UnixStream::pair().or_fail(FailureKind::Internal, what)?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(daemon.workers_log())
            .or_fail(FailureKind::Host, what)?;
        let mut command = Command::new(&program);
        command
            .arg(FOREIGN_ARGUMENT)
            .arg(&driver.path)
            .args(driver.nvml(&daemon.paths.home))
            .current_dir("/")
            .env_remove("LD_PRELOAD")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone().or_fail(FailureKind::Host, what)?)
            .stderr(log);
        let extra = Extra {
            setsid: true,
            ..Extra::fds(vec![theirs.into()])
        };
        sys::prepare(&mut command, extra);
        let child = command.spawn().or_fail(FailureKind::Host, what)?;
        Ok(Self {
            link: Connection::new(ours.into(), "the helper for foreign programs"),
            unanswered: AtomicU32::new(0),
            child: Some(child),
            driver: driver.clone(),
        })
    }

    /// The driver.
    ///
    /// # Errors
    /// It cannot be loaded, or has no such interface.
    pub fn describe(&self) -> Result<Described> {
        match self.ask(&ToHelper::Describe, ASK_TIME)? {
            FromHelper::Described {
                version,
                able: true,
                devices,
            } => Ok(Described { version, devices }),
            FromHelper::Described { version, .. } => {
                let message = format!(
                    "the NVIDIA driver cannot checkpoint processes: it is of CUDA {}.{}",
                    version / 1000,
                    version % 1000 / 10
                );
                Err(fail(FailureKind::Host, message)
                    .hint("drivers 570 and newer can; programs started with `fermata run` need no such interface"))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// How processes stand.
    ///
    /// # Errors
    /// It does not answer.
    pub fn stands(&self, pids: &[u32]) -> Result<Vec<DriverStand>> {
        let pids = pids.to_vec();
        let count = pids.len();
        match self.ask(&ToHelper::Stands { pids }, ASK_TIME)? {
            FromHelper::Stands(stands) if stands.len() == count => Ok(stands),
            other => Err(unexpected(&other)),
        }
    }

    /// Locks processes: all, or none.
    ///
    /// # Errors
    /// In words of users.
    pub fn lock(&self, pids: &[u32]) -> Result<()> {
        let request = ToHelper::Lock {
            pids: pids.to_vec(),
            limit_ms: LOCK_TIME.as_millis() as u64,
        };
        let each = u32::try_from(pids.len()).unwrap_or(u32::MAX);
        self.done(&request, LOCK_TIME.saturating_mul(each) + MARGIN)
    }

    /// Moves `bytes` of device memory of locked processes into their host memory.
    ///
    /// # Errors
    /// In words of users; [`Helper::bring_back_held`] is needed then.
    pub fn checkpoint(&self, pids: &[u32], bytes: u64) -> Result<()> {
        let pids = pids.to_vec();
        self.done(&ToHelper::Checkpoint { pids }, time_of(bytes))
    }

    /// Moves `bytes` of device memory of checkpointed processes from their host memory to the GPUs that `pairs` name. Their
    /// calls wait still.
    ///
    /// # Errors
    /// In words of users: one of them is not on its GPU.
    pub fn restore(&self, pids: &[u32], pairs: &[(String, String)], bytes: u64) -> Result<()> {
        let request = ToHelper::Restore {
            pids: pids.to_vec(),
            pairs: pairs.to_vec(),
        };
        self.done(&request, time_of(bytes))
    }

    /// Brings processes to where they run, whatever they are; `bytes` is what they may have in host memory.
    ///
    /// # Errors
    /// In words of users: one of them stands still.
    pub fn bring_back(&self, pids: &[u32], bytes: u64) -> Result<()> {
        let pids = pids.to_vec();
        self.done(&ToHelper::BringBack { pids }, time_of(bytes))
    }

    /// Brings to where they run those processes that this helper has locked itself, and none that another one holds; `bytes` is
    /// what they may have in host memory.
    ///
    /// # Errors
    /// In words of users: one of them stands still.
    pub fn bring_back_held(&self, bytes: u64) -> Result<()> {
        self.done(&ToHelper::BringBackHeld, time_of(bytes))
    }

    /// What is locked stays so when the daemon ends.
    ///
    /// # Errors
    /// It does not answer.
    pub fn forget(&self) -> Result<()> {
        self.done(&ToHelper::Forget, ASK_TIME)
    }

    fn done(&self, request: &ToHelper, limit: Duration) -> Result<()> {
        match self.ask(request, limit)? {
            FromHelper::Done => Ok(()),
            FromHelper::Refused(refusal) => Err(explained(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&self, request: &ToHelper, limit: Duration) -> Result<FromHelper> {
        match self.converse(request, limit) {
            Ok(FromHelper::NoDriver(why)) => Err(fail(FailureKind::Host, why)),
            Ok(answer) => Ok(answer),
            Err(error) if error.is_timeout() => {
                let message = format!(
                    "the driver `{}` has not answered within {} s",
                    self.driver.path.display(),
                    limit.as_secs()
                );
                Err(fail(FailureKind::Host, message))
            }
            Err(error) => {
                self.link.shutdown();
                Err(crate::failure::from_control(&error))
            }
        }
    }

    /// The answer to this request; late answers to earlier ones are passed over.
    fn converse(
        &self,
        request: &ToHelper,
        limit: Duration,
    ) -> std::result::Result<FromHelper, ControlError> {
        let until = Instant::now() + limit;
        self.link.send(request, &[])?;
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (answer, _) = self.link.recv(left)?;
            if self.unanswered.fetch_sub(1, Ordering::Relaxed) == 1 {
                return Ok(answer);
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.link.shutdown();
        let Some(mut child) = self.child.take() else {
            return;
        };
        // It may have processes to bring back first. Without a thread it is reaped with the daemon.
        let wait = move || drop(child.wait());
        let _ = std::thread::Builder::new().name("reap".into()).spawn(wait);
    }
}

fn time_of(bytes: u64) -> Duration {
    MOVE_TIME + Duration::from_secs(bytes / LEAST_RATE)
}

fn explained(refusal: &Refusal) -> Failure {
    let name = crate::proc::name_of(refusal.pid);
    words::explain(refusal, &name)
}

fn unexpected(answer: &FromHelper) -> Failure {
    let message = format!("the helper for foreign programs answers {answer:?}");
    fail(FailureKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use fermata_control::foreign::DriverStep;

    use super::*;

    /// Until a test gives up: what it waits for has come before.
    const SOON: Duration = Duration::from_secs(60);

    /// A helper without a process, and its end of the conversation.
    fn helper() -> (Helper, Connection<ToHelper, FromHelper>) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let helper = Helper {
            link: Connection::new(ours.into(), "the helper"),
            unanswered: AtomicU32::new(0),
            child: None,
            driver: Driver {
                path: "libcuda.so.1".into(),
                soft: true,
            },
        };
        (helper, Connection::new(theirs.into(), "the daemon"))
    }

    fn refused() -> FromHelper {
        FromHelper::Refused(Refusal {
            pid: 7,
            step: DriverStep::Restore,
            code: 1,
            name: "refused".into(),
        })
    }

    #[test]
    fn a_late_answer_is_not_that_to_the_next_request() {
        let (helper, theirs) = helper();
        let request = ToHelper::Forget;
        for _ in 0..2 {
            let late = helper.ask(&request, Duration::ZERO);
            assert_eq!(late.map_err(|it| it.kind), Err(FailureKind::Host));
        }
        // One of the two comes, and is not that to the third.
        theirs.send(&FromHelper::Done, &[]).expect("sent");
        let none = helper.ask(&request, Duration::ZERO);
        assert_eq!(none.map_err(|it| it.kind), Err(FailureKind::Host));
        for answer in [FromHelper::Done, FromHelper::Done, refused()] {
            theirs.send(&answer, &[]).expect("sent");
        }
        let answer = helper.ask(&request, SOON).map_err(|it| it.message);
        assert_eq!(answer, Ok(refused()));
        theirs.send(&FromHelper::Done, &[]).expect("sent");
        let answer = helper.ask(&request, SOON).map_err(|it| it.message);
        assert_eq!(answer, Ok(FromHelper::Done));
    }

    #[test]
    fn a_conversation_that_has_failed_is_over() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let (mut helper, _) = helper();
        helper.link = Connection::new(ours.into(), "the helper");
        let text = b"\x08\0\0\0\"Nobody\"\x06\0\0\0\"Done\"";
        std::io::Write::write_all(&mut theirs, text).expect("written");
        for _ in 0..2 {
            let answer = helper.ask(&ToHelper::Forget, SOON).map_err(|it| it.kind);
            assert_eq!(answer, Err(FailureKind::Internal));
        }
    }
}
