//! Threads that bring late data while the program runs.
//!
//! ```text
//!  readers ─ read, hash ─► pinned buffers ─► uploader ─► copies into a window ─┐
//!  mapper ── makes memory, maps it in the window, clears what was zero         │
//!     └────── unmaps it there and maps it at its address ◄── block is full ────┘
//! ```
//! What lies in the registered tier is copied from there, hashed before or after (see `arrived`). The program cannot reach the
//! window, so what is not there yet faults. These threads have their own streams and make contexts current
//! for themselves; they never touch the session's state.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;
use fermata_device::layout::PAGE;
use fermata_device::{
    ContextHandle, CopyEngine, Direction, Driver, HostEnd, InFlight, PhysicalHandle, PinnedPool,
    SharedSpan, StreamHandle,
};
use fermata_store::ChunkReader;
use parking_lot::Mutex;

use super::arrived::Arrived;
use super::blocks::{Blocks, address_of};
use super::lessons::Lessons;
use super::schedule::{Job, Next, Ready, Schedule, Stand};
use crate::pipeline::{STEP_LIMIT, helpers};
use crate::{CHUNK, EngineError, Live, STAGING_BUFFERS, Tier};

/// Copies under way at once; an awaited piece waits for no more than these.
const IN_FLIGHT: usize = 6;
/// How long threads may take to notice that the session is over.
const END_TIME: Duration = Duration::from_secs(5);

/// What the threads work on.
pub(super) struct Loader {
    pub driver: Arc<Driver>,
    /// A context of each device that has late blocks.
    pub contexts: BTreeMap<u32, ContextHandle>,
    /// All contexts of the session.
    pub all_contexts: Vec<ContextHandle>,
    /// Devices that may reach the memory of each.
    pub reachers: BTreeMap<u32, Vec<u32>>,
    /// Buffers for what is not in the tier; made when the first is needed.
    pub pool: Mutex<Option<PinnedPool>>,
    pub reader: ChunkReader,
    pub tier: Option<Arc<Tier>>,
    pub arrived: Arc<Arrived>,
    pub blocks: Arc<Blocks>,
    pub schedule: Arc<Schedule>,
    pub lessons: Arc<Lessons>,
}

/// A restore under way behind a program. Dropping it ends it.
pub struct Background {
    schedule: Arc<Schedule>,
    thread: Option<std::thread::JoinHandle<()>>,
    total: u64,
    begun: Instant,
}

/// How far a restore is.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Bytes that are there.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// How it stands.
    pub stand: Stand,
    /// Seconds since it began.
    pub seconds: f64,
}

impl Background {
    /// How far it is.
    pub fn standing(&self) -> Standing {
        Standing {
            done: self.schedule.bytes_done(),
            total: self.total,
            stand: self.schedule.stand(),
            seconds: self.schedule.ended_after(self.begun).as_secs_f64(),
        }
    }

