//! The kernels of `kernels/blas.cu` in one context.

use std::ffi::CStr;

use fermata_abi::sys::driver as cu;

use crate::driver::driver;
use crate::status::{INTERNAL_ERROR, Result};

const PTX: &str = concat!(include_str!("../../../kernels/blas.ptx"), "\0");
/// Threads of a block.
const THREADS: u64 = 32;
/// More blocks than this go over their share of the work one after another.
const MOST_BLOCKS: u64 = 1 << 16;

/// A kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Products of single precision.
    F32,
    /// Products of double precision.
    F64,
    /// Products of half precision, summed in single precision.
    F16,
    /// The same, not rounded.
    F16ToF32,
    /// Products of bfloat16, summed in single precision.
    Bf16,
    /// The same, not rounded.
    Bf16ToF32,
    /// Sums of scaled vectors of single precision.
    ScaledF32,
    /// Sums of scaled vectors of double precision.
    ScaledF64,
}

/// All, in the order of [`Kernel`].
const NAMES: [&CStr; 8] = [
    c"fermata_blas_product_f32_f32",
    c"fermata_blas_product_f64_f64",
    c"fermata_blas_product_f16_f16",
    c"fermata_blas_product_f16_f32",
    c"fermata_blas_product_bf16_bf16",
    c"fermata_blas_product_bf16_f32",
    c"fermata_blas_scaled_f32",
    c"fermata_blas_scaled_f64",
];

/// `Product` of `kernels/blas.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Product {
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub d: u64,
    pub bias: u64,
    pub alpha_at: u64,
    pub beta_at: u64,
    pub alpha: f64,
    pub beta: f64,
    pub a_steps: Steps,
    pub b_steps: Steps,
    pub c_steps: Steps,
    pub d_steps: Steps,
    pub bias_batch: i64,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub batch: u32,
    pub arrays: u32,
    pub activation: u32,
}

/// How far neighbours of a matrix lie apart, in elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// From an element to the one below.
    pub row: i64,
    /// From an element to the one beside.
    pub col: i64,
    /// From a matrix to the next one.
    pub batch: i64,
}

/// `Scaled` of `kernels/blas.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Scaled {
    pub x: u64,
    pub y: u64,
    pub alpha_at: u64,
    pub beta_at: u64,
    pub alpha: f64,
    pub beta: f64,
    pub x_step: i64,
    pub y_step: i64,
    pub count: u64,
}

/// A parameter of one of the kernels.
///
/// # Safety
/// Its layout is that of the kernel's parameter.
pub unsafe trait Parameter {
    /// How many pieces of work there are, each for a thread.
    fn pieces(&self) -> u64;
}

// SAFETY: both structures have the same fields in the same order.
unsafe impl Parameter for Product {
    fn pieces(&self) -> u64 {
        // The tile of a thread.
        u64::from(self.m.div_ceil(4)) * u64::from(self.n.div_ceil(3)) * u64::from(self.batch)
    }
}

// SAFETY: both structures have the same fields in the same order.
unsafe impl Parameter for Scaled {
    fn pieces(&self) -> u64 {
        self.count.div_ceil(64)
    }
}

/// The loaded kernels.
#[derive(Debug)]
pub struct Kernels {
    module: cu::CUmodule,
    functions: [cu::CUfunction; NAMES.len()],
}

// SAFETY: these are handles of the driver, which any thread may use.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads them into the current context.
    ///
    /// # Errors
    /// The driver does not take them.
    pub fn load() -> Result<Self> {
        let driver = driver()?;
        let text = CStr::from_bytes_with_nul(PTX.as_bytes()).map_err(|_| INTERNAL_ERROR)?;
        let module = driver.load_module(text)?;
        let mut functions = [std::ptr::null_mut(); NAMES.len()];
        for (function, name) in functions.iter_mut().zip(NAMES) {
            *function = driver
                .function(module, name)
                .inspect_err(|_| driver.unload_module(module))?;
        }
        Ok(Self { module, functions })
    }

    /// Launches one.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// The parameter is for this kernel, and the memory it points to is as the caller of cuBLAS promised.
    pub unsafe fn launch<P: Parameter>(
        &self,
        kernel: Kernel,
        stream: cu::CUstream,
        parameter: &P,
    ) -> Result {
        let blocks = parameter.pieces().div_ceil(THREADS).clamp(1, MOST_BLOCKS) as u32;
        let function = self.functions[kernel as usize];
        // SAFETY: the caller says so.
        unsafe { driver()?.launch(function, blocks, THREADS as u32, stream, parameter) }
    }

    /// Unloads them.
    pub fn unload(&self) {
        if let Ok(driver) = driver() {
            driver.unload_module(self.module);
        }
    }
}
