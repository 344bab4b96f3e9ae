//! Memory and events shared between the processes of a session: exports of this process, and imports from others.
//!
//! A handle names the memory ([`SharedMemory`]); the workers do the sharing. Memory of `cuIpcOpenMemHandle` is physical memory of
//! the other process, mapped whole into a reservation of its own:
//!
//! ```text
//!   handle ─► fetch ─► reserve ─► map ─► access      address = reservation + offset
//!   close  ─► unmap ─► free the reservation ─► release, when it has been opened as often as closed
//! ```
//! Memory of an imported memory pool is opened in the same way, and can be closed in stream order.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use fermata_abi::op::{
    Address, ContextId, EventId, MemoryId, Op, ReplyBody, SHARED, SharedMemory, Sharer, StreamRef,
};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::handles;
use crate::link;
use crate::notice;
use crate::object::context;
use crate::object::devices::Devices;
use crate::object::mirror::{Block, Kind, Mirror};
use crate::result::Result;

/// The number of this process; a restore keeps it, because it is part of the process's memory.
static OWN: OnceLock<Sharer> = OnceLock::new();

/// Memory opened by `cuIpcOpenMemHandle` and `cuMemPoolImportPointer`, by the address that they returned.
#[derive(Debug, Default)]
pub struct OpenedMemory(Mutex<BTreeMap<Address, Opened>>);

#[derive(Debug)]
struct Opened {
    shared: SharedMemory,
    kind: Kind,
    memory: MemoryId,
    context: ContextId,
    times: u64,
}

/// The number of this process.
pub fn own() -> Result<&'static Sharer> {
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    let mut fresh = Sharer::default();
    // SAFETY: the buffer has as many bytes.
    let got = unsafe { libc::getrandom(fresh.as_mut_ptr().cast(), fresh.len(), 0) };
    if got != fresh.len() as isize {
        return Err(sys::CUDA_ERROR_OPERATING_SYSTEM);
    }
    Ok(OWN.get_or_init(|| fresh))
}

/// Whether this process shares it.
pub fn is_own(sharer: &Sharer) -> bool {
    OWN.get() == Some(sharer)
}

/// The handle of an allocation (by its first address) or of physical memory (by its handle; else 0) for other processes.
pub fn share(address: Address, memory: MemoryId) -> Result<[u8; SHARED]> {
    let sharer = *own()?;
    let op = Op::MemShare {
        sharer,
        address,
        memory,
    };
    link::ask(&op, handle)
}

/// The handle of an event for other processes.
pub fn share_event(event: EventId) -> Result<[u8; SHARED]> {
    let sharer = *own()?;
    link::ask(&Op::EventShare { sharer, event }, handle)
}

fn handle(body: ReplyBody<'_>) -> Result<[u8; SHARED]> {
    match body {
        ReplyBody::Bytes(bytes) => bytes.try_into().map_err(|_| sys::CUDA_ERROR_UNKNOWN),
        _ => Err(sys::CUDA_ERROR_UNKNOWN),
    }
}

/// Tells the user that a call was given an object that this session does not have, because the error code does not say so
/// and the reason is only in the worker's log.
pub fn tell(call: &str, what: &str, code: sys::CUresult) {
    notice::write(&format!(
        "{call} was given {what} that this session does not have (CUDA error {code}): it belongs to a process outside the \
         session, or that process has ended or freed it; processes that share GPU memory are started by one `fermata run`"
    ));
}

/// Imports physical memory of another process; returns its handle here, and the index of its device.
pub fn fetch(call: &str, shared: &SharedMemory) -> Result<(MemoryId, u32)> {
    let memory = handles::fresh();
    let op = Op::MemFetch {
        memory,
        shared: &shared.encode(),
    };
    let device = link::ask(&op, link::number);
    let device = device.inspect_err(|code| tell(call, "memory", *code))?;
    Ok((memory, device as u32))
}

