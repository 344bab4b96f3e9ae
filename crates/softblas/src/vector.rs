//! Matrices with vectors, and vectors: `gemv`, `dot`, `axpy`, `scal`, `copy`.

use std::ffi::{c_int, c_void};

use crate::driver::driver;
use crate::handle;
use crate::kernels::{Kernel, Product, Scaled, Steps};
use crate::request::{self, Factor, Types, extent, steps, transposes};
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Result, blas};
use crate::types::Element;

type Handle = *const c_void;
type At = *const c_void;

/// Device memory for a result that goes to the host.
const SCRATCH: usize = 8;

/// A vector as a program names it.
#[derive(Clone, Copy)]
struct Vector {
    at: At,
    step: c_int,
}

impl Vector {
    /// Where its first element lies: with a negative step, at the far end.
    fn begin(self, count: u32, kind: Element) -> u64 {
        let back = i64::from(count).saturating_sub(1) * i64::from(self.step).min(0);
        (self.at as u64).wrapping_add_signed(-back * kind.bytes() as i64)
    }
}

/// # Safety
/// The caller has called cuBLAS as its reference demands.
unsafe fn gemv(
    handle: Handle,
    kind: Element,
    (operation, rows, cols): (c_int, c_int, c_int),
    (alpha, beta): (At, At),
    (a, lda): (At, c_int),
    x: Vector,
    y: Vector,
) -> Result {
    let handle = handle::get(handle)?;
    let (stream, mode) = {
        let settings = handle.settings.lock();
        (settings.stream, settings.pointer_mode)
    };
    let turned = transposes(operation)?;
    let (rows, cols) = (extent(rows.into())?, extent(cols.into())?);
    let (m, k) = if turned { (cols, rows) } else { (rows, cols) };
    if x.step == 0 || y.step == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller says so.
    let (alpha, beta) = unsafe {
        (
            Factor::given(alpha, mode, kind)?.parts(),
            Factor::given(beta, mode, kind)?.parts(),
        )
    };
    let down = |vector: Vector| Steps {
        row: vector.step.into(),
        ..Steps::default()
    };
    let result = y.begin(m, kind);
    let product = Product {
        a: a as u64,
        b: x.begin(k, kind),
        c: result,
        d: result,
        alpha_at: alpha.0,
        beta_at: beta.0,
        alpha: alpha.1,
        beta: beta.1,
        a_steps: steps(turned, lda.into(), m, k, 0)?,
        b_steps: down(x),
        c_steps: down(y),
        d_steps: down(y),
        m,
        n: 1,
        k,
        batch: 1,
        ..Product::default()
    };
    // SAFETY: the caller says so.
    unsafe { request::launch(&handle, stream, Types::all(kind), &product) }
}

/// # Safety
/// The caller has called cuBLAS as its reference demands.
unsafe fn dot(
    handle: Handle,
    types: Types,
    count: c_int,
    x: Vector,
    y: Vector,
    to: *mut c_void,
) -> Result {
    let handle = handle::get(handle)?;
    let k = extent(count.max(0).into())?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let mut settings = handle.settings.lock();
    let here = settings.pointer_mode == 0;
    if here && settings.scratch == 0 {
        settings.scratch = driver()?.allocate(SCRATCH)?;
    }
    let result = if here { settings.scratch } else { to as u64 };
    let product = Product {
        a: x.begin(k, types.a),
        b: y.begin(k, types.b),
        c: result,
        d: result,
        alpha: 1.0,
        a_steps: Steps {
            col: x.step.into(),
            ..Steps::default()
        },
        b_steps: Steps {
            row: y.step.into(),
            ..Steps::default()
        },
        m: 1,
        n: 1,
        k,
        batch: 1,
        ..Product::default()
    };
    // SAFETY: the caller says so; nothing else uses the scratch memory while the settings are locked.
    unsafe {
        request::launch(&handle, settings.stream, types, &product)?;
        if here {
            driver()?.download(to, result, types.c.bytes(), settings.stream)?;
        }
    }
    Ok(())
}

