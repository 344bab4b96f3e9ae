//! The program's end of the ring.
//!
//! Any thread may send; the order of messages is the order in which the threads got the lock. A small
//! operation is encoded where it will be read, under the lock; a large one before it, and copied in.
//!
//! A producer outlives its memory file. Between two of them ([`Producer::let_go`], [`Producer::enter`]) it lies in
//! private memory at the same address, so that threads which wait for answers keep their requests and their staged
//! ranges, whose bytes are kept beside it: they rest meanwhile, each in [`Rest`], and are answered through the next file.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::{Duration, Instant};

use fermata_abi::op::{Op, Reply};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::barrier::Light;
use crate::callbacks;
use crate::kept::{self, Keeping, Kept, Private};
use crate::launch::{self, BareLaunch};
use crate::layout::{
    BARRIER_AT, CORES_AT, DOORBELL_AT, HEAD_AT, MESSAGE_HEADER, PEER_ATTACHED, PEER_CLOSED,
    PROGRAM_AT, SPACE_AT, TAIL_AT,
};
use crate::message::{Header, span};
use crate::protocol::{wake_fenced, wake_sleeper};
use crate::reply::{Ticket, is_done, nudge, take, wait_done};
use crate::shm::{Mapping, Window};
use crate::side::Side;
use crate::staging::{Staged, StagingPool};
use crate::wait::{Spin, futex_wake, wait, worker_alive};
use crate::{StagedArea, WireError};

/// Operations up to this size are encoded into the ring itself.
const SMALL: usize = 512;
/// Bytes of the ring that are brought here ahead of the messages that will fill them.
const AHEAD: u64 = 512;
/// While the worker keeps up, only so much of the ring's start is used: it stays in the caches.
const NEAR: u64 = 128 << 10;

/// How long a thread waits for a reply slot before it looks at the worker, at a stop, and at answers that came too late.
const SLOT_WAIT: Duration = Duration::from_micros(500);

/// Called now and then by a thread that waits for the worker: it returns at once, or, while the program is being
/// stopped, when that is over or what it is given has become true.
pub type Rest = fn(&dyn Fn() -> bool);

/// Sends operations and receives their answers.
#[derive(Debug)]
pub struct Producer {
    map: Arc<Mapping>,
    /// None while there is no worker.
    side: RwLock<Option<Arc<Side>>>,
    rest: Rest,
    ring: Mutex<Ring>,
    slots: Mutex<Slots>,
    /// A slot is free again.
    freed: Condvar,
    staging: StagingPool,
    keeping: Mutex<Keeping>,
    spin: Spin,
    /// Of waits for host callbacks.
    calls: Spin,
    barrier: Light,
}

/// The producer's private idea of the ring: what it has written is never read back.
#[derive(Debug)]
struct Ring {
    head: u64,
    tail: u64,
    number: u64,
    /// Position from which on it is worth to look whether the ring can be used from its start again.
    rewind_at: u64,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            head: 0,
            tail: 0,
            number: 0,
            rewind_at: NEAR,
        }
    }
}

/// Reply slots that no request uses.
#[derive(Debug)]
struct Slots {
    free: Vec<Ticket>,
    /// Their requests were given up before they were answered: the answers may still be written.
    abandoned: Vec<Ticket>,
    /// By slot, the sequence number of the request that a thread waits for, 0 for none.
    asked: Vec<u32>,
}

impl Slots {
    /// Requests that threads wait for.
    fn waiting(&self) -> impl Iterator<Item = Ticket> {
        let asked = self.asked.iter().enumerate();
        let asked = asked.filter(|(_, sequence)| **sequence != 0);
        asked.map(|(slot, sequence)| Ticket::from_parts((slot as u16, *sequence, 0, 0)))
    }
}

