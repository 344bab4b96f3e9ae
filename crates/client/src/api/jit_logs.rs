//! The buffers for messages among the options of the just-in-time compiler.

use core::ffi::{c_char, c_void};

use fermata_abi::sys::driver as sys;

use crate::args::Out;
use crate::result::Result;

const INFO: [sys::CUjit_option; 2] = [
    sys::CU_JIT_INFO_LOG_BUFFER,
    sys::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
];
const ERROR: [sys::CUjit_option; 2] = [
    sys::CU_JIT_ERROR_LOG_BUFFER,
    sys::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
];

/// The buffer for errors, if there is one.
pub(super) struct Logs(Option<Log>);

struct Log {
    buffer: Out<c_char>,
    size: usize,
    /// Takes the number of bytes that the buffer holds.
    filled: (Out<*mut c_void>, usize),
}

impl Logs {
    /// Of options with a value each. Empties the buffers: there are no messages but errors.
    pub(super) fn new(options: &[sys::CUjit_option], values: Out<*mut c_void>) -> Result<Self> {
        if let Some(info) = Log::find(options, values, INFO)? {
            info.fill("");
        }
        let logs = Self(Log::find(options, values, ERROR)?);
        logs.fill("");
        Ok(logs)
    }

    /// Writes the compiler's errors.
    pub(super) fn fill(&self, errors: &str) {
        if let Some(log) = &self.0 {
            log.fill(errors);
        }
    }
}

impl Log {
    fn find(
        options: &[sys::CUjit_option],
        values: Out<*mut c_void>,
        [buffer, size]: [sys::CUjit_option; 2],
    ) -> Result<Option<Self>> {
        let at = |wanted| options.iter().position(|option| *option == wanted);
        let (Some(buffer), Some(filled)) = (at(buffer), at(size)) else {
            return Ok(None);
        };
        let buffer = values.to_in().out_at(buffer)?.cast();
        let size = values.to_in().get_at(filled)?.addr() as u32 as usize;
        let log = Self {
            buffer,
            size,
            filled: (values, filled),
        };
        Ok(Some(log).filter(|log| !log.buffer.is_null() && log.size > 0))
    }

    /// Writes text, truncated to the buffer, and its length.
    fn fill(&self, text: &str) {
        let len = text.len().min(self.size - 1);
        let (values, at) = self.filled;
        // Neither is null, and a NUL has room.
        let _ = self.buffer.set_text_in(text, self.size);
        let _ = values.set_at(at, std::ptr::without_provenance_mut(len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_cut_to_their_buffer_and_every_buffer_says_how_much_it_holds() {
        let (mut info, mut errors) = ([b'x'; 8], [b'x'; 8]);
        let options = [ERROR[1], INFO[0], ERROR[0], INFO[1]];
        let size = std::ptr::without_provenance_mut;
        let mut values: [*mut c_void; 4] = [
            size(6),
            info.as_mut_ptr().cast(),
            errors.as_mut_ptr().cast(),
            size(8),
        ];
        let logs = Logs::new(&options, Out::from(&mut values[..])).expect("options");
        assert_eq!((values[0].addr(), values[3].addr()), (0, 0));
        logs.fill("something long");
        assert_eq!((values[0].addr(), values[3].addr()), (5, 0));
        assert_eq!((&info, &errors), (b"\0xxxxxxx", b"somet\0xx"));
    }

    #[test]
    fn a_buffer_needs_its_size() {
        let mut errors = [b'x'; 8];
        let mut values: [*mut c_void; 1] = [errors.as_mut_ptr().cast()];
        let logs = Logs::new(&ERROR[..1], Out::from(&mut values[..])).expect("options");
        logs.fill("something");
        assert_eq!(errors, [b'x'; 8]);
        let none = Logs::new(&[], Out::null()).expect("no options");
        none.fill("something");
    }
}
