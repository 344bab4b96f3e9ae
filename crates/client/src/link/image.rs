//! Finds the length of a module image, because the program passes a bare pointer.
//!
//! Four shapes: the wrapper that nvcc puts around a fat binary, the fat binary itself, an ELF file
//! (cubin), and PTX text, which ends with a NUL.

use core::ffi::c_void;

use fermata_abi::sys::driver::CUDA_ERROR_INVALID_IMAGE;

use crate::args::In;
use crate::result::Result;

/// Magic number of the wrapper: u32 magic, u32 version, u64 address of the fat binary.
const WRAPPER: u32 = 0x4662_43b1;
/// Magic number of a fat binary: u32 magic, u16 version, u16 header bytes, u64 bytes that follow.
const FAT: u32 = 0xba55_ed50;
/// The longest image; a longer one is refused.
const LONGEST: u64 = 4 << 30;

/// An image of the program.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    at: In<u8>,
    len: usize,
}

impl Image {
    /// Its bytes, which the program does not change before the call returns.
    ///
    /// # Errors
    /// None.
    pub fn bytes(&self) -> Result<&[u8]> {
        self.at.bytes(self.len)
    }
}

/// The image at `image`, which is a complete one of the four shapes.
///
/// # Errors
/// The pointer is null, or the image is too long.
pub fn find(image: In<c_void>) -> Result<Image> {
    if image.is_null() {
        return Err(CUDA_ERROR_INVALID_IMAGE);
    }
    let mut at: In<u8> = image.cast();
    // Every shape has at least four bytes, PTX being at least one line.
    if at.array_at::<4>(0)? == WRAPPER.to_le_bytes() {
        let address = u64::from_le_bytes(at.array_at(8)?);
        // SAFETY: a wrapper has the address of a fat binary at offset 8.
        at = unsafe { In::from_raw(std::ptr::with_exposed_provenance(address as usize)) };
        if at.is_null() {
            return Err(CUDA_ERROR_INVALID_IMAGE);
        }
    }
    let magic = at.array_at::<4>(0)?;
    let len = if magic == FAT.to_le_bytes() {
        let [_, _, _, _, _, _, h0, h1, size @ ..] = at.array_at::<16>(0)?;
        u64::from_le_bytes(size).checked_add(u64::from(u16::from_le_bytes([h0, h1])))
    } else if magic == *b"\x7fELF" {
        elf_length(at)?
    } else {
        // Anything else is PTX text; the NUL at its end is part of the image.
        Some(at.until_nul()?.len() as u64)
    };
    let len = len
        .filter(|len| *len <= LONGEST)
        .ok_or(CUDA_ERROR_INVALID_IMAGE)?;
    let len = len as usize;
    Ok(Image { at, len })
}

/// The end of the last section or table of a 64-bit ELF file.
fn elf_length(at: In<u8>) -> Result<Option<u64>> {
    let header = at.array_at::<64>(0)?;
    let word = |offset: usize| u64::from_le_bytes(std::array::from_fn(|n| header[offset + n]));
    let half = |offset: usize| u64::from(u16::from_le_bytes([header[offset], header[offset + 1]]));
    let (segments, segment_size, segment_count) = (word(32), half(54), half(56));
    let (sections, section_size, section_count) = (word(40), half(58), half(60));
    if header[4] != 2 || (section_count > 0 && section_size < 64) {
        return Ok(None);
    }
    let tables = [
        (sections, section_size * section_count),
        (segments, segment_size * segment_count),
    ];
    let mut end = 0;
    for (start, len) in tables {
        let Some(table_end) = start.checked_add(len) else {
            return Ok(None);
        };
        end = table_end.max(end);
    }
    for n in 0..section_count {
        let offset = sections.checked_add(n * section_size);
        let Some(offset) = offset.filter(|offset| *offset < LONGEST) else {
            return Ok(None);
        };
        let section = at.array_at::<64>(offset as usize)?;
        let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| section[at + n]));
        let kind = u32::from_le_bytes([section[4], section[5], section[6], section[7]]);
        // Sections without bits (SHT_NOBITS) have no bytes in the file.
        if kind != 8 {
            let Some(section_end) = field(24).checked_add(field(32)) else {
                return Ok(None);
            };
            end = end.max(section_end);
        }
    }
    Ok(Some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(image: &[u8]) -> Result<usize> {
        find(In::from(image).cast()).map(|image| image.len)
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