impl Producer {
    /// Attaches to a memory file made by [`crate::create`] that no program has used before.
    ///
    /// # Errors
    /// The memory is not usable; see [`WireError`].
    pub fn open(memory: BorrowedFd<'_>, side: Arc<Side>) -> Result<Self, WireError> {
        let map = Arc::new(Mapping::open(memory)?);
        let head = map.word64(HEAD_AT).load(Ordering::Acquire);
        if head != 0 {
            return Err(WireError::Layout("another program has used it"));
        }
        let free = |slot| Ticket {
            slot,
            sequence: 0,
            overflow: 0,
            overflow_len: 0,
        };
        let count = map.layout().slot_count;
        let slots = (0..count as u16).rev().map(free).collect();
        map.populate(map.layout().ring, NEAR.min(map.layout().ring_bytes));
        let its_cores = map.word32(CORES_AT).load(Ordering::Relaxed) as usize;
        let area = StagedArea(map.clone());
        kept::name(&area, Default::default());
        map.word32(PROGRAM_AT)
            .store(PEER_ATTACHED, Ordering::Release);
        Ok(Self {
            staging: StagingPool::new(area),
            keeping: Mutex::default(),
            map,
            side: RwLock::new(Some(side)),
            rest: |_| (),
            ring: Mutex::default(),
            slots: Mutex::new(Slots {
                free: slots,
                abandoned: Vec::new(),
                asked: vec![0; count as usize],
            }),
            freed: Condvar::new(),
            spin: Spin::with_peer(its_cores),
            calls: Spin::with_peer(its_cores),
            barrier: Light::default(),
        })
    }

    /// The same, whose waiting threads call `rest`.
    pub fn resting(self, rest: Rest) -> Self {
        Self { rest, ..self }
    }

    /// Makes memory for what is staged now, and for a quarter more, while threads run: [`Producer::let_go`], which the program stands
    /// still for, then has to copy only. Without it, or if more is staged by then, that makes memory itself.
    pub fn prepare(&self) {
        let staged: u64 = self.staging.in_use().iter().map(|it| it.1).sum();
        let bytes = NonZeroUsize::new((staged + staged / 4) as usize);
        let ready = bytes.and_then(|bytes| Private::new(bytes).ok());
        self.keeping.lock().ready = ready;
    }

    /// Lets go of the memory file and says so. No thread may send meanwhile; threads that wait for answers must rest.
    /// Bytes of the staging area that are in use are kept for the next file.
    ///
    /// # Errors
    /// The system has no memory left; the file is still mapped then.
    pub fn let_go(&self) -> Result<(), WireError> {
        // What was answered meanwhile is free; what was not is answered through the next file.
        drop(self.collected());
        self.close();
        *self.side.write() = None;
        let mut keeping = self.keeping.lock();
        if keeping.kept.is_some() {
            // There is no file: what was kept is all there is.
            return Ok(());
        }
        let area = StagedArea(self.map.clone());
        let bytes = Kept::copy(&area, &self.staging.in_use(), &mut keeping.ready)?;
        self.map.leave()?;
        keeping.kept = Some(bytes);
        Ok(())
    }

    /// Goes on with a new memory file of the same sizes, and another socket. Until [`Producer::announce`] the worker
    /// does nothing of its own.
    ///
    /// # Errors
    /// As [`Producer::open`], or the sizes differ; nothing has changed then.
    pub fn enter(&self, memory: BorrowedFd<'_>, side: Arc<Side>) -> Result<(), WireError> {
        let mut head = [0; 8];
        let read = rustix::io::pread(memory, &mut head, HEAD_AT as u64)
            .map_err(|errno| WireError::io("read the ring's header", errno))?;
        if read != head.len() || head != [0; 8] {
            return Err(WireError::Layout("another program has used it"));
        }
        let mut keeping = self.keeping.lock();
        self.map.enter(memory)?;
        let area = StagedArea(self.map.clone());
        if let Some(bytes) = &keeping.kept
            && !bytes.is_in(&area)
        {
            let written = bytes.write_to(memory, self.map.layout().staging);
            written.or_else(|error| self.map.leave().and(Err(error)))?;
        }
        kept::name(&area, Default::default());
        keeping.spent = keeping.kept.take();
        drop(keeping);
        self.staging.tell();
        self.map.populate(
            self.map.layout().ring,
            NEAR.min(self.map.layout().ring_bytes),
        );
        *self.ring.lock() = Ring::default();
        self.barrier.forget();
        *self.side.write() = Some(side);
        Ok(())
    }

    /// Frees private memory that a stop has needed, or was to need: thousands of pages, for which no thread has to wait.
    pub fn tidy(&self) {
        let mut keeping = self.keeping.lock();
        let unused = (keeping.ready.take(), keeping.spent.take());
        drop(keeping);
        drop(unused);
    }

