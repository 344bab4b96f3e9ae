//! The link: the process's connection to its current worker.
//!
//! There is one link for the life of the process. The agent takes it out of use while the session is stopped, and connects
//! it with the next worker. A thread inside one of our functions may use it without a lock: the agent waits until every
//! such thread rests ([`crate::thread::gate::rest`]), and the thread's references to the link stay valid afterwards.

pub mod callback;
pub mod fault;
pub mod hello;
pub mod image;
pub mod mapped;
pub mod room;
pub mod source;
pub mod wake;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once};

use fermata_abi::op::{Address, ContextId, Op, Reply, ReplyBody, ends_context};
use fermata_abi::sys::driver::{
    CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUresult,
};
use fermata_wire::{BareLaunch, Producer, Side, Staged, WireError};

use crate::notice;
use crate::result::Result;
use crate::thread::gate;

static LINK: AtomicPtr<Link> = AtomicPtr::new(std::ptr::null_mut());
/// The link, in use or not.
static ONLY: AtomicPtr<Link> = AtomicPtr::new(std::ptr::null_mut());
static INSTALLED: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU32 = AtomicU32::new(CUDA_SUCCESS);

/// Device faults, which end a context: the first one is explained in the notice file.
const FAULTS: std::ops::RangeInclusive<u32> = CUDA_ERROR_ILLEGAL_ADDRESS..=CUDA_ERROR_LAUNCH_FAILED;

/// The most bytes of room for a long answer.
const MOST_ROOM: u64 = 16 << 20;

/// Bytes of most answers.
const SHORT: usize = 64;

/// Ring and side socket.
#[derive(Debug)]
pub struct Link {
    /// The ring.
    pub producer: Producer,
}

/// What connects the program with a worker.
#[derive(Debug)]
pub struct Ends {
    /// The ring's memory.
    pub memory: OwnedFd,
    /// The side socket.
    pub side: Arc<Side>,
}

impl Link {
    /// In a forked child: closes the child's copy of the side socket, so that the worker sees the
    /// parent's end as the only one.
    pub fn close_descriptors(&self) {
        let Some(side) = self.producer.side() else {
            return;
        };
        // SAFETY: the child never uses this link again, nor drops it.
        unsafe { rustix::io::close((*side).as_fd().as_raw_fd()) };
        // Its number is no descriptor any more.
        std::mem::forget(side);
    }
}

/// Makes the process's link and puts it in use.
///
/// # Errors
/// The memory is not usable.
pub fn install(ends: Ends) -> core::result::Result<(), WireError> {
    let producer = Producer::open(ends.memory.as_fd(), ends.side)?.resting(gate::rest);
    let link = Box::into_raw(Box::new(Link { producer }));
    ONLY.store(link, Ordering::Release);
    put_in_use(link);
    Ok(())
}

/// Connects the link, which is out of use, with another worker, and puts it in use. The worker does not execute queued
/// operations before [`Producer::announce`].
///
/// # Errors
/// The memory is not usable; the link stays out of use.
pub fn enter(ends: Ends) -> core::result::Result<(), WireError> {
    let link = ONLY.load(Ordering::Acquire);
    // SAFETY: null, or from `Box::into_raw` and never freed.
    let Some(only) = (unsafe { link.as_ref() }) else {
        return Err(WireError::PeerGone("worker"));
    };
    only.producer.enter(ends.memory.as_fd(), ends.side)?;
    put_in_use(link);
    Ok(())
}

fn put_in_use(link: *mut Link) {
    INSTALLED.fetch_add(1, Ordering::AcqRel);
    LINK.store(link, Ordering::Release);
}

/// A number that changes whenever there may be another device behind the link.
pub fn generation() -> u64 {
    INSTALLED.load(Ordering::Acquire)
}

/// Takes the link out of use, and releases the memory it shares with the worker. Called by the agent while every thread
/// that is inside one of our functions rests.
///
/// # Errors
/// The memory cannot be unmapped; it stays shared.
pub fn let_go() -> core::result::Result<(), WireError> {
    let link = LINK.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null, or from `Box::into_raw` and never freed.
    match unsafe { link.as_ref() } {
        Some(link) => link.producer.let_go(),
        None => Ok(()),
    }
}

/// Forgets the link without touching it: in a forked child, which must not disturb the parent's.
pub fn abandon() -> Option<&'static Link> {
    let link = LINK.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: never freed after this, since nobody else has the pointer.
    unsafe { link.as_ref() }
}

/// The link in use.
#[inline]
pub fn current() -> Result<&'static Link> {
    // SAFETY: null, or from `Box::into_raw` and never freed.
    match unsafe { LINK.load(Ordering::Acquire).as_ref() } {
        Some(link) => Ok(link),
        None => Err(CUDA_ERROR_DEVICE_UNAVAILABLE),
    }
}

/// The side socket.
///
/// # Errors
/// There is no worker.
pub fn side() -> Result<Arc<Side>> {
    let side = current()?.producer.side();
    side.ok_or(CUDA_ERROR_DEVICE_UNAVAILABLE)
}

/// Sends an operation that is not answered.
#[inline]
pub fn post(op: &Op<'_>) -> Result {
    fault::check_op(op)?;
    current()?.producer.post(op).map_err(|error| lost(&error))
}

/// Sends a launch in short form; false if it has to be posted like any other operation.
#[inline(always)]
pub fn try_launch(launch: &BareLaunch<'_>) -> Result<bool> {
    Ok(current()?.producer.try_launch(launch))
}

