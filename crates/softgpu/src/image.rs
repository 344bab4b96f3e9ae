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
/// Version of the wrapper of a program that was compiled in parts.
const LINKED: u32 = 2;
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
        let data = unsafe { bytes.add(8).cast::<*const u8>().read_unaligned() };
        // SAFETY: likewise its version, 4 bytes in.
        if unsafe { bytes.add(4).cast::<u32>().read_unaligned() } == LINKED {
            // SAFETY: a wrapper of this version has the address of a list 16 bytes in.
            let parts = unsafe { bytes.add(16).cast::<*const *const u8>().read_unaligned() };
            // SAFETY: what the wrapper and the list point to are whole containers; the list ends with null.
            return unsafe { linked(data, parts, sm) };
        }
        // SAFETY: what the wrapper points to is a whole container; wrappers are not nested.
        return unsafe { container(data, sm) };
    }
    if starts(fatbin::MAGIC.to_le_bytes()) {
        // SAFETY: the caller passed a whole container.
        return unsafe { container(bytes, sm) };
    }
    // SAFETY: everything else is NUL-terminated text.
    text(unsafe { CStr::from_ptr(image.cast()) }.to_bytes(), sm)
}

/// The PTX of a program that was compiled in parts and then linked (nvcc: `-rdc=true`). `whole` is what the linker has
/// made, machine code or nothing; then the parts are linked now.
///
/// # Safety
/// `whole`, and all in the list `parts`, which ends with null, are null or point to whole fat binaries; so does `parts`.
unsafe fn linked(whole: *const u8, parts: *const *const u8, sm: u32) -> Result<String> {
    // SAFETY: by contract.
    let own = unsafe { whole_container(whole) }?;
    let entries = fatbin::entries(own).map_err(refuse)?;
    if parts.is_null() || fatbin::best_ptx(&entries, sm).is_some() {
        return from_container(own, sm);
    }
    let mut modules = Vec::new();
    for index in 0.. {
        // SAFETY: the list goes on until its null.
        let part = unsafe { parts.add(index).read_unaligned() };
        if part.is_null() {
            break;
        }
        // SAFETY: by contract.
        let entries = fatbin::entries(unsafe { whole_container(part) }?).map_err(refuse)?;
        // The device's runtime is a part too, of machine code.
        let Some(entry) = fatbin::best_ptx(&entries, sm) else {
            continue;
        };
        let text = text(&entry.contents().map_err(refuse)?, sm)?;
        modules.push(fermata_ptx::parse(&text).map_err(|error| {
            log::tell(format!("PTX line {}: {}", error.line, error.message));
            INVALID_PTX
        })?);
    }
    if modules.is_empty() {
        return from_container(own, sm);
    }
    fermata_ptx::link::link(&modules).map_err(|error| {
        log::tell(format!("cannot link the parts of a program: {error}"));
        INVALID_PTX
    })
}

/// # Safety
/// `bytes` is null or points to a whole fat binary.
unsafe fn container(bytes: *const u8, sm: u32) -> Result<String> {
    // SAFETY: by contract.
    from_container(unsafe { whole_container(bytes) }?, sm)
}

/// # Safety
/// `bytes` is null or points to a whole fat binary, which stays as it is for as long as the result is used.
unsafe fn whole_container<'a>(bytes: *const u8) -> Result<&'a [u8]> {
    if bytes.is_null() {
        return Err(INVALID_IMAGE);
    }
    // SAFETY: a container has at least a header of 16 bytes.
    let header = unsafe { bytes.cast::<[u8; 16]>().read_unaligned() };
    let len = fatbin::container_len(&header).map_err(refuse)?;
    // SAFETY: the header gives the container's length.
    Ok(unsafe { std::slice::from_raw_parts(bytes, len) })
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

    /// A container with an entry for architecture 80, if there is a text.
    fn container_of(text: Option<&str>) -> Vec<u8> {
        let entry = text.map(|text| {
            let mut entry = vec![0u8; 64];
            entry[0] = 1;
            entry[4] = 64;
            entry[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
            entry[0x1c] = 80;
            entry.extend(text.bytes());
            entry
        });
        let body = entry.unwrap_or_default();
        let mut out = fatbin::MAGIC.to_le_bytes().to_vec();
        out.extend([1, 0, 16, 0]);
        out.extend((body.len() as u64).to_le_bytes());
        out.extend(body);
        out
    }

    #[repr(C)]
    struct Wrapper {
        magic: u32,
        version: u32,
        whole: *const u8,
        parts: *const *const u8,
    }

    #[test]
    fn the_parts_of_a_program_are_linked_when_its_whole_holds_no_ptx() {
        let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
        let caller =
            format!("{head}.extern .func helper();\n.visible .entry k() {{ call helper; ret; }}");
        let callee = format!("{head}.visible .func helper() {{ ret; }}");
        let parts = [Some(&*caller), None, Some(&*callee)].map(container_of);
        let list = [
            parts[0].as_ptr(),
            parts[1].as_ptr(),
            parts[2].as_ptr(),
            std::ptr::null(),
        ];
        let whole = container_of(None);
        let wrapper = Wrapper {
            magic: fatbin::WRAPPER_MAGIC,
            version: LINKED,
            whole: whole.as_ptr(),
            parts: list.as_ptr(),
        };
        // SAFETY: the wrapper, its list and all containers are whole.
        let text = unsafe { from_pointer((&raw const wrapper).cast(), 90) }.unwrap();
        let module = fermata_ptx::parse(&text).unwrap();
        let bodies = module
            .items
            .iter()
            .filter(|item| matches!(item, fermata_ptx::ast::Item::Function(f) if f.body.is_some()));
        assert_eq!(bodies.count(), 2, "{text}");
    }
}
