//! Modules, their functions and variables.

use std::ffi::{CStr, CString, c_int, c_void};

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, DriverError, FunctionHandle, ModuleHandle};

const LOG_BYTES: usize = 16 * 1024;
/// Zero bytes behind an image.
const PADDING: usize = 64;

/// A module image the driver did not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}{}{log}", if log.is_empty() { "" } else { ": " })]
pub struct ModuleRefused {
    /// What the driver said.
    pub error: DriverError,
    /// Its compiler's log; may be empty.
    pub log: String,
}

fn name_of(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| DriverError {
        call: "cuModuleGetFunction",
        code: cu::CUDA_ERROR_NOT_FOUND,
        name: "a name with a NUL byte".into(),
    })
}

impl Driver {
    /// Loads a module (PTX text, cubin or fat binary) into the current context.
    ///
    /// # Errors
    /// The driver's refusal, with the compiler's log.
    pub fn load_module(&self, image: &[u8]) -> std::result::Result<ModuleHandle, ModuleRefused> {
        // PTX text must end with NUL, and a driver reads headers before it knows the length.
        let mut padded = Vec::with_capacity(image.len() + PADDING);
        padded.extend_from_slice(image);
        padded.resize(image.len() + PADDING, 0);
        self.load_image(&padded)
    }

    /// As [`Driver::load_module`], of an image with at least 64 zero bytes behind it, which is then not copied.
    ///
    /// # Errors
    /// As there.
    pub fn load_padded_module(
        &self,
        padded: &[u8],
    ) -> std::result::Result<ModuleHandle, ModuleRefused> {
        let zeros = padded.last_chunk::<PADDING>();
        if zeros.is_some_and(|zeros| zeros.iter().all(|byte| *byte == 0)) {
            self.load_image(padded)
        } else {
            self.load_module(padded)
        }
    }

    /// Loads an image that ends with [`PADDING`] zeros.
    fn load_image(&self, padded: &[u8]) -> std::result::Result<ModuleHandle, ModuleRefused> {
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            cu::CU_JIT_ERROR_LOG_BUFFER,
            cu::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is padded with zeros beyond its end; option arrays have two entries each, the
        // log buffer is as long as said and outlives the call.
        let loaded = unsafe {
            self.f.cuModuleLoadDataEx(
                &mut module,
                padded.as_ptr().cast::<c_void>(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        loaded.map_err(|error| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(LOG_BYTES);
            ModuleRefused {
                error,
                log: String::from_utf8_lossy(&log[..end]).trim().to_owned(),
            }
        })?;
        Ok(ModuleHandle::from_raw(module))
    }

    /// Unloads a module of the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn unload_module(&self, module: ModuleHandle) -> Result<()> {
        self.f.cuModuleUnload(module.raw())
    }

    /// Names of a module's kernels; empty where the driver cannot tell.
    pub fn module_functions(&self, module: ModuleHandle) -> Vec<String> {
        self.list_functions(module).unwrap_or_default()
    }

    fn list_functions(&self, module: ModuleHandle) -> Result<Vec<String>> {
        let mut count = 0;
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuModuleGetFunctionCount(&mut count, module.raw())? };
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: the buffer has room for `count` handles.
        unsafe {
            self.f
                .cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module.raw())?
        };
        functions
            .into_iter()
            .map(|function| {
                let mut name = std::ptr::null();
                // SAFETY: the pointer refers to a live local.
                unsafe { self.f.cuFuncGetName(&mut name, function)? };
                if name.is_null() {
                    return Ok(String::new());
                }
                // SAFETY: the driver gave the address of a NUL-terminated string that lives as long as the module.
                Ok(unsafe { CStr::from_ptr(name) }
                    .to_string_lossy()
                    .into_owned())
            })
            .collect()
    }

    /// Finds a kernel.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` if there is none of that name.
    pub fn function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        let name = name_of(name)?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the name ends with NUL, the pointer refers to a live local.
        unsafe {
            self.f
                .cuModuleGetFunction(&mut function, module.raw(), name.as_ptr())?
        };
        Ok(FunctionHandle::from_raw(function))
    }

    /// Brings a kernel's code to its device now, which otherwise its first launch does.
    ///
    /// # Errors
    /// What the driver says.
    pub fn load_function(&self, function: FunctionHandle) -> Result<()> {
        self.f.cuFuncLoad(function.raw())
    }

    /// Finds a device variable: address and size.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` if there is none of that name.
    pub fn variable(&self, module: ModuleHandle, name: &str) -> Result<(u64, u64)> {
        let name = name_of(name)?;
        let (mut address, mut size) = (0, 0);
        // SAFETY: the name ends with NUL, the pointers refer to live locals.
        unsafe {
            self.f
                .cuModuleGetGlobal_v2(&mut address, &mut size, module.raw(), name.as_ptr())?
        };
        Ok((address, size as u64))
    }

    /// Offset and size of each parameter of a kernel.
    ///
    /// # Errors
    /// What the driver says; one without `cuFuncGetParamInfo` cannot.
    pub fn function_params(&self, function: FunctionHandle) -> Result<Vec<(u32, u32)>> {
        let mut params = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the pointers refer to live locals.
            let found = unsafe {
                self.f
                    .cuFuncGetParamInfo(function.raw(), params.len(), &mut offset, &mut size)
            };
            match found {
                Ok(()) => params.push((offset as u32, size as u32)),
                Err(error) if error.code == cu::CUDA_ERROR_INVALID_VALUE => return Ok(params),
                Err(error) => return Err(error),
            }
        }
    }

    /// Attribute values of a kernel by `CUfunction_attribute`; `i32::MIN` where there is none.
    pub fn function_attributes(&self, function: FunctionHandle) -> Vec<i32> {
        (0..cu::CU_FUNC_ATTRIBUTE_MAX)
            .map(|id| {
                let mut value: c_int = 0;
                // SAFETY: the pointer refers to a live local.
                match unsafe { self.f.cuFuncGetAttribute(&mut value, id, function.raw()) } {
                    Ok(()) => value,
                    Err(_) => i32::MIN,
                }
            })
            .collect()
    }

    /// Sets an attribute of a kernel.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_function_attribute(
        &self,
        function: FunctionHandle,
        id: i32,
        value: i32,
    ) -> Result<()> {
        self.f
            .cuFuncSetAttribute(function.raw(), id.cast_unsigned(), value)
    }
}
