//! The memory that sessions use: of the host by `/proc/PID/smaps_rollup`, of devices by their workers' reports.
//!
//! Reading a process's proportional set size walks its page tables, a tenth of a second for tens of GiB: it is done only
//! when somebody asks.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fermata_control::user::{DeviceMemory, HostMemory, SessionMemory};
use fermata_control::worker::{FromWorker, ToWorker, Totals};

use crate::daemon::Daemon;
use crate::failure::Result;
use crate::proc;
use crate::session::Session;
use crate::worker::Worker;

/// How long a worker may take to describe itself.
const DESCRIBE_TIME: Duration = Duration::from_secs(2);

/// What the sessions take that have not ended.
pub fn of_all(daemon: &Daemon) -> Vec<SessionMemory> {
    let sessions = daemon.sessions();
    let live = sessions.iter().filter(|it| it.live());
    live.map(|it| of(daemon, it)).collect()
}

fn of(daemon: &Daemon, session: &Arc<Session>) -> SessionMemory {
    let (root, workers) = {
        let inner = session.lock();
        let loading: Vec<u32> = inner.loading.iter().map(|it| it.pid).collect();
        (inner.root, (inner.workers(), loading))
    };
    let (workers, loading) = workers;
    let tree = root.map(|it| proc::tree(it.pid)).unwrap_or_default();
    let of_workers = workers.iter().map(|it| it.process.pid).chain(loading);
    let mut devices: BTreeMap<String, DeviceMemory> = BTreeMap::new();
    let mut complete = true;
    for worker in &workers {
        match described(worker) {
            Some(totals) => {
                add(&mut devices, worker, &totals);
                for (device, held) in daemon.commons.of(worker.process) {
                    if let Some(memory) = devices.get_mut(&device) {
                        memory.common += held.common;
                        memory.common_part += held.part;
                    }
                }
            }
            None => complete = false,
        }
    }
    SessionMemory {
        session: session.name.clone(),
        program: of_processes(tree),
        workers: of_processes(of_workers),
        devices: devices.into_values().collect(),
        complete,
    }
}

/// None if the worker is busy, or serves nobody.
pub fn described(worker: &Worker) -> Option<Totals> {
    let pending = worker.try_begin(&ToWorker::Describe)?;
    let told: Result<FromWorker> = pending.and_then(|it| it.finish(DESCRIBE_TIME, &mut |_, _| {}));
    match told {
        Ok(FromWorker::Description(totals)) => Some(totals),
        _ => None,
    }
}

fn add(devices: &mut BTreeMap<String, DeviceMemory>, worker: &Worker, totals: &Totals) {
    let at = |all: &[u64], index: usize| all.get(index).copied().unwrap_or(0);
    for (index, device) in worker.devices.iter().enumerate() {
        let (bytes, shared) = (at(&totals.memory, index), at(&totals.fetched, index));
        if bytes == 0 && shared == 0 {
            continue;
        }
        let new = || DeviceMemory {
            name: device.name.clone(),
            uuid: device.uuid.clone(),
            bytes: 0,
            shared: 0,
            common: 0,
            common_part: 0,
        };
        let memory = devices.entry(device.uuid.clone()).or_insert_with(new);
        memory.bytes += bytes;
        memory.shared += shared;
    }
}

/// What processes take together; those that have ended take nothing.
pub fn of_processes(pids: impl IntoIterator<Item = u32>) -> HostMemory {
    let texts = pids
        .into_iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok());
    texts
        .map(|text| rollup(&text))
        .fold(HostMemory::default(), |a, b| a + b)
}

/// The sums in a file `smaps_rollup`, which are in KiB.
fn rollup(text: &str) -> HostMemory {
    let of = |name| proc::bytes_of(text, name);
    HostMemory {
        pss: of("Pss"),
        own: of("Private_Clean") + of("Private_Dirty"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_a_process_are_read_in_bytes() {
        let text = "00400000-7ffd ---p 00000000 00:00 0    [rollup]\n\
            Rss:                5000 kB\nPss:                1234 kB\nPss_Dirty:           600 kB\n\
            Private_Clean:       100 kB\nPrivate_Dirty:       500 kB\n";
        let memory = rollup(text);
        assert_eq!((memory.pss, memory.own), (1234 << 10, 600 << 10));
        assert_eq!(rollup(""), HostMemory::default());
    }

    #[test]
    fn what_two_processes_share_counts_half_for_each_and_a_process_that_ended_nothing() {
        let own = of_processes([std::process::id()]);
        assert!(own.pss >= own.own && own.own > 0, "{own:?}");
        assert_eq!(of_processes([u32::MAX]), HostMemory::default());
    }
}
