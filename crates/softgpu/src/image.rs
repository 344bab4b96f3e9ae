//! Module images: PTX text, fat binaries, the wrapper a compiler puts around them.

use std::ffi::{CStr, c_void};

use fermata_abi::sys::driver as cu;
use fermata_ptx::fatbin;

use crate::error::{CuError, INVALID_VALUE, Result};
use crate::log;

const NO_BINARY: CuError = CuError(cu::CUDA_ERROR_NO_BINARY_FOR_GPU);
const INVALID_IMAGE: CuError = CuError(cu::CUDA_ERROR_INVALID_IMAGE);
const INVALID_PTX: CuError = CuError(cu::CUDA_ERROR_INVALID_PTX);
/// Newest PTX version of the CUDA version this driver is of.
const NEWEST: (u32, u32) = (9, 0);
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
        return Err(only_machine_code());
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
    text(unsafe { CStr::from_ptr(image.cast()) }.to_bytes(), sm)
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
        return Err(only_machine_code());
    }
    if bytes.starts_with(&fatbin::MAGIC.to_le_bytes()) {
        return from_container(bytes, sm);
    }
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    text(&bytes[..end], sm)
}

/// All PTX that the containers within a file hold, which may be an object or a library of objects.
pub fn within(bytes: &[u8], sm: u32) -> Vec<String> {
    let magic = fatbin::MAGIC.to_le_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(distance) = bytes[at..].windows(4).position(|word| word == magic) {
        let start = at + distance;
        let header = bytes[start..].first_chunk::<16>();
        let len = header.and_then(|header| fatbin::container_len(header).ok());
        let whole = len.and_then(|len| bytes.get(start..start.checked_add(len)?));
        at = start + 4;
        let Some(whole) = whole else { continue };
        at = start + whole.len();
        let entries = fatbin::entries(whole).unwrap_or_default();
        let text = fatbin::best_ptx(&entries, sm)
            .and_then(|entry| entry.contents().ok())
            .and_then(|contents| text(&contents, sm).ok());
        found.extend(text);
    }
    found
}

fn from_container(bytes: &[u8], sm: u32) -> Result<String> {
    let entries = fatbin::entries(bytes).map_err(refuse)?;
    if entries.is_empty() {
        // nvcc of CUDA 11 puts one into every program.
        return Err(NO_BINARY);
    }
    let Some(entry) = fatbin::best_ptx(&entries, sm) else {
        log::tell(format!(
            "a fat binary holds no PTX for compute capability {sm} or lower (nvcc: -gencode arch=compute_{sm},code=compute_{sm})"
        ));
        return Err(NO_BINARY);
    };
    text(&entry.contents().map_err(refuse)?, sm)
}

fn only_machine_code() -> CuError {
    log::tell(
        "a module holds machine code of a GPU only; the software GPU runs PTX (nvcc: -gencode arch=compute_90,code=compute_90)"
            .to_owned(),
    );
    NO_BINARY
}

/// PTX text of a version and for an architecture that this device knows.
fn text(bytes: &[u8], sm: u32) -> Result<String> {
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| INVALID_IMAGE)?;
    let Some(version) = directive(&text, ".version") else {
        return Err(INVALID_IMAGE);
    };
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    let (Ok(major), Ok(minor)) = (major.parse::<u32>(), minor.parse::<u32>()) else {
        return Err(INVALID_PTX);
    };
    if (major, minor) > NEWEST {
        log::tell(format!(
            "PTX version {version} is newer than this driver knows"
        ));
        return Err(CuError(cu::CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
    }
    let target = directive(&text, ".target").and_then(|target| target.strip_prefix("sm_"));
    let digits = target.map(|target| target.trim_end_matches(|c: char| !c.is_ascii_digit()));
    if digits
        .and_then(|digits| digits.parse::<u32>().ok())
        .is_some_and(|target| target > sm)
    {
        log::tell(format!(
            "the PTX is for compute capability {}, the device's is {sm}",
            digits.unwrap_or("")
        ));
        return Err(INVALID_PTX);
    }
    Ok(text)
}

/// The first word after a directive that stands at the start of a line.
fn directive<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name))?;
    rest.split([' ', '\t', ',', ';', '/'])
        .find(|word| !word.is_empty())
}

fn refuse(error: fatbin::FatbinError) -> CuError {
    log::tell(error.to_string());
    INVALID_IMAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_without_ptx_are_told_apart_from_damaged_ones() {
        assert_eq!(from_bytes(b"\x7fELF\x02", 90), Err(NO_BINARY));
        assert_eq!(from_bytes(b"", 90), Err(INVALID_IMAGE));
        assert_eq!(
            from_bytes(&fatbin::MAGIC.to_le_bytes(), 90),
            Err(INVALID_IMAGE)
        );
        assert_eq!(from_bytes(b"garbage", 90), Err(INVALID_IMAGE));
        assert_eq!(
            from_bytes(b".version 7.0\0rest", 90),
            Ok(".version 7.0".to_owned())
        );
        let newer = from_bytes(b"// text\n.version 9.1\n.target sm_75", 90);
        assert_eq!(newer, Err(CuError(cu::CUDA_ERROR_UNSUPPORTED_PTX_VERSION)));
        assert_eq!(
            from_bytes(b".version 8.0\n.target sm_90a, debug", 80),
            Err(INVALID_PTX)
        );
        assert!(from_bytes(b".version 8.0\n.target sm_90a, debug", 90).is_ok());
        // A container of version 1 whose header of 16 bytes is all there is.
        let empty = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(from_bytes(&empty, 71), Err(NO_BINARY));
        // No other test is about this architecture.
        assert!(
            !log::has_told("capability 71"),
            "an empty one is no reason to warn"
        );
        // SAFETY: a short NUL-terminated text is a valid image.
        let short = unsafe { from_pointer(c"\x7f".as_ptr().cast(), 90) };
        assert_eq!(short, Err(INVALID_IMAGE));
    }
}
