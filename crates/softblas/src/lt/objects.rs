//! Descriptions that a program makes: of a product, of a matrix, of what it prefers.

use std::ffi::{c_int, c_void};

use parking_lot::Mutex;

use crate::registry::Registry;
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Result, blas, put};

/// A product (`cublasLtMatmulDesc_t`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Description {
    /// `cublasComputeType_t`.
    pub compute: i64,
    /// `cudaDataType` of alpha and beta.
    pub scale: i64,
    /// `cublasLtPointerMode_t`.
    pub pointer_mode: i64,
    /// `cublasOperation_t` of a, b and c.
    pub operations: [i64; 3],
    /// `cublasLtEpilogue_t`.
    pub epilogue: i64,
    /// Device address of the bias.
    pub bias: i64,
    /// `cudaDataType` of the bias; -1: that of the result.
    pub bias_type: i64,
    /// Elements from one bias to that of the next matrix.
    pub bias_batch: i64,
}

/// A matrix (`cublasLtMatrixLayout_t`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Layout {
    /// `cudaDataType`.
    pub kind: i64,
    /// `cublasLtOrder_t`.
    pub order: i64,
    /// Rows.
    pub rows: i64,
    /// Columns.
    pub cols: i64,
    /// Leading dimension.
    pub leading: i64,
    /// How many.
    pub batch: i64,
    /// Elements from one to the next.
    pub next: i64,
}

static PRODUCTS: Registry<Mutex<Description>> = Registry::new();
static LAYOUTS: Registry<Mutex<Layout>> = Registry::new();
static PREFERENCES: Registry<()> = Registry::new();

/// The product behind a handle.
///
/// # Errors
/// There is none.
pub fn product(handle: *const c_void) -> Result<Description> {
    Ok(*PRODUCTS.get(handle).ok_or(INVALID_VALUE)?.lock())
}

/// The matrix behind a handle.
///
/// # Errors
/// There is none.
pub fn layout(handle: *const c_void) -> Result<Layout> {
    Ok(*LAYOUTS.get(handle).ok_or(INVALID_VALUE)?.lock())
}

impl Description {
    fn field(&mut self, attribute: c_int) -> Option<(&mut i64, usize)> {
        Some(match attribute {
            0 => (&mut self.compute, 4),
            1 => (&mut self.scale, 4),
            2 => (&mut self.pointer_mode, 4),
            3 => (&mut self.operations[0], 4),
            4 => (&mut self.operations[1], 4),
            5 => (&mut self.operations[2], 4),
            7 => (&mut self.epilogue, 4),
            8 => (&mut self.bias, 8),
            10 => (&mut self.bias_batch, 8),
            26 => (&mut self.bias_type, 4),
            _ => return None,
        })
    }
}

impl Layout {
    fn field(&mut self, attribute: c_int) -> Option<(&mut i64, usize)> {
        Some(match attribute {
            0 => (&mut self.kind, 4),
            1 => (&mut self.order, 4),
            2 => (&mut self.rows, 8),
            3 => (&mut self.cols, 8),
            4 => (&mut self.leading, 8),
            5 => (&mut self.batch, 4),
            6 => (&mut self.next, 8),
            _ => return None,
        })
    }
}

/// Reads an attribute's value.
///
/// # Safety
/// `from` is null or has `bytes` bytes.
unsafe fn read(field: Option<(&mut i64, usize)>, from: *const c_void, bytes: usize) -> Result {
    let (to, size) = field.ok_or(NOT_SUPPORTED)?;
    if from.is_null() || bytes != size {
        return Err(INVALID_VALUE);
    }
    // SAFETY: it has as many bytes as the type.
    *to = unsafe {
        match size {
            4 => from.cast::<i32>().read_unaligned().into(),
            _ => from.cast::<i64>().read_unaligned(),
        }
    };
    Ok(())
}

