//! `cvt`.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use fermata_ptx::ast::{Instruction, Type};

use super::half::type_flags;
use super::modifiers::Modifiers;
use super::place::natural;
use super::{Refused, Step, Translator};
use crate::exec::runtime::half::{self, op};
use crate::exec::runtime::math::{self, rounding};

/// What the words of a `cvt` say.
struct Convert<'a> {
    /// `.rni` and the like.
    integral: Option<&'a str>,
    rc: u32,
    flush: bool,
    saturate: bool,
    relu: bool,
    finite: bool,
}

fn is_half(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::Bf16)
}

impl<'a> Translator<'a, '_> {
    pub(super) fn cvt(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        if m.flag("pack") {
            return self.cvt_pack(i, m);
        }
        if m.flag("tf32") {
            return self.cvt_tf32(i, m);
        }
        if let Some(word) = m.one_of(&["e4m3x2", "e5m2x2"]) {
            return self.cvt_8(i, m, word == "e5m2x2");
        }
        let how = Convert {
            integral: m.one_of(&["rni", "rzi", "rmi", "rpi"]),
            rc: m.rounding().unwrap_or(rounding::NEAREST),
            flush: m.flag("ftz"),
            saturate: m.flag("sat"),
            relu: m.flag("relu"),
            finite: m.flag("satfinite"),
        };
        let (to, from) = (m.ty()?, m.ty()?);
        m.done()?;
        if matches!(to, Type::F16x2 | Type::Bf16x2) && from == Type::F32 && i.operands.len() == 3 {
            let one = if to == Type::F16x2 {
                Type::F16
            } else {
                Type::Bf16
            };
            let (high, low) = (self.value(i, 1, from)?, self.value(i, 2, from)?);
            let (high, low) = (
                self.float_to_float(one, from, high, &how)?,
                self.float_to_float(one, from, low, &how)?,
            );
            let (high, low) = (
                self.b.ins().uextend(types::I32, high),
                self.b.ins().uextend(types::I32, low),
            );
            let high = self.b.ins().ishl_imm_u(high, 16);
            let value = self.b.ins().bor(high, low);
            return self.result(i, 0, value, false);
        }
        if [to, from]
            .iter()
            .any(|t| matches!(t, Type::F16x2 | Type::Bf16x2 | Type::Pred))
        {
            return Err(Refused::Unsupported);
        }
        let a = self.value(i, 1, from)?;
        let value = match (to.is_float(), from.is_float()) {
            (true, true) => self.float_to_float(to, from, a, &how)?,
            (true, false) => self.integer_to_float(to, from, a, &how)?,
            (false, true) => self.float_to_integer(to, from, a, &how)?,
            (false, false) => self.integer_to_integer(to, from, a, how.saturate)?,
        };
        self.result(i, 0, value, to.is_signed())
    }

    /// Rounds to an integral value.
    fn integral(&mut self, word: &str, value: Value) -> Value {
        match word {
            "rni" => self.b.ins().nearest(value),
            "rzi" => self.b.ins().trunc(value),
            "rmi" => self.b.ins().floor(value),
            _ => self.b.ins().ceil(value),
        }
    }

    /// Float to float.
    fn float_to_float(&mut self, to: Type, from: Type, a: Value, how: &Convert<'_>) -> Step<Value> {
        let mut value = if is_half(from) {
            self.half_to_f32(a, from)?
        } else {
            a
        };
        let wide = from == Type::F64;
        if how.flush && from == Type::F32 {
            value = self.flush(value);
        }
        if let Some(word) = how.integral {
            value = self.integral(word, value);
        }
        if is_half(to) {
            if !wide {
                value = self.b.ins().fpromote(types::F64, value);
            }
            let mut flags = type_flags(to) | how.rc;
            for (set, flag) in [
                (how.saturate, op::SAT),
                (how.relu, op::RELU),
                (how.finite, op::SATFINITE),
            ] {
                flags |= if set { flag } else { 0 };
            }
            return self.half_from_f64(value, flags);
        }
        if how.relu || how.finite {
            return Err(Refused::Unsupported);
        }
        let value = match (to, wide) {
            (Type::F64, false) => self.b.ins().fpromote(types::F64, value),
            (Type::F32, true) if how.rc == rounding::NEAREST => {
                self.b.ins().fdemote(types::F32, value)
            }
            (Type::F32, true) => {
                let rc = self.b.ins().iconst(types::I32, i64::from(how.rc));
                let call = self.call_plain(
                    math::demote as *const () as usize,
                    &[value, rc],
                    Some(types::F32),
                );
                call.ok_or(Refused::Unsupported)?
            }
            _ => value,
        };
        let value = if how.flush && to == Type::F32 {
            self.flush(value)
        } else {
            value
        };
        Ok(if how.saturate {
            self.saturate(value, to)
        } else {
            value
        })
    }

    fn integer_to_float(
        &mut self,
        to: Type,
        from: Type,
        a: Value,
        how: &Convert<'_>,
    ) -> Step<Value> {
        let signed = from.is_signed();
        let wide = self.extend_to(types::I64, signed, a);
        let full = from.bytes() == 8 && !signed;
        if is_half(to) {
            let mut flags = type_flags(to) | how.rc;
            flags |= if how.saturate { op::SAT } else { 0 };
            let flags = self.b.ins().iconst(types::I32, i64::from(flags));
            let helper = if full {
                half::narrow_u64 as *const () as usize
            } else {
                half::narrow_i64 as *const () as usize
            };
            let value = self
                .call_plain(helper, &[wide, flags], Some(types::I32))
                .ok_or(Refused::Unsupported)?;
            return self.fit(value, types::I16, false);
        }
        let clif = natural(to)?;
        let value = if how.rc == rounding::NEAREST {
            if full {
                self.b.ins().fcvt_from_uint(clif, wide)
            } else {
                self.b.ins().fcvt_from_sint(clif, wide)
            }
        } else {
            let helper = match (to, full) {
                (Type::F32, false) => math::i64_to_f32 as *const () as usize,
                (Type::F32, true) => math::u64_to_f32 as *const () as usize,
                (_, false) => math::i64_to_f64 as *const () as usize,
                (_, true) => math::u64_to_f64 as *const () as usize,
            };
            let rc = self.b.ins().iconst(types::I32, i64::from(how.rc));
            self.call_plain(helper, &[wide, rc], Some(clif))
                .ok_or(Refused::Unsupported)?
        };
        Ok(if how.saturate {
            self.saturate(value, to)
        } else {
            value
        })
    }

    fn float_to_integer(
        &mut self,
        to: Type,
        from: Type,
        a: Value,
        how: &Convert<'_>,
    ) -> Step<Value> {
        let value = if is_half(from) {
            self.half_to_f32(a, from)?
        } else {
            a
        };
        let value = if how.flush && from == Type::F32 {
            self.flush(value)
        } else {
            value
        };
        let value = self.integral(how.integral.ok_or(Refused::Unsupported)?, value);
        let clif = natural(to)?;
        let wide = if to.bytes() == 8 {
            types::I64
        } else {
            types::I32
        };
        let mut out = if to.is_signed() {
            self.b.ins().fcvt_to_sint_sat(wide, value)
        } else {
            self.b.ins().fcvt_to_uint_sat(wide, value)
        };
        if to.bytes() < 4 {
            let bits = to.bytes() * 8;
            out = if to.is_signed() {
                let (low, high) = (
                    self.b
                        .ins()
                        .iconst(wide, -(1i64 << (bits - 1)) & 0xFFFF_FFFF),
                    self.b.ins().iconst(wide, (1 << (bits - 1)) - 1),
                );
                let out = self.b.ins().smax(out, low);
                self.b.ins().smin(out, high)
            } else {
                let high = self.b.ins().iconst(wide, (1 << bits) - 1);
                self.b.ins().umin(out, high)
            };
        }
        let mut out = self.fit(out, clif, false)?;
        // NaN is 0, except where 64 bits are involved.
        if from == Type::F64 || to.bytes() == 8 {
            let nan = self.b.ins().fcmp(FloatCC::Unordered, value, value);
            let one = self.b.ins().iconst(clif, 1);
            let top = self.b.ins().ishl_imm_u(one, i64::from(clif.bits()) - 1);
            out = self.b.ins().select(nan, top, out);
        }
        Ok(out)
    }

    fn integer_to_integer(
        &mut self,
        to: Type,
        from: Type,
        a: Value,
        saturate: bool,
    ) -> Step<Value> {
        let (to_bits, from_signed) = (to.bytes() * 8, from.is_signed());
        let clif = natural(to)?;
        let wide = self.extend_to(types::I64, from_signed, a);
        if !saturate {
            return self.fit(wide, clif, from_signed);
        }
        let value = match (from_signed, to.is_signed()) {
            (true, true) if to_bits < 64 => {
                let (low, high) = (
                    self.b.ins().iconst(types::I64, -(1i64 << (to_bits - 1))),
                    self.b.ins().iconst(types::I64, (1i64 << (to_bits - 1)) - 1),
                );
                let value = self.b.ins().smax(wide, low);
                self.b.ins().smin(value, high)
            }
            (true, false) => {
                let zero = self.b.ins().iconst(types::I64, 0);
                let value = self.b.ins().smax(wide, zero);
                self.at_most(value, to_bits)
            }
            (false, signed) => self.at_most(wide, to_bits - u32::from(signed)),
            _ => wide,
        };
        self.fit(value, clif, false)
    }

    /// Unsigned, cut to the largest value of so many bits.
    fn at_most(&mut self, value: Value, bits: u32) -> Value {
        if bits >= 64 {
            return value;
        }
        let most = self.b.ins().iconst(types::I64, ((1u64 << bits) - 1) as i64);
        self.b.ins().umin(value, most)
    }

    /// `cvt.pack.sat`: two integers, saturated, beside each other; bytes on top of a third operand.
    fn cvt_pack(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        if !m.flag("sat") {
            return Err(Refused::Unsupported);
        }
        let (to, from) = (m.ty()?, m.ty()?);
        m.flag("b32");
        m.done()?;
        let bits = i64::from(to.bytes() * 8);
        let (a, b) = (self.value(i, 1, from)?, self.value(i, 2, from)?);
        let (a, b) = (
            self.integer_to_integer(to, from, a, true)?,
            self.integer_to_integer(to, from, b, true)?,
        );
        let (a, b) = (
            self.b.ins().uextend(types::I32, a),
            self.b.ins().uextend(types::I32, b),
        );
        let a = self.b.ins().ishl_imm_u(a, bits);
        let mut value = self.b.ins().bor(a, b);
        if i.operands.len() == 4 {
            let c = self.value(i, 3, Type::B32)?;
            let c = self.b.ins().ishl_imm_u(c, 2 * bits);
            value = self.b.ins().bor(value, c);
        }
        self.result(i, 0, value, false)
    }

    /// Between pairs of 8-bit floats and f32 or f16x2.
    fn cvt_8(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, e5m2: bool) -> Step {
        m.skip(&["rn"], &[]);
        let narrows = m.flag("satfinite");
        let flags = i64::from(e5m2) | if m.flag("relu") { 2 } else { 0 };
        let flags = self.b.ins().iconst(types::I32, flags);
        let ty = m.ty()?;
        m.done()?;
        let value = match (narrows, ty) {
            (true, Type::F32) => {
                let (high, low) = (self.value(i, 1, ty)?, self.value(i, 2, ty)?);
                [high, low].map(|v| self.b.ins().fpromote(types::F64, v))
            }
            (true, Type::F16x2) => {
                let pair = self.value(i, 1, ty)?;
                let high = self.b.ins().ushr_imm_u(pair, 16);
                let low = self.b.ins().band_imm_u(pair, 0xFFFF);
                let (high, low) = (
                    self.half_to_f32(high, Type::F16)?,
                    self.half_to_f32(low, Type::F16)?,
                );
                [high, low].map(|v| self.b.ins().fpromote(types::F64, v))
            }
            (false, Type::F16x2) => {
                let pair = self.value(i, 1, Type::B16)?;
                let pair = self.b.ins().uextend(types::I32, pair);
                let value = self.call_plain(
                    half::unpack_8 as *const () as usize,
                    &[pair, flags],
                    Some(types::I32),
                );
                return self.result(i, 0, value.ok_or(Refused::Unsupported)?, false);
            }
            _ => return Err(Refused::Unsupported),
        };
        let arguments = [value[0], value[1], flags];
        let value = self.call_plain(
            half::pack_8 as *const () as usize,
            &arguments,
            Some(types::I32),
        );
        let value = self.fit(value.ok_or(Refused::Unsupported)?, types::I16, false)?;
        self.result(i, 0, value, false)
    }

    /// `cvt.rna.tf32.f32`: 10 bits of fraction, ties away from zero.
    fn cvt_tf32(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let away = m.one_of(&["rna"]).is_some();
        m.flag("f32");
        m.done()?;
        if !away {
            return Err(Refused::Unsupported);
        }
        let bits = self.value(i, 1, Type::B32)?;
        let value = self.fit(bits, types::F32, false)?;
        let rounded = self.b.ins().iadd_imm_s(bits, 0x1000);
        let rounded = self.b.ins().band_imm_u(rounded, 0xFFFF_E000);
        let nan = self.b.ins().fcmp(FloatCC::Unordered, value, value);
        let canonical = self.b.ins().iconst(types::I32, 0x7FFF_FFFF);
        let value = self.b.ins().select(nan, canonical, rounded);
        self.result(i, 0, value, false)
    }
}
