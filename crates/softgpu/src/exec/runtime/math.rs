//! Arithmetic that takes more than one machine instruction: directed rounding and approximations.

use std::arch::asm;

use super::mxcsr;

/// Rounding modes as compiled code numbers them: the RC field of MXCSR.
pub mod rounding {
    #![allow(missing_docs)]
    pub const NEAREST: u32 = 0;
    pub const DOWN: u32 = 1;
    pub const UP: u32 = 2;
    pub const ZERO: u32 = 3;
}

/// MXCSR with all exceptions masked and the mode of `rc`.
fn control(rc: u32) -> u32 {
    mxcsr::DEFAULT | (rc & 3) << 13
}

macro_rules! rounded {
    ($name:ident, $ty:ty, $op:literal) => {
        /// Directed rounding of one operation.
        pub extern "C" fn $name(a: $ty, b: $ty, rc: u32) -> $ty {
            let (mode, mut found, mut out) = (control(rc), 0u32, a);
            // SAFETY: MXCSR is set for one instruction and put back.
            unsafe {
                asm!("stmxcsr [{f}]", "ldmxcsr [{m}]", $op, "ldmxcsr [{f}]", m = in(reg) &mode, f = in(reg) &mut found,
                     a = inout(xmm_reg) out, b = in(xmm_reg) b, options(nostack));
            }
            out
        }
    };
}

rounded!(add_f32, f32, "addss {a}, {b}");
rounded!(sub_f32, f32, "subss {a}, {b}");
rounded!(mul_f32, f32, "mulss {a}, {b}");
rounded!(div_f32, f32, "divss {a}, {b}");
rounded!(sqrt_f32, f32, "sqrtss {a}, {b}");
rounded!(add_f64, f64, "addsd {a}, {b}");
rounded!(sub_f64, f64, "subsd {a}, {b}");
rounded!(mul_f64, f64, "mulsd {a}, {b}");
rounded!(div_f64, f64, "divsd {a}, {b}");
rounded!(sqrt_f64, f64, "sqrtsd {a}, {b}");

macro_rules! rounded_fma {
    ($name:ident, $ty:ty, $op:literal) => {
        /// Directed rounding of a fused multiply-add.
        pub extern "C" fn $name(a: $ty, b: $ty, c: $ty, rc: u32) -> $ty {
            let (mode, mut found, mut out) = (control(rc), 0u32, a);
            // SAFETY: MXCSR is set for one instruction and put back; modules are refused on a
            // processor without FMA.
            unsafe {
                asm!("stmxcsr [{f}]", "ldmxcsr [{m}]", $op, "ldmxcsr [{f}]", m = in(reg) &mode, f = in(reg) &mut found,
                     a = inout(xmm_reg) out, b = in(xmm_reg) b, c = in(xmm_reg) c, options(nostack));
            }
            out
        }
    };
}

rounded_fma!(fma_f32, f32, "vfmadd213ss {a}, {b}, {c}");
rounded_fma!(fma_f64, f64, "vfmadd213sd {a}, {b}, {c}");

/// f64 to f32.
pub extern "C" fn demote(a: f64, rc: u32) -> f32 {
    let (mode, mut found) = (control(rc), 0u32);
    let out: f32;
    // SAFETY: MXCSR is set for one instruction and put back.
    unsafe {
        asm!("stmxcsr [{f}]", "ldmxcsr [{m}]", "cvtsd2ss {o}, {a}", "ldmxcsr [{f}]", m = in(reg) &mode, f = in(reg) &mut found,
             a = in(xmm_reg) a, o = out(xmm_reg) out, options(nostack));
    }
    out
}