    /// Whether everything is there.
    pub fn is_complete(&self) -> bool {
        matches!(self.schedule.stand(), Stand::Complete)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.schedule.end(Stand::Cancelled);
        let until = Instant::now() + END_TIME;
        // A thread that hangs in the driver ends with the process.
        while self.thread.as_ref().is_some_and(|it| !it.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether the device has faulted, which ends all work on it.
fn is_fault(error: &EngineError) -> bool {
    const FAULTS: std::ops::RangeInclusive<cu::CUresult> =
        cu::CUDA_ERROR_ILLEGAL_ADDRESS..=cu::CUDA_ERROR_LAUNCH_FAILED;
    matches!(error, EngineError::Driver { source, .. } if FAULTS.contains(&source.code))
}

/// The context through which a device's memory is filled.
pub(super) fn context_on(live: &Live, device: u32) -> Option<ContextHandle> {
    let on_device = live.contexts.values().filter(|it| it.device == device);
    on_device.map(|it| it.handle).min()
}

impl Loader {
    /// Starts bringing data.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self) -> Result<Background, EngineError> {
        let schedule = Arc::clone(&self.schedule);
        let stored = self.blocks.all().iter().flat_map(|it| &it.stored);
        let total = stored.map(|(piece, _)| piece.len as u64).sum();
        let run = move || {
            let outcome = self.run();
            if outcome.is_ok() {
                self.lessons.keep();
                self.schedule.end(Stand::Complete);
            }
            self.end_on_error(outcome);
        };
        let thread = std::thread::Builder::new()
            .name("restore".to_owned())
            .spawn(run)
            .map_err(|error| EngineError::Internal(format!("cannot start a thread: {error}")))?;
        Ok(Background {
            schedule,
            thread: Some(thread),
            total,
            begun: Instant::now(),
        })
    }

    fn run(&self) -> Result<(), EngineError> {
        let mut offsets = Vec::with_capacity(self.blocks.all().len());
        let mut bytes = 0;
        for block in self.blocks.all() {
            offsets.push(bytes);
            bytes += block.len;
        }
        let base = self.driver.reserve_addresses(bytes.max(PAGE), PAGE, 0);
        let base = base.map_err(EngineError::driver("reserve addresses to fill memory at"))?;
        let window: Vec<u64> = offsets.into_iter().map(|offset| base + offset).collect();
        std::thread::scope(|scope| {
            for _ in 0..helpers() {
                scope.spawn(|| self.end_on_error(self.read()));
            }
            scope.spawn(|| self.arrived.load());
            scope.spawn(|| self.end_on_error(self.upload(&window)));
            self.end_on_error(self.map(&window));
        });
        match self.schedule.stand() {
            Stand::Coming => {}
            // The process is of no use any more, or about to end.
            _ => return Ok(()),
        }
        // Work given to the device before the last block came may have touched memory that was not there.
        for context in &self.all_contexts {
            let idle = self.driver.set_current(*context);
            idle.and_then(|()| self.driver.synchronize_context())
                .map_err(EngineError::driver("finish the work given while data came"))?;
        }
        self.driver
            .release_addresses(base, bytes.max(PAGE))
            .map_err(EngineError::driver("give addresses back"))
    }

    fn end_on_error(&self, outcome: Result<(), EngineError>) {
        if let Err(error) = outcome {
            if is_fault(&error) {
                self.lessons.strayed();
            }
            self.schedule.end(Stand::Failed(Arc::new(error)));
        }
    }

    fn read(&self) -> Result<(), EngineError> {
        while let Some((block, piece, urgent)) = self.schedule.take() {
            let (part, id) = &self.blocks.all()[block].stored[piece];
            if let Some(span) = self.in_tier(block, piece)? {
                let end = HostEnd::Shared(span);
                self.schedule.ready(Ready { block, piece, end }, urgent);
                continue;
            }
            let late = || EngineError::Internal("no staging buffer comes back".to_owned());
            let mut buffer = self.buffers()?.take(STEP_LIMIT).ok_or_else(late)?;
            self.reader.read_verified(id, &mut buffer[..part.len])?;
            let end = HostEnd::Buffer(buffer);
            self.schedule.ready(Ready { block, piece, end }, urgent);
        }
        Ok(())
    }

    /// A piece where it lies in the registered tier, found to be right or noted to be checked.
    fn in_tier(&self, index: usize, piece: usize) -> Result<Option<SharedSpan>, EngineError> {
        let Some(tier) = &self.tier else {
            return Ok(None);
        };
        let block = &self.blocks.all()[index];
        let (part, id) = &block.stored[piece];
        let span = tier.share(&self.reader.locate(id)?);
        match span.filter(|span| span.len() == part.len) {
            Some(span) if self.arrived.takes(index, block, piece) => Ok(Some(span)),
            Some(_) => Ok(tier.verified(&self.reader, id, part.len)?),
            None => Ok(None),
        }
    }

    fn buffers(&self) -> Result<PinnedPool, EngineError> {
        let mut pool = self.pool.lock();
        if let Some(pool) = &*pool {
            return Ok(pool.clone());
        }
        let any = self.all_contexts.first().copied();
        let any = any.ok_or_else(|| EngineError::Internal("there is no context".to_owned()))?;
        let made = self
            .driver
            .set_current(any)
            .and_then(|()| PinnedPool::new(&self.driver, STAGING_BUFFERS, CHUNK as usize));
        let made = made.map_err(EngineError::driver("make staging buffers"))?;
        Ok(pool.insert(made).clone())
    }

    fn context(&self, device: u32) -> Result<ContextHandle, EngineError> {
        let found = self.contexts.get(&device).copied();
        found.ok_or_else(|| EngineError::Internal(format!("device {device} has no context")))
    }

    fn upload(&self, window: &[u64]) -> Result<(), EngineError> {
        let mut engines: HashMap<u32, CopyEngine> = HashMap::new();
        let mut flying: VecDeque<(u32, usize, u64, InFlight)> = VecDeque::new();
        let mut current = None;
        loop {
            let next = self.schedule.next(flying.is_empty());
            if flying.len() >= IN_FLIGHT || !matches!(next, Next::Item(_)) {
                while let Some((device, block, bytes, copy)) = flying.pop_front() {
                    let engine = engines.get_mut(&device);
                    let engine =
                        engine.ok_or_else(|| EngineError::Internal("no such engine".into()))?;
                    let done = engine.finish(copy);
                    drop(done.map_err(EngineError::driver("bring data to the device"))?);
                    self.schedule.copied(block, bytes);
                    if !matches!(next, Next::End) {
                        break;
                    }
                }
            }
            let item = match next {
                Next::Item(item) => item,
                Next::Idle => continue,
                Next::End => return Ok(()),
            };
            if !self.schedule.await_made(item.block) {
                continue;
            }
            let block = &self.blocks.all()[item.block];
            let (piece, _) = &block.stored[item.piece];
            let to = window[item.block] + address_of(piece) - block.at;
            if current != Some(block.device) {
                self.driver
                    .set_current(self.context(block.device)?)
                    .map_err(EngineError::driver("use a device"))?;
                current = Some(block.device);
            }
            let engine = match engines.entry(block.device) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let context = self.context(block.device)?;
                    let made = CopyEngine::new(&self.driver, context, Direction::ToDevice);
                    entry.insert(made.map_err(EngineError::driver("make a stream for restoring"))?)
                }
            };
            let copy = match item.end {
                HostEnd::Shared(span) => engine.start_from(to, span),
                HostEnd::Buffer(buffer) => engine.start(to, buffer, piece.len),
                HostEnd::Span(_) => continue,
            };
            let copy = copy.map_err(EngineError::driver("bring data to the device"))?;
            flying.push_back((block.device, item.block, piece.len as u64, copy));
        }
    }