/// y = alpha * x + beta * y.
///
/// # Safety
/// The caller has called cuBLAS as its reference demands.
unsafe fn scaled(
    handle: Handle,
    kind: Element,
    count: c_int,
    (alpha, beta): (Option<At>, f64),
    x: Vector,
    y: Vector,
) -> Result {
    let handle = handle::get(handle)?;
    let kernel = match kind {
        Element::F32 => Kernel::ScaledF32,
        Element::F64 => Kernel::ScaledF64,
        Element::F16 | Element::Bf16 => return Err(NOT_SUPPORTED),
    };
    let (stream, mode) = {
        let settings = handle.settings.lock();
        (settings.stream, settings.pointer_mode)
    };
    let alpha = match alpha {
        // SAFETY: the caller says so.
        Some(at) => unsafe { Factor::given(at, mode, kind) }?.parts(),
        None => Factor::Value(1.0).parts(),
    };
    let count = extent(count.max(0).into())?;
    if count == 0 {
        return Ok(());
    }
    if x.at.is_null() || y.at.is_null() {
        return Err(INVALID_VALUE);
    }
    let parameter = Scaled {
        x: x.begin(count, kind),
        y: y.begin(count, kind),
        alpha_at: alpha.0,
        alpha: alpha.1,
        beta_at: 0,
        beta,
        x_step: x.step.into(),
        y_step: y.step.into(),
        count: count.into(),
    };
    // SAFETY: the caller says so, and this is the kernel's parameter.
    unsafe { handle.kernels.launch(kernel, stream, &parameter) }
}

macro_rules! of_one_type {
    ($($kind:ident: $gemv:ident, $dot:ident, $axpy:ident, $scal:ident, $copy:ident;)*) => {blas! {$(
        fn $gemv(
            handle: Handle, operation: c_int, m: c_int, n: c_int,
            alpha: At, a: At, lda: c_int, x: At, incx: c_int, beta: At, y: At, incy: c_int,
        ) {
            let (x, y) = (Vector { at: x, step: incx }, Vector { at: y, step: incy });
            // SAFETY: the program called cuBLAS.
            unsafe { gemv(handle, Element::$kind, (operation, m, n), (alpha, beta), (a, lda), x, y) }
        }

        fn $dot(handle: Handle, n: c_int, x: At, incx: c_int, y: At, incy: c_int, result: *mut c_void) {
            let (x, y) = (Vector { at: x, step: incx }, Vector { at: y, step: incy });
            // SAFETY: the program called cuBLAS.
            unsafe { dot(handle, Types::all(Element::$kind), n, x, y, result) }
        }

        fn $axpy(handle: Handle, n: c_int, alpha: At, x: At, incx: c_int, y: At, incy: c_int) {
            let (x, y) = (Vector { at: x, step: incx }, Vector { at: y, step: incy });
            // SAFETY: the program called cuBLAS.
            unsafe { scaled(handle, Element::$kind, n, (Some(alpha), 1.0), x, y) }
        }

        fn $scal(handle: Handle, n: c_int, alpha: At, x: At, incx: c_int) {
            if incx <= 0 {
                return Ok(());
            }
            let x = Vector { at: x, step: incx };
            // SAFETY: the program called cuBLAS.
            unsafe { scaled(handle, Element::$kind, n, (Some(alpha), 0.0), x, x) }
        }

        fn $copy(handle: Handle, n: c_int, x: At, incx: c_int, y: At, incy: c_int) {
            let (x, y) = (Vector { at: x, step: incx }, Vector { at: y, step: incy });
            // SAFETY: the program called cuBLAS.
            unsafe { scaled(handle, Element::$kind, n, (None, 0.0), x, y) }
        }
    )*}};
}

of_one_type! {
    F32: cublasSgemv_v2, cublasSdot_v2, cublasSaxpy_v2, cublasSscal_v2, cublasScopy_v2;
    F64: cublasDgemv_v2, cublasDdot_v2, cublasDaxpy_v2, cublasDscal_v2, cublasDcopy_v2;
}

blas! {
    fn cublasDotEx(
        handle: Handle, n: c_int, x: At, type_x: c_int, incx: c_int, y: At, type_y: c_int, incy: c_int,
        result: *mut c_void, type_result: c_int, type_sum: c_int,
    ) {
        let types = Types {
            a: Element::from_c(type_x)?,
            b: Element::from_c(type_y)?,
            c: Element::from_c(type_result)?,
            scale: Element::from_c(type_sum)?,
        };
        let (x, y) = (Vector { at: x, step: incx }, Vector { at: y, step: incy });
        // SAFETY: the program called cuBLAS.
        unsafe { dot(handle, types, n, x, y, result) }
    }
}
