//! Exported functions that share device memory and events between processes. A handle names a process and its descriptor,
//! which the process that opens the handle finds in `/proc`.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `SOFTGPUM`; `SOFTGPUE` for an event, which has nothing from offset 24 on |
//! | 8 | 4 | process |
//! | 12 | 4 | its descriptor |
//! | 16 | 8 | number of the file: the descriptor may be another file's later |
//! | 24 | 8 | bytes of the file |
//! | 32 | 8 | where in there the memory begins |
//!
//! All numbers are little-endian.

use std::ffi::{c_char, c_uint};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use fermata_abi::sys::driver as cu;

use super::args::Out;
use super::init::driver;
use super::to_pointer;
use crate::error::{CuError, INVALID_VALUE, OPERATING_SYSTEM, Result};
use crate::event::Event;
use crate::memory::{Kind, Physical, Shared};
use crate::recordings::Recordings;
use crate::{checkpoint, context, opened};

const MEMORY: &[u8; 8] = b"SOFTGPUM";
const EVENT: &[u8; 8] = b"SOFTGPUE";

fn number<const N: usize>(bytes: &[u8; 64], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}

fn word(bytes: &[u8; 64], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

/// The handle of a descriptor of this process; `file` is the number of its file.
fn handle_of(magic: &[u8; 8], descriptor: i32, file: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(magic);
    bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    bytes[12..16].copy_from_slice(&descriptor.to_le_bytes());
    bytes[16..24].copy_from_slice(&file.to_le_bytes());
    bytes
}

/// The file that a handle of another process names.
fn file_of(bytes: &[u8; 64], magic: &[u8; 8]) -> Result<OwnedFd> {
    let process = u32::from_le_bytes(number(bytes, 8));
    if bytes[..8] != *magic {
        return Err(INVALID_VALUE);
    }
    if process == std::process::id() {
        return Err(CuError(cu::CUDA_ERROR_INVALID_CONTEXT));
    }
    let descriptor = u32::from_le_bytes(number(bytes, 12));
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|_| INVALID_VALUE)?;
    let known = file.metadata().map_err(|_| INVALID_VALUE)?;
    match known.ino() == word(bytes, 16) {
        true => Ok(file.into()),
        false => Err(INVALID_VALUE),
    }
}

/// The handle of an allocation that is a file.
pub(super) fn handle_of_memory(shared: &Shared) -> Result<[u8; 64]> {
    let known = std::fs::metadata(format!("/proc/self/fd/{}", shared.descriptor));
    let file = known.map_err(|_| OPERATING_SYSTEM)?.ino();
    let mut bytes = handle_of(MEMORY, shared.descriptor, file);
    bytes[24..32].copy_from_slice(&shared.size.to_le_bytes());
    bytes[32..40].copy_from_slice(&shared.offset.to_le_bytes());
    Ok(bytes)
}

/// Opens memory of another process; `pooled` if it is of a memory pool.
pub(super) fn open(bytes: [u8; 64], pooled: bool) -> Result<u64> {
    let device = context::current()?.device.ordinal;
    let place = (word(&bytes, 24), word(&bytes, 32));
    opened::open(bytes, place, device, pooled, || {
        Physical::import(file_of(&bytes, MEMORY)?, 0)
    })
}

api! {
    /// Waits until nothing runs in this process: the memory becomes a file at the same addresses.
    fn cuIpcGetMemHandle(out: Out<cu::CUipcMemHandle>, address: cu::CUdeviceptr) {
        context::current()?;
        let driver = driver()?;
        let range = driver.memory.find(address).ok_or(INVALID_VALUE)?;
        if out.is_null() || !matches!(range.kind, Kind::Device) {
            return Err(INVALID_VALUE);
        }
        let shared = checkpoint::quiet(driver, || driver.memory.share(range.base))?;
        let bytes = handle_of_memory(&shared)?;
        out.set(cu::CUipcMemHandle { reserved: bytes.map(|byte| byte as c_char) })
    }

    fn cuIpcOpenMemHandle_v2(out: Out<cu::CUdeviceptr>, handle: cu::CUipcMemHandle, flags: c_uint) {
        if out.is_null() || flags & !cu::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(INVALID_VALUE);
        }
        out.set(open(handle.reserved.map(|byte| byte as u8), false)?)
    }

    fn cuIpcCloseMemHandle(address: cu::CUdeviceptr) {
        context::current()?.synchronize()?;
        opened::close(address, false)?.map_or(Ok(()), |whole| whole.unmap())
    }

    fn cuIpcGetEventHandle(out: Out<cu::CUipcEventHandle>, event: cu::CUevent) {
        let event = Event::resolve(event)?;
        let recordings = event.between.as_ref().filter(|_| !out.is_null()).ok_or(INVALID_VALUE)?;
        let bytes = handle_of(EVENT, recordings.file().as_raw_fd(), recordings.number()?);
        out.set(cu::CUipcEventHandle { reserved: bytes.map(|byte| byte as c_char) })
    }

    fn cuIpcOpenEventHandle(out: Out<cu::CUevent>, handle: cu::CUipcEventHandle) {
        let context = context::current()?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        let bytes = handle.reserved.map(|byte| byte as u8);
        let recordings = Recordings::open(file_of(&bytes, EVENT)?, word(&bytes, 16))?;
        out.set(to_pointer(Event::open(&context, recordings)?.handle))
    }
}
