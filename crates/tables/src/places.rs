//! Where the multiprocessors lie on the chip, which cuBLASLt asks for on devices with clusters.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 4 | u8**, u8** | two arrays with a byte for each pair of multiprocessors: the number of its cluster of processors, and its index in there |
//! | 13 | u8*, u8* | gives both arrays back |
//!
//! The device's driver alone knows: chips of one model differ.

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::driver::{Result, call};
use crate::slots::{Named, Table};

pub use fermata_abi::PLACES_TABLE as ID;

struct PlacesTable;

impl Named for PlacesTable {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::new::<PlacesTable>(17)
    .with(4, get as *const c_void)
    .with(13, give_back as *const c_void);

extern "C" fn get(clusters: *mut *mut u8, indices: *mut *mut u8) -> sys::CUresult {
    call(|driver| {
        if clusters.is_null() || indices.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let places = driver.places()?;
        let first = allocate(&places.clusters)?;
        let Ok(second) = allocate(&places.indices) else {
            // SAFETY: `allocate` has made it, and nobody else has seen it.
            unsafe { libc::free(first.cast()) };
            return Err(sys::CUDA_ERROR_OUT_OF_MEMORY);
        };
        // SAFETY: neither is null, and the caller has room for a pointer at each.
        unsafe {
            clusters.write(first);
            indices.write(second);
        }
        Ok(())
    })
}

extern "C" fn give_back(clusters: *mut u8, indices: *mut u8) -> sys::CUresult {
    call(|_| {
        // SAFETY: the caller gives back what slot 4 gave it, or null.
        unsafe {
            libc::free(clusters.cast());
            libc::free(indices.cast());
        }
        Ok(())
    })
}

/// A copy that C code may free.
pub fn allocate(bytes: &[u8]) -> Result<*mut u8> {
    // SAFETY: any length is valid; the result is looked at.
    let room = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<u8>();
    if room.is_null() {
        return Err(sys::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // SAFETY: the room is as long as the bytes, and new.
    unsafe { room.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(room)
}
