//! The GPU as the program uses it: its driver, its contexts, our hash kernels and buffers in them.
//!
//! The calling thread's current context is the program's: it is only ever looked at. All copying and
//! hashing happens on threads of ours.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use fermata_device::hash::Hasher;
use fermata_device::{ContextHandle, DeviceFacts, Driver, MemoryKind, PinnedPool, Resident};
use fermata_store::ChunkId;
use parking_lot::Mutex;

use crate::buffer::PIECE;
use crate::maps::Maps;
use crate::memory::Memory;
use crate::variable::Variable;
use crate::{AppError, Result};

/// Where a variable is at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory that the CPU reads.
    Host,
    /// Memory of a device, or managed memory, reached through this context.
    Device { context: ContextHandle, device: u32 },
}

/// The program's driver and what we have made in its contexts.
pub(crate) struct Gpu {
    pub(crate) driver: Arc<Driver>,
    facts: OnceLock<Vec<DeviceFacts>>,
    hashers: Mutex<HashMap<ContextHandle, Hasher>>,
    pool: Mutex<Option<PinnedPool>>,
    staging: usize,
}

impl Gpu {
    /// The GPU of this process, if the program has begun to use one. `staging` is the bytes of pinned
    /// memory to copy through.
    pub(crate) fn of_process(staging: u64) -> Result<Option<Arc<Self>>> {
        let Some(driver) = Driver::of_process().map_err(AppError::Driver)? else {
            return Ok(None);
        };
        let staging = (staging as usize / PIECE).max(4);
        Ok(Some(Arc::new(Self {
            driver: Arc::new(driver),
            facts: OnceLock::new(),
            hashers: Mutex::default(),
            pool: Mutex::default(),
            staging,
        })))
    }

    /// What does not change about the devices that this process sees, by their numbers. They are asked once: there are
    /// a hundred questions to each.
    pub(crate) fn facts(&self) -> Result<&[DeviceFacts]> {
        if let Some(facts) = self.facts.get() {
            return Ok(facts);
        }
        let all: std::result::Result<Vec<_>, _> = (0..self.driver.device_count())
            .map(|device| self.driver.device_facts(device))
            .collect();
        let all = all.map_err(AppError::device("look at the program's devices"))?;
        Ok(self.facts.get_or_init(|| all))
    }

    /// The pinned buffers, made at the first call, and anew when the program has reset the device they were made for. A
    /// context must be current.
    pub(crate) fn pool(&self) -> Result<PinnedPool> {
        let mut pool = self.pool.lock();
        if let Some(pool) = pool.as_ref().filter(|pool| pool.lives(&self.driver)) {
            return Ok(pool.clone());
        }
        let made = PinnedPool::new(&self.driver, self.staging, PIECE)
            .map_err(AppError::device("allocate pinned staging memory"))?;
        *pool = Some(made.clone());
        Ok(made)
    }

