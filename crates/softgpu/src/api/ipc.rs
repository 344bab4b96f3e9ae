//! Device memory of other processes. A handle names the process and its descriptor of the memory, which the process that opens it
//! finds in `/proc`.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `SOFTGPUM` |
//! | 8 | 4 | process |
//! | 12 | 4 | its descriptor |
//! | 16 | 8 | bytes of the file |
//! | 24 | 8 | where in there the memory begins |
//!
//! All numbers are little-endian.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint};
use std::fs::File;
use std::os::fd::OwnedFd;

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use super::args::Out;
use super::init::driver;
use crate::error::{CuError, INVALID_VALUE, Result};
use crate::memory::{GRANULARITY, Kind, Physical, Protection};
use crate::{checkpoint, context};

const MAGIC: &[u8; 8] = b"SOFTGPUM";

/// Memory of another process that is open here.
#[derive(Debug)]
struct Opened {
    handle: [u8; 64],
    base: u64,
    size: u64,
    times: u64,
}

/// By the address that was given for it.
static OPENED: Mutex<BTreeMap<u64, Opened>> = Mutex::new(BTreeMap::new());

fn number<const N: usize>(bytes: &[u8; 64], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}

fn open(bytes: [u8; 64]) -> Result<u64> {
    let context = context::current()?;
    let mut opened = OPENED.lock();
    if let Some((address, known)) = opened.iter_mut().find(|(_, it)| it.handle == bytes) {
        known.times += 1;
        return Ok(*address);
    }
    let process = u32::from_le_bytes(number(&bytes, 8));
    if bytes[..8] != *MAGIC {
        return Err(INVALID_VALUE);
    }
    if process == std::process::id() {
        return Err(CuError(cu::CUDA_ERROR_INVALID_CONTEXT));
    }
    let descriptor = u32::from_le_bytes(number(&bytes, 12));
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path);
    let file = OwnedFd::from(file.map_err(|_| INVALID_VALUE)?);
    let physical = Physical::import(file, 0)?;
    let (size, offset) = (
        u64::from_le_bytes(number(&bytes, 16)),
        u64::from_le_bytes(number(&bytes, 24)),
    );
    if physical.size != size || offset >= size || !size.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    let memory = &driver()?.memory;
    let owner = physical.device;
    let base = memory.reserve(size, 0, 0)?;
    let mapped = memory.map(base, size, 0, physical).and_then(|()| {
        for device in [owner, context.device.ordinal] {
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
    let address = base + offset;
    opened.insert(
        address,
        Opened {
            handle: bytes,
            base,
            size,
            times: 1,
        },
    );
    Ok(address)
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
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[12..16].copy_from_slice(&shared.descriptor.to_le_bytes());
        bytes[16..24].copy_from_slice(&shared.size.to_le_bytes());
        bytes[24..32].copy_from_slice(&shared.offset.to_le_bytes());
        out.set(cu::CUipcMemHandle { reserved: bytes.map(|byte| byte as c_char) })
    }

    fn cuIpcOpenMemHandle_v2(out: Out<cu::CUdeviceptr>, handle: cu::CUipcMemHandle, flags: c_uint) {
        if out.is_null() || flags & !cu::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(INVALID_VALUE);
        }
        out.set(open(handle.reserved.map(|byte| byte as u8))?)
    }

    fn cuIpcCloseMemHandle(address: cu::CUdeviceptr) {
        context::current()?.synchronize()?;
        let mut opened = OPENED.lock();
        let known = opened.get_mut(&address).ok_or(INVALID_VALUE)?;
        known.times -= 1;
        if known.times > 0 {
            return Ok(());
        }
        let (base, size) = (known.base, known.size);
        opened.remove(&address);
        let memory = &driver()?.memory;
        memory.unmap(base, size)?;
        memory.unreserve(base, size)
    }
}
