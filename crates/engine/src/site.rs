//! A session where it runs: its objects as data, and the same objects in the driver.

use fermata_state::Session;

use crate::Live;

/// See the module.
pub struct Site {
    /// Objects as data.
    pub session: Session,
    /// Objects in the driver.
    pub live: Live,
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
    /// Operations that wait for their turn.
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
    /// Why an image of it may be refused where it is restored.
    pub warnings: Vec<String>,
}

impl Summary {
    /// What a session holds.
    pub fn of(session: &Session) -> Self {
        let allocated = session.allocations.iter();
        let allocated = allocated.map(|(_, it)| (it.device, it.size));
        let physical = session.own_memories();
        let physical = physical.map(|(_, it)| (it.device, it.size));
        let mut memory = Vec::new();
        for (device, bytes) in allocated.chain(physical) {
            let device = device as usize;
            if memory.len() <= device {
                memory.resize(device + 1, 0);
            }
            memory[device] += bytes;
        }
        Self {
            allocations: (session.allocations.len() + session.memories.len()) as u64,
            device_bytes: memory.iter().sum(),
            queued: session.queued.len() as u64,
            memory,
            host_bytes: session.host_regions.iter().map(|(_, it)| it.size).sum(),
            objects: session.object_count(),
            warnings: unsettled(session).into_iter().collect(),
            ..Self::default()
        }
    }
}

/// Where variables lie in the next driver only that driver knows, so this is a warning: the restore itself compares
/// ([decision 017](../../../docs/decisions/017-variables-stay-where-they-were.md)).
fn unsettled(session: &Session) -> Option<String> {
    let variable = session.unsettled_variable()?;
    Some(format!(
        "a restore may be refused: the program has unloaded modules beyond what is kept for it, so that device variable \
         `{variable}`, which was loaded after them, may lie elsewhere then; load what stays before what goes, or \
         checkpoint before modules are unloaded"
    ))
}
