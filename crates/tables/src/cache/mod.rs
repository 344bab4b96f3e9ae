//! The cache of compiled code: NVRTC keeps in it what it has compiled, so that the next process need not.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 1 | handle*, u32 kind, key, key bytes, options, platform, build, u32 architecture | names an entry |
//! | 2 | handle | gives the name back |
//! | 3 | handle, 0, data**, u32* bytes | reads the entry; `CUDA_ERROR_NOT_FOUND` if there is none |
//! | 4 | handle, 0, data, bytes | writes the entry |
//! | 6 | data | gives back what slot 3 gave |
//!
//! Kind 1 is machine code, kind 2 the text before it. Options, platform and build are C strings, and with
//! key and architecture they say what the entry was compiled from. Read off the driver 580.159.

mod store;

use core::ffi::{CStr, c_char, c_void};

use fermata_abi::sys::driver as sys;

pub use store::{CodeCache, Entry};

use crate::driver::call;
use crate::places::allocate;
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28,
];

struct Cache;

impl Named for Cache {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::new::<Cache>(7)
    .with(1, create as *const c_void)
    .with(2, destroy as *const c_void)
    .with(3, read as *const c_void)
    .with(4, write as *const c_void)
    .with(6, free as *const c_void);

/// The longest key and the longest string that are believed.
const LONGEST: usize = 1 << 30;

#[allow(clippy::too_many_arguments)]
extern "C" fn create(
    handle: *mut *mut Entry,
    kind: u32,
    key: *const u8,
    key_bytes: usize,
    options: *const c_char,
    platform: *const c_char,
    build: *const c_char,
    architecture: u32,
) -> sys::CUresult {
    call(|driver| {
        // Without a store the caller compiles, as it does where the driver's cache is switched off.
        driver.code().ok_or(sys::CUDA_ERROR_NOT_SUPPORTED)?;
        if handle.is_null() || (key.is_null() && key_bytes > 0) || key_bytes > LONGEST {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let key = if key_bytes == 0 {
            &[]
        } else {
            // SAFETY: not null, and as long as the caller says.
            unsafe { core::slice::from_raw_parts(key, key_bytes) }
        };
        // SAFETY: the caller passes C strings, or null.
        let texts = unsafe { [bytes(options), bytes(platform), bytes(build)] };
        let entry = Box::new(Entry::new(kind, architecture, key, texts));
        // SAFETY: not null, and room for a pointer.
        unsafe { handle.write(Box::into_raw(entry)) };
        Ok(())
    })
}

extern "C" fn destroy(handle: *mut Entry) -> sys::CUresult {
    call(|_| {
        if handle.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_HANDLE);
        }
        // SAFETY: the caller gives back, once, what slot 1 gave it.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    })
}

extern "C" fn read(
    handle: *const Entry,
    _: usize,
    data: *mut *mut u8,
    bytes: *mut u32,
) -> sys::CUresult {
    call(|driver| {
        let code = driver.code().ok_or(sys::CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: the caller passes what slot 1 gave it, or null.
        let entry = unsafe { handle.as_ref() }.ok_or(sys::CUDA_ERROR_INVALID_HANDLE)?;
        if data.is_null() || bytes.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let found = code.read(entry).ok_or(sys::CUDA_ERROR_NOT_FOUND)?;
        let length = u32::try_from(found.len()).map_err(|_| sys::CUDA_ERROR_NOT_FOUND)?;
        let copy = allocate(&found)?;
        // SAFETY: neither is null, and the caller has room at each.
        unsafe {
            data.write(copy);
            bytes.write(length);
        }
        Ok(())
    })
}

extern "C" fn write(
    handle: *const Entry,
    _: usize,
    data: *const u8,
    bytes: usize,
) -> sys::CUresult {
    call(|driver| {
        let code = driver.code().ok_or(sys::CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: the caller passes what slot 1 gave it, or null.
        let entry = unsafe { handle.as_ref() }.ok_or(sys::CUDA_ERROR_INVALID_HANDLE)?;
        if data.is_null() || bytes == 0 || bytes > LONGEST {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and as long as the caller says.
        let data = unsafe { core::slice::from_raw_parts(data, bytes) };
        // An entry that cannot be kept is compiled again: no reason to fail the compilation.
        let _ = code.write(entry, data);
        Ok(())
    })
}

extern "C" fn free(data: *mut u8) -> sys::CUresult {
    call(|_| {
        // SAFETY: the caller gives back what slot 3 gave it, or null.
        unsafe { libc::free(data.cast()) };
        Ok(())
    })
}

/// # Safety
/// `text` is null or a C string that lives as long as the result is used.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: not null, so a C string by the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}
