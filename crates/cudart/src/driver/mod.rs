//! Finding the driver library and its functions, once per process and only when a call needs them.
//!
//! A `libcuda.so.1` that is already in the process is the one taken: the loader knows it by that name.
//! Functions come from `cuGetProcAddress_v2` where the driver has it, else by their symbol.
mod calls;

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

pub use calls::Calls;

use crate::error::{self, Error, Result};

/// A driver function to be found.
pub struct Wanted {
    /// Name without version, as `cuGetProcAddress` takes it.
    pub base: &'static str,
    /// Exported symbol.
    pub symbol: &'static CStr,
    /// CUDA version that makes `base` mean this symbol.
    pub since: u32,
}

type GetProcAddress = unsafe extern "C" fn(
    *const c_char,
    *mut *mut c_void,
    c_int,
    sys::cuuint64_t,
    *mut sys::CUdriverProcAddressQueryResult,
) -> sys::CUresult;

static CALLS: OnceLock<Calls> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());
/// How long another thread may take to load the driver. Longer means that this process was forked while
/// a thread of its parent did so: that thread does not exist here.
const LOADING_LIMIT: Duration = Duration::from_secs(60);
/// The number of devices, once the driver is initialised.
static DEVICES: AtomicI32 = AtomicI32::new(-1);
static FORKED: AtomicBool = AtomicBool::new(false);

/// The initialised driver.
///
/// # Errors
/// `cudaErrorInsufficientDriver` without a usable `libcuda.so.1`, what `cuInit` says (such as
/// `cudaErrorNoDevice`), and `cudaErrorInitializationError` in the child of a process that used CUDA.
#[inline]
pub fn get() -> Result<&'static Calls> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Error::FORKED);
    }
    match CALLS.get() {
        Some(calls) => Ok(calls),
        None => start(),
    }
}

#[cold]
fn start() -> Result<&'static Calls> {
    let Some(_only_one) = LOADING.try_lock_for(LOADING_LIMIT) else {
        return Err(Error::FORKED);
    };
    if let Some(calls) = CALLS.get() {
        return Ok(calls);
    }
    let loaded = load().and_then(|calls| {
        // SAFETY: cuInit takes no pointer.
        unsafe { calls.cuInit(0) }?;
        Ok(calls)
    });
    error::started(&loaded.as_ref().map(|_| ()).map_err(|error| *error));
    let calls = loaded?;
    let mut devices = 0;
    // SAFETY: writes one integer.
    unsafe { calls.cuDeviceGetCount(&mut devices) }?;
    DEVICES.store(devices, Ordering::Relaxed);
    // SAFETY: the handler only stores to a static.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    Ok(CALLS.get_or_init(|| calls))
}

/// The number of devices; also told in the child of a process that used CUDA.
///
/// # Errors
/// Those of [`get`].
pub fn devices() -> Result<c_int> {
    if DEVICES.load(Ordering::Relaxed) < 0 {
        get()?;
    }
    Ok(DEVICES.load(Ordering::Relaxed))
}

/// The version of the driver, 0 where there is none.
pub fn version() -> c_int {
    let mut version = 0;
    let found = match CALLS.get() {
        // SAFETY: writes one integer.
        Some(calls) => unsafe { calls.cuDriverGetVersion(&mut version) },
        // SAFETY: as above; this call needs no cuInit.
        None => load().and_then(|calls| unsafe { calls.cuDriverGetVersion(&mut version) }),
    };
    found.map_or(0, |()| version)
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

fn load() -> Result<Calls> {
    // SAFETY: a library name; the handle is never closed, so its symbols stay.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(Error::NO_DRIVER);
    }
    // SAFETY: a live handle and a terminated name.
    let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    if symbol(c"cuInit").is_null() {
        return Err(Error::NO_DRIVER);
    }
    let front = symbol(c"cuGetProcAddress_v2");
    // SAFETY: the symbol has this signature, and null is `None`.
    let front = unsafe { core::mem::transmute::<*mut c_void, Option<GetProcAddress>>(front) };
    let find = |wanted: &Wanted| {
        front
            .and_then(|front| ask(front, wanted))
            .unwrap_or_else(|| symbol(wanted.symbol))
    };
    // SAFETY: each address is the driver's function of that symbol, and the library stays loaded.
    Ok(unsafe { Calls::load(find) })
}

fn ask(front: GetProcAddress, wanted: &Wanted) -> Option<*mut c_void> {
    let mut name = [0_u8; 96];
    name.get_mut(..wanted.base.len())?
        .copy_from_slice(wanted.base.as_bytes());
    name.get(wanted.base.len())?;
    let version = c_int::try_from(wanted.since).ok()?;
    let mut address = core::ptr::null_mut();
    let mut status = 0;
    // SAFETY: a terminated name and places for the two results.
    let result = unsafe {
        front(
            name.as_ptr().cast(),
            &mut address,
            version,
            sys::CU_GET_PROC_ADDRESS_LEGACY_STREAM.into(),
            &mut status,
        )
    };
    (result == 0 && !address.is_null()).then_some(address)
}
