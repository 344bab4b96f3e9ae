//! The functions of the table as symbols.

use std::ffi::c_int;

use crate::call;

/// Every function takes as many words as a call has registers; those beyond its parameters are whatever the registers
/// hold, and are not looked at.
macro_rules! exports {
    ($($name:ident($($kind:tt)*);)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $name(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> c_int {
            // SAFETY: the caller gives what NVML's reference demands for this function, which the table repeats.
            unsafe { call::made(stringify!($name), [a, b, c, d, e, f]) }.0
        }
    )*};
}
fermata_nvml::for_each_function!(exports);