    /// Says that the program is there.
    pub fn announce(&self) {
        self.map
            .word32(PROGRAM_AT)
            .store(PEER_ATTACHED, Ordering::Release);
        wake_sleeper(self.map.word32(DOORBELL_AT), futex_wake);
    }

    /// The socket in use.
    pub fn side(&self) -> Option<Arc<Side>> {
        self.side.read().clone()
    }

    /// Has every thread that waits for the worker look now whether it should rest.
    pub fn nudge(&self) {
        let slots = self.slots.lock();
        slots.waiting().for_each(|ticket| nudge(&self.map, ticket));
        drop(slots);
        self.freed.notify_all();
        self.staging.nudge();
    }

    /// Whether there is an answer that a thread has not taken yet.
    pub fn has_answers(&self) -> bool {
        let slots = self.slots.lock();
        slots.waiting().any(|ticket| is_done(&self.map, ticket))
    }

    /// Waits for the end of a stop, if there is one, or until `done`.
    fn rest(&self, done: &dyn Fn() -> bool) {
        (self.rest)(done);
    }

    /// Lets the worker pay for what orders messages and its sleep, where the kernel can. Takes milliseconds;
    /// until it has returned, and without it, each message costs about 10 ns more.
    pub fn relieve(&self) {
        self.barrier.register();
    }

    /// Sends an operation that is not answered.
    ///
    /// # Errors
    /// The worker is gone, or the operation is too large for a message.
    #[inline]
    pub fn post(&self, op: &Op<'_>) -> Result<(), WireError> {
        self.send(op, None)
    }

    /// Sends a launch, as [`Producer::post`] does, at less cost; false if it has to go that way, which may wait.
    #[inline(always)]
    pub fn try_launch(&self, launch: &BareLaunch<'_>) -> bool {
        let layout = self.map.layout();
        let mut ring = self.ring.lock();
        let Some(at) = self.small_place(&mut ring) else {
            return false;
        };
        let mut room = self.map.window(layout.ring + at + MESSAGE_HEADER, SMALL);
        if !launch::encode(&mut room, launch) {
            return false;
        }
        let header = Header::operation(room.written() as u32, None, ring.number);
        self.map.write(layout.ring + at, &header.encode());
        self.publish(&mut ring, span(room.written() as u64));
        true
    }

