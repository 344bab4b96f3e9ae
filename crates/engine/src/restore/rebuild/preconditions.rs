//! Checks that an image fits itself and this host, before any object is made.

use std::collections::HashMap;

use fermata_device::Driver;
use fermata_state::Session;
use fermata_store::image::ChunkTable;

use crate::{CHUNK, EngineError};

/// Checks that every chunk lies in a buffer of the session.
pub(in crate::restore) fn table(session: &Session, table: &ChunkTable) -> Result<(), EngineError> {
    let buffers: HashMap<u64, u64> = session
        .buffers()
        .into_iter()
        .map(|it| (it.number, it.bytes))
        .collect();
    for record in table.records() {
        let Some(bytes) = buffers.get(&record.buffer.0) else {
            let why = format!(
                "its chunk table names buffer {}, which does not exist",
                record.buffer
            );
            return Err(EngineError::Damaged(why));
        };
        let end = record.offset.checked_add(u64::from(record.length));
        if end.is_none_or(|end| end > *bytes) || u64::from(record.length) > CHUNK {
            let why = format!(
                "a chunk of buffer {} at offset {} does not fit it",
                record.buffer, record.offset
            );
            return Err(EngineError::Damaged(why));
        }
    }
    Ok(())
}

/// Checks that the devices of this host can hold the session.
pub(in crate::restore) fn host(session: &Session, driver: &Driver) -> Result<(), EngineError> {
    let used = |index: usize| {
        let contexts = session
            .contexts
            .iter()
            .any(|(_, it)| it.device as usize == index);
        contexts
            || session
                .memories
                .iter()
                .any(|(_, it)| it.device as usize == index)
    };
    for (index, wanted) in session
        .devices
        .iter()
        .enumerate()
        .filter(|(index, _)| used(*index))
    {
        if index >= driver.device_count() as usize {
            let why = format!(
                "it uses device {index}, and there are {} devices",
                driver.device_count()
            );
            return Err(EngineError::Unsuitable(why));
        }
        let facts = driver
            .device_facts(index as u32)
            .map_err(EngineError::driver(format!("examine device {index}")))?;
        if facts.name != wanted.name || facts.compute_capability() != wanted.compute_capability {
            return Err(EngineError::Unsuitable(format!(
                "it was made on a {} (compute capability {}.{}), and device {index} is a {} ({}.{})",
                wanted.name,
                wanted.compute_capability / 10,
                wanted.compute_capability % 10,
                facts.name,
                facts.compute_capability() / 10,
                facts.compute_capability() % 10,
            )));
        }
        let needed = bytes_on(session, index as u32);
        if needed > facts.memory {
            return Err(EngineError::Unsuitable(format!(
                "it needs {needed} bytes of memory on device {index} ({}), which has {}",
                facts.name, facts.memory
            )));
        }
    }
    Ok(())
}

fn bytes_on(session: &Session, device: u32) -> u64 {
    let allocated = session
        .allocations
        .iter()
        .filter(|(_, it)| it.device == device)
        .map(|(_, it)| it.size);
    let physical = session
        .own_memories()
        .filter(|(_, it)| it.device == device)
        .map(|(_, it)| it.size);
    allocated.chain(physical).fold(0, u64::saturating_add)
}