    fn map(&self, window: &[u64]) -> Result<(), EngineError> {
        let mut memory: Vec<Option<PhysicalHandle>> = vec![None; window.len()];
        let mut streams: HashMap<u32, StreamHandle> = HashMap::new();
        loop {
            match self.schedule.job() {
                Job::End => break,
                Job::Make(index) => {
                    memory[index] = Some(self.make(index, window[index], &mut streams)?);
                    self.schedule.made(index);
                }
                Job::Map(index) => {
                    let block = &self.blocks.all()[index];
                    let Some(handle) = memory[index] else {
                        continue;
                    };
                    self.arrived
                        .check(index, block, window[index], &self.reader, || self.buffers())?;
                    self.settle(index, window[index], handle)
                        .map_err(EngineError::driver(format!(
                            "map {} bytes at {:#x}",
                            block.len, block.at
                        )))?;
                    self.schedule.present(index, handle);
                }
                Job::Release(index) => {
                    let len = self.blocks.all()[index].len;
                    if let Some(handle) = memory[index].take() {
                        self.driver
                            .unmap(window[index], len)
                            .and_then(|()| self.driver.release_memory(handle))
                            .map_err(EngineError::driver("give memory back"))?;
                    }
                }
            }
        }
        for (device, stream) in streams {
            self.driver
                .set_current(self.context(device)?)
                .and_then(|()| self.driver.destroy_stream(stream))
                .map_err(EngineError::driver("end a stream"))?;
        }
        Ok(())
    }

    /// Memory for a block, in the window, with zeros where the image has none but zeros.
    fn make(
        &self,
        index: usize,
        at: u64,
        streams: &mut HashMap<u32, StreamHandle>,
    ) -> Result<PhysicalHandle, EngineError> {
        let block = &self.blocks.all()[index];
        let driver = &self.driver;
        let operation = || format!("make {} bytes of memory for {:#x}", block.len, block.at);
        driver
            .set_current(self.context(block.device)?)
            .map_err(EngineError::driver(operation()))?;
        let handle = driver
            .create_memory(block.device, block.len)
            .map_err(EngineError::driver(operation()))?;
        let access = cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        driver
            .map(at, block.len, 0, handle)
            .and_then(|()| driver.set_access(at, block.len, access, &[block.device]))
            .map_err(EngineError::driver(operation()))?;
        if block.zero.is_empty() {
            return Ok(handle);
        }
        let stream = match streams.get(&block.device) {
            Some(stream) => *stream,
            None => {
                let made = driver.create_stream(cu::CU_STREAM_NON_BLOCKING, 0);
                let made = made.map_err(EngineError::driver("make a stream for restoring"))?;
                streams.insert(block.device, made);
                made
            }
        };
        for piece in &block.zero {
            let to = at + address_of(piece) - block.at;
            driver
                .fill(to, 0, 1, 0, piece.len as u64, 1, stream)
                .map_err(EngineError::driver(operation()))?;
        }
        driver
            .synchronize_stream(stream)
            .map_err(EngineError::driver(operation()))?;
        Ok(handle)
    }

    /// Moves a full block from the window to its address.
    fn settle(
        &self,
        index: usize,
        window: u64,
        memory: PhysicalHandle,
    ) -> Result<(), fermata_device::DriverError> {
        let block = &self.blocks.all()[index];
        let itself = [block.device];
        let devices = self
            .reachers
            .get(&block.device)
            .map_or(&itself[..], |it| it);
        let access = cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        self.driver.unmap(window, block.len)?;
        self.driver.map(block.at, block.len, 0, memory)?;
        self.driver.set_access(block.at, block.len, access, devices)
    }
}
