//! Arithmetic on f32 and f64.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Type};

use super::modifiers::Modifiers;
use super::place::natural;
use super::{Refused, Step, Translator};
use crate::exec::runtime::half::op;
use crate::exec::runtime::math::{self, rounding};

impl<'a> Translator<'a, '_> {
    pub(super) fn float_arithmetic(
        &mut self,
        i: &'a Instruction,
        m: &mut Modifiers<'a>,
        ty: Type,
    ) -> Step {
        let rc = m.rounding().unwrap_or(rounding::NEAREST);
        let flush = m.flag("ftz") && ty == Type::F32;
        let saturate = m.flag("sat");
        let approximate = m.one_of(&["approx", "full"]);
        let mut operands = Vec::with_capacity(3);
        for index in 1..i.operands.len() {
            let value = self.value(i, index, ty)?;
            operands.push(if flush { self.flush(value) } else { value });
        }
        let value = match (&*i.opcode, operands.as_slice()) {
            ("abs", &[a]) => self.b.ins().fabs(a),
            ("neg", &[a]) => self.b.ins().fneg(a),
            ("min" | "max", &[a, b]) => {
                let (nan, xor) = (m.flag("NaN"), m.flag("xorsign"));
                m.flag("abs");
                self.float_extreme(&*i.opcode == "min", nan, xor, ty, a, b)
            }
            ("div", &[a, b]) if approximate == Some("approx") && ty == Type::F32 => {
                self.approximate_division(a, b)
            }
            ("add" | "sub" | "mul" | "div", &[a, b]) => self.binary(&i.opcode, rc, ty, a, b)?,
            ("fma" | "mad", &[a, b, c]) => self.fused(rc, ty, a, b, c)?,
            _ => return Err(Refused::Unsupported),
        };
        m.done()?;
        let value = if flush { self.flush(value) } else { value };
        let value = if saturate {
            self.saturate(value, ty)
        } else {
            value
        };
        self.result(i, 0, value, false)
    }

    fn float_constant(&mut self, ty: Type, value: f64) -> Value {
        if ty == Type::F64 {
            self.b.ins().f64const(value)
        } else {
            self.b.ins().f32const(value as f32)
        }
    }

    /// Subnormal f32 to zero of the same sign.
    pub(super) fn flush(&mut self, value: Value) -> Value {
        let bits = self.b.ins().bitcast(types::I32, MemFlagsData::new(), value);
        let exponent = self.b.ins().band_imm_u(bits, 0x7F80_0000);
        let small = self.b.ins().icmp_imm_s(IntCC::Equal, exponent, 0);
        let zero = self.b.ins().f32const(0.0);
        let zero = self.b.ins().fcopysign(zero, value);
        self.b.ins().select(small, zero, value)
    }

    /// To `[0, 1]`; NaN gives 0.
    pub(super) fn saturate(&mut self, value: Value, ty: Type) -> Value {
        let (zero, one) = (self.float_constant(ty, 0.0), self.float_constant(ty, 1.0));
        let positive = self.b.ins().fcmp(FloatCC::GreaterThan, value, zero);
        let value = self.b.ins().select(positive, value, zero);
        let below = self.b.ins().fcmp(FloatCC::LessThan, value, one);
        self.b.ins().select(below, value, one)
    }

    fn binary(&mut self, name: &str, rc: u32, ty: Type, a: Value, b: Value) -> Step<Value> {
        if rc == rounding::NEAREST {
            return Ok(match name {
                "add" => self.b.ins().fadd(a, b),
                "sub" => self.b.ins().fsub(a, b),
                "mul" => self.b.ins().fmul(a, b),
                _ => self.b.ins().fdiv(a, b),
            });
        }
        let helper = match (name, ty) {
            ("add", Type::F32) => math::add_f32 as *const () as usize,
            ("sub", Type::F32) => math::sub_f32 as *const () as usize,
            ("mul", Type::F32) => math::mul_f32 as *const () as usize,
            ("div", Type::F32) => math::div_f32 as *const () as usize,
            ("sqrt", Type::F32) => math::sqrt_f32 as *const () as usize,
            ("add", _) => math::add_f64 as *const () as usize,
            ("sub", _) => math::sub_f64 as *const () as usize,
            ("mul", _) => math::mul_f64 as *const () as usize,
            ("div", _) => math::div_f64 as *const () as usize,
            _ => math::sqrt_f64 as *const () as usize,
        };
        let rc = self.b.ins().iconst(types::I32, i64::from(rc));
        self.call_plain(helper, &[a, b, rc], Some(natural(ty)?))
            .ok_or(Refused::Unsupported)
    }

    fn fused(&mut self, rc: u32, ty: Type, a: Value, b: Value, c: Value) -> Step<Value> {
        if rc == rounding::NEAREST {
            return Ok(self.b.ins().fma(a, b, c));
        }
        let helper = if ty == Type::F32 {
            math::fma_f32 as *const () as usize
        } else {
            math::fma_f64 as *const () as usize
        };
        let rc = self.b.ins().iconst(types::I32, i64::from(rc));
        self.call_plain(helper, &[a, b, c, rc], Some(natural(ty)?))
            .ok_or(Refused::Unsupported)
    }

    /// `div.approx`: 0 for divisors above 2^126, as documented; infinite dividends give NaN there.
    fn approximate_division(&mut self, a: Value, b: Value) -> Value {
        let quotient = self.b.ins().fdiv(a, b);
        let size = self.b.ins().fabs(b);
        let limit = self.b.ins().f32const(f32::from_bits(0x7E80_0000));
        let infinity = self.b.ins().f32const(f32::INFINITY);
        let above = self.b.ins().fcmp(FloatCC::GreaterThan, size, limit);
        let finite = self.b.ins().fcmp(FloatCC::LessThan, size, infinity);
        let huge = self.b.ins().band(above, finite);
        let zero = self.b.ins().f32const(0.0);
        let vanished = self.b.ins().fmul(a, zero);
        self.b.ins().select(huge, vanished, quotient)
    }

    /// `min` and `max`: a number wins over NaN unless `.NaN`; -0 is below +0.
    fn float_extreme(
        &mut self,
        min: bool,
        nan: bool,
        xor: bool,
        ty: Type,
        a: Value,
        b: Value,
    ) -> Value {
        let (x, y) = if xor {
            (self.b.ins().fabs(a), self.b.ins().fabs(b))
        } else {
            (a, b)
        };
        let mut value = if min {
            self.b.ins().fmin(x, y)
        } else {
            self.b.ins().fmax(x, y)
        };
        let a_nan = self.b.ins().fcmp(FloatCC::Unordered, x, x);
        let b_nan = self.b.ins().fcmp(FloatCC::Unordered, y, y);
        let canonical = match ty {
            Type::F64 => self.b.ins().f64const(f64::from_bits(0x7FFF_FFFF_FFFF_FFFF)),
            _ => self.b.ins().f32const(f32::from_bits(0x7FFF_FFFF)),
        };
        let bad = if nan {
            self.b.ins().bor(a_nan, b_nan)
        } else {
            value = self.b.ins().select(a_nan, y, value);
            value = self.b.ins().select(b_nan, x, value);
            self.b.ins().band(a_nan, b_nan)
        };
        if xor {
            let float = self.b.func.dfg.value_type(a);
            let integer = super::operand::integer_of(float);
            let (p, q) = (
                self.b.ins().bitcast(integer, MemFlagsData::new(), a),
                self.b.ins().bitcast(integer, MemFlagsData::new(), b),
            );
            let sign = self.b.ins().bxor(p, q);
            let sign = self.b.ins().bitcast(float, MemFlagsData::new(), sign);
            value = self.b.ins().fcopysign(value, sign);
        }
        self.b.ins().select(bad, canonical, value)
    }

    /// Functions of one argument, `copysign` and `testp`.
    pub(super) fn float_unary(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let test = m.one_of(&[
            "finite",
            "infinite",
            "number",
            "notanumber",
            "normal",
            "subnormal",
        ]);
        let ty = m.ty()?;
        if !matches!(ty, Type::F32 | Type::F64) {
            return match &*i.opcode {
                "ex2" => self.half_function(i, m, ty, op::EX2),
                "tanh" => self.half_function(i, m, ty, op::TANH),
                _ => Err(Refused::Unsupported),
            };
        }
        let rc = m.rounding().unwrap_or(rounding::NEAREST);
        let approximate = m.flag("approx");
        let flush = m.flag("ftz");
        m.done()?;
        let a = self.value(i, 1, ty)?;
        let a = if flush && ty == Type::F32 {
            self.flush(a)
        } else {
            a
        };
        if let Some(test) = test {
            let value = self.test(test, ty, a);
            return self.result(i, 0, value, false);
        }
        let value = match &*i.opcode {
            "copysign" => {
                let b = self.value(i, 2, ty)?;
                self.b.ins().fcopysign(b, a)
            }
            "rcp" => {
                let one = self.float_constant(ty, 1.0);
                let value = self.binary("div", rc, ty, one, a)?;
                if ty == Type::F64 && approximate {
                    self.upper_half(value, flush)
                } else {
                    value
                }
            }
            "sqrt" if rc == rounding::NEAREST => self.b.ins().sqrt(a),
            "sqrt" => self.binary("sqrt", rc, ty, a, a)?,
            "rsqrt" => {
                let root = self.b.ins().sqrt(a);
                let one = self.float_constant(ty, 1.0);
                let value = self.b.ins().fdiv(one, root);
                if ty == Type::F64 && flush {
                    self.upper_half(value, true)
                } else {
                    value
                }
            }
            name if ty == Type::F32 => {
                let helper = match name {
                    "sin" => math::sin as *const () as usize,
                    "cos" => math::cos as *const () as usize,
                    "ex2" => math::ex2 as *const () as usize,
                    "lg2" => math::lg2 as *const () as usize,
                    _ => math::tanh as *const () as usize,
                };
                self.call_plain(helper, &[a], Some(types::F32))
                    .ok_or(Refused::Unsupported)?
            }
            _ => return Err(Refused::Unsupported),
        };
        let value = if flush && ty == Type::F32 {
            self.flush(value)
        } else {
            value
        };
        self.result(i, 0, value, false)
    }

    /// What `.approx.ftz.f64` keeps of a result: its upper 32 bits.
    fn upper_half(&mut self, value: Value, flush: bool) -> Value {
        if !flush {
            return value;
        }
        let bits = self.b.ins().bitcast(types::I64, MemFlagsData::new(), value);
        let bits = self.b.ins().band_imm_u(bits, !0xFFFF_FFFF);
        self.b.ins().bitcast(types::F64, MemFlagsData::new(), bits)
    }

    fn test(&mut self, test: &str, ty: Type, a: Value) -> Value {
        let size = self.b.ins().fabs(a);
        let infinity = self.float_constant(ty, f64::INFINITY);
        let least = if ty == Type::F64 {
            f64::MIN_POSITIVE
        } else {
            f64::from(f32::MIN_POSITIVE)
        };
        let least = self.float_constant(ty, least);
        match test {
            "finite" => self.b.ins().fcmp(FloatCC::LessThan, size, infinity),
            "infinite" => self.b.ins().fcmp(FloatCC::Equal, size, infinity),
            "number" => self.b.ins().fcmp(FloatCC::Ordered, a, a),
            "notanumber" => self.b.ins().fcmp(FloatCC::Unordered, a, a),
            // Finite and not subnormal: zero is normal.
            "normal" => {
                let zero = self.float_constant(ty, 0.0);
                let large = self.b.ins().fcmp(FloatCC::GreaterThanOrEqual, size, least);
                let finite = self.b.ins().fcmp(FloatCC::LessThan, size, infinity);
                let normal = self.b.ins().band(large, finite);
                let none = self.b.ins().fcmp(FloatCC::Equal, size, zero);
                self.b.ins().bor(normal, none)
            }
            _ => {
                let zero = self.float_constant(ty, 0.0);
                let small = self.b.ins().fcmp(FloatCC::LessThan, size, least);
                let some = self.b.ins().fcmp(FloatCC::GreaterThan, size, zero);
                self.b.ins().band(small, some)
            }
        }
    }
}
