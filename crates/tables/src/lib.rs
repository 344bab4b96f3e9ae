//! The driver's undocumented tables, as NVIDIA's runtime and libraries ask for them.
//!
//! `cuGetExportTable` hands out tables of functions that no header declares. Every CUDA runtime, shared or
//! static, and the copies of it inside cuBLAS, cuDNN, NCCL and others ask for some of them. This crate
//! serves the few functions that they call. Both of Fermata's driver libraries use it: the client and the
//! software GPU. What the functions need of the library that serves them is the trait [`Driver`].
//!
//! ```text
//!   cuGetExportTable(id) ─► serve ─┬─► a table: its slots call Driver, unknown slots refuse and are named
//!                                  └─► None: the table is refused, and named
//! ```
//! docs/decisions/026-undocumented-tables.md says what is answered, why, and where the facts come from.
//!
//! Nothing here may answer "success" to a request that it does not know.

mod cache;
mod checks;
mod contexts;
mod handshake;
mod hooks;
mod log;
mod modules;
mod places;
mod runtime;
mod slots;
mod storage;
mod thread_state;

use core::ffi::c_void;
use std::collections::HashSet;
use std::sync::OnceLock;

use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

pub use cache::{CodeCache, Entry as CachedCode};
pub use handshake::Identity;
pub use places::Places;
pub use storage::context_gone;

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

    /// As `cuDevicePrimaryCtxRetain`.
    ///
    /// # Errors
    /// That function's.
    fn retain(&self, device: sys::CUdevice) -> Result<sys::CUcontext>;

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

static DRIVER: OnceLock<&'static dyn Driver> = OnceLock::new();

/// The address of a table, `None` if it is refused. `by` is the library that serves it, always the same one.
pub fn serve(by: &'static dyn Driver, id: &sys::CUuuid) -> Option<*const c_void> {
    DRIVER.get_or_init(|| by);
    let id = id.bytes.map(|byte| byte.cast_unsigned());
    let found = match id {
        runtime::ID => runtime::TABLE.address(),
        hooks::ID => hooks::TABLE.address(),
        thread_state::ID => thread_state::TABLE.address(),
        storage::ID => storage::TABLE.address(),
        checks::ID => checks::TABLE.address(),
        handshake::ID => handshake::TABLE.address(),
        contexts::ID => contexts::TABLE.address(),
        modules::ID => modules::TABLE.address(),
        places::ID => places::TABLE.address(),
        cache::ID => cache::TABLE.address(),
        log::ID => log::TABLE.address(),
        _ => {
            refuse(format!("the driver's undocumented table {}", name(&id)));
            return None;
        }
    };
    Some(found)
}

/// Tells the log that something unknown was asked for, the first time.
fn refuse(what: String) {
    static TOLD: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();
    let Some(driver) = DRIVER.get() else { return };
    let message = format!("{what} was asked for and refused: Fermata does not know what it is for");
    if TOLD.get_or_init(Mutex::default).lock().insert(what) {
        driver.refused(&message);
    }
}

/// An identifier as it is usually written.
fn name(id: &[u8; 16]) -> String {
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
fn call(mut body: impl FnMut(&'static dyn Driver) -> Result) -> sys::CUresult {
    match DRIVER.get() {
        Some(driver) => driver.call(&mut || body(*driver)),
        None => sys::CUDA_ERROR_NOT_INITIALIZED,
    }
}

/// Stores a result through a pointer of the caller; a null pointer is an invalid value.
///
/// # Safety
/// `to` is null or points to room for a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so room for a T by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests;
