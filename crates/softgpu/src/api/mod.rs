//! The exported functions of `libcuda.so.1`, one file for each group of the driver API.
//!
//! A body returns a `Result`; `guard` turns it into a result code and lets no panic out
//! to the program. Variants for per-thread default streams and functions that are not supported are
//! generated from the API table.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fermata_abi::sys::driver as cu;

use crate::checkpoint::Call;
use crate::error::Result;
use crate::log;

/// Exports functions; where two names are given, both do the same.
macro_rules! api {
    () => {};
    ($(#[doc = $doc:literal])* fn $name:ident ($($arg:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::api::export! { [$($doc)*] $name ($($arg: $type),*) $body }
        $crate::api::api! { $($rest)* }
    };
    ($(#[doc = $doc:literal])* fn $name:ident | fn $other:ident
        ($($arg:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::api::export! { [$($doc)*] $name ($($arg: $type),*) $body }
        $crate::api::export! { [$($doc)*] $other ($($arg: $type),*) $body }
        $crate::api::api! { $($rest)* }
    };
}

/// One exported function.
macro_rules! export {
    ([$($doc:literal)*] $name:ident ($($arg:ident: $type:ty),*) $body:block) => {
        #[doc = concat!("`", stringify!($name), "` of the driver API.")]
        $(#[doc = $doc])*
        ///
        /// # Safety
        /// Pointers are null or valid for what the CUDA documentation says is done with them.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> fermata_abi::sys::driver::CUresult {
            $crate::api::guard(stringify!($name), || $body)
        }
    };
}

pub(crate) use {api, export};

/// Runs the body of an exported function.
fn guard(name: &str, body: impl FnOnce() -> Result) -> cu::CUresult {
    // These wait until no other is in progress.
    let alone = name.starts_with("cuCheckpoint") || name == "cuIpcGetMemHandle";
    let _call = (!alone).then(Call::begin);
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => cu::CUDA_SUCCESS,
        Ok(Err(error)) => error.0,
        Err(_) => {
            log::note(format!("{name}: internal error"));
            cu::CUDA_ERROR_UNKNOWN
        }
    }
}

/// A handle as the program sees it.
fn to_pointer<T>(handle: u64) -> *mut T {
    std::ptr::without_provenance_mut(handle as usize)
}

/// The number in a handle of the program.
fn to_handle<T>(pointer: *mut T) -> u64 {
    pointer.addr() as u64
}

pub mod absent;
pub mod args;
pub mod array;
pub mod batch;
pub mod capture;
pub mod checkpoint;
pub mod context;
pub mod copy;
pub mod device;
pub mod error;
pub mod event;
pub mod function;
pub mod graph;
pub mod graph_exec;
pub mod graph_nodes;
mod graph_params;
pub mod green;
pub mod init;
pub mod ipc;
pub mod launch;
pub mod launch_old;
pub mod library;
pub mod link;
pub mod managed;
pub mod memop;
pub mod memory;
pub mod memset;
pub mod mipmap;
pub mod module;
pub mod narrow;
pub mod occupancy;
pub mod per_thread;
pub mod pointer;
pub mod pool;
pub mod proc_address;
mod proc_table;
pub mod reference;
pub mod stream;
pub(crate) mod tables;
pub mod texture;
pub mod unsupported;
pub mod vmm;
