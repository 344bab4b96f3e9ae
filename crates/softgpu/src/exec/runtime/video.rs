//! Arithmetic on the two halves or four bytes of a word (`vadd2`, `vabsdiff4` and their kind).

/// How a word is taken apart, and what is done; part of the generated code.
pub mod form {
    #![allow(missing_docs)]
    pub const ADD: u32 = 0;
    pub const SUB: u32 = 1;
    pub const AVERAGE: u32 = 2;
    pub const DISTANCE: u32 = 3;
    pub const MIN: u32 = 4;
    pub const MAX: u32 = 5;
    /// The operation.
    pub const OPERATION: u32 = 7;
    /// Four bytes instead of two halves.
    pub const BYTES: u32 = 8;
    /// The first, the second source, and the result are signed.
    pub const SIGNED: [u32; 3] = [16, 32, 64];
    /// Results beyond their range are brought to its end.
    pub const SATURATE: u32 = 128;
    /// The results are added up, and `c` to them.
    pub const SUM: u32 = 256;
}

/// Applies `form` to the parts of `a` and `b`.
pub extern "C" fn parts(a: u32, b: u32, c: u32, form: u32) -> u32 {
    let width = if form & form::BYTES == 0 { 16 } else { 8 };
    let part = |word: u32, at: u32, signed: u32| {
        let up = word << (32 - width - at);
        if form & signed == 0 {
            i64::from(up >> (32 - width))
        } else {
            i64::from(up as i32 >> (32 - width))
        }
    };
    let signed = form & form::SIGNED[2] != 0;
    let (low, high) = match signed {
        true => (-1i64 << (width - 1), (1i64 << (width - 1)) - 1),
        false => (0, (1i64 << width) - 1),
    };
    let (mut word, mut sum) = (0, c);
    for at in (0..32).step_by(width as usize) {
        let x = part(a, at, form::SIGNED[0]);
        let y = part(b, at, form::SIGNED[1]);
        let mut r = match form & form::OPERATION {
            form::ADD => x + y,
            form::SUB => x - y,
            // Rounded away from zero where the sum is not negative, down else.
            form::AVERAGE => (x + y + i64::from(x + y >= 0)) >> 1,
            form::DISTANCE => (x - y).abs(),
            form::MIN => x.min(y),
            _ => x.max(y),
        };
        if form & form::SATURATE != 0 {
            r = r.clamp(low, high);
        }
        word |= (r as u32 & (u32::MAX >> (32 - width))) << at;
        sum = sum.wrapping_add(r as u32);
    }
    if form & form::SUM == 0 { word } else { sum }
}
