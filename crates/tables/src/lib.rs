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
mod driver;
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

use fermata_abi::sys::driver as sys;

pub use cache::{CodeCache, Entry as CachedCode};
use driver::{DRIVER, name, refuse};
pub use driver::{Driver, Identity, Places, Result};
pub use storage::{context_gone, forget_context};

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

#[cfg(test)]
mod tests;
