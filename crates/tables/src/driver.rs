//! What the tables need of the driver library that serves them, and how their functions reach it.

use core::ffi::c_void;
use std::collections::HashSet;
use std::sync::OnceLock;

use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::cache::CodeCache;

/// What a device is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// As `cuDeviceGetUuid_v2`.
    pub uuid: [u8; 16],
    /// Its PCI domain, bus and device.
    pub pci: [i32; 3],
}

/// A byte for each pair of multiprocessors in both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The cluster of processors it is in.
    pub clusters: Vec<u8>,
    /// Its index therein.
    pub indices: Vec<u8>,
}

/// What a served function computes, or the `CUresult` to return instead.
pub type Result<T = ()> = core::result::Result<T, sys::CUresult>;

/// What the tables need of the driver library that serves them.
pub trait Driver: Sync {
    /// Runs a served function as one of the driver's own calls. Nothing may unwind out of it.
    fn call(&self, body: &mut dyn FnMut() -> Result) -> sys::CUresult;

    /// As `cuDriverGetVersion`.
    fn version(&self) -> i32;

    /// The visible devices, in the order of their ordinals.
    fn devices(&self) -> Vec<Identity>;

    /// The calling thread's current context, null if it has none.
    fn current(&self) -> sys::CUcontext;

    /// The primary context of a device, which need not be active, and is not made or retained by this.
    ///
    /// # Errors
    /// There is no such device.
    fn primary(&self, device: sys::CUdevice) -> Result<sys::CUcontext>;

    /// As `cuCtxGetId`.
    ///
    /// # Errors
    /// That function's.
    fn context_id(&self, context: sys::CUcontext) -> Result<u64>;

    /// As `cuStreamGetId`, for a stream of `context`.
    ///
    /// # Errors
    /// That function's.
    fn stream_id(&self, context: sys::CUcontext, stream: sys::CUstream) -> Result<u64>;

    /// As `cuModuleEnumerateFunctions`.
    ///
    /// # Errors
    /// That function's.
    fn functions(&self, module: sys::CUmodule) -> Result<Vec<sys::CUfunction>>;

    /// As `cuModuleLoadFatBinary`.
    ///
    /// # Errors
    /// That function's.
    ///
    /// # Safety
    /// `image` is null or points to a complete module image.
    unsafe fn load(&self, image: *const c_void) -> Result<sys::CUmodule>;

    /// Where the multiprocessors of the current context's device lie on the chip.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` where nobody knows.
    fn places(&self) -> Result<Places>;

    /// The store of compiled code, if there is one.
    fn code(&self) -> Option<&CodeCache>;

    /// Tells the session's log of something that was refused. Called once for each.
    fn refused(&self, what: &str);
}

/// Set by the first that asks for a table.
pub(crate) static DRIVER: OnceLock<&'static dyn Driver> = OnceLock::new();

/// Tells the log that something unknown was asked for, the first time.
pub(crate) fn refuse(what: String) {
    static TOLD: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();
    let Some(driver) = DRIVER.get() else { return };
    let message = format!("{what} was asked for and refused: Fermata does not know what it is for");
    if TOLD.get_or_init(Mutex::default).lock().insert(what) {
        driver.refused(&message);
    }
}

/// An identifier as it is usually written.
pub(crate) fn name(id: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Runs the body of a served function.
pub(crate) fn call(mut body: impl FnMut(&'static dyn Driver) -> Result) -> sys::CUresult {
    match DRIVER.get() {
        Some(driver) => driver.call(&mut || body(*driver)),
        None => sys::CUDA_ERROR_NOT_INITIALIZED,
    }
}

/// Stores a result through a pointer of the caller; a null pointer is an invalid value.
///
/// # Safety
/// `to` is null or points to room for a `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so room for a T by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}
