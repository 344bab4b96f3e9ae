//! 16-bit floats: every operation is exact in f64, or made odd where it is not, then rounded once.

/// Operations and flags; part of the generated code.
pub mod op {
    #![allow(missing_docs)]
    pub const ADD: u32 = 0;
    pub const SUB: u32 = 1;
    pub const MUL: u32 = 2;
    pub const FMA: u32 = 3;
    pub const MIN: u32 = 4;
    pub const MAX: u32 = 5;
    pub const EX2: u32 = 6;
    pub const TANH: u32 = 7;
    pub const CODE: u32 = 0xFF;
    pub const BF16: u32 = 1 << 8;
    pub const FTZ: u32 = 1 << 9;
    pub const SAT: u32 = 1 << 10;
    pub const RELU: u32 = 1 << 11;
    pub const NAN: u32 = 1 << 12;
    pub const XORSIGN: u32 = 1 << 13;
    pub const PACKED: u32 = 1 << 14;
    pub const SATFINITE: u32 = 1 << 15;
}

use super::math::rounding;

const NAN: u16 = 0x7FFF;

/// Value of a 16-bit float.
pub fn widen(bits: u16, bf16: bool) -> f64 {
    if bf16 {
        f64::from(f32::from_bits(u32::from(bits) << 16))
    } else {
        half::f16::from_bits(bits).to_f64()
    }
}

/// Rounds to a 16-bit float.
pub fn narrow(value: f64, bf16: bool, rc: u32) -> u16 {
    if value.is_nan() {
        return NAN;
    }
    let sign = u16::from(value.is_sign_negative()) << 15;
    sign | if bf16 {
        magnitude(value, 7, -126, 0x7F80, rc)
    } else {
        magnitude(value, 10, -14, 0x7C00, rc)
    }
}

/// Rounds a number to a format of so many bits of fraction, whose smallest normal exponent is `least`.
/// The bits without the sign; `infinity` for what is too large.
fn magnitude(value: f64, fraction: i32, least: i32, infinity: u64, rc: u32) -> u16 {
    let bits = value.to_bits();
    let sign = bits >> 63;
    let biased = (bits >> 52 & 0x7FF) as i32;
    if biased == 0x7FF {
        return infinity as u16;
    }
    let exponent = biased.max(1) - 1023;
    let mantissa = bits & ((1 << 52) - 1) | u64::from(biased != 0) << 52;
    let quantum = exponent.max(least) - fraction;
    let shift = (quantum - (exponent - 52)) as u32;
    let (whole, above_half, half, inexact) = if shift >= 64 {
        (0, false, false, mantissa != 0)
    } else {
        let rest = mantissa & ((1u64 << shift) - 1);
        let middle = 1u64 << (shift - 1);
        (mantissa >> shift, rest > middle, rest == middle, rest != 0)
    };
    let up = match rc {
        rounding::NEAREST => above_half || half && whole & 1 == 1,
        rounding::DOWN => inexact && sign != 0,
        rounding::UP => inexact && sign == 0,
        _ => false,
    };
    let place = if exponent >= least {
        ((exponent - least) as u64) << fraction
    } else {
        0
    };
    let magnitude = place + whole + u64::from(up);
    let toward_zero = match rc {
        rounding::ZERO => true,
        rounding::DOWN => sign == 0,
        rounding::UP => sign != 0,
        _ => false,
    };
    (if magnitude >= infinity {
        infinity - u64::from(toward_zero)
    } else {
        magnitude
    }) as u16
}

/// An 8-bit float, `e4m3` or `e5m2`, saturating to the largest finite value.
fn narrow_8(value: f64, e5m2: bool, relu: bool) -> u32 {
    if value.is_nan() {
        return 0x7F;
    }
    let sign = u32::from(value.is_sign_negative());
    if relu && sign == 1 {
        return 0;
    }
    // e4m3 has no infinity: everything from 0x7F on is beyond its largest, 0x7E.
    let size = if e5m2 {
        magnitude(value, 2, -14, 0x7C, 0).min(0x7B)
    } else {
        magnitude(value, 3, -6, 0x7F, 0).min(0x7E)
    };
    sign << 7 | u32::from(size)
}

/// Two f64 to packed 8-bit floats, `high` above `low`. Flag 1 is e5m2, 2 is `.relu`.
pub extern "C" fn pack_8(high: f64, low: f64, flags: u32) -> u32 {
    let one = |v| narrow_8(v, flags & 1 != 0, flags & 2 != 0);
    one(high) << 8 | one(low)
}