impl OpenedMemory {
    /// Opens memory of another process for the current device and others, as a block of `kind`; returns its address.
    pub fn open(
        &self,
        (call, kind): (&str, Kind),
        (visible, blocks): (&Devices, &Mirror),
        shared: SharedMemory,
        others: &[sys::CUdevice],
    ) -> Result<Address> {
        let current = context::current()?;
        if is_own(&shared.sharer) {
            return Err(sys::CUDA_ERROR_INVALID_CONTEXT);
        }
        let mut opened = self.0.lock();
        if let Some((address, known)) = opened
            .iter_mut()
            .find(|(_, it)| it.shared == shared && it.kind == kind)
        {
            known.times += 1;
            return Ok(*address);
        }
        let (memory, index) = fetch(call, &shared)?;
        let mut devices = vec![index];
        for device in others.iter().chain([&current.device]) {
            devices.push(visible.get(*device)?.index);
        }
        devices.sort_unstable();
        devices.dedup();
        let mapped = map(memory, shared.whole, devices);
        let base = mapped.inspect_err(|_| {
            // The first failure is the one to report.
            let _ = link::ask(&Op::MemRelease { memory }, link::nothing);
        })?;
        let address = base + shared.offset;
        let block = Block::new(address, shared.size, kind, &current);
        blocks.insert(block);
        opened.insert(
            address,
            Opened {
                shared,
                kind,
                memory,
                context: current.handle,
                times: 1,
            },
        );
        Ok(address)
    }

    /// Closes memory that [`OpenedMemory::open`] has opened at this address as `kind`.
    pub fn close(&self, blocks: &Mirror, address: Address, kind: Kind) -> Result {
        let Some(gone) = self.take(blocks, address, kind)? else {
            return Ok(());
        };
        let (base, memory, context) = (address - gone.shared.offset, gone.memory, gone.context);
        // Waits for kernels that use it, because the driver does not when it unmaps.
        link::ask(&Op::ContextSync { context }, link::nothing)?;
        unmap(base, gone.shared.whole)?;
        link::ask(&Op::MemRelease { memory }, link::nothing)
    }

    /// As [`OpenedMemory::close`], in stream order.
    pub fn close_async(
        &self,
        blocks: &Mirror,
        (address, kind): (Address, Kind),
        stream: StreamRef,
    ) -> Result {
        let Some(gone) = self.take(blocks, address, kind)? else {
            return Ok(());
        };
        let address = address - gone.shared.offset;
        link::post(&Op::MemCloseAsync { address, stream })
    }

    /// Counts one close; removes and returns the entry if that was the last.
    fn take(&self, blocks: &Mirror, address: Address, kind: Kind) -> Result<Option<Opened>> {
        let mut opened = self.0.lock();
        let known = opened.get_mut(&address).filter(|it| it.kind == kind);
        let known = known.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        known.times -= 1;
        if known.times > 0 {
            return Ok(None);
        }
        blocks.remove(address, |block| block.kind == kind)?;
        Ok(opened.remove(&address))
    }
}

fn map(memory: MemoryId, size: u64, devices: Vec<u32>) -> Result<Address> {
    let reserve = Op::AddressReserve {
        size,
        align: 0,
        address: Address::NULL,
    };
    let address = link::ask(&reserve, link::address)?;
    let map = Op::MemMap {
        address,
        size,
        offset: 0,
        memory,
    };
    let access = Op::MemSetAccess {
        address,
        size,
        access: sys::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        devices,
    };
    let free = Op::AddressFree { address, size };
    let made = link::ask(&map, link::nothing).and_then(|()| {
        link::ask(&access, link::nothing).inspect_err(|_| {
            let _ = link::ask(&Op::MemUnmap { address, size }, link::nothing);
        })
    });
    made.inspect_err(|_| {
        // The first failure is the one to report.
        let _ = link::ask(&free, link::nothing);
    })?;
    Ok(address)
}

fn unmap(address: Address, size: u64) -> Result {
    link::ask(&Op::MemUnmap { address, size }, link::nothing)?;
    link::ask(&Op::AddressFree { address, size }, link::nothing)
}