    /// Sends an operation that is answered, and hands out the waiting for it.
    ///
    /// `overflow` is room for an answer that may exceed 4 KiB; it must stay allocated until the answer
    /// has been taken.
    ///
    /// While all slots are in use, this waits for one. A drain does not wait: it is sent while the program's threads rest,
    /// which may be as many as there are slots, and has a slot that they leave free.
    ///
    /// # Errors
    /// As [`Producer::post`]; [`WireError::NoSlot`] for a drain, if an earlier one is not answered yet.
    pub fn request(
        &self,
        op: &Op<'_>,
        overflow: Option<&Staged<'_>>,
    ) -> Result<Pending<'_>, WireError> {
        let mut ticket = match op {
            Op::Drain => self.free_slot(0).ok_or(WireError::NoSlot)?,
            _ => self.take_slot()?,
        };
        if let Some(range) = overflow {
            ticket.overflow = range.offset();
            ticket.overflow_len = u32::try_from(range.len()).unwrap_or(u32::MAX);
        }
        if let Err(error) = self.send(op, Some(ticket)) {
            // Nothing was sent, so nobody will answer.
            let mut slots = self.slots.lock();
            slots.asked[usize::from(ticket.slot)] = 0;
            slots.free.push(ticket.spare());
            self.freed.notify_one();
            return Err(error);
        }
        Ok(Pending {
            producer: self,
            ticket,
        })
    }

    /// Sends an operation and waits for its answer, which borrows `buffer`.
    ///
    /// # Errors
    /// As [`Producer::post`], and a malformed answer.
    pub fn ask<'b>(&self, op: &Op<'_>, buffer: &'b mut Vec<u8>) -> Result<Reply<'b>, WireError> {
        self.request(op, None)?.wait(buffer)
    }

    /// A range of the staging area; waits until enough has been given back. A thread that holds one must not wait
    /// for another: see [`Producer::try_stage`] and [`Producer::stage_both`].
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if the whole area is smaller; the worker is gone.
    pub fn stage(&self, len: u64) -> Result<Staged<'_>, WireError> {
        self.staging.alloc(len, || self.rest_and_check())
    }

    /// As [`Producer::stage`], without waiting; `None` if there is no room now.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if the whole area is smaller.
    pub fn try_stage(&self, len: u64) -> Result<Option<Staged<'_>>, WireError> {
        self.staging.try_alloc(len)
    }

    /// As [`Producer::stage`], for two ranges that one operation needs.
    ///
    /// # Errors
    /// As [`Producer::stage`].
    pub fn stage_both(&self, lens: (u64, u64)) -> Result<(Staged<'_>, Staged<'_>), WireError> {
        self.staging.alloc_both(lens, || self.rest_and_check())
    }

    fn rest_and_check(&self) -> Result<(), WireError> {
        self.rest(&|| false);
        self.check_peer()
    }

    /// Bytes of the whole staging area.
    pub fn staging_bytes(&self) -> u64 {
        self.staging.bytes()
    }

    /// Whether the worker is still there.
    ///
    /// # Errors
    /// [`WireError::PeerGone`] if it is not.
    pub fn check_peer(&self) -> Result<(), WireError> {
        match &*self.side.read() {
            Some(side) => worker_alive(&self.map, &**side),
            None => Err(WireError::PeerGone("worker")),
        }
    }

    /// Tells the worker that one more host callback has run: the one it asked for longest ago. Never waits.
    pub fn callback_done(&self) {
        callbacks::count_one(&self.map);
    }

    /// Waits until the worker asks for host callback `number`, counted from 0, and says which it is; `None` when `leave`
    /// is true. For one thread.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn callback_asked(
        &self,
        number: u32,
        leave: impl Fn() -> bool,
    ) -> Result<Option<u64>, WireError> {
        callbacks::asked(&self.map, &self.calls, number, leave, || self.check_peer())
    }

    /// Has [`Producer::callback_asked`] look again whether it is to leave.
    pub fn nudge_callbacks(&self) {
        callbacks::nudge(&self.map);
    }

    /// Waits until a small operation can be sent without waiting for the worker; false if that is not so within `limit`.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn await_room(&self, limit: Duration) -> Result<bool, WireError> {
        let end = Instant::now() + limit;
        // A thread that waits for room itself has the lock, and only one at a time may sleep on the word.
        let Some(ring) = self.ring.try_lock_for(limit) else {
            return self.check_peer().map(|()| false);
        };
        let bytes = self.map.layout().ring_bytes;
        let has_room = || {
            let tail = self.map.word64(TAIL_AT).load(Ordering::Acquire);
            let known = (ring.tail..=ring.head).contains(&tail);
            let tail = if known { tail } else { ring.tail };
            // Twice, for there may be padding before it.
            ring.head - tail + 2 * (MESSAGE_HEADER + SMALL as u64) <= bytes
        };
        let space = self.map.word32(SPACE_AT);
        let left = end.saturating_duration_since(Instant::now());
        wait(&self.spin, space, Some(left), has_room, || {
            self.check_peer()
        })
    }

    /// Tells the worker that nothing more will come. Called before the producer is dropped; sending
    /// afterwards fails.
    pub fn close(&self) {
        self.map
            .word32(PROGRAM_AT)
            .store(PEER_CLOSED, Ordering::Release);
        wake_sleeper(self.map.word32(DOORBELL_AT), futex_wake);
    }

    #[inline]
    fn send(&self, op: &Op<'_>, ticket: Option<Ticket>) -> Result<(), WireError> {
        if self.put_small(op, ticket)? {
            return Ok(());
        }
        let encode = |source| WireError::Encode {
            what: "operation",
            source,
        };
        self.put(&postcard::to_stdvec(op).map_err(encode)?, ticket)
    }

    /// Where in the ring an operation of at most [`SMALL`] bytes goes, if there certainly is room for it.
    #[inline(always)]
    fn small_place(&self, ring: &mut Ring) -> Option<u64> {
        let bytes = self.map.layout().ring_bytes;
        let most = MESSAGE_HEADER + SMALL as u64;
        if ring.head >= ring.rewind_at {
            self.rewind(ring);
        }
        let at = ring.head & (bytes - 1);
        (at + most <= bytes && ring.head - ring.tail + most <= bytes).then_some(at)
    }

    /// Encodes straight into the ring, if there certainly is room; else nothing has happened.
    #[inline]
    fn put_small(&self, op: &Op<'_>, ticket: Option<Ticket>) -> Result<bool, WireError> {
        let layout = self.map.layout();
        let mut ring = self.ring.lock();
        let Some(at) = self.small_place(&mut ring) else {
            return Ok(false);
        };
        let room = self.map.window(layout.ring + at + MESSAGE_HEADER, SMALL);
        let Some(len) = encode(op, room)? else {
            return Ok(false);
        };
        let header = Header::operation(len as u32, ticket, ring.number);
        self.map.write(layout.ring + at, &header.encode());
        self.publish(&mut ring, span(len as u64));
        Ok(true)
    }

    /// `bytes` more have been written.
    #[inline(always)]
    fn publish(&self, ring: &mut Ring, bytes: u64) {
        ring.head += bytes;
        ring.number += 1;
        self.map
            .fixed64::<HEAD_AT>()
            .store(ring.head, Ordering::Release);
        let doorbell = self.map.fixed32::<DOORBELL_AT>();
        if self.barrier.is_relieved(self.map.fixed32::<BARRIER_AT>()) {
            // The consumer's barrier orders what this thread has done, not what a compiler has it do later.
            compiler_fence(Ordering::SeqCst);
            wake_fenced(doorbell, futex_wake);
        } else {
            wake_sleeper(doorbell, futex_wake);
        }
        // As many lines are brought here, somewhat further on, as have been written.
        let layout = self.map.layout();
        let at = layout.ring + (ring.head & (layout.ring_bytes - 1)) + AHEAD;
        self.map.prefetch_to_write(at);
        if bytes > 64 {
            (1..bytes.div_ceil(64).min(8))
                .for_each(|line| self.map.prefetch_to_write(at - line * 64));
        }
    }

    /// Begins again at the ring's start, if the worker has taken everything and that start is far behind.
    #[cold]
    fn rewind(&self, ring: &mut Ring) {
        let layout = self.map.layout();
        let at = ring.head & (layout.ring_bytes - 1);
        let rest = layout.ring_bytes - at;
        // Looked at again when as much more has been written.
        ring.rewind_at = ring.head + NEAR;
        let taken = self.map.word64(TAIL_AT).load(Ordering::Acquire) == ring.head;
        if !taken || at < NEAR.min(layout.ring_bytes / 2) || rest < MESSAGE_HEADER {
            return;
        }
        let header = Header::padding(rest, ring.number);
        self.map.write(layout.ring + at, &header.encode());
        ring.tail = ring.head;
        ring.head += rest;
        ring.rewind_at = ring.head + NEAR;
        // Told at once: the next message may need more room than there is before this is taken.
        self.map.word64(HEAD_AT).store(ring.head, Ordering::Release);
        wake_sleeper(self.map.word32(DOORBELL_AT), futex_wake);
    }

    #[cold]
    fn put(&self, body: &[u8], ticket: Option<Ticket>) -> Result<(), WireError> {
        let layout = self.map.layout();
        let needed = span(body.len() as u64);
        if needed > layout.longest_message() {
            let limit = layout.longest_message() - MESSAGE_HEADER;
            return Err(WireError::TooLarge {
                what: "operation",
                bytes: body.len() as u64,
                limit,
            });
        }
        let mut ring = self.ring.lock();
        let mut at = ring.head & (layout.ring_bytes - 1);
        let to_end = layout.ring_bytes - at;
        let padding = if to_end < needed { to_end } else { 0 };
        self.wait_for_space(&mut ring, padding + needed)?;
        if padding > 0 {
            // The rest of the ring is too short: a header fits, for everything is a multiple of 16 bytes,
            // unless only 16 are left, which the consumer skips on its own.
            if padding >= MESSAGE_HEADER {
                let header = Header::padding(padding, ring.number);
                self.map.write(layout.ring + at, &header.encode());
            }
            ring.head += padding;
            at = 0;
        }
        let header = Header::operation(body.len() as u32, ticket, ring.number);
        self.map.write(layout.ring + at, &header.encode());
        self.map.write(layout.ring + at + MESSAGE_HEADER, body);
        self.publish(&mut ring, needed);
        Ok(())
    }

    fn wait_for_space(&self, ring: &mut Ring, needed: u64) -> Result<(), WireError> {
        let bytes = self.map.layout().ring_bytes;
        while ring.head - ring.tail + needed > bytes {
            let (head, seen) = (ring.head, ring.tail);
            let tail = || self.map.word64(TAIL_AT).load(Ordering::Acquire);
            let space = self.map.word32(SPACE_AT);
            wait(
                &self.spin,
                space,
                None,
                || tail() != seen,
                || self.check_peer(),
            )?;
            let tail = tail();
            if tail < seen || tail > head {
                let why = "the worker has read what was not written";
                return Err(WireError::Malformed {
                    what: "read position",
                    position: tail,
                    why,
                });
            }
            ring.tail = tail;
        }
        Ok(())
    }

    fn take_slot(&self) -> Result<Ticket, WireError> {
        let kept = usize::from(self.map.layout().slot_count > 1);
        loop {
            if let Some(ticket) = self.free_slot(kept) {
                return Ok(ticket);
            }
            // More threads wait for answers than there are slots.
            let mut slots = self.slots.lock();
            if slots.free.len() <= kept {
                self.freed.wait_for(&mut slots, SLOT_WAIT);
            }
            drop(slots);
            self.rest_and_check()?;
        }
    }

    /// A slot for a thread's next request, if more than `kept` are free.
    fn free_slot(&self, kept: usize) -> Option<Ticket> {
        let mut slots = self.collected();
        if slots.free.len() <= kept {
            return None;
        }
        let mut ticket = slots.free.pop()?;
        ticket.sequence = ticket.sequence.wrapping_add(1).max(1);
        slots.asked[usize::from(ticket.slot)] = ticket.sequence;
        Some(ticket)
    }

    /// The slots, those among the free ones whose given up requests have been answered.
    fn collected(&self) -> MutexGuard<'_, Slots> {
        let mut slots = self.slots.lock();
        let Slots {
            free, abandoned, ..
        } = &mut *slots;
        let answered = abandoned.extract_if(.., |ticket| is_done(&self.map, *ticket));
        free.extend(answered.map(Ticket::spare));
        slots
    }
}