/// Packed 8-bit floats to packed f16, which holds each exactly. Flag 1 is e5m2, 2 is `.relu`.
pub extern "C" fn unpack_8(pair: u32, flags: u32) -> u32 {
    let one = |byte: u32| -> u32 {
        let (byte, sign) = (byte & 0x7F, (byte >> 7 & 1) << 15);
        let bits = if flags & 1 != 0 {
            byte << 8
        } else if byte == 0x7F {
            return u32::from(NAN);
        } else {
            let (exponent, fraction) = (byte >> 3, f64::from(byte & 7));
            let value = if exponent == 0 {
                fraction / 512.0
            } else {
                (1.0 + fraction / 8.0) * 2f64.powi(exponent as i32 - 7)
            };
            u32::from(narrow(value, false, 0))
        };
        if bits > 0x7C00 {
            u32::from(NAN)
        } else if flags & 2 != 0 && sign != 0 {
            0
        } else {
            sign | bits
        }
    };
    one(pair >> 8) << 16 | one(pair)
}

fn is_nan(bits: u16, bf16: bool) -> bool {
    bits & 0x7FFF > if bf16 { 0x7F80 } else { 0x7C00 }
}

fn flush(bits: u16, flags: u32) -> u16 {
    let infinity = if flags & op::BF16 != 0 {
        0x7F80
    } else {
        0x7C00
    };
    if flags & op::FTZ != 0 && bits & infinity == 0 {
        bits & 0x8000
    } else {
        bits
    }
}

