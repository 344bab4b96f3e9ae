//! Products of matrices: `cublas*gemm*`.

use std::ffi::{c_int, c_longlong, c_void};

use crate::handle;
use crate::kernels::Product;
use crate::request::{self, Factor, Types, extent, steps, transposes};
use crate::status::{Result, blas};
use crate::types::{self, Element};

type Handle = *const c_void;
type At = *const c_void;

/// What all these functions are called with.
struct Call {
    operations: [c_int; 2],
    extents: [c_int; 3],
    alpha: At,
    beta: At,
    /// a, b, c: address, leading dimension, elements to the next matrix.
    matrices: [(At, c_int, c_longlong); 3],
    batch: c_int,
    /// The addresses are of arrays of addresses.
    arrays: bool,
    types: Types,
}

impl Call {
    fn types(a: c_int, b: c_int, c: c_int, scale: Element) -> Result<Types> {
        Ok(Types {
            a: Element::from_c(a)?,
            b: Element::from_c(b)?,
            c: Element::from_c(c)?,
            scale,
        })
    }

    /// # Safety
    /// The caller has called cuBLAS as its reference demands.
    unsafe fn run(&self, handle: Handle) -> Result {
        let handle = handle::get(handle)?;
        let (stream, mode) = {
            let settings = handle.settings.lock();
            (settings.stream, settings.pointer_mode)
        };
        let [m, n, k] = self.extents.map(|it| extent(it.into()));
        let (m, n, k) = (m?, n?, k?);
        let [a, b, c] = self.matrices;
        let [turn_a, turn_b] = self.operations.map(transposes);
        // SAFETY: the caller says so.
        let (alpha, beta) = unsafe {
            (
                Factor::given(self.alpha, mode, self.types.scale)?.parts(),
                Factor::given(self.beta, mode, self.types.scale)?.parts(),
            )
        };
        let result = steps(false, c.1.into(), m, n, c.2)?;
        let product = Product {
            a: a.0 as u64,
            b: b.0 as u64,
            c: c.0 as u64,
            d: c.0 as u64,
            alpha_at: alpha.0,
            beta_at: beta.0,
            alpha: alpha.1,
            beta: beta.1,
            a_steps: steps(turn_a?, a.1.into(), m, k, a.2)?,
            b_steps: steps(turn_b?, b.1.into(), k, n, b.2)?,
            c_steps: result,
            d_steps: result,
            m,
            n,
            k,
            batch: extent(self.batch.into())?,
            arrays: self.arrays.into(),
            ..Product::default()
        };
        // SAFETY: the caller says so.
        unsafe { request::launch(&handle, stream, self.types, &product) }
    }
}

/// `cublasSgemm_v2` and `cublasDgemm_v2`, their batches, and batches by arrays of addresses.
macro_rules! of_one_type {
    ($($kind:ident: $one:ident, $strided:ident, $arrays:ident;)*) => {blas! {$(
        fn $one(
            handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
            alpha: At, a: At, lda: c_int, b: At, ldb: c_int, beta: At, c: At, ldc: c_int,
        ) {
            let call = Call {
                operations: [ta, tb],
                extents: [m, n, k],
                alpha,
                beta,
                matrices: [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)],
                batch: 1,
                arrays: false,
                types: Types::all(Element::$kind),
            };
            // SAFETY: the program called cuBLAS.
            unsafe { call.run(handle) }
        }

        fn $strided(
            handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
            alpha: At, a: At, lda: c_int, next_a: c_longlong, b: At, ldb: c_int, next_b: c_longlong,
            beta: At, c: At, ldc: c_int, next_c: c_longlong, batch: c_int,
        ) {
            let call = Call {
                operations: [ta, tb],
                extents: [m, n, k],
                alpha,
                beta,
                matrices: [(a, lda, next_a), (b, ldb, next_b), (c, ldc, next_c)],
                batch,
                arrays: false,
                types: Types::all(Element::$kind),
            };
            // SAFETY: the program called cuBLAS.
            unsafe { call.run(handle) }
        }

        fn $arrays(
            handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
            alpha: At, a: At, lda: c_int, b: At, ldb: c_int, beta: At, c: At, ldc: c_int, batch: c_int,
        ) {
            let call = Call {
                operations: [ta, tb],
                extents: [m, n, k],
                alpha,
                beta,
                matrices: [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)],
                batch,
                arrays: true,
                types: Types::all(Element::$kind),
            };
            // SAFETY: the program called cuBLAS.
            unsafe { call.run(handle) }
        }
    )*}};
}

of_one_type! {
    F32: cublasSgemm_v2, cublasSgemmStridedBatched, cublasSgemmBatched;
    F64: cublasDgemm_v2, cublasDgemmStridedBatched, cublasDgemmBatched;
}

blas! {
    fn cublasSgemmEx(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: At, a: At, type_a: c_int, lda: c_int, b: At, type_b: c_int, ldb: c_int,
        beta: At, c: At, type_c: c_int, ldc: c_int,
    ) {
        let call = Call {
            operations: [ta, tb],
            extents: [m, n, k],
            alpha,
            beta,
            matrices: [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)],
            batch: 1,
            arrays: false,
            types: Call::types(type_a, type_b, type_c, Element::F32)?,
        };
        // SAFETY: the program called cuBLAS.
        unsafe { call.run(handle) }
    }

    fn cublasGemmEx(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: At, a: At, type_a: c_int, lda: c_int, b: At, type_b: c_int, ldb: c_int,
        beta: At, c: At, type_c: c_int, ldc: c_int, compute: c_int, _algorithm: c_int,
    ) {
        let call = Call {
            operations: [ta, tb],
            extents: [m, n, k],
            alpha,
            beta,
            matrices: [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)],
            batch: 1,
            arrays: false,
            types: Call::types(type_a, type_b, type_c, types::scale(compute)?)?,
        };
        // SAFETY: the program called cuBLAS.
        unsafe { call.run(handle) }
    }

    fn cublasGemmStridedBatchedEx(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: At, a: At, type_a: c_int, lda: c_int, next_a: c_longlong,
        b: At, type_b: c_int, ldb: c_int, next_b: c_longlong,
        beta: At, c: At, type_c: c_int, ldc: c_int, next_c: c_longlong,
        batch: c_int, compute: c_int, _algorithm: c_int,
    ) {
        let call = Call {
            operations: [ta, tb],
            extents: [m, n, k],
            alpha,
            beta,
            matrices: [(a, lda, next_a), (b, ldb, next_b), (c, ldc, next_c)],
            batch,
            arrays: false,
            types: Call::types(type_a, type_b, type_c, types::scale(compute)?)?,
        };
        // SAFETY: the program called cuBLAS.
        unsafe { call.run(handle) }
    }

    fn cublasGemmBatchedEx(
        handle: Handle, ta: c_int, tb: c_int, m: c_int, n: c_int, k: c_int,
        alpha: At, a: At, type_a: c_int, lda: c_int, b: At, type_b: c_int, ldb: c_int,
        beta: At, c: At, type_c: c_int, ldc: c_int, batch: c_int, compute: c_int, _algorithm: c_int,
    ) {
        let call = Call {
            operations: [ta, tb],
            extents: [m, n, k],
            alpha,
            beta,
            matrices: [(a, lda, 0), (b, ldb, 0), (c, ldc, 0)],
            batch,
            arrays: true,
            types: Call::types(type_a, type_b, type_c, types::scale(compute)?)?,
        };
        // SAFETY: the program called cuBLAS.
        unsafe { call.run(handle) }
    }
}
