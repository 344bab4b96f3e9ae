//! What programs ask of NVML: datagrams of the library in them (`crates/ml`), answered by the monitor and by what the
//! daemon knows of its sessions, through the pipe that comes with each.

use std::fs::{self, Permissions};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fermata_control::worker::{FromWorker, ToWorker};
use fermata_nvml::ask::{
    Answer, Ask, MOST_BYTES, Outcome, Own, Question, SOCKET, VERSION, decode, encode, head,
    rename_processes,
};
use fermata_nvml::code::Code;
use fermata_nvml::table;
use rustix::fs::{FileType, OFlags, Stat, fcntl_setfl, fstat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg, sockopt,
};

use crate::daemon::Daemon;
use crate::driver::Driver;
use crate::failure::Result;
use crate::session::Session;
use crate::worker::Worker;

/// How long a worker may take to say what its session has.
const DESCRIBE_TIME: Duration = Duration::from_secs(20);

/// A question that has come.
struct Letter {
    bytes: Vec<u8>,
    /// Where the answer is written to; closed without one, the program asks again.
    answers: OwnedFd,
    /// The process that has sent it, as this one numbers it.
    process: u32,
}

impl Daemon {
    /// Path of the socket for questions to NVML.
    pub fn nvml_socket(&self) -> PathBuf {
        self.paths.runtime.join(SOCKET)
    }
}

/// Answers questions from now on.
///
/// # Errors
/// The socket cannot be made, or no thread be started.
pub fn serve(daemon: &Arc<Daemon>) -> anyhow::Result<()> {
    let path = daemon.nvml_socket();
    let socket = bind(&path).with_context(|| format!("cannot listen at `{}`", path.display()))?;
    let daemon = daemon.clone();
    let work = move || {
        loop {
            let Some(letter) = receive(&socket) else {
                continue;
            };
            let daemon = daemon.clone();
            let answer = move || answer(&daemon, &letter);
            // Without a thread it is asked again.
            let _ = std::thread::Builder::new()
                .name("nvml".into())
                .spawn(answer);
        }
    };
    std::thread::Builder::new()
        .name("nvml-questions".into())
        .spawn(work)
        .map(drop)
        .context("cannot start a thread")
}

