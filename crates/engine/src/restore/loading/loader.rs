//! The threads that load data on demand while the program runs.
//!
//! ```text
//!  readers ─ read, hash ─► pinned buffers ─► uploader ─► copies into a window ─┐
//!  maker ─── makes memory, maps it in the window, clears what was zero         │
//!  mapper ── unmaps it there and maps it at its address ◄── block is full ─────┘
//! ```
//! Pieces in the registered tier are copied from there, adjacent ones at once; hashes are verified before or after
//! (see `verifier`). The program does not use the window's addresses, so its access to an absent block faults. In an
//! eager restore, where no program runs before all data is present, blocks are filled at their own addresses. These
//! threads have their own streams and make contexts current for themselves; they never touch the session's state.
//! Blocks that other workers have are mapped instead ([`crate::restore::common`]), and blocks that others may want
//! are offered to them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;
use fermata_device::layout::PAGE;
use fermata_device::{
    ContextHandle, CopyEngine, Direction, Driver, DriverError, HostEnd, InFlight, PhysicalHandle,
    PinnedPool, SharedSpan, StreamHandle,
};
use fermata_store::{ChunkReader, Located};
use parking_lot::Mutex;

use crate::pipeline::{STEP_LIMIT, help, helpers};
use crate::restore::blocks::{Block, Blocks, address_of};
use crate::restore::common::claims::Claims;
use crate::restore::learning::checked_launches::CheckedLaunches;
use crate::restore::learning::recorder::Recorder;
use crate::restore::loading::background::Background;
use crate::restore::loading::disk_turns::DiskTurns;
use crate::restore::loading::schedule::{
    Arrived, MakerStep, MapperStep, Ready, Run, Schedule, Stand, UploaderStep,
};
use crate::restore::loading::verifier::Verifier;
use crate::restore::times::Times;
use crate::thread::Thread;
use crate::tier::Quiet;
use crate::{CHUNK, EngineError, Live, STAGING_BUFFERS, Tier};

/// How long to wait for memory that is short, and how often to try again.
const ROOM_TIME: Duration = Duration::from_secs(5);
const ROOM_TURN: Duration = Duration::from_millis(5);

/// The memory that has been made for each block.
type Memory = Mutex<Vec<Option<PhysicalHandle>>>;

/// The state that the threads share.
pub(in crate::restore) struct Loader {
    pub driver: Arc<Driver>,
    /// A context of each device that has on-demand blocks.
    pub contexts: BTreeMap<u32, ContextHandle>,
    /// All contexts of the session.
    pub all_contexts: Vec<ContextHandle>,
    /// By device, the devices that may access its memory.
    pub reachers: BTreeMap<u32, Vec<u32>>,
    /// Buffers for pieces that are not in the tier; made when the first is needed.
    pub pool: Mutex<Option<PinnedPool>>,
    pub reader: ChunkReader,
    pub turns: Arc<DiskTurns>,
    pub tier: Option<Arc<Tier>>,
    pub verifier: Arc<Verifier>,
    pub blocks: Arc<Blocks>,
    pub schedule: Arc<Schedule>,
    pub recorder: Arc<Recorder>,
    pub checks: Arc<CheckedLaunches>,
    /// Blocks that other workers may have, or want.
    pub claims: Option<Arc<Claims>>,
    /// Whether the program runs meanwhile.
    pub behind: bool,
    /// Keeps the tier from registering meanwhile.
    pub _quiet: Option<Quiet>,
    pub times: Arc<Times>,
}

/// Whether the device has faulted, which ends all work on it.
fn is_fault(error: &EngineError) -> bool {
    const FAULTS: std::ops::RangeInclusive<cu::CUresult> =
        cu::CUDA_ERROR_ILLEGAL_ADDRESS..=cu::CUDA_ERROR_LAUNCH_FAILED;
    matches!(error, EngineError::Driver { source, .. } if FAULTS.contains(&source.code))
}

/// What a driver answers for a context that has been destroyed, and for a stream that went with it.
const DESTROYED: [cu::CUresult; 3] = [
    cu::CUDA_ERROR_INVALID_CONTEXT,
    cu::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    cu::CUDA_ERROR_INVALID_HANDLE,
];