/// Writes an attribute's value, or with room for none, its size only.
///
/// # Safety
/// `to` is null or has `bytes` bytes; `written` is null or may be written.
unsafe fn write(
    field: Option<(&mut i64, usize)>,
    to: *mut c_void,
    bytes: usize,
    written: *mut usize,
) -> Result {
    let (from, size) = field.ok_or(NOT_SUPPORTED)?;
    if !written.is_null() {
        // SAFETY: the caller says so.
        unsafe { written.write_unaligned(size) };
    }
    if bytes == 0 {
        return Ok(());
    }
    if to.is_null() || bytes != size {
        return Err(INVALID_VALUE);
    }
    // SAFETY: it has as many bytes as the type.
    unsafe {
        match size {
            4 => to.cast::<i32>().write_unaligned(*from as i32),
            _ => to.cast::<i64>().write_unaligned(*from),
        }
    }
    Ok(())
}

blas! {
    fn cublasLtMatmulDescCreate(to: *mut *mut c_void, compute: c_int, scale: c_int) {
        let product = Description {
            compute: compute.into(),
            scale: scale.into(),
            epilogue: 1,
            bias_type: -1,
            ..Description::default()
        };
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program wants the handle there.
        unsafe { put(to, PRODUCTS.insert(Mutex::new(product))) }
    }

    fn cublasLtMatmulDescDestroy(handle: *const c_void) {
        PRODUCTS.remove(handle).map(drop).ok_or(INVALID_VALUE)
    }

    fn cublasLtMatmulDescSetAttribute(handle: *const c_void, attribute: c_int, from: *const c_void, bytes: usize) {
        let product = PRODUCTS.get(handle).ok_or(INVALID_VALUE)?;
        // How many multiprocessors to use and whether sums may be rounded early: both may be ignored.
        if [15, 25].contains(&attribute) {
            return Ok(());
        }
        // SAFETY: the program gives this many bytes.
        unsafe { read(product.lock().field(attribute), from, bytes) }
    }

    fn cublasLtMatmulDescGetAttribute(
        handle: *const c_void, attribute: c_int, to: *mut c_void, bytes: usize, written: *mut usize,
    ) {
        let product = PRODUCTS.get(handle).ok_or(INVALID_VALUE)?;
        // SAFETY: the program gives this many bytes.
        unsafe { write(product.lock().field(attribute), to, bytes, written) }
    }

    fn cublasLtMatrixLayoutCreate(to: *mut *mut c_void, kind: c_int, rows: u64, cols: u64, leading: i64) {
        let layout = Layout {
            kind: kind.into(),
            rows: i64::try_from(rows).map_err(|_| INVALID_VALUE)?,
            cols: i64::try_from(cols).map_err(|_| INVALID_VALUE)?,
            leading,
            batch: 1,
            ..Layout::default()
        };
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program wants the handle there.
        unsafe { put(to, LAYOUTS.insert(Mutex::new(layout))) }
    }

    fn cublasLtMatrixLayoutDestroy(handle: *const c_void) {
        LAYOUTS.remove(handle).map(drop).ok_or(INVALID_VALUE)
    }

    fn cublasLtMatrixLayoutSetAttribute(handle: *const c_void, attribute: c_int, from: *const c_void, bytes: usize) {
        let layout = LAYOUTS.get(handle).ok_or(INVALID_VALUE)?;
        // SAFETY: the program gives this many bytes.
        unsafe { read(layout.lock().field(attribute), from, bytes) }
    }

    fn cublasLtMatrixLayoutGetAttribute(
        handle: *const c_void, attribute: c_int, to: *mut c_void, bytes: usize, written: *mut usize,
    ) {
        let layout = LAYOUTS.get(handle).ok_or(INVALID_VALUE)?;
        // SAFETY: the program gives this many bytes.
        unsafe { write(layout.lock().field(attribute), to, bytes, written) }
    }

    fn cublasLtMatmulPreferenceCreate(to: *mut *mut c_void) {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program wants the handle there.
        unsafe { put(to, PREFERENCES.insert(())) }
    }

    fn cublasLtMatmulPreferenceDestroy(handle: *const c_void) {
        PREFERENCES.remove(handle).ok_or(INVALID_VALUE).map(drop)
    }

    // There is one kernel for each product: no preference changes the choice.
    fn cublasLtMatmulPreferenceSetAttribute(
        handle: *const c_void, _attribute: c_int, _from: *const c_void, _bytes: usize,
    ) {
        PREFERENCES.get(handle).ok_or(INVALID_VALUE).map(drop)
    }
}
