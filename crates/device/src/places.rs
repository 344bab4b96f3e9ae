//! Where the multiprocessors lie on the chip: one of the driver's undocumented tables, of which cuBLASLt asks
//! (`fermata-tables` describes it).

use std::ffi::c_void;

use fermata_abi::PLACES_TABLE;
use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, DriverError};

/// Slots of the table, of which the first is its size in bytes.
const GET: usize = 4;
const GIVE_BACK: usize = 13;
const SLOTS: usize = 17;

type Get = unsafe extern "C" fn(*mut *mut u8, *mut *mut u8) -> cu::CUresult;
type GiveBack = unsafe extern "C" fn(*mut u8, *mut u8) -> cu::CUresult;

impl Driver {
    /// For each pair of multiprocessors of device `index`, which must be the current context's, the cluster of
    /// processors it is in, and its index in there.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` if the driver has no such table.
    pub fn places(&self, index: u32) -> Result<(Vec<u8>, Vec<u8>)> {
        let unsupported = || DriverError {
            call: "cuGetExportTable",
            code: cu::CUDA_ERROR_NOT_SUPPORTED,
            name: "CUDA_ERROR_NOT_SUPPORTED".into(),
        };
        let id = cu::CUuuid {
            bytes: PLACES_TABLE.map(u8::cast_signed),
        };
        let mut table: *const c_void = std::ptr::null();
        // SAFETY: both pointers refer to live locals.
        unsafe { self.f.cuGetExportTable(&mut table, &id) }?;
        if table.is_null() {
            return Err(unsupported());
        }
        let slot = |at: usize| {
            // SAFETY: the table has as many slots as its first one says, which is looked at below.
            unsafe { table.cast::<*const c_void>().add(at).read() }
        };
        if slot(0).addr() < 8 * SLOTS || slot(GET).is_null() || slot(GIVE_BACK).is_null() {
            return Err(unsupported());
        }
        // SAFETY: the driver's functions in these slots have these types since CUDA 12.
        let (get, give_back) = unsafe {
            (
                std::mem::transmute::<*const c_void, Get>(slot(GET)),
                std::mem::transmute::<*const c_void, GiveBack>(slot(GIVE_BACK)),
            )
        };
        let (mut clusters, mut indices) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both pointers refer to live locals.
        let code = unsafe { get(&mut clusters, &mut indices) };
        if code != cu::CUDA_SUCCESS || clusters.is_null() || indices.is_null() {
            return Err(unsupported());
        }
        let count = self.attribute(
            self.device(index)?,
            cu::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        );
        let pairs = count.unwrap_or(0).max(0).unsigned_abs() as usize / 2;
        // SAFETY: the driver has made both, with a byte for each pair of multiprocessors.
        let copies = unsafe {
            (
                std::slice::from_raw_parts(clusters, pairs).to_vec(),
                std::slice::from_raw_parts(indices, pairs).to_vec(),
            )
        };
        // SAFETY: they are the driver's own, and given back once.
        unsafe { give_back(clusters, indices) };
        Ok(copies)
    }
}