/// a * b + c with one rounding to odd at f64's precision, so that a later rounding is exact.
fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b; // exact: 11 bits each
    let sum = product + c;
    if !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    if error == 0.0 || error.is_nan() {
        sum
    } else if (error > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

fn one(flags: u32, a: u16, b: u16, c: u16) -> u16 {
    let bf16 = flags & op::BF16 != 0;
    let (a, b, c) = (flush(a, flags), flush(b, flags), flush(c, flags));
    let code = flags & op::CODE;
    if code == op::MIN || code == op::MAX {
        return extreme(code == op::MIN, flags, a, b);
    }
    let [x, y, z] = [a, b, c].map(|v| widen(v, bf16));
    let value = match code {
        op::ADD => x + y,
        op::SUB => x - y,
        op::MUL => x * y,
        op::FMA => fma_odd(x, y, z),
        op::EX2 => x.exp2(),
        _ => x.tanh(),
    };
    let out = flush(narrow(value, bf16, rounding::NEAREST), flags);
    finish(out, flags)
}

/// `.sat`, `.relu` and `.satfinite`.
pub fn finish(out: u16, flags: u32) -> u16 {
    let bf16 = flags & op::BF16 != 0;
    let one = if bf16 { 0x3F80 } else { 0x3C00 };
    let infinity = if bf16 { 0x7F80 } else { 0x7C00 };
    if is_nan(out, bf16) {
        return if flags & op::SAT != 0 { 0 } else { NAN };
    }
    if flags & (op::SAT | op::RELU) != 0 && out & 0x8000 != 0 {
        return 0;
    }
    if flags & op::SATFINITE != 0 && out & 0x7FFF == infinity {
        return out - 1;
    }
    if flags & op::SAT != 0 && out > one {
        one
    } else {
        out
    }
}

fn extreme(min: bool, flags: u32, a: u16, b: u16) -> u16 {
    let bf16 = flags & op::BF16 != 0;
    let (an, bn) = (is_nan(a, bf16), is_nan(b, bf16));
    if an && bn || flags & op::NAN != 0 && (an || bn) {
        return NAN;
    }
    if an || bn {
        return if an { b } else { a };
    }
    let sign = (a ^ b) & 0x8000;
    let (a, b) = if flags & op::XORSIGN != 0 {
        (a & 0x7FFF, b & 0x7FFF)
    } else {
        (a, b)
    };
    // Sign and magnitude to an ordered integer; -0 is below +0.
    let order = |v: u16| {
        if v & 0x8000 != 0 {
            -i32::from(v & 0x7FFF) - 1
        } else {
            i32::from(v)
        }
    };
    let out = if (order(a) < order(b)) == min { a } else { b };
    if flags & op::XORSIGN != 0 {
        out | sign
    } else {
        out
    }
}

/// Any operation of [`op`], on one value or on two packed ones.
pub extern "C" fn half(flags: u32, a: u32, b: u32, c: u32) -> u32 {
    let low = u32::from(one(flags, a as u16, b as u16, c as u16));
    if flags & op::PACKED == 0 {
        return low;
    }
    let high = one(flags, (a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    u32::from(high) << 16 | low
}

/// `.ftz` of one f16 or two packed ones: subnormal numbers become zeros of their sign.
pub extern "C" fn flush_f16(pair: u32) -> u32 {
    let [low, high] = [pair as u16, (pair >> 16) as u16].map(|bits| flush(bits, op::FTZ));
    u32::from(high) << 16 | u32::from(low)
}

/// f16 to f32.
pub extern "C" fn f16_to_f32(a: u32) -> f32 {
    half::f16::from_bits(a as u16).to_f32()
}

/// Conversion to a 16-bit float; `flags` are [`op`]'s, with the rounding mode in the low bits.
pub extern "C" fn narrow_f64(a: f64, flags: u32) -> u32 {
    u32::from(finish(narrow(a, flags & op::BF16 != 0, flags & 3), flags))
}

/// An integer as an f64 that rounds further as the integer itself would.
fn odd(value: i128) -> f64 {
    let size = value.unsigned_abs();
    let shift = (128 - size.leading_zeros()).saturating_sub(54);
    let kept = size >> shift;
    let kept = kept | u128::from(kept << shift != size);
    // 54 bits with the lowest one sticky: make them 53, keeping it.
    let kept = if kept >> 53 != 0 {
        (kept >> 1 | kept & 1) << 1
    } else {
        kept
    };
    let out = kept as f64 * 2f64.powi(shift as i32);
    if value < 0 { -out } else { out }
}

/// i64 to a 16-bit float; flags as for [`narrow_f64`].
pub extern "C" fn narrow_i64(a: i64, flags: u32) -> u32 {
    narrow_f64(odd(i128::from(a)), flags)
}

/// u64 to a 16-bit float; flags as for [`narrow_f64`].
pub extern "C" fn narrow_u64(a: u64, flags: u32) -> u32 {
    narrow_f64(odd(i128::from(a)), flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_widening_and_narrowing() {
        for bits in 0..=u16::MAX {
            for bf16 in [false, true] {
                if !is_nan(bits, bf16) {
                    for rc in 0..4 {
                        assert_eq!(narrow(widen(bits, bf16), bf16, rc), bits);
                    }
                }
            }
        }
    }

    #[test]
    fn flushing_keeps_the_sign_and_what_is_normal() {
        assert_eq!(flush_f16(0x83FF_0001), 0x8000_0000);
        assert_eq!(flush_f16(0x8400_0400), 0x8400_0400);
        assert_eq!(flush_f16(0x7C01_FC00), 0x7C01_FC00);
    }

    #[test]
    fn a_large_negative_number_without_its_sign_is_zero_not_the_largest_finite_one() {
        for (bf16, most) in [(0, 0x7BFF), (op::BF16, 0x7F7F)] {
            let finite = op::SATFINITE | bf16;
            assert_eq!(narrow_f64(-1e300, finite | op::RELU), 0);
            assert_eq!(narrow_f64(-1e300, finite), 0x8000 | most);
            assert_eq!(narrow_f64(1e300, finite | op::RELU), most);
        }
    }

    #[test]
    fn every_8_bit_float_survives() {
        for bits in 0..=0xFFu32 {
            for flags in [0, 1] {
                let halves = unpack_8(bits << 8 | bits, flags);
                let value = widen(halves as u16, false);
                let back = pack_8(value, value, flags) & 0xFF;
                let infinite = flags == 1 && bits & 0x7F == 0x7C;
                match (value.is_nan(), infinite) {
                    (true, _) => assert_eq!(back, 0x7F),
                    (_, true) => assert_eq!(back, bits - 1),
                    _ => assert_eq!(back, bits),
                }
            }
        }
        assert_eq!(pack_8(449.0, -1e9, 0), 0x7EFE);
    }

    #[test]
    fn narrowing_agrees_with_half() {
        let mut x = 1u32;
        for _ in 0..200_000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let v = f32::from_bits(x);
            if !v.is_nan() {
                assert_eq!(
                    narrow(f64::from(v), false, 0),
                    half::f16::from_f32(v).to_bits(),
                    "{v:e}"
                );
                assert_eq!(
                    narrow(f64::from(v), true, 0),
                    half::bf16::from_f32(v).to_bits(),
                    "{v:e}"
                );
            }
        }
    }

    #[test]
    fn a_fused_sum_just_above_the_middle_rounds_up() {
        // 1.0000001b * 1.1b lies between bf16 values; a tiny addend decides.
        let (a, b) = (0x3F81, 0x3FC0);
        let exact = widen(a, true) * widen(b, true);
        let middle = narrow(exact, true, rounding::DOWN);
        assert_eq!(widen(middle, true) + 2f64.powi(-8), exact);
        let tiny = narrow(2f64.powi(-100), true, 0);
        assert_eq!(one(op::FMA | op::BF16, a, b, tiny), middle + 1);
        assert_eq!(one(op::FMA | op::BF16, a, b, tiny | 0x8000), middle);
    }
}