/// Sends an operation and waits for its answer; a status other than success is the error.
pub fn ask<T>(op: &Op<'_>, take: impl FnOnce(ReplyBody<'_>) -> Result<T>) -> Result<T> {
    // Allocated before the wait, so that the answer is read without delay.
    let mut buffer = Vec::with_capacity(SHORT);
    let reply = current()?
        .producer
        .ask(op, &mut buffer)
        .map_err(|error| lost(&error))?;
    take(success(op.context(), reply)?)
}

/// As [`ask`], for answers that may be long; the answer's text is handed to `text` in any case.
pub fn ask_long<T>(
    op: &Op<'_>,
    text: impl FnOnce(&str),
    take: impl FnOnce(ReplyBody<'_>) -> Result<T>,
) -> Result<T> {
    ask_in(&long_room()?, op, text, take)
}

/// Room for a long answer.
pub fn long_room() -> Result<Staged<'static>> {
    stage(long()?)
}

/// As [`ask_long`], with `room` for the answer.
pub fn ask_in<T>(
    room: &Staged<'_>,
    op: &Op<'_>,
    text: impl FnOnce(&str),
    take: impl FnOnce(ReplyBody<'_>) -> Result<T>,
) -> Result<T> {
    let mut buffer = Vec::new();
    let pending = current()?
        .producer
        .request(op, Some(room))
        .map_err(|error| lost(&error))?;
    let reply = pending.wait(&mut buffer).map_err(|error| lost(&error))?;
    text(reply.text);
    take(success(op.context(), reply)?)
}

/// Bytes of a long answer.
fn long() -> Result<u64> {
    Ok((1 << 20).min(current()?.producer.staging_bytes() / 2))
}

/// A range of the staging area, and room for a long answer.
pub fn stage_with_room(len: u64) -> Result<(Staged<'static>, Staged<'static>)> {
    let lens = (len, long()?);
    current()?
        .producer
        .stage_both(lens)
        .map_err(|error| lost(&error))
}

/// A range of the staging area, and room for an answer of any length that it may have.
pub fn stage_with_all_room(len: u64) -> Result<(Staged<'static>, Staged<'static>)> {
    let producer = &current()?.producer;
    let room = MOST_ROOM.min(producer.staging_bytes() / 2);
    let staged = producer.stage_both((len, room));
    staged.map_err(|error| lost(&error))
}

/// As [`stage`], without waiting; `None` if there is no room now.
pub fn try_stage(len: u64) -> Result<Option<Staged<'static>>> {
    current()?
        .producer
        .try_stage(len)
        .map_err(|error| lost(&error))
}

/// A range of the staging area.
pub fn stage(len: u64) -> Result<Staged<'static>> {
    current()?.producer.stage(len).map_err(|error| lost(&error))
}

/// Sends an operation, and waits for its answer if `answered`.
pub fn issue(op: &Op<'_>, answered: bool) -> Result {
    if answered { ask(op, nothing) } else { post(op) }
}

/// Reads an answer without a value.
pub fn nothing(_: ReplyBody<'_>) -> Result {
    Ok(())
}

/// Reads a number from an answer.
pub fn number(body: ReplyBody<'_>) -> Result<u64> {
    match body {
        ReplyBody::U64(value) => Ok(value),
        _ => Err(CUDA_ERROR_UNKNOWN),
    }
}

/// Reads an address from an answer.
pub fn address(body: ReplyBody<'_>) -> Result<Address> {
    number(body).map(Address::from_raw)
}

/// Reads two numbers from an answer.
pub fn pair(body: ReplyBody<'_>) -> Result<(u64, u64)> {
    match body {
        ReplyBody::Pair(first, second) => Ok((first, second)),
        _ => Err(CUDA_ERROR_UNKNOWN),
    }
}

/// The body of a successful reply to an operation that names `context`.
pub fn success(context: Option<ContextId>, reply: Reply<'_>) -> Result<ReplyBody<'_>> {
    if reply.status == CUDA_SUCCESS {
        return Ok(reply.body);
    }
    learn(context, reply.status);
    if FAULTS.contains(&reply.status) && !reply.text.is_empty() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| notice::write(&format!("the device reported a fault: {}", reply.text)));
    }
    Err(reply.status)
}

/// Records a fault that answers an operation: of the context `named`, or of the current one if it has failed.
#[cold]
fn learn(named: Option<ContextId>, status: CUresult) {
    if !ends_context(status) {
        return;
    }
    if let Some(context) = named {
        fault::note(context, status);
    } else if let Some(context) = fault::current()
        && fault::check(context).is_ok()
    {
        // The operation names an event or a module, whose context only the worker knows; usually it is the current one.
        let _ = ask(&Op::MemInfo { context }, pair);
    }
}

/// The `CUresult` for a failure of the link. Once the worker is lost, every call returns it.
pub fn lost(error: &WireError) -> u32 {
    match error {
        WireError::TooLarge { .. } => CUDA_ERROR_OUT_OF_MEMORY,
        WireError::Encode { .. } => CUDA_ERROR_UNKNOWN,
        _ => {
            notice::write(&format!("the session's worker is lost: {error}"));
            FAILED.store(CUDA_ERROR_DEVICE_UNAVAILABLE, Ordering::Release);
            CUDA_ERROR_DEVICE_UNAVAILABLE
        }
    }
}

/// The sticky error of a session whose worker is lost.
#[inline]
pub fn check() -> Result {
    match FAILED.load(Ordering::Acquire) {
        CUDA_SUCCESS => Ok(()),
        status => Err(status),
    }
}
