//! The device memory that sessions compete for: of the machine's GPUs, or of software GPUs that share an account; and what
//! each session has of it.

use std::ffi::OsString;
use std::sync::Arc;

use crate::daemon::Daemon;
use crate::gpu::driver::Driver;
use crate::memory;
use crate::session::Session;
use crate::worker::{Variables, Worker};

/// The folder by which software GPUs are shared.
const SHARED: &str = "FERMATA_SOFTGPU_SHARED";

/// Where sessions can take memory from each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpu {
    /// The machine's.
    Real,
    /// Software GPUs whose memory is counted in this folder.
    Shared(OsString),
}

impl Gpu {
    /// Of a session on this driver; none if it has a software GPU to itself.
    pub fn of(soft: bool, variables: &Variables) -> Option<Self> {
        match soft {
            false => Some(Self::Real),
            true => variables.get(SHARED).cloned().map(Self::Shared),
        }
    }

    /// Of a session that uses one already, or would.
    pub fn of_session(daemon: &Daemon, session: &Session) -> Option<Self> {
        let known = session.lock().soft();
        let found = || Driver::find(session.device, &daemon.paths.home).ok();
        let soft = known.or_else(|| found().map(|it| it.soft))?;
        Self::of(soft, &session.variables)
    }
}

/// Bytes that a session has on the device `uuid`, or on any; none if its workers do not say all of it, because one of them is
/// busy.
pub fn held(session: &Session, uuid: Option<&str>) -> Option<u64> {
    let workers = session.lock().workers();
    let mut sum = 0;
    for worker in workers {
        let totals = memory::described(&worker)?;
        for (at, device) in worker.devices.iter().enumerate() {
            if uuid.is_none_or(|it| it == device.uuid) {
                sum += totals.memory.get(at).copied().unwrap_or(0);
            }
        }
    }
    Some(sum)
}

/// Bytes of the device `uuid` that are free, if there is a worker that can say it.
pub fn free(daemon: &Daemon, gpu: &Gpu, variables: &Variables, uuid: &str) -> Option<u64> {
    let all = workers(daemon, gpu, variables);
    all.iter().find_map(|it| free_by(it, uuid))
}

/// The first device of such a worker, and what is free of it.
pub fn first_free(daemon: &Daemon, gpu: &Gpu, variables: &Variables) -> Option<(String, u64)> {
    let free = |it: &Arc<Worker>| {
        let uuid = it.devices.first()?.uuid.clone();
        let free = free_by(it, &uuid)?;
        Some((uuid, free))
    };
    workers(daemon, gpu, variables).iter().find_map(free)
}

/// Workers that know the memory: those with these variables that wait, and those of sessions.
fn workers(daemon: &Daemon, gpu: &Gpu, variables: &Variables) -> Vec<Arc<Worker>> {
    let mut all = daemon.pool.workers_with(*gpu != Gpu::Real, variables);
    for session in daemon.sessions() {
        if session.live() && Gpu::of_session(daemon, &session).as_ref() == Some(gpu) {
            all.extend(session.lock().workers());
        }
    }
    all
}

fn free_by(worker: &Arc<Worker>, uuid: &str) -> Option<u64> {
    let at = worker.devices.iter().position(|it| it.uuid == uuid)?;
    let totals = memory::described(worker)?;
    totals.free.get(at).copied().flatten()
}
