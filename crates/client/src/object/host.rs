//! Memory shared with the worker: pinned, registered and managed.
//!
//! ```text
//!   memory file ── mapped in the program ──┐  same address
//!        └──────── mapped in the worker ───┘
//! ```
//! While the program is detached, a mapping without access reserves each region's addresses.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

use fermata_abi::op::{Address, ContextId, HOST_BASE, HOST_END, HostKind, Op};
use fermata_abi::sys::driver::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
};
use fermata_wire::FromProgram;
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::link;
use crate::object::context::Context;
use crate::object::exchange;
use crate::object::mirror::{Block, Kind, Mirror, PAGE};
use crate::object::places;
use crate::object::registering::Registering;
use crate::object::shared_mapping::{self, Backing, Part};
use crate::result::Result;

/// Addresses at which the worker is asked to map a region.
const TRIES: u32 = 4;
/// Addresses that are tried for a region in this process.
const TRIES_HERE: u32 = 4096;

/// Allocates a region of pinned or managed memory.
pub fn alloc(
    memory: &Mirror,
    context: &Context,
    size: u64,
    kind: HostKind,
    flags: u32,
) -> Result<Address> {
    if size == 0 || size > HOST_END - HOST_BASE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mapped = size.next_multiple_of(PAGE);
    let file = memory_file(mapped)?;
    let mut tries = 0;
    loop {
        let address = map_somewhere(memory, mapped, file.as_fd())?;
        keep_from_children(address, mapped);
        match announce(context, address, mapped, kind, flags, file.as_fd()) {
            Ok(()) => {
                let block = Block::new(address, size, Kind::Host(kind), context);
                memory.insert(Block {
                    mapped,
                    flags,
                    ..block
                });
                return Ok(address);
            }
            Err(status) => unmap_and(address, mapped, status, &mut tries)?,
        }
    }
}

/// Unmaps after a refusal by the worker. The caller may try another address, further away each time, if the driver uses these
/// itself.
fn unmap_and(address: Address, mapped: u64, status: u32, tries: &mut u32) -> Result {
    unmap(address, mapped);
    *tries += 1;
    if *tries == TRIES {
        return Err(status);
    }
    places::skip(mapped, 1 << (6 * *tries));
    Ok(())
}

/// Frees a region made by [`alloc`].
pub fn free(memory: &Mirror, address: Address, kind: HostKind) -> Result {
    let block = memory.remove(address, |block| block.kind == Kind::Host(kind))?;
    give_up(block, |block| unmap(block.start, block.mapped))
}

/// Regions that the worker has been asked to unmap: until it has, both sides have them mapped.
static LEAVING: Mutex<Vec<Arc<Block>>> = Mutex::new(Vec::new());

/// Has the worker unmap a region that has been removed from the mirror, then calls `act` with it.
fn give_up(block: Arc<Block>, act: impl FnOnce(&Block)) -> Result {
    let (address, _) = block.pages();
    LEAVING.lock().push(Arc::clone(&block));
    let done = link::ask(&Op::HostUnmap { address }, link::nothing);
    LEAVING.lock().retain(|it| !Arc::ptr_eq(it, &block));
    act(&block);
    done
}

/// All regions that are shared with the worker now, but not memory that the program shares with other processes. Of several blocks
/// on the same pages it returns one.
pub fn shared(memory: &Mirror) -> Vec<Arc<Block>> {
    let mut blocks = memory.host_blocks();
    blocks.dedup_by_key(|it| it.pages());
    blocks.extend(LEAVING.lock().iter().cloned());
    blocks.retain(|it| it.kind != Kind::Host(HostKind::Shared));
    blocks
}

