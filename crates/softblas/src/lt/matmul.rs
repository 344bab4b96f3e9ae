//! Products, and the algorithms for them: there is one.

use std::ffi::{c_int, c_void};

use fermata_abi::sys::driver as cu;

use super::objects;
use super::plan::Plan;
use crate::handle;
use crate::request::{self, Factor};
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Result, blas, put};

type At = *const c_void;
type Object = *const c_void;

/// `cublasLtMatmulAlgo_t`: opaque to programs, and empty here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

impl Found {
    fn one() -> Self {
        Self {
            waves: 1.0,
            ..Self::default()
        }
    }
}

fn plan(product: Object, [a, b, c, d]: [Object; 4]) -> Result<Plan> {
    let product = objects::product(product)?;
    let (a, b) = (objects::layout(a)?, objects::layout(b)?);
    let (c, d) = (objects::layout(c)?, objects::layout(d)?);
    Plan::new(&product, [&a, &b, &c, &d])
}

blas! {
    fn cublasLtMatmulAlgoGetHeuristic(
        handle: At, product: Object, a: Object, b: Object, c: Object, d: Object,
        _preference: Object, wanted: c_int, to: *mut Found, count: *mut c_int,
    ) {
        handle::get(handle)?;
        if wanted < 1 || to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program wants the results there.
        unsafe {
            put(count, 0)?;
            plan(product, [a, b, c, d])?;
            put(to, Found::one())?;
            put(count, 1)
        }
    }

    fn cublasLtMatmulAlgoCheck(
        handle: At, product: Object, a: Object, b: Object, c: Object, d: Object,
        _algorithm: *const Algorithm, to: *mut Found,
    ) {
        handle::get(handle)?;
        plan(product, [a, b, c, d])?;
        // SAFETY: the program wants the result there.
        unsafe { put(to, Found::one()) }
    }

    fn cublasLtMatmulAlgoInit(
        handle: At, _compute: c_int, _scale: c_int, _a: c_int, _b: c_int, _c: c_int, _d: c_int,
        number: c_int, to: *mut Algorithm,
    ) {
        handle::get(handle)?;
        if number != 0 {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: the program wants the result there.
        unsafe { put(to, Algorithm::default()) }
    }

    fn cublasLtMatmul(
        handle: At, product: Object, alpha: At, a: At, layout_a: Object, b: At, layout_b: Object,
        beta: At, c: At, layout_c: Object, d: *mut c_void, layout_d: Object,
        _algorithm: *const Algorithm, _workspace: *mut c_void, _bytes: usize, stream: cu::CUstream,
    ) {
        let handle = handle::get(handle)?;
        let mode = c_int::try_from(objects::product(product)?.pointer_mode).unwrap_or(-1);
        let plan = plan(product, [layout_a, layout_b, layout_c, layout_d])?;
        // SAFETY: the program called cuBLAS.
        let (alpha, beta) = unsafe {
            (
                Factor::given(alpha, mode, plan.types.scale)?.parts(),
                Factor::given(beta, mode, plan.types.scale)?.parts(),
            )
        };
        let d = d as u64;
        // Without a beta, programs may leave c out.
        let c = if beta == (0, 0.0) { d } else { c as u64 };
        let whole = crate::kernels::Product {
            a: a as u64,
            b: b as u64,
            c,
            d,
            alpha_at: alpha.0,
            beta_at: beta.0,
            alpha: alpha.1,
            beta: beta.1,
            ..plan.product
        };
        // SAFETY: the program called cuBLAS.
        unsafe { request::launch(&handle, stream, plan.types, &whole) }
    }
}