/// Only under the daemon's lock: what an ended one has left there is replaced.
fn bind(path: &Path) -> std::io::Result<UnixDatagram> {
    let temporary = path.with_extension("new");
    for old in [path, &temporary] {
        match fs::remove_file(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let socket = UnixDatagram::bind(&temporary)?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
    sockopt::set_socket_passcred(&socket, true)?;
    fs::rename(&temporary, path)?;
    Ok(socket)
}

fn receive(socket: &UnixDatagram) -> Option<Letter> {
    let mut bytes = vec![0; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut piece = [IoSliceMut::new(&mut bytes)];
    let Ok(got) = recvmsg(socket, &mut piece, &mut control, RecvFlags::CMSG_CLOEXEC) else {
        // Little memory, say: no reason to spin.
        std::thread::sleep(Duration::from_millis(10));
        return None;
    };
    let (mut sender, mut answers) = (None, None);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmCredentials(it) => sender = Some(it),
            RecvAncillaryMessage::ScmRights(mut ends) => answers = ends.next(),
            _ => {}
        }
    }
    let sender = sender?;
    let own = rustix::process::getuid();
    if got.flags.contains(ReturnFlags::TRUNC) || (sender.uid != own && !sender.uid.is_root()) {
        return None;
    }
    bytes.truncate(got.bytes);
    Some(Letter {
        bytes,
        answers: answers.filter(is_pipe)?,
        process: u32::try_from(sender.pid.as_raw_nonzero().get()).ok()?,
    })
}

/// Whether it is a pipe, which is then written to without waiting for its reader.
fn is_pipe(end: &OwnedFd) -> bool {
    let is = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
    fstat(end).is_ok_and(is) && fcntl_setfl(end, OFlags::NONBLOCK).is_ok()
}

fn answer(daemon: &Daemon, letter: &Letter) {
    let Some((version, id)) = head(&letter.bytes) else {
        return;
    };
    let outcome = match decode::<Ask>(&letter.bytes) {
        _ if version != VERSION => Some(Outcome::failed(Code::LIB_RM_VERSION_MISMATCH)),
        Some(ask) => outcome(daemon, ask, letter.process),
        None => return,
    };
    // Without an answer it is asked again.
    let Some(outcome) = outcome else { return };
    let answer = Answer {
        version: VERSION,
        id,
        outcome,
    };
    // Less than a pipe holds, and it is empty; its reader may have ended.
    let _ = rustix::io::write(&letter.answers, &encode(&answer));
}

/// `None` while the session's worker is busy with something else.
fn outcome(daemon: &Daemon, ask: Ask, process: u32) -> Option<Outcome> {
    let Some(session) = daemon.session_of(&ask.token, process) else {
        daemon.log.line(&format!(
            "refused NVML to process {process}, which is of no session"
        ));
        return Some(Outcome::failed(Code::DRIVER_NOT_LOADED));
    };
    let Some(function) = table::find(&ask.call.function) else {
        return Some(Outcome::failed(Code::FUNCTION_NOT_FOUND));
    };
    let worker = session.lock().worker.clone();
    let driver = match &worker {
        Some(worker) => Ok(worker.driver.clone()),
        None => Driver::find(session.device, &daemon.paths.home),
    };
    let told = driver.and_then(|driver| {
        // NVML itself knows what everybody has.
        let alone = driver.nvml(&daemon.paths.home).is_none();
        let own = match worker.filter(|_| alone && is_of_users(function.name)) {
            Some(worker) => match own(&session, &worker) {
                Some(own) => Some(own),
                None => return Ok(None),
            },
            None => None,
        };
        let question = Question {
            call: ask.call,
            own: own.filter(|own| own.process != 0),
        };
        let asked = daemon.monitors.ask(&driver, &session.variables, &question);
        asked.map(Some)
    });
    match told {
        Ok(outcome) => {
            let mut outcome = outcome?;
            let names = Names::of(daemon, &session);
            rename_processes(function.parameters, &mut outcome, |pid| names.name(pid));
            Some(outcome)
        }
        Err(failure) => {
            daemon.log.line(&failure.message);
            Some(Outcome::failed(Code::UNKNOWN))
        }
    }
}

/// Whether a function tells of those who use a device.
fn is_of_users(name: &str) -> bool {
    name.starts_with("nvmlDeviceGetMemoryInfo") || name.contains("RunningProcesses")
}

/// What the session has on the devices of its worker; process 0 if it is not known which has it. `None` if the worker is
/// busy.
fn own(session: &Session, worker: &Worker) -> Option<Own> {
    let process = session.lock().worker_process();
    let described: Result<FromWorker> = worker
        .try_begin(&ToWorker::Describe)?
        .and_then(|pending| pending.finish(DESCRIBE_TIME, &mut |_, _| {}));
    let memory = match described {
        Ok(FromWorker::Description(totals)) => totals.memory,
        // It serves nobody, or is lost.
        _ => Vec::new(),
    };
    let uuids = worker.devices.iter().map(|device| device.uuid.clone());
    Some(Own {
        process,
        memory: uuids.zip(memory).collect(),
    })
}

/// The numbers that programs see of processes that use devices: the worker's is its program's.
struct Names {
    /// The session's worker, and its program as it sees itself.
    own: Option<(u32, u32)>,
    /// The workers of other sessions, and their programs; none where the program does not see them.
    others: Option<Vec<(u32, u32)>>,
}

impl Names {
    fn of(daemon: &Daemon, session: &Arc<Session>) -> Self {
        let seen = |it: &Session, inner: bool| {
            let it = it.lock();
            let agent = it.agent.as_ref()?;
            let program = if inner {
                agent.inner_pid
            } else {
                agent.process.pid
            };
            Some((it.worker.as_ref()?.process.pid, program))
        };
        let restored = session.lock().init.is_some();
        let others = || {
            let sessions = daemon.sessions();
            let others = sessions.iter().filter(|it| !Arc::ptr_eq(it, session));
            others.filter_map(|it| seen(it, false)).collect()
        };
        Self {
            own: seen(session, true),
            others: (!restored).then(others),
        }
    }

    fn name(&self, process: u32) -> Option<u32> {
        let Some(others) = &self.others else {
            // A restored program sees no process but its own. One whose worker answers for itself is named already.
            let (worker, program) = self.own?;
            return (process == worker || process == program).then_some(program);
        };
        let known = self.own.iter().chain(others);
        let named = known.into_iter().find(|(worker, _)| *worker == process);
        Some(named.map_or(process, |(_, program)| *program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_as_the_program_sees_them() {
        let mut names = Names {
            own: Some((100, 5)),
            others: Some(vec![(200, 7)]),
        };
        let named = |names: &Names| [100, 200, 300].map(|pid| names.name(pid));
        assert_eq!(named(&names), [Some(5), Some(7), Some(300)]);
        // A restored program does not see the others.
        names.others = None;
        assert_eq!(named(&names), [Some(5), None, None]);
        assert_eq!(names.name(5), Some(5));
    }
}
