//! How long a module image is: the program passes a bare pointer.
//!
//! Four shapes: the wrapper that nvcc puts around a fat binary, the fat binary itself, an ELF file
//! (cubin), and PTX text, which ends with a NUL.

use core::ffi::c_void;

use fermata_abi::sys::driver::CUDA_ERROR_INVALID_IMAGE;

use crate::entry::Result;

/// Magic number of the wrapper: u32 magic, u32 version, u64 address of the fat binary.
const WRAPPER: u32 = 0x4662_43b1;
/// Magic number of a fat binary: u32 magic, u16 version, u16 header bytes, u64 bytes that follow.
const FAT: u32 = 0xba55_ed50;
/// Longest image: what lies behind it is no image.
const LONGEST: u64 = 4 << 30;

/// The bytes of the image at `image`.
///
/// # Safety
/// `image` points to a complete image of one of the four shapes that lives as long as the result is used.
pub unsafe fn bytes<'a>(image: *const c_void) -> Result<&'a [u8]> {
    if image.is_null() {
        return Err(CUDA_ERROR_INVALID_IMAGE);
    }
    let mut at = image.cast::<u8>();
    // SAFETY: every shape has at least four bytes, PTX being at least one line.
    if unsafe { head::<4>(at) } == WRAPPER.to_le_bytes() {
        // SAFETY: a wrapper has an address at offset 8.
        let address = u64::from_le_bytes(unsafe { head(at.add(8)) });
        at = std::ptr::with_exposed_provenance(address as usize);
        if at.is_null() {
            return Err(CUDA_ERROR_INVALID_IMAGE);
        }
    }
    // SAFETY: as for the first read, for what the wrapper points to.
    let magic = unsafe { head::<4>(at) };
    let len = if magic == FAT.to_le_bytes() {
        // SAFETY: a fat binary's header is 16 bytes.
        let header = unsafe { head::<16>(at) };
        let [_, _, _, _, _, _, h0, h1, size @ ..] = header;
        u64::from_le_bytes(size).checked_add(u64::from(u16::from_le_bytes([h0, h1])))
    } else if magic == *b"\x7fELF" {
        // SAFETY: an ELF file's header is 64 bytes, and its tables lie where that says.
        unsafe { elf_length(at) }
    } else {
        // SAFETY: what is nothing else is text that ends with a NUL, which is part of the image.
        Some(
            unsafe { core::ffi::CStr::from_ptr(at.cast()) }
                .to_bytes_with_nul()
                .len() as u64,
        )
    };
    let len = len
        .filter(|len| *len <= LONGEST)
        .ok_or(CUDA_ERROR_INVALID_IMAGE)?;
    // SAFETY: the image is that long by its own words.
    Ok(unsafe { std::slice::from_raw_parts(at, len as usize) })
}

/// # Safety
/// `at` points to `N` bytes.
unsafe fn head<const N: usize>(at: *const u8) -> [u8; N] {
    // SAFETY: by the caller's promise; byte arrays need no alignment.
    unsafe { at.cast::<[u8; N]>().read() }
}

/// The end of the last section or table of a 64-bit ELF file.
///
/// # Safety
/// `at` points to such a file.
unsafe fn elf_length(at: *const u8) -> Option<u64> {
    // SAFETY: the header is 64 bytes.
    let header = unsafe { head::<64>(at) };
    let word = |offset: usize| u64::from_le_bytes(std::array::from_fn(|n| header[offset + n]));
    let half = |offset: usize| u64::from(u16::from_le_bytes([header[offset], header[offset + 1]]));
    let (segments, segment_size, segment_count) = (word(32), half(54), half(56));
    let (sections, section_size, section_count) = (word(40), half(58), half(60));
    if header[4] != 2 || (section_count > 0 && section_size < 64) {
        return None;
    }
    let mut end = sections.checked_add(section_size * section_count)?;
    end = end.max(segments.checked_add(segment_size * segment_count)?);
    for n in 0..section_count {
        let offset = sections
            .checked_add(n * section_size)
            .filter(|offset| *offset < LONGEST)?;
        // SAFETY: the section table lies in the file, and its entries are 64 bytes.
        let section = unsafe { head::<64>(at.add(offset as usize)) };
        let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| section[at + n]));
        let kind = u32::from_le_bytes([section[4], section[5], section[6], section[7]]);
        // Sections without bits take no room in the file.
        if kind != 8 {
            end = end.max(field(24).checked_add(field(32))?);
        }
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(image: &[u8]) -> Result<usize> {
        // SAFETY: each test passes a complete image.
        unsafe { bytes(image.as_ptr().cast()) }.map(<[u8]>::len)
    }

    #[test]
    fn text_ends_with_its_nul() {
        assert_eq!(length(b".version 7.0\n\0rest"), Ok(14));
    }

    #[test]
    fn fat_binaries_say_how_long_they_are_with_and_without_wrapper() {
        let mut fat = FAT.to_le_bytes().to_vec();
        fat.extend([1, 0, 16, 0]);
        fat.extend(24u64.to_le_bytes());
        fat.extend([7; 40]);
        assert_eq!(length(&fat), Ok(40));
        let mut wrapper = WRAPPER.to_le_bytes().to_vec();
        wrapper.extend(1u32.to_le_bytes());
        wrapper.extend((fat.as_ptr().expose_provenance() as u64).to_le_bytes());
        wrapper.extend([0; 8]);
        assert_eq!(length(&wrapper), Ok(40));
        fat[15] = 0xff;
        assert_eq!(length(&fat), Err(CUDA_ERROR_INVALID_IMAGE));
    }
}
