//! A session in the worker that runs it: its objects as data, and the same objects in the driver.

use fermata_device::ContextHandle;
use fermata_state::Session;

use crate::Live;

/// See the module.
pub struct Site {
    /// Objects as data.
    pub session: Session,
    /// Objects in the driver.
    pub live: Live,
}

impl Site {
    /// Bytes by device that no process uses; none where the session has no context. `home` is a context of the first device.
    pub fn free(&mut self, home: Option<ContextHandle>) -> Vec<Option<u64>> {
        let live = &mut self.live;
        let count = live.driver.device_count();
        let free = |index: u32| {
            let entered = match (live.enter_device(index), home) {
                (Ok(_), _) => true,
                (Err(_), Some(home)) if index == 0 => {
                    live.forget_current();
                    live.driver.set_current(home).is_ok()
                }
                (Err(_), _) => false,
            };
            let info = entered.then(|| live.driver.memory_info().ok()).flatten();
            info.map(|it| it.0)
        };
        (0..count).map(free).collect()
    }
}

/// Totals of a session, of a save or of a load.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Live device allocations.
    pub allocations: u64,
    /// Bytes on devices.
    pub device_bytes: u64,
    /// The same by device.
    pub memory: Vec<u64>,
    /// Bytes by device of memory that belongs to other processes.
    pub fetched: Vec<u64>,
    /// Bytes by device that are free, where that was asked for.
    pub free: Vec<Option<u64>>,
    /// Parked operations.
    pub queued: u64,
    /// Bytes of shared host memory.
    pub host_bytes: u64,
    /// Streams, events, modules, graphs.
    pub objects: u64,
    /// Chunks referred to.
    pub chunks: u64,
    /// Bytes newly written to the store.
    pub written_bytes: u64,
    /// Seconds spent.
    pub seconds: f64,
    /// Reasons for which a restore of an image of it may be refused.
    pub warnings: Vec<String>,
}

impl Summary {
    /// What a session holds.
    pub fn of(session: &Session) -> Self {
        let allocated = session.allocations.iter();
        let allocated = allocated.map(|(_, it)| (it.device, it.size));
        let physical = session.own_memories();
        let physical = physical.map(|(_, it)| (it.device, it.size));
        let memory = by_device(allocated.chain(physical));
        let all = session.memories.iter();
        let fetched = all.filter(|(handle, _)| session.is_fetched(*handle));
        Self {
            allocations: (session.allocations.len() + session.memories.len()) as u64,
            device_bytes: memory.iter().sum(),
            queued: session.queued.len() as u64,
            memory,
            fetched: by_device(fetched.map(|(_, it)| (it.device, it.size))),
            host_bytes: session.own_host_regions().map(|(_, it)| it.size).sum(),
            objects: session.object_count(),
            warnings: unsettled(session).into_iter().collect(),
            ..Self::default()
        }
    }
}

/// Sums of bytes, by the number of the device.
fn by_device(all: impl Iterator<Item = (u32, u64)>) -> Vec<u64> {
    let mut sums = Vec::new();
    for (device, bytes) in all {
        let device = device as usize;
        if sums.len() <= device {
            sums.resize(device + 1, 0);
        }
        sums[device] += bytes;
    }
    sums
}

/// A warning for variables that another driver may place elsewhere; only the restore can compare
/// ([decision 017](../../../docs/decisions/017-variables-stay-where-they-were.md)).
fn unsettled(session: &Session) -> Option<String> {
    let variable = session.unsettled_variable()?;
    Some(format!(
        "a restore may be refused: the program has unloaded modules beyond what is kept for it, so that device variable \
         `{variable}`, which was loaded after them, may lie elsewhere then; load what stays before what goes, or \
         checkpoint before modules are unloaded"
    ))
}
