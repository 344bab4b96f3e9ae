//! Module images: PTX text, fat binaries, the wrapper a compiler puts around them.

use std::ffi::{CStr, c_void};

use fermata_abi::sys::driver as cu;
use fermata_ptx::fatbin;

use crate::error::{CuError, INVALID_VALUE, Result};
use crate::log;

const NO_BINARY: CuError = CuError(cu::CUDA_ERROR_NO_BINARY_FOR_GPU);
const INVALID_IMAGE: CuError = CuError(cu::CUDA_ERROR_INVALID_IMAGE);
const ELF: [u8; 4] = *b"\x7fELF";

/// The PTX in an image whose length only the image tells, for compute capability `sm` (10 * major + minor).
///
/// # Errors
/// Null, damaged, or without PTX that this device can run.
///
/// # Safety
/// `image` is null or points to NUL-terminated text, a whole fat binary, its wrapper, or an ELF file.
pub unsafe fn from_pointer(image: *const c_void, sm: u32) -> Result<String> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let bytes = image.cast::<u8>();
    // SAFETY: every kind of image that the caller may pass has 4 bytes or a NUL before that, and bytes
    // are read only up to the first difference from a magic number.
    let starts = |magic: [u8; 4]| unsafe { (0..4).all(|i| *bytes.add(i) == magic[i]) };
    if starts(ELF) {
        return Err(NO_BINARY);
    }
    if starts(fatbin::WRAPPER_MAGIC.to_le_bytes()) {
        // SAFETY: the wrapper has the container's address 8 bytes in.
        let data = unsafe { bytes.add(8).cast::<*const c_void>().read_unaligned() };
        // SAFETY: what the wrapper points to is a whole container; wrappers are not nested.
        return unsafe { container(data.cast(), sm) };
    }
    if starts(fatbin::MAGIC.to_le_bytes()) {
        // SAFETY: the caller passed a whole container.
        return unsafe { container(bytes, sm) };
    }
    // SAFETY: everything else is NUL-terminated text.
    text(unsafe { CStr::from_ptr(image.cast()) }.to_bytes())
}

/// # Safety
/// `bytes` is null or points to a whole fat binary.
unsafe fn container(bytes: *const u8, sm: u32) -> Result<String> {
    if bytes.is_null() {
        return Err(INVALID_IMAGE);
    }
    // SAFETY: a container has at least a header of 16 bytes.
    let header = unsafe { bytes.cast::<[u8; 16]>().read_unaligned() };
    let len = fatbin::container_len(&header).map_err(refuse)?;
    // SAFETY: the header gives the container's length.
    from_container(unsafe { std::slice::from_raw_parts(bytes, len) }, sm)
}

/// The PTX in the contents of a file.
///
/// # Errors
/// Damaged, or without PTX that this device can run.
pub fn from_bytes(bytes: &[u8], sm: u32) -> Result<String> {
    if bytes.starts_with(&ELF) {
        return Err(NO_BINARY);
    }
    if bytes.starts_with(&fatbin::MAGIC.to_le_bytes()) {
        return from_container(bytes, sm);
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    text(&bytes[..end])
}

fn from_container(bytes: &[u8], sm: u32) -> Result<String> {
    let entries = fatbin::entries(bytes).map_err(refuse)?;
    let Some(entry) = fatbin::best_ptx(&entries, sm) else {
        log::note(format!("the fat binary holds no PTX for compute capability {sm} or lower"));
        return Err(NO_BINARY);
    };
    text(&entry.contents().map_err(refuse)?)
}

fn text(bytes: &[u8]) -> Result<String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(INVALID_IMAGE);
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| INVALID_IMAGE)
}

fn refuse(error: fatbin::FatbinError) -> CuError {
    log::note(error.to_string());
    INVALID_IMAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_without_ptx_are_told_apart_from_damaged_ones() {
        assert_eq!(from_bytes(b"\x7fELF\x02", 90), Err(NO_BINARY));
        assert_eq!(from_bytes(b"", 90), Err(INVALID_IMAGE));
        assert_eq!(from_bytes(&fatbin::MAGIC.to_le_bytes(), 90), Err(INVALID_IMAGE));
        assert_eq!(from_bytes(b".version 7.0\0rest", 90), Ok(".version 7.0".to_owned()));
        // SAFETY: a short NUL-terminated text is a valid image.
        assert_eq!(unsafe { from_pointer(c"\x7f".as_ptr().cast(), 90) }, Ok("\x7f".to_owned()));
    }
}
