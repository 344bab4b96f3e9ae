//! Options of just-in-time compilation: of interest are only the buffers for messages.

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
}

impl JitOptions {
    /// Reads the options.
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
        let (mut at, mut size) = (None, None);
        for index in 0..count as usize {
            // SAFETY: `index` is below the number of elements that the caller vouches for.
            let (option, slot) = unsafe { (*options.add(index), values.add(index)) };
            // SAFETY: as above.
            let value = unsafe { *slot };
            match option {
                cu::CU_JIT_ERROR_LOG_BUFFER => at = Some(value.cast::<u8>()),
                cu::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => size = Some((value.addr(), slot)),
                _ => {}
            }
        }
        let error = match (at, size) {
            (Some(at), Some((size, filled))) if !at.is_null() => Some(Buffer {
                at,
                size: size as u32 as usize,
                filled,
            }),
            _ => None,
        };
        Ok(Self { error })
    }

    /// Writes a message, NUL-terminated and cut to the buffer, and its length.
    pub fn report(&self, message: &str) {
        let Some(buffer) = self.error else { return };
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
        jit.report("something long");
        assert_eq!(&buffer, b"somet\0\xff\xff");
        assert_eq!(values[1].addr(), 5);
    }
}
