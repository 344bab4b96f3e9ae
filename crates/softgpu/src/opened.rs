//! Memory of other processes that has been opened in this one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver;
use crate::error::{INVALID_VALUE, Result};
use crate::memory::{GRANULARITY, Physical, Protection};

/// Where a piece of physical memory is mapped whole.
#[derive(Debug, Clone, Copy)]
pub struct Whole {
    base: u64,
    size: u64,
}

/// What is open under one address.
#[derive(Debug)]
struct Opened {
    handle: [u8; 64],
    whole: Whole,
    /// Whether it is of a memory pool.
    pooled: bool,
    times: u64,
}

/// By the address that was given for it.
static OPENED: Mutex<BTreeMap<u64, Opened>> = Mutex::new(BTreeMap::new());

impl Whole {
    /// Takes the memory away from its addresses.
    ///
    /// # Errors
    /// It is not there.
    pub fn unmap(&self) -> Result {
        let memory = &driver::running()?.memory;
        memory.unmap(self.base, self.size)?;
        memory.unreserve(self.base, self.size)
    }

    fn map(physical: Arc<Physical>, device: i32) -> Result<Self> {
        let memory = &driver::running()?.memory;
        let (owner, size) = (physical.device, physical.size);
        let base = memory.reserve(size, 0, 0)?;
        let whole = Self { base, size };
        let mapped = memory.map(base, size, 0, physical).and_then(|()| {
            for device in [owner, device] {
                memory.set_access(base, size, device, Protection::ReadWrite)?;
            }
            Ok(())
        });
        if let Err(error) = mapped {
            // The first failure is the one to report.
            let _ = memory.unmap(base, size);
            let _ = memory.unreserve(base, size);
            return Err(error);
        }
        Ok(whole)
    }
}

/// Opens what a handle names, for a device: `size` bytes that `find` finds, of which the memory begins at `offset`. The address.
///
/// # Errors
/// What `find` says, or it is other memory.
pub fn open(
    handle: [u8; 64],
    (size, offset): (u64, u64),
    device: i32,
    pooled: bool,
    find: impl FnOnce() -> Result<Arc<Physical>>,
) -> Result<u64> {
    let mut opened = OPENED.lock();
    let known = |it: &Opened| it.handle == handle && it.pooled == pooled;
    if let Some((address, known)) = opened.iter_mut().find(|(_, it)| known(it)) {
        known.times += 1;
        return Ok(*address);
    }
    let physical = find()?;
    if physical.size != size || offset >= size || !size.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    let whole = Whole::map(physical, device)?;
    let address = whole.base + offset;
    opened.insert(
        address,
        Opened {
            handle,
            whole,
            pooled,
            times: 1,
        },
    );
    Ok(address)
}

/// Whether memory of another process's pool is open at this address.
pub fn is_pooled(address: u64) -> bool {
    OPENED.lock().get(&address).is_some_and(|it| it.pooled)
}

/// Closes what is open at an address; it was opened for the last time if there is an answer, which is to be unmapped.
///
/// # Errors
/// Nothing of that kind is open there.
pub fn close(address: u64, pooled: bool) -> Result<Option<Whole>> {
    let mut opened = OPENED.lock();
    let known = opened.get_mut(&address).filter(|it| it.pooled == pooled);
    let known = known.ok_or(INVALID_VALUE)?;
    known.times -= 1;
    if known.times > 0 {
        return Ok(None);
    }
    let whole = known.whole;
    opened.remove(&address);
    Ok(Some(whole))
}