/// Turns ordinary memory, with the rest of its first and its last page, into a shared region at its own address. Memory that
/// other processes may share stays unchanged, and the worker maps the same file.
///
/// Registered memory that lies on the very same pages shares the region, which lives as long as any of it.
///
/// What another thread writes to a page at the moment when it is replaced may be lost (see [`exchange`]); so it is in
/// [`unregister`].
///
/// # Safety
/// `size` bytes at `address` are ordinary memory of the program, which does not unmap their pages meanwhile.
pub unsafe fn register(
    memory: &Mirror,
    context: &Context,
    address: Address,
    size: u64,
    flags: u32,
) -> Result {
    if size == 0 || address.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let end = address
        .checked_add(size)
        .filter(|end| end.checked_add(PAGE).is_some())
        .ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let start = address.align_down(PAGE);
    let mapped = end.next_multiple_of(PAGE) - start;
    let registering = Registering::begin();
    let beside = memory.on_pages(start, mapped);
    let fits = |it: &Arc<Block>| {
        let is_apart = end <= it.start || it.start + it.size <= address;
        // A region ends with its context. No page may outlive in it the memory that was registered there, because the program may
        // unmap that.
        is_apart
            && is_registered(it)
            && it.context == context.handle
            && it.pages() == (start, mapped)
    };
    if !beside.iter().all(fits) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let kind = match beside.first() {
        Some(other) => other.kind,
        None => Kind::Host(share(context, (start, mapped), flags, &registering)?),
    };
    // Only these bytes are pinned memory: other data on their pages stays ordinary memory, of which a copy takes the bytes before
    // the call returns.
    let block = Block::new(address, size, kind, context);
    memory.insert(Block {
        mapped,
        flags,
        ..block
    });
    Ok(())
}

fn is_registered(block: &Block) -> bool {
    [HostKind::Registered, HostKind::Shared]
        .map(Kind::Host)
        .contains(&block.kind)
}