/// An integer (sign in the type of the value passed, widened to 128 bits) to f32.
fn int_to_float(value: i128, rc: u32, bits: u32, bias: i32) -> u64 {
    if value == 0 {
        return 0;
    }
    let negative = value < 0;
    let size = value.unsigned_abs();
    let length = 128 - size.leading_zeros();
    let mut exponent = length as i32 - 1;
    let mut mantissa = size;
    if length > bits {
        let shift = length - bits;
        let rest = size & ((1 << shift) - 1);
        mantissa = size >> shift;
        let half = 1u128 << (shift - 1);
        let up = match rc {
            rounding::NEAREST => rest > half || rest == half && mantissa & 1 == 1,
            rounding::DOWN => negative && rest != 0,
            rounding::UP => !negative && rest != 0,
            _ => false,
        };
        mantissa += u128::from(up);
        if mantissa >> bits != 0 {
            mantissa >>= 1;
            exponent += 1;
        }
    } else {
        mantissa <<= bits - length;
    }
    let fraction = mantissa as u64 & ((1 << (bits - 1)) - 1);
    let sign = u64::from(negative) << if bits == 24 { 31 } else { 63 };
    sign | ((exponent + bias) as u64) << (bits - 1) | fraction
}

/// i64 to f32.
pub extern "C" fn i64_to_f32(a: i64, rc: u32) -> f32 {
    f32::from_bits(int_to_float(i128::from(a), rc, 24, 127) as u32)
}

/// u64 to f32.
pub extern "C" fn u64_to_f32(a: u64, rc: u32) -> f32 {
    f32::from_bits(int_to_float(i128::from(a), rc, 24, 127) as u32)
}

/// i64 to f64.
pub extern "C" fn i64_to_f64(a: i64, rc: u32) -> f64 {
    f64::from_bits(int_to_float(i128::from(a), rc, 53, 1023))
}

/// u64 to f64.
pub extern "C" fn u64_to_f64(a: u64, rc: u32) -> f64 {
    f64::from_bits(int_to_float(i128::from(a), rc, 53, 1023))
}

/// `sin.approx.f32`
pub extern "C" fn sin(a: f32) -> f32 {
    f64::from(a).sin() as f32
}

/// `cos.approx.f32`
pub extern "C" fn cos(a: f32) -> f32 {
    f64::from(a).cos() as f32
}

/// `ex2.approx.f32`
pub extern "C" fn ex2(a: f32) -> f32 {
    f64::from(a).exp2() as f32
}

/// `lg2.approx.f32`
pub extern "C" fn lg2(a: f32) -> f32 {
    f64::from(a).log2() as f32
}

/// `tanh.approx.f32`
pub extern "C" fn tanh(a: f32) -> f32 {
    f64::from(a).tanh() as f32
}

/// `fns.b32`: the position of the n-th set bit from `base` on.
pub extern "C" fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if offset == 0 {
        return if base < 32 && mask >> base & 1 == 1 {
            base
        } else {
            u32::MAX
        };
    }
    let mut left = offset.unsigned_abs();
    let mut at = i64::from(base);
    while (0..32).contains(&at) {
        if mask >> at & 1 == 1 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += if offset > 0 { 1 } else { -1 };
    }
    u32::MAX
}

/// `prmt.b32`; mode 0 is the generic one, then f4e, b4e, rc8, ecl, ecr, rc16.
pub extern "C" fn prmt(a: u32, b: u32, selector: u32, mode: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let pick = |index: u32| bytes[index as usize & 7];
    let s = selector & 3;
    let out = match mode {
        1 => [s, s + 1, s + 2, s + 3].map(pick),
        2 => [
            s,
            s.wrapping_sub(1) & 7,
            s.wrapping_sub(2) & 7,
            s.wrapping_sub(3) & 7,
        ]
        .map(pick),
        3 => [s; 4].map(pick),
        4 => [s, s.max(1), s.max(2), 3].map(pick),
        5 => [0, s.min(1), s.min(2), s].map(pick),
        6 => [2 * (s & 1), 2 * (s & 1) + 1, 2 * (s & 1), 2 * (s & 1) + 1].map(pick),
        _ => std::array::from_fn(|i| {
            let nibble = selector >> (4 * i);
            let byte = pick(nibble & 7);
            if nibble & 8 != 0 {
                if byte & 0x80 != 0 { 0xFF } else { 0 }
            } else {
                byte
            }
        }),
    };
    u32::from_le_bytes(out)
}
