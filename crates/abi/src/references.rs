//! What the driver accepts as settings of a texture reference: both driver libraries check the same.

use core::ffi::{c_int, c_uint};

use crate::sys::driver as sys;

/// What a program may say of a texture reference (`CU_TRSF_*`).
const FLAGS: c_uint = sys::CU_TRSF_READ_AS_INTEGER
    | sys::CU_TRSF_NORMALIZED_COORDINATES
    | sys::CU_TRSF_SRGB
    | sys::CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION
    | sys::CU_TRSF_SEAMLESS_CUBEMAP;

/// The flags, if all of them are known.
pub fn flags(flags: c_uint) -> Option<c_uint> {
    (flags & !FLAGS == 0).then_some(flags)
}

/// The index of a dimension that has an address mode.
pub fn dimension(dimension: c_int) -> Option<usize> {
    usize::try_from(dimension).ok().filter(|at| *at < 3)
}

/// The filter mode, if there is such a one.
pub fn filter(mode: sys::CUfilter_mode) -> Option<sys::CUfilter_mode> {
    (mode <= sys::CU_TR_FILTER_MODE_LINEAR).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_dimensions_and_filters_are_none() {
        assert_eq!(flags(FLAGS), Some(FLAGS));
        assert_eq!(flags(FLAGS | 0x8000), None);
        assert_eq!([-1, 0, 2, 3].map(dimension), [None, Some(0), Some(2), None]);
        assert_eq!([0, 1, 2].map(filter), [Some(0), Some(1), None]);
    }
}