/// Makes a region of whole pages of the program; returns its kind.
fn share(
    context: &Context,
    (start, mapped): (Address, u64),
    flags: u32,
    registering: &Registering,
) -> Result<HostKind> {
    match shared_mapping::at(start, mapped) {
        Backing::Private => {
            registering.change((start, mapped));
            share_private(context, (start, mapped), flags)?;
            Ok(HostKind::Registered)
        }
        Backing::Shared(part) => {
            send_shared(start, mapped, &part)?;
            ask_to_map(context, start, mapped, HostKind::Shared, flags)?;
            Ok(HostKind::Shared)
        }
        // In a stop a thread is parked on its stack, which must stay mapped. After a fork, parent and child must not share one.
        Backing::Running | Backing::Unknown => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

fn share_private(context: &Context, (start, mapped): (Address, u64), flags: u32) -> Result {
    let file = memory_file(mapped)?;
    // The pages around the caller's bytes exist, for a page is mapped whole or not at all.
    exchange::by_file(start, mapped, file.as_fd()).map_err(|errno| match errno {
        Errno::FAULT => CUDA_ERROR_INVALID_VALUE,
        _ => CUDA_ERROR_OUT_OF_MEMORY,
    })?;
    let kind = HostKind::Registered;
    announce(context, start, mapped, kind, flags, file.as_fd())
        .inspect_err(|_| exchange::by_private(start, mapped))
}

fn send_shared(address: Address, size: u64, part: &Part) -> Result {
    let region = FromProgram::Shared {
        address,
        size,
        offset: part.offset,
    };
    link::side()?
        .send_region(&region, part.file.as_fd())
        .map_err(|error| link::lost(&error))
}

/// Sends a new worker the file behind a region that the program shares with other processes.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`: the range is no longer such memory.
pub fn send_again(address: Address, size: u64) -> Result {
    match shared_mapping::at(address, size) {
        Backing::Shared(part) => send_shared(address, size, &part),
        Backing::Private | Backing::Running | Backing::Unknown => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Turns registered memory back into ordinary memory.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`: the address lies in registered memory, but that begins elsewhere.
pub fn unregister(memory: &Mirror, address: Address) -> Result {
    let registering = Registering::begin();
    let found = memory
        .find(address)
        .filter(|block| is_registered(block))
        .ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    if found.kind == Kind::Host(HostKind::Registered) {
        registering.change(found.pages());
    }
    let block = memory.remove(address, is_registered)?;
    let (start, mapped) = block.pages();
    let is_last = memory.on_pages(start, mapped).is_empty();
    match block.kind {
        _ if !is_last => Ok(()),
        Kind::Host(HostKind::Shared) => give_up(block, |_| ()),
        _ => make_ordinary(block),
    }
}

/// Ends the sharing of a region that has been removed from the mirror; the program keeps its content at its address.
pub fn make_ordinary(block: Arc<Block>) -> Result {
    give_up(block, |block| {
        let (start, mapped) = block.pages();
        exchange::by_private(start, mapped);
    })
}

/// Frees the regions of a context that ends, as the driver does; registered memory is the program's own.
pub fn forget(memory: &Mirror, context: ContextId) {
    let blocks = memory.host_blocks();
    for block in blocks.iter().filter(|block| block.context == context) {
        // A region that cannot be released now is released with the session.
        let _ = match block.kind {
            Kind::Host(HostKind::Registered | HostKind::Shared) => unregister(memory, block.start),
            Kind::Host(kind) => free(memory, block.start, kind),
            _ => Ok(()),
        };
    }
}

/// Unmaps a region's memory and reserves its addresses with a mapping without access.
pub fn detach(address: Address, mapped: u64) -> core::result::Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range is a region of ours; the agent does this while every thread is parked.
    unsafe {
        rustix::mm::mmap_anonymous(
            pointer(address).cast(),
            mapped as usize,
            ProtFlags::empty(),
            flags,
        )
    }
    .map(|_| ())
}

/// Maps a region again after [`detach`].
///
/// If `ours`, a forked child does not inherit it.
pub fn attach(address: Address, mapped: u64, file: BorrowedFd<'_>, ours: bool) -> Result {
    map(address, mapped, file, MapFlags::FIXED)?;
    if ours {
        keep_from_children(address, mapped);
    }
    Ok(())
}

fn keep_from_children(address: Address, mapped: u64) {
    // SAFETY: the advice changes what a fork copies, nothing in this process. Without it (it cannot fail
    // on a mapping of ours) a child would share the memory.
    let _ = unsafe {
        rustix::mm::madvise(
            pointer(address).cast(),
            mapped as usize,
            rustix::mm::Advice::LinuxDontFork,
        )
    };
}

fn pointer(address: Address) -> *mut u8 {
    with_exposed_provenance_mut(address.raw() as usize)
}

fn memory_file(bytes: u64) -> Result<rustix::fd::OwnedFd> {
    let file = rustix::fs::memfd_create(c"fermata-host", MemfdFlags::CLOEXEC)
        .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    rustix::fs::ftruncate(&file, bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    Ok(file)
}

/// Sends a region to the worker.
fn announce(
    context: &Context,
    address: Address,
    size: u64,
    kind: HostKind,
    flags: u32,
    file: BorrowedFd<'_>,
) -> Result {
    let region = FromProgram::Region { address, size };
    link::side()?
        .send_region(&region, file)
        .map_err(|error| link::lost(&error))?;
    ask_to_map(context, address, size, kind, flags)
}

/// Has the worker map what was sent.
fn ask_to_map(
    context: &Context,
    address: Address,
    size: u64,
    kind: HostKind,
    flags: u32,
) -> Result {
    let op = Op::HostMap {
        address,
        size,
        kind,
        flags,
        context: context.handle,
    };
    link::ask(&op, link::nothing)
}

/// Maps a file where nothing is mapped, in the range for host memory.
fn map_somewhere(memory: &Mirror, mapped: u64, file: BorrowedFd<'_>) -> Result<Address> {
    for _ in 0..TRIES_HERE {
        let address = places::next(memory, mapped).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if map(address, mapped, file, MapFlags::FIXED_NOREPLACE).is_ok() {
            return Ok(address);
        }
    }
    Err(CUDA_ERROR_OUT_OF_MEMORY)
}

fn map(address: Address, mapped: u64, file: BorrowedFd<'_>, how: MapFlags) -> Result {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let length = mapped as usize;
    // SAFETY: either nothing is mapped there (NOREPLACE), or the range is a region of ours or memory
    // whose content the file has already.
    let got = unsafe {
        rustix::mm::mmap(
            pointer(address).cast(),
            length,
            protection,
            MapFlags::SHARED | how,
            file,
            0,
        )
    };
    let got = got.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    if Address::from_raw(got.expose_provenance() as u64) != address {
        // A kernel that does not know NOREPLACE took the address for a hint.
        unmap(Address::of(got), mapped);
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(())
}

fn unmap(address: Address, mapped: u64) {
    // SAFETY: the range is a mapping of ours that the program has given back.
    let _ = unsafe { rustix::mm::munmap(pointer(address).cast(), mapped as usize) };
}
