//! Vectors and matrices between host and device: `cublasSetVector`, `cublasGetMatrix` and their siblings.
//!
//! A vector with a step is a matrix of one row whose columns lie that far apart.

use std::ffi::{c_int, c_void};

use fermata_abi::sys::driver as cu;

use crate::driver::driver;
use crate::status::{INVALID_VALUE, Result, blas};

/// Elements in memory: where, and how many lie between the beginnings of two columns.
#[derive(Clone, Copy)]
struct Columns {
    at: *const c_void,
    step: i64,
}

/// The copy of `rows` by `cols` elements of `bytes` bytes; nothing if there are none.
///
/// # Errors
/// A size is negative, no element has 0 bytes, and columns do not overlap.
fn plan(
    (rows, cols, bytes): (i64, i64, i64),
    from: Columns,
    to: Columns,
) -> Result<Option<cu::CUDA_MEMCPY2D>> {
    if rows < 0 || cols < 0 || bytes <= 0 || from.step < rows.max(1) || to.step < rows.max(1) {
        return Err(INVALID_VALUE);
    }
    let size = |count: i64| {
        let size = count.checked_mul(bytes);
        size.and_then(|size| usize::try_from(size).ok())
            .ok_or(INVALID_VALUE)
    };
    if rows == 0 || cols == 0 {
        return Ok(None);
    }
    Ok(Some(cu::CUDA_MEMCPY2D {
        WidthInBytes: size(rows)?,
        Height: cols as usize,
        srcPitch: size(from.step)?,
        dstPitch: size(to.step)?,
        ..Default::default()
    }))
}

/// Copies to the device, or from it; in a stream, or at once.
///
/// # Safety
/// The pointers are those of matrices of these sizes.
unsafe fn copy(
    sizes: (i64, i64, i64),
    from: Columns,
    to: Columns,
    to_device: bool,
    stream: Option<cu::CUstream>,
) -> Result {
    let Some(mut copy) = plan(sizes, from, to)? else {
        return Ok(());
    };
    if to_device {
        copy.srcMemoryType = cu::CU_MEMORYTYPE_HOST;
        copy.srcHost = from.at;
        copy.dstMemoryType = cu::CU_MEMORYTYPE_DEVICE;
        copy.dstDevice = to.at.expose_provenance() as u64;
    } else {
        copy.srcMemoryType = cu::CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = from.at.expose_provenance() as u64;
        copy.dstMemoryType = cu::CU_MEMORYTYPE_HOST;
        copy.dstHost = to.at.cast_mut();
    }
    let driver = driver()?;
    driver.enter()?;
    // SAFETY: the caller says so.
    unsafe { driver.copy(&copy, stream) }
}

macro_rules! copies {
    ($($name:ident $async:ident $vector:ident $vector_async:ident $to_device:literal $size:ty;)*) => {blas! {$(
        fn $name(rows: $size, cols: $size, bytes: $size, a: *const c_void, lda: $size, b: *mut c_void, ldb: $size) {
            let (from, to) = (Columns { at: a, step: lda.into() }, Columns { at: b, step: ldb.into() });
            // SAFETY: the caller has called cuBLAS as its reference demands.
            unsafe { copy((rows.into(), cols.into(), bytes.into()), from, to, $to_device, None) }
        }
        fn $async(rows: $size, cols: $size, bytes: $size, a: *const c_void, lda: $size, b: *mut c_void, ldb: $size,
            stream: cu::CUstream) {
            let (from, to) = (Columns { at: a, step: lda.into() }, Columns { at: b, step: ldb.into() });
            // SAFETY: as above.
            unsafe { copy((rows.into(), cols.into(), bytes.into()), from, to, $to_device, Some(stream)) }
        }
        fn $vector(count: $size, bytes: $size, x: *const c_void, incx: $size, y: *mut c_void, incy: $size) {
            let (from, to) = (Columns { at: x, step: incx.into() }, Columns { at: y, step: incy.into() });
            // SAFETY: as above.
            unsafe { copy((1, count.into(), bytes.into()), from, to, $to_device, None) }
        }
        fn $vector_async(count: $size, bytes: $size, x: *const c_void, incx: $size, y: *mut c_void, incy: $size,
            stream: cu::CUstream) {
            let (from, to) = (Columns { at: x, step: incx.into() }, Columns { at: y, step: incy.into() });
            // SAFETY: as above.
            unsafe { copy((1, count.into(), bytes.into()), from, to, $to_device, Some(stream)) }
        }
    )*}};
}

copies! {
    cublasSetMatrix cublasSetMatrixAsync cublasSetVector cublasSetVectorAsync true c_int;
    cublasGetMatrix cublasGetMatrixAsync cublasGetVector cublasGetVectorAsync false c_int;
    cublasSetMatrix_64 cublasSetMatrixAsync_64 cublasSetVector_64 cublasSetVectorAsync_64 true i64;
    cublasGetMatrix_64 cublasGetMatrixAsync_64 cublasGetVector_64 cublasGetVectorAsync_64 false i64;
}
