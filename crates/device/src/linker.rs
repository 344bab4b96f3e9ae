//! Linking images while the program runs.

use std::ffi::{CString, c_void};

use fermata_abi::op::LinkJob;
use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, ModuleRefused};

const LOG_BYTES: usize = 16 * 1024;

/// Option numbers and their values as the driver takes them.
fn split(options: &[(u32, u64)]) -> (Vec<cu::CUjit_option>, Vec<*mut c_void>) {
    let value = |(id, value): &(u32, u64)| (*id, *value as usize as *mut c_void);
    options.iter().map(value).unzip()
}

impl Driver {
    /// Links the inputs of `job` in the current context into one image.
    ///
    /// # Errors
    /// The driver's refusal, with the linker's log.
    pub fn link(&self, job: &LinkJob<'_>) -> std::result::Result<Vec<u8>, ModuleRefused> {
        let mut log = vec![0u8; LOG_BYTES];
        let linked = self.link_with(job, &mut log);
        linked.map_err(|error| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(LOG_BYTES);
            ModuleRefused {
                error,
                log: String::from_utf8_lossy(&log[..end]).trim().to_owned(),
            }
        })
    }

    fn link_with(&self, job: &LinkJob<'_>, log: &mut [u8]) -> Result<Vec<u8>> {
        let (mut options, mut values) = split(&job.options);
        options.extend([
            cu::CU_JIT_ERROR_LOG_BUFFER,
            cu::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ]);
        values.extend([log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void]);
        let mut state = std::ptr::null_mut();
        // SAFETY: both lists have as many entries, and live, with the log, until the linker is destroyed below.
        unsafe {
            self.f.cuLinkCreate_v2(
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
                &mut state,
            )?;
        }
        let linked = self.add_all(state, job).and_then(|()| {
            let (mut image, mut size) = (std::ptr::null_mut(), 0);
            // SAFETY: the linker is live; both pointers refer to live locals.
            unsafe { self.f.cuLinkComplete(state, &mut image, &mut size)? };
            // SAFETY: the driver gave so many bytes, which stay until the linker is destroyed.
            Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
        });
        // SAFETY: the linker was made above and is used no more.
        let destroyed = unsafe { self.f.cuLinkDestroy(state) };
        linked.and_then(|image| destroyed.map(|()| image))
    }

    fn add_all(&self, state: cu::CUlinkState, job: &LinkJob<'_>) -> Result<()> {
        for input in &job.inputs {
            // A driver reads text to its NUL and headers before it knows their length.
            let mut bytes = input.bytes.to_vec();
            bytes.resize(input.bytes.len() + 64, 0);
            let name = CString::new(input.name).unwrap_or_default();
            let (mut options, mut values) = split(&input.options);
            // SAFETY: the linker is live; content, name and options outlive the call, which copies them.
            unsafe {
                self.f.cuLinkAddData_v2(
                    state,
                    input.kind,
                    bytes.as_mut_ptr().cast::<c_void>(),
                    input.bytes.len(),
                    name.as_ptr(),
                    options.len() as u32,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )?;
            }
        }
        Ok(())
    }
}
