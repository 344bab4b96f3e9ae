//! Options of just-in-time compilation. Only the buffers for messages have an effect.

use std::ffi::c_void;

use fermata_abi::sys::driver as cu;

use crate::error::{INVALID_VALUE, Result};

/// A buffer of the program for messages, and the option slot that tells its size.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    at: *mut u8,
    size: usize,
    /// Where the number of bytes written goes.
    filled: *mut *mut c_void,
}

/// The options that were given with a module.
#[derive(Debug, Default)]
pub struct JitOptions {
    error: Option<Buffer>,
    info: Option<Buffer>,
}

impl JitOptions {
    /// Reads the options, and empties the buffers for messages.
    ///
    /// # Errors
    /// Options are announced but missing.
    ///
    /// # Safety
    /// `options` and `values` have `count` elements and stay valid while the result is used, and a log
    /// buffer among them has the size given with it.
    pub unsafe fn read(
        count: u32,
        options: *const cu::CUjit_option,
        values: *mut *mut c_void,
    ) -> Result<Self> {
        if count == 0 {
            return Ok(Self::default());
        }
        if options.is_null() || values.is_null() {
            return Err(INVALID_VALUE);
        }
        let (mut error, mut info) = ((None, None), (None, None));
        for index in 0..count as usize {
            // SAFETY: `index` is below the number of elements that the caller vouches for.
            let (option, slot) = unsafe { (*options.add(index), values.add(index)) };
            // SAFETY: as above.
            let value = unsafe { *slot };
            match option {
                cu::CU_JIT_ERROR_LOG_BUFFER => error.0 = Some(value.cast::<u8>()),
                cu::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => error.1 = Some((value.addr(), slot)),
                cu::CU_JIT_INFO_LOG_BUFFER => info.0 = Some(value.cast::<u8>()),
                cu::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => info.1 = Some((value.addr(), slot)),
                _ => {}
            }
        }
        let buffer = |(at, size): (Option<*mut u8>, Option<(usize, *mut *mut c_void)>)| {
            let (at, (size, filled)) = (at.filter(|at| !at.is_null())?, size?);
            Some(Buffer {
                at,
                size: size as u32 as usize,
                filled,
            })
        };
        let (error, info) = (buffer(error), buffer(info));
        // Until there is a message, the buffers say that there is none.
        Self::write(error, "");
        Self::write(info, "");
        Ok(Self { error, info })
    }

    /// Writes an error's message, NUL-terminated and cut to the buffer, and its length.
    pub fn report(&self, message: &str) {
        Self::write(self.error, message);
    }

    /// Writes a message that is no error's, likewise.
    pub fn inform(&self, message: &str) {
        Self::write(self.info, message);
    }

    fn write(buffer: Option<Buffer>, message: &str) {
        let Some(buffer) = buffer else { return };
        if buffer.size == 0 {
            return;
        }
        let len = message.len().min(buffer.size - 1);
        // SAFETY: `read`'s caller vouches for `size` bytes at `at` and for the option's slot.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), buffer.at, len);
            buffer.at.add(len).write(0);
            *buffer.filled = std::ptr::without_provenance_mut(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_to_the_buffer_and_terminated() {
        let mut buffer = [0xffu8; 8];
        let options = [
            cu::CU_JIT_ERROR_LOG_BUFFER,
            cu::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [
            buffer.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(6),
        ];
        // SAFETY: two options with two values, the buffer has at least 6 bytes.
        let jit = unsafe { JitOptions::read(2, options.as_ptr(), values.as_mut_ptr()) }.unwrap();
        assert_eq!((buffer[0], values[1].addr()), (0, 0));
        jit.report("something long");
        assert_eq!(&buffer, b"somet\0\xff\xff");
        assert_eq!(values[1].addr(), 5);
    }
}
