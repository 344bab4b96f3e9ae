//! What programs ask of NVML: datagrams of the library in them (`crates/ml`), answered by the monitor and by what the
//! daemon knows of its sessions, through the pipe that comes with each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fermata_control::worker::{FromWorker, ToWorker};
use fermata_nvml::ask::{
    Answer, Ask, MOST_BYTES, Outcome, Own, Question, SOCKET, VERSION, decode, encode, head,
    rename_processes,
};
use fermata_nvml::code::Code;
use fermata_nvml::table;
use tracing::warn;

use crate::daemon::Daemon;
use crate::failure::Result;
use crate::gpu::driver::Driver;
use crate::server::letters::{self, Letter};
use crate::session::{Served, Session};
use crate::worker::Worker;

/// How long a worker may take to say what its session has.
const DESCRIBE_TIME: Duration = Duration::from_secs(20);

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
    let (path, daemon) = (daemon.nvml_socket(), daemon.clone());
    letters::serve(&path, "nvml", MOST_BYTES, move |letter| {
        answer(&daemon, letter)
    })
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
    letter.answer(&encode(&answer));
}

/// `None` while the session's worker is busy with something else.
fn outcome(daemon: &Daemon, ask: Ask, process: u32) -> Option<Outcome> {
    let Some(session) = daemon.session_of(&ask.token, process) else {
        warn!("refused NVML to process {process}, which is of no session");
        return Some(Outcome::failed(Code::DRIVER_NOT_LOADED));
    };
    let Some(function) = table::find(&ask.call.function) else {
        return Some(Outcome::failed(Code::FUNCTION_NOT_FOUND));
    };
    let worker = worker_of(&session, process);
    let driver = match &worker {
        Some((worker, _)) => Ok(worker.driver.clone()),
        None => Driver::find(session.device, &daemon.paths.home),
    };
    let told = driver.and_then(|driver| {
        // NVML itself knows what everybody has.
        let alone = driver.nvml(&daemon.paths.home).is_none();
        let own = match worker.filter(|_| alone && is_of_users(function.name)) {
            Some((worker, program)) => match own(&worker, program) {
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
            warn!(session = %session.name, "{}", failure.message);
            Some(Outcome::failed(Code::UNKNOWN))
        }
    }
}

/// Whether a function tells of those who use a device.
fn is_of_users(name: &str) -> bool {
    name.starts_with("nvmlDeviceGetMemoryInfo") || name.contains("RunningProcesses")
}

/// The worker of process `process`, or of the first of its session that has one, and that process as it sees itself.
fn worker_of(session: &Session, process: u32) -> Option<(Arc<Worker>, u32)> {
    let served = session.lock().served();
    let asks = served.iter().find(|it| it.agent.process.pid == process);
    let it = asks.or(served.first())?;
    Some((Arc::clone(&it.worker), it.agent.inner_pid))
}

/// What a process has on the devices of its worker; process 0 if it is not known which has it. `None` if the worker is
/// busy.
fn own(worker: &Worker, process: u32) -> Option<Own> {
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
    /// The session's workers, and their processes as they see themselves.
    own: Vec<(u32, u32)>,
    /// The workers of other sessions, and their processes; none where the program does not see them.
    others: Option<Vec<(u32, u32)>>,
}

impl Names {
    fn of(daemon: &Daemon, session: &Arc<Session>) -> Self {
        let seen = |it: &Session, inner: bool| -> Vec<(u32, u32)> {
            let served = it.lock().served();
            let number = |it: &Served| match inner {
                true => it.agent.inner_pid,
                false => it.agent.process.pid,
            };
            let pairs = served.iter().map(|it| (it.worker.process.pid, number(it)));
            pairs.collect()
        };
        let restored = session.lock().init.is_some();
        let others = || {
            let sessions = daemon.sessions();
            let others = sessions.iter().filter(|it| !Arc::ptr_eq(it, session));
            others.flat_map(|it| seen(it, false)).collect()
        };
        Self {
            own: seen(session, true),
            others: (!restored).then(others),
        }
    }

    fn name(&self, process: u32) -> Option<u32> {
        let Some(others) = &self.others else {
            // A restored program sees no process but its own. One whose worker answers for itself is named already.
            let mut own = self.own.iter();
            let found = own.find(|(worker, program)| process == *worker || process == *program);
            return found.map(|(_, program)| *program);
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
            own: vec![(100, 5)],
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