/// Encodes any operation; its length, or `None` if there is no room.
#[inline(never)]
fn encode(op: &Op<'_>, room: Window<'_>) -> Result<Option<usize>, WireError> {
    match postcard::serialize_with_flavor(op, Body(room)) {
        Ok(len) => Ok(Some(len)),
        Err(postcard::Error::SerializeBufferFull) => Ok(None),
        Err(source) => Err(WireError::Encode {
            what: "operation",
            source,
        }),
    }
}

/// The body of a message, written where it will be read.
struct Body<'m>(Window<'m>);

impl postcard::ser_flavors::Flavor for Body<'_> {
    type Output = usize;

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        if self.0.push(byte) {
            Ok(())
        } else {
            Err(postcard::Error::SerializeBufferFull)
        }
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if self.0.extend(bytes) {
            Ok(())
        } else {
            Err(postcard::Error::SerializeBufferFull)
        }
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.0.written())
    }
}

/// An answer that is under way.
#[derive(Debug)]
pub struct Pending<'p> {
    producer: &'p Producer,
    ticket: Ticket,
}

impl Pending<'_> {
    /// Whether the answer is there.
    pub fn is_done(&self) -> bool {
        is_done(&self.producer.map, self.ticket)
    }

    /// Waits for the answer as long as the worker lives.
    ///
    /// # Errors
    /// The worker is gone, or the answer is malformed.
    pub fn wait<'b>(self, buffer: &'b mut Vec<u8>) -> Result<Reply<'b>, WireError> {
        self.finish(None)?;
        take(&self.producer.map, self.ticket, buffer)
    }

    /// Waits at most `timeout`; `false` if the answer has not come by then.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool, WireError> {
        self.finish(Some(timeout))
    }

    fn finish(&self, timeout: Option<Duration>) -> Result<bool, WireError> {
        let Producer { map, spin, .. } = self.producer;
        let alive = || {
            self.producer.rest(&|| self.is_done());
            self.producer.check_peer()
        };
        wait_done(map, self.ticket, spin, alive, timeout)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut slots = self.producer.slots.lock();
        slots.asked[usize::from(self.ticket.slot)] = 0;
        if self.is_done() {
            slots.free.push(self.ticket.spare());
            self.producer.freed.notify_one();
        } else {
            slots.abandoned.push(self.ticket);
        }
    }
}