    /// Runs `work` with the hash kernels of a context, which must be current.
    pub(crate) fn with_hasher<T>(
        &self,
        context: ContextHandle,
        device: u32,
        work: impl FnOnce(&mut Hasher) -> Result<T>,
    ) -> Result<T> {
        let mut hashers = self.hashers.lock();
        if hashers.get(&context).is_some_and(|it| !it.lives()) {
            // It went with a context that had this handle before, and has nothing to give back.
            std::mem::forget(hashers.remove(&context));
        }
        let hasher = match hashers.entry(context) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(
                Hasher::new(&self.driver, device)
                    .map_err(AppError::device("load the hash kernels"))?,
            ),
        };
        work(hasher)
    }

    /// What the driver knows of a range; `None` for ordinary host memory.
    fn resident(&self, memory: &Memory) -> Result<Option<Resident>> {
        let ask = AppError::device("ask the driver for an address");
        let current = self.driver.current_context().map_err(&ask)?;
        if current.is_some() {
            return self.driver.resident(memory.address()).map_err(&ask);
        }
        // This thread has not used the GPU yet; some context has to be current for the question.
        for index in 0..self.driver.device_count() {
            if self.driver.primary_is_active(index).map_err(&ask)? {
                let context = self.driver.retain_primary(index).map_err(&ask)?;
                let answer = self
                    .driver
                    .set_current(context)
                    .and_then(|()| self.driver.resident(memory.address()));
                // The thread goes back to what it was, and the context to those who made it.
                let _ = self.driver.clear_current();
                let _ = self.driver.release_primary(index);
                return answer.map_err(&ask);
            }
        }
        Ok(None)
    }

    /// The primary context of a device. Where the program holds it, it stays the program's alone.
    pub(crate) fn primary(&self, device: u32) -> Result<ContextHandle> {
        let retain = AppError::device("retain the device's context");
        let active = self.driver.primary_is_active(device).map_err(&retain)?;
        let context = self.driver.retain_primary(device).map_err(&retain)?;
        if active {
            self.driver.release_primary(device).map_err(&retain)?;
        }
        Ok(context)
    }

    /// A context that the program has, and its device; the first one's if it has several.
    pub(crate) fn any(&self) -> Result<Option<(ContextHandle, u32)>> {
        let op = AppError::device("look at the program's devices");
        for device in 0..self.driver.device_count() {
            if self.driver.primary_is_active(device).map_err(&op)? {
                return Ok(Some((self.primary(device)?, device)));
            }
        }
        Ok(None)
    }

    /// The names of every `block` bytes of host memory, which are hashed in a context of the program's.
    pub(crate) fn names_of_host(
        &self,
        (context, device): (ContextHandle, u32),
        bytes: &[u8],
        block: usize,
    ) -> Result<Vec<ChunkId>> {
        let op = AppError::device("hash host memory on the device");
        self.driver.set_current(context).map_err(&op)?;
        let digests = self.with_hasher(context, device, |hasher| {
            hasher.blake3_of_host(bytes, block).map_err(&op)
        })?;
        Ok(digests.into_iter().map(ChunkId).collect())
    }

    fn place(&self, memory: &Memory) -> Result<(Option<Place>, u64)> {
        let Some(found) = self.resident(memory)? else {
            return Ok((None, 0));
        };
        let there = found.start + found.size - memory.address();
        if found.kind == MemoryKind::Host {
            return Ok((Some(Place::Host), there));
        }
        let context = match found.context {
            Some(context) => context,
            None => self.primary(found.device)?,
        };
        let device = found.device;
        Ok((Some(Place::Device { context, device }), there))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let before = self.driver.current_context().ok().flatten();
        for (context, hasher) in self.hashers.get_mut().drain() {
            // What went with a device that was reset must not be given back: its addresses may be the program's now.
            if self.driver.set_current(context).is_err() || !hasher.lives() {
                std::mem::forget(hasher);
            }
        }
        // Nothing can be done about a failure: there is no context left then.
        let _ = match before {
            Some(context) => self.driver.set_current(context),
            None => self.driver.clear_current(),
        };
    }
}

/// Finds out where a variable is, and that all of it is there. Call it on the program's thread.
pub(crate) fn locate(
    gpu: Option<&Gpu>,
    maps: &Maps,
    variable: &Variable,
    write: bool,
) -> Result<Place> {
    let memory = &variable.memory;
    let wrong = |what: String| {
        Err(AppError::Variable {
            id: variable.id.0,
            what,
        })
    };
    if memory.bytes() == 0 {
        return Ok(Place::Host);
    }
    if let Some(gpu) = gpu
        && let (Some(place), there) = gpu.place(memory)?
    {
        let mut reached = there;
        // Memory mapped by hand can consist of several ranges side by side.
        while reached < memory.bytes() {
            let next = memory.after(reached);
            let (more, length) = gpu.place(&next)?;
            if more != Some(place) || length == 0 {
                return wrong(format!(
                    "{} bytes at {:#x} are protected, its allocation ends after {reached}",
                    memory.bytes(),
                    memory.address()
                ));
            }
            reached = reached.saturating_add(length);
        }
        return Ok(place);
    }
    if variable.on_device {
        return wrong(format!(
            "{:#x} was memory of a device when it was protected and is not any more",
            memory.address()
        ));
    }
    if !maps.allows(memory.address(), memory.bytes(), write) {
        return wrong(format!(
            "{} bytes at {:#x} cannot be {}",
            memory.bytes(),
            memory.address(),
            if write { "written" } else { "read" }
        ));
    }
    Ok(Place::Host)
}
