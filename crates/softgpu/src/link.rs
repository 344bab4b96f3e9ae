//! Linking at run time: PTX of several sources to one module.
//!
//! The result is PTX again. The driver hands it out as a module image, which it takes back like any other.

use std::ffi::CString;
use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;
use fermata_ptx::ast::Module;
use fermata_ptx::link::link;
use parking_lot::Mutex;

use crate::driver::Driver;
use crate::error::{CuError, INVALID_VALUE, Result};
use crate::handle::{self, Table, Tag};
use crate::image;
use crate::jit::JitOptions;
use crate::log;

/// What is being linked.
#[derive(Debug)]
pub struct Linker {
    /// Its handle.
    pub handle: u64,
    /// Compute capability that images are chosen for.
    sm: u32,
    jit: JitOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    modules: Vec<Module>,
    /// The linked text; while it is there, nothing can be added.
    linked: Option<CString>,
}

// SAFETY: the only pointers are those of `jit`, to buffers of which the program promises that they stay until the
// linker is destroyed; they are written under the lock.
unsafe impl Send for Linker {}
// SAFETY: as above.
unsafe impl Sync for Linker {}

impl Driver {
    /// Modules that are being linked.
    pub fn linkers(&self) -> &'static Table<Linker> {
        static ALL: LazyLock<Table<Linker>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Linker {
    /// Begins to link for compute capability `sm` (10 * major + minor).
    pub fn create(driver: &Driver, sm: u32, jit: JitOptions) -> Arc<Self> {
        let linker = Arc::new(Self {
            handle: handle::fresh(Tag::Linker),
            sm,
            jit,
            state: Mutex::default(),
        });
        driver.linkers().insert(linker.handle, Arc::clone(&linker));
        linker
    }

    /// Adds an input of a type (`CU_JIT_INPUT_*`).
    ///
    /// # Errors
    /// It holds no PTX that can be read, or linking is over.
    pub fn add(&self, kind: cu::CUjitInputType, bytes: &[u8], name: &str) -> Result {
        let mut state = self.state.lock();
        if state.linked.is_some() {
            return Err(INVALID_VALUE);
        }
        let texts = match kind {
            cu::CU_JIT_INPUT_PTX | cu::CU_JIT_INPUT_FATBINARY | cu::CU_JIT_INPUT_CUBIN => {
                vec![image::from_bytes(bytes, self.sm)?]
            }
            cu::CU_JIT_INPUT_OBJECT | cu::CU_JIT_INPUT_LIBRARY => image::within(bytes, self.sm),
            _ => {
                log::tell(format!("cannot link `{name}`: only PTX can be linked"));
                return Err(INVALID_VALUE);
            }
        };
        // Only kernels that launch kernels need the device's runtime; they are refused by themselves.
        if texts.is_empty() && !name.contains("cudadevrt") {
            log::tell(format!("cannot link `{name}`: it holds no PTX"));
            return Err(CuError(cu::CUDA_ERROR_NO_BINARY_FOR_GPU));
        }
        for text in texts {
            let module = fermata_ptx::parse(&text).map_err(|error| {
                self.refuse(format!("`{name}`, line {}: {}", error.line, error.message))
            })?;
            state.modules.push(module);
        }
        Ok(())
    }

    /// Links; address and bytes of the image, which lives as long as this.
    ///
    /// # Errors
    /// The inputs contradict one another.
    pub fn complete(&self) -> Result<(u64, usize)> {
        let mut state = self.state.lock();
        if state.linked.is_none() {
            let text = link(&state.modules).map_err(|error| self.refuse(error.to_string()))?;
            state.linked = Some(CString::new(text).map_err(|_| INVALID_VALUE)?);
        }
        let bytes = state.linked.as_ref().map(|text| text.as_bytes_with_nul());
        let bytes = bytes.unwrap_or_default();
        Ok((bytes.as_ptr().expose_provenance() as u64, bytes.len()))
    }

    fn refuse(&self, message: String) -> CuError {
        self.jit.report(&message);
        log::tell(format!("cannot link: {message}"));
        CuError(cu::CUDA_ERROR_INVALID_PTX)
    }
}
