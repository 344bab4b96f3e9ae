//! See `tests/fuzz/src`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fermata_fuzz::run("fatbin", data));