/// The outcome of the loader's last calls in a context. The program may destroy its contexts once every block has come,
/// while these threads end: nothing is left in such a context.
fn unless_destroyed(outcome: Result<(), DriverError>) -> Result<(), DriverError> {
    match outcome {
        Err(error) if DESTROYED.contains(&error.code) => Ok(()),
        other => other,
    }
}

/// The context through which a device's memory is filled.
pub(in crate::restore) fn context_on(live: &Live, device: u32) -> Option<ContextHandle> {
    let on_device = live.contexts.values().filter(|it| it.device == device);
    on_device.map(|it| it.handle).min()
}

impl Loader {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self) -> Result<Background, EngineError> {
        let schedule = Arc::clone(&self.schedule);
        let stored = self.blocks.all().iter().flat_map(|it| &it.stored);
        let total = stored.map(|(piece, _)| piece.len as u64).sum();
        let (times, taken) = (Arc::clone(&self.times), self.reader.taken());
        let (checks, turns) = (Arc::clone(&self.checks), Arc::clone(&self.turns));
        let run = move || {
            let outcome = self.run();
            if outcome.is_ok() {
                if self.behind {
                    self.recorder.keep();
                }
                self.schedule.end(Stand::Complete);
            }
            self.end_on_error(outcome);
        };
        let thread = std::thread::Builder::new().name("restore".to_owned());
        let thread = Thread::start(thread, run)
            .map_err(|error| EngineError::Internal(format!("cannot start a thread: {error}")))?;
        Ok(Background {
            schedule,
            thread,
            total,
            begun: Instant::now(),
            times,
            checks,
            taken,
            turns,
        })
    }

    fn run(&self) -> Result<(), EngineError> {
        let blocks = self.blocks.all();
        let bytes = blocks.iter().map(|it| it.len).sum::<u64>().max(PAGE);
        let mut base = None;
        let window: Vec<u64> = if self.behind {
            let made = self.driver.reserve_addresses(bytes, PAGE, 0);
            let mut at =
                made.map_err(EngineError::driver("reserve addresses to fill memory at"))?;
            base = Some(at);
            let place = |block: &Block| {
                at += block.len;
                at - block.len
            };
            blocks.iter().map(place).collect()
        } else {
            blocks.iter().map(|it| it.at.raw()).collect()
        };
        let memory = Mutex::new(vec![None; window.len()]);
        std::thread::scope(|scope| {
            let read = || self.end_on_error(self.read());
            // If one of these four cannot be started, no data would come.
            self.end_on_error(help(scope, read));
            self.end_on_error(help(scope, || self.verifier.load()));
            self.end_on_error(help(scope, || self.end_on_error(self.upload(&window))));
            let make = || self.end_on_error(self.make_all(&window, &memory));
            self.end_on_error(help(scope, make));
            for _ in 1..helpers() {
                let _ = help(scope, read);
            }
            self.end_on_error(self.map(&window, &memory));
        });
        match self.schedule.stand() {
            Stand::Coming => {}
            // The restore has failed, or the session has ended.
            _ => return Ok(()),
        }
        // Work that was issued before the last block came may have touched absent memory; its fault shows here.
        for context in &self.all_contexts {
            let current = self.driver.set_current(*context);
            let idle = current.and_then(|()| self.driver.synchronize_context());
            unless_destroyed(idle)
                .map_err(EngineError::driver("finish the work given while data came"))?;
        }
        match base {
            Some(base) => self
                .driver
                .release_addresses(base, bytes)
                .map_err(EngineError::driver("give addresses back")),
            None => Ok(()),
        }
    }

    fn end_on_error(&self, outcome: Result<(), EngineError>) {
        if let Err(error) = outcome {
            if is_fault(&error) {
                self.checks.faulted();
            }
            self.schedule.end(Stand::Failed(Arc::new(error)));
        }
    }

    fn read(&self) -> Result<(), EngineError> {
        while let Some(run) = self.schedule.take() {
            let mut done = 0;
            while done < run.count {
                let mut part = Run {
                    first: run.first + done,
                    count: run.count - done,
                    ..run
                };
                let end = match self.run_in_tier(&mut part)? {
                    Some(span) => HostEnd::Shared(span),
                    None => {
                        part.count = 1;
                        self.piece(part.block, part.first)?
                    }
                };
                done += part.count;
                self.schedule.ready(Ready { run: part, end });
            }
        }
        Ok(())
    }

    /// Reads one piece: its hash is verified here, or recorded to be verified on the device.
    fn piece(&self, index: usize, piece: usize) -> Result<HostEnd, EngineError> {
        let block = &self.blocks.all()[index];
        let (part, id) = &block.stored[piece];
        if let Some(tier) = &self.tier
            && let Some(span) = tier.verified(&self.reader, id, part.len)?
        {
            return Ok(HostEnd::Shared(span));
        }
        let late = || EngineError::Internal("no staging buffer comes back".to_owned());
        let mut buffer = self.buffers()?.take(STEP_LIMIT).ok_or_else(late)?;
        let bytes = &mut buffer[..part.len];
        let on_device = self.verifier.takes(block, piece);
        let read = |bytes| match on_device {
            true => self.reader.read(id, bytes),
            false => self.reader.read_verified(id, bytes),
        };
        match self.reader.is_near(id) {
            true => read(bytes)?,
            false => self.turns.read(part.len, || read(bytes))?,
        }
        if on_device {
            self.verifier.note(index, piece..piece + 1);
        }
        let read = part.len as u64;
        self.times.read.fetch_add(read, Ordering::Relaxed);
        Ok(HostEnd::Buffer(buffer))
    }

    /// As many of the first pieces of `run` as are adjacent in the registered tier and on the device, recorded to be
    /// verified. Shortens `run` to them.
    fn run_in_tier(&self, run: &mut Run) -> Result<Option<SharedSpan>, EngineError> {
        let Some(tier) = &self.tier else {
            return Ok(None);
        };
        let block = &self.blocks.all()[run.block];
        let mut places: Vec<Located> = Vec::with_capacity(run.count);
        let mut at = address_of(&block.stored[run.first].0);
        for piece in run.first..run.first + run.count {
            let (part, id) = &block.stored[piece];
            let place = self.reader.locate(id)?;
            let apart = places.last().is_some_and(|last| !last.is_before(&place));
            if apart
                || address_of(part) != at
                || place.length as usize != part.len
                || !self.verifier.takes(block, piece)
            {
                break;
            }
            at += part.len as u64;
            places.push(place);
        }
        let span = tier.share_run(&places);
        if span.is_some() {
            run.count = places.len();
            self.verifier
                .note(run.block, run.first..run.first + run.count);
            places.iter().for_each(|place| self.reader.took(place));
        }
        Ok(span)
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
        let mut flying: VecDeque<(u32, Run, u64, InFlight)> = VecDeque::new();
        let mut current = None;
        loop {
            let next = match flying.is_empty() {
                true => self.times.starved.on(|| self.schedule.next(true)),
                false => self.schedule.next(false),
            };
            let under_way: usize = flying.iter().map(|it| it.1.count).sum();
            if under_way >= self.schedule.flow.in_flight || !matches!(next, UploaderStep::Item(_)) {
                while let Some((device, run, bytes, copy)) = flying.pop_front() {
                    let engine = engines.get_mut(&device);
                    let engine =
                        engine.ok_or_else(|| EngineError::Internal("no such engine".into()))?;
                    let done = self.times.copies.on(|| engine.finish(copy));
                    drop(done.map_err(EngineError::driver("bring data to the device"))?);
                    self.schedule.copied(run, bytes);
                    if !matches!(next, UploaderStep::End) {
                        break;
                    }
                }
            }
            let item = match next {
                UploaderStep::Item(item) => item,
                UploaderStep::Idle => continue,
                UploaderStep::End => return Ok(()),
            };
            if !self.schedule.await_made(item.run.block) {
                continue;
            }
            self.times.first.get_or_init(Instant::now);
            let block = &self.blocks.all()[item.run.block];
            let (piece, _) = &block.stored[item.run.first];
            let to = window[item.run.block] + (address_of(piece) - block.at);
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
            engine.leave_gaps(self.schedule.shares_link());
            let bytes = match &item.end {
                HostEnd::Shared(span) => span.len() as u64,
                _ => piece.len as u64,
            };
            let copy = match item.end {
                HostEnd::Shared(span) => engine.start_from(to, span),
                HostEnd::Buffer(buffer) => engine.start(to, buffer, piece.len),
                HostEnd::Span(_) => continue,
            };
            let copy = copy.map_err(EngineError::driver("bring data to the device"))?;
            flying.push_back((block.device, item.run, bytes, copy));
        }
    }

    /// Makes memory for blocks, and releases memory that is not needed.
    fn make_all(&self, window: &[u64], memory: &Memory) -> Result<(), EngineError> {
        let mut streams: HashMap<u32, StreamHandle> = HashMap::new();
        loop {
            match self.schedule.to_make() {
                MakerStep::End => break,
                MakerStep::Make(index) => {
                    let times = &self.times;
                    let made = times
                        .make
                        .on(|| self.make(index, window[index], &mut streams))?;
                    memory.lock()[index] = Some(made);
                    self.schedule.made(index);
                    if self.schedule.all_made() {
                        self.times.made.get_or_init(Instant::now);
                    }
                }
                MakerStep::Release(index) => {
                    let len = self.blocks.all()[index].len;
                    let made = memory.lock()[index].take();
                    if let Some(handle) = made {
                        self.driver
                            .unmap(window[index], len)
                            .and_then(|()| self.driver.release_memory(handle))
                            .map_err(EngineError::driver("give memory back"))?;
                    }
                }
            }
        }
        for (device, stream) in streams {
            let current = self.driver.set_current(self.context(device)?);
            let ended = current.and_then(|()| self.driver.destroy_stream(stream));
            unless_destroyed(ended).map_err(EngineError::driver("end a stream"))?;
        }
        Ok(())
    }

    /// Maps full blocks, and blocks that other workers have, at their addresses.
    fn map(&self, window: &[u64], memory: &Memory) -> Result<(), EngineError> {
        let any = self.all_contexts.first().copied();
        if let Some(context) = any {
            self.driver
                .set_current(context)
                .map_err(EngineError::driver("use a context"))?;
        }
        loop {
            match self.schedule.to_map() {
                MapperStep::End => return Ok(()),
                MapperStep::Map(full) => {
                    let (times, blocks) = (&self.times, self.blocks.all());
                    times.check.on(|| {
                        let buffers = || self.buffers();
                        self.verifier
                            .check(&full, blocks, window, &self.reader, buffers)
                    })?;
                    for index in full {
                        let Some(handle) = memory.lock()[index] else {
                            continue;
                        };
                        let mut common = false;
                        if self.behind {
                            let block = &blocks[index];
                            let settled =
                                times.map.on(|| self.settle(index, window[index], handle));
                            let what = || format!("map {} bytes at {:#x}", block.len, block.at);
                            common = settled.map_err(EngineError::driver(what()))?;
                        }
                        self.schedule.present(Arrived {
                            block: index,
                            memory: handle,
                            common,
                        });
                    }
                }
                MapperStep::Fetch(index, memory) => self.fetched(index, memory.0.as_fd()),
            }
        }
    }

    /// Makes memory for a block. Tries again for some time, because a driver takes seconds to release the memory of a
    /// process that has just ended.
    fn memory(&self, block: &Block) -> Result<PhysicalHandle, DriverError> {
        let until = Instant::now() + ROOM_TIME;
        loop {
            match self.driver.create_memory(block.device, block.len) {
                Err(error)
                    if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY
                        && Instant::now() < until
                        && matches!(self.schedule.stand(), Stand::Coming) =>
                {
                    // Polled: the driver does not signal that memory is free again. The end of the restore ends the
                    // pause.
                    self.times.room.on(|| self.schedule.await_end(ROOM_TURN));
                }
                other => return other,
            }
        }
    }

    /// Makes memory for a block, maps it in the window, and clears the pieces that are zero in the image.
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
        let handle = self
            .memory(block)
            .map_err(EngineError::driver(operation()))?;
        let access = cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let itself = [block.device];
        let devices = match self.reachers.get(&block.device) {
            Some(reachers) if !self.behind => reachers,
            _ => &itself[..],
        };
        driver
            .map(at, block.len, 0, handle)
            .and_then(|()| driver.set_access(at, block.len, access, devices))
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
            let to = at + (address_of(piece) - block.at);
            driver
                .fill(to, 0, 1, 0, piece.len as u64, 1, stream)
                .map_err(EngineError::driver(operation()))?;
        }
        driver
            .synchronize_stream(stream)
            .map_err(EngineError::driver(operation()))?;
        Ok(handle)
    }

    /// Moves a full block from the window to its address. True if it is common now, so that others may have its memory.
    fn settle(
        &self,
        index: usize,
        window: u64,
        memory: PhysicalHandle,
    ) -> Result<bool, DriverError> {
        let block = &self.blocks.all()[index];
        self.driver.unmap(window, block.len)?;
        self.driver.map(block.at.raw(), block.len, 0, memory)?;
        let claims = self.claims.as_ref().filter(|it| it.is_own(index));
        if let Some(claims) = claims {
            let shared = self
                .grant(block, cu::CU_MEM_ACCESS_FLAGS_PROT_READ)
                .and_then(|()| self.driver.export_memory(memory));
            match shared {
                Ok(descriptor) => {
                    claims.offer(index, descriptor);
                    return Ok(true);
                }
                // The driver cannot export memory, or the process has too many descriptors: the block is not shared.
                Err(_) => claims.give_up(index),
            }
        }
        self.grant(block, cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        Ok(false)
    }

    fn grant(&self, block: &Block, access: u32) -> Result<(), DriverError> {
        let itself = [block.device];
        let devices = self
            .reachers
            .get(&block.device)
            .map_or(&itself[..], |it| it);
        self.driver
            .set_access(block.at.raw(), block.len, access, devices)
    }

    /// Maps a block's memory that another worker has offered. If that fails, the block is loaded here.
    fn fetched(&self, index: usize, memory: BorrowedFd<'_>) {
        let block = &self.blocks.all()[index];
        match self.times.map.on(|| self.map_foreign(block, memory)) {
            Ok(memory) => {
                let stored = block.stored.iter().map(|(piece, _)| piece.len as u64);
                let bytes = stored.sum();
                self.times.common.fetch_add(bytes, Ordering::Relaxed);
                self.schedule.count(bytes);
                self.schedule.present(Arrived {
                    block: index,
                    memory,
                    common: true,
                });
            }
            Err(_) => {
                self.claims.iter().for_each(|it| it.give_up(index));
                self.schedule.take_over(index);
            }
        }
    }

    fn map_foreign(
        &self,
        block: &Block,
        memory: BorrowedFd<'_>,
    ) -> Result<PhysicalHandle, DriverError> {
        let driver = &self.driver;
        if let Some(context) = self.contexts.get(&block.device) {
            driver.set_current(*context)?;
        }
        let (memory, device) = driver.import_memory(memory)?;
        let mapped = match device == block.device {
            true => driver
                .map(block.at.raw(), block.len, 0, memory)
                .and_then(|()| {
                    self.grant(block, cu::CU_MEM_ACCESS_FLAGS_PROT_READ)
                        .inspect_err(|_| drop(driver.unmap(block.at.raw(), block.len)))
                }),
            false => Err(DriverError {
                call: "cuMemImportFromShareableHandle",
                code: cu::CUDA_ERROR_INVALID_DEVICE,
                name: "the memory is on another device".into(),
            }),
        };
        match mapped {
            Ok(()) => Ok(memory),
            Err(error) => {
                driver.release_memory(memory)?;
                Err(error)
            }
        }
    }
}
