//! Arithmetic on f16, bf16 and pairs of them, by helpers.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use fermata_ptx::ast::{Instruction, Type};

use super::modifiers::Modifiers;
use super::place::natural;
use super::{Refused, Step, Translator};
use crate::exec::runtime::half::{self, op};
use crate::exec::runtime::math::rounding;

/// The flags that say which type this is.
pub(super) fn type_flags(ty: Type) -> u32 {
    match ty {
        Type::F16x2 => op::PACKED,
        Type::Bf16 => op::BF16,
        Type::Bf16x2 => op::BF16 | op::PACKED,
        _ => 0,
    }
}

impl<'a> Translator<'a, '_> {
    /// Instructions that exist for all floats, on 16-bit ones.
    pub(super) fn half_arithmetic(
        &mut self,
        i: &'a Instruction,
        m: &mut Modifiers<'a>,
        ty: Type,
    ) -> Step {
        let code = match &*i.opcode {
            "add" => op::ADD,
            "sub" => op::SUB,
            "mul" => op::MUL,
            "fma" => op::FMA,
            "min" => op::MIN,
            "max" => op::MAX,
            "abs" | "neg" => return self.half_sign(i, m, ty),
            _ => return Err(Refused::Unsupported),
        };
        if m.rounding().is_some_and(|rc| rc != rounding::NEAREST) {
            return Err(Refused::Unsupported);
        }
        self.half_function(i, m, ty, code)
    }

    /// An operation of the helper, with all operands there are.
    pub(super) fn half_function(
        &mut self,
        i: &'a Instruction,
        m: &mut Modifiers<'a>,
        ty: Type,
        code: u32,
    ) -> Step {
        let mut flags = code | type_flags(ty);
        for (word, flag) in [
            ("ftz", op::FTZ),
            ("sat", op::SAT),
            ("relu", op::RELU),
            ("NaN", op::NAN),
            ("xorsign", op::XORSIGN),
        ] {
            if m.flag(word) {
                flags |= flag;
            }
        }
        m.skip(&["abs", "approx"], &[]);
        m.done()?;
        let mut operands = Vec::with_capacity(3);
        for index in 1..i.operands.len() {
            operands.push(self.value(i, index, ty)?);
        }
        let value = self.half_call(flags, &operands, ty)?;
        self.result(i, 0, value, false)
    }

    /// Calls the helper with up to three operands of type `ty`.
    pub(super) fn half_call(&mut self, flags: u32, operands: &[Value], ty: Type) -> Step<Value> {
        let mut arguments = vec![self.b.ins().iconst(types::I32, i64::from(flags))];
        for index in 0..3 {
            let value = match operands.get(index) {
                Some(&value) => self.widen(value, types::I32),
                None => self.b.ins().iconst(types::I32, 0),
            };
            arguments.push(value);
        }
        let value = self.call_plain(
            half::half as *const () as usize,
            &arguments,
            Some(types::I32),
        );
        self.fit(value.ok_or(Refused::Unsupported)?, natural(ty)?, false)
    }

    fn half_sign(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Step {
        let flush = m.flag("ftz");
        m.done()?;
        let mut a = self.value(i, 1, ty)?;
        if flush {
            a = self.flush_half(a, ty)?;
        }
        let sign: i64 = if matches!(ty, Type::F16 | Type::Bf16) {
            0x8000
        } else {
            0x8000_8000
        };
        let value = if &*i.opcode == "neg" {
            self.b.ins().bxor_imm_u(a, sign)
        } else {
            let rest = if sign == 0x8000 { 0x7FFF } else { 0x7FFF_7FFF };
            self.b.ins().band_imm_u(a, rest)
        };
        self.result(i, 0, value, false)
    }

    /// `.ftz` of 16-bit floats. It exists for `.f16` alone: a bf16 is as small as an f32.
    pub(super) fn flush_half(&mut self, value: Value, ty: Type) -> Step<Value> {
        if !matches!(ty, Type::F16 | Type::F16x2) {
            return Ok(value);
        }
        let wide = self.widen(value, types::I32);
        let helper = half::flush_f16 as *const () as usize;
        let flushed = self.call_plain(helper, &[wide], Some(types::I32));
        self.fit(flushed.ok_or(Refused::Unsupported)?, natural(ty)?, false)
    }

    /// A 16-bit float as f32, exactly.
    pub(super) fn half_to_f32(&mut self, value: Value, ty: Type) -> Step<Value> {
        let wide = self.widen(value, types::I32);
        if matches!(ty, Type::Bf16 | Type::Bf16x2) {
            let bits = self.b.ins().ishl_imm_u(wide, 16);
            return self.fit(bits, types::F32, false);
        }
        self.call_plain(
            half::f16_to_f32 as *const () as usize,
            &[wide],
            Some(types::F32),
        )
        .ok_or(Refused::Unsupported)
    }

    /// An f64 rounded to a 16-bit float; `flags` as the helper takes them.
    pub(super) fn half_from_f64(&mut self, value: Value, flags: u32) -> Step<Value> {
        let flags = self.b.ins().iconst(types::I32, i64::from(flags));
        let value = self.call_plain(
            half::narrow_f64 as *const () as usize,
            &[value, flags],
            Some(types::I32),
        );
        self.fit(value.ok_or(Refused::Unsupported)?, types::I16, false)
    }
}
