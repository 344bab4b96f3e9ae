//! Integer arithmetic. `arithmetic` also passes operations on floats to their files.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::place::natural;
use super::{Refused, Step, Translator};

impl<'a> Translator<'a, '_> {
    /// Instructions that exist for integers and floats.
    pub(super) fn arithmetic(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        if let Some(word) = m.one_of(&["u16x2", "s16x2"]) {
            return self.packed_integers(i, m, word == "s16x2");
        }
        let ty = m.ty()?;
        match ty {
            Type::F32 | Type::F64 => self.float_arithmetic(i, m, ty),
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => self.half_arithmetic(i, m, ty),
            _ => self.integer_arithmetic(i, m, ty),
        }
    }

    fn integer_arithmetic(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Step {
        if m.flag("cc") {
            return self.carrying(i, m, ty, false);
        }
        let signed = ty.is_signed();
        let a = self.value(i, 1, ty)?;
        let value = match &*i.opcode {
            "abs" => self.b.ins().iabs(a),
            "neg" => self.b.ins().ineg(a),
            "mul" | "mad" => return self.multiply(i, m, ty),
            name => {
                let b = self.value(i, 2, ty)?;
                match name {
                    "add" | "sub" if m.flag("sat") => self.saturating(a, b, name == "sub"),
                    "add" => self.b.ins().iadd(a, b),
                    "sub" => self.b.ins().isub(a, b),
                    "min" | "max" => {
                        let value = self.extreme(name == "min", signed, a, b);
                        if m.flag("relu") {
                            let zero = self.b.ins().iconst(natural(ty)?, 0);
                            self.b.ins().smax(value, zero)
                        } else {
                            value
                        }
                    }
                    "div" | "rem" => self.divide(i.operands.get(2), name == "rem", signed, a, b),
                    _ => return Err(Refused::Unsupported),
                }
            }
        };
        m.done()?;
        self.result(i, 0, value, signed)
    }

    fn extreme(&mut self, min: bool, signed: bool, a: Value, b: Value) -> Value {
        match (min, signed) {
            (true, true) => self.b.ins().smin(a, b),
            (true, false) => self.b.ins().umin(a, b),
            (false, true) => self.b.ins().smax(a, b),
            (false, false) => self.b.ins().umax(a, b),
        }
    }

    /// `.sat` of s32.
    fn saturating(&mut self, a: Value, b: Value, subtract: bool) -> Value {
        let (a, b) = (
            self.b.ins().sextend(types::I64, a),
            self.b.ins().sextend(types::I64, b),
        );
        let value = if subtract {
            self.b.ins().isub(a, b)
        } else {
            self.b.ins().iadd(a, b)
        };
        self.clamp_to_i32(value)
    }

    fn clamp_to_i32(&mut self, value: Value) -> Value {
        let least = self.b.ins().iconst(types::I64, i64::from(i32::MIN));
        let most = self.b.ins().iconst(types::I64, i64::from(i32::MAX));
        let value = self.b.ins().smax(value, least);
        let value = self.b.ins().smin(value, most);
        self.b.ins().ireduce(types::I32, value)
    }

    /// Division without traps: by 0 all ones, the smallest by -1 wraps, as GPUs do.
    fn divide(
        &mut self,
        divisor: Option<&Operand>,
        rem: bool,
        signed: bool,
        a: Value,
        b: Value,
    ) -> Value {
        let known = matches!(divisor, Some(Operand::Int(n)) if !matches!(*n, 0 | -1) && *n & 0xFFFF != 0xFFFF && *n & 0xFFFF != 0);
        if known {
            return self.raw_divide(rem, signed, a, b);
        }
        let ty = self.b.func.dfg.value_type(a);
        let one = self.b.ins().iconst(ty, 1);
        let ones = self.all_ones(ty);
        let zero = self.b.ins().icmp_imm_s(IntCC::Equal, b, 0);
        if !signed {
            let safe = self.b.ins().select(zero, one, b);
            let value = self.raw_divide(rem, false, a, safe);
            return self.b.ins().select(zero, ones, value);
        }
        let minus = self.b.ins().icmp(IntCC::Equal, b, ones);
        let special = self.b.ins().bor(zero, minus);
        let safe = self.b.ins().select(special, one, b);
        let value = self.raw_divide(rem, true, a, safe);
        let value = if rem {
            value
        } else {
            let negated = self.b.ins().ineg(a);
            self.b.ins().select(minus, negated, value)
        };
        self.b.ins().select(zero, ones, value)
    }

    fn raw_divide(&mut self, rem: bool, signed: bool, a: Value, b: Value) -> Value {
        match (rem, signed) {
            (false, false) => self.b.ins().udiv(a, b),
            (false, true) => self.b.ins().sdiv(a, b),
            (true, false) => self.b.ins().urem(a, b),
            (true, true) => self.b.ins().srem(a, b),
        }
    }

    pub(super) fn all_ones(&mut self, ty: cranelift_codegen::ir::Type) -> Value {
        let zero = self.b.ins().iconst(ty, 0);
        self.b.ins().bnot(zero)
    }

    pub(super) fn extend_to(
        &mut self,
        ty: cranelift_codegen::ir::Type,
        signed: bool,
        value: Value,
    ) -> Value {
        if self.b.func.dfg.value_type(value) == ty {
            value
        } else if signed {
            self.b.ins().sextend(ty, value)
        } else {
            self.b.ins().uextend(ty, value)
        }
    }

    /// High half of a product.
    fn high(&mut self, signed: bool, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a);
        if ty == types::I64 {
            return if signed {
                self.b.ins().smulhi(a, b)
            } else {
                self.b.ins().umulhi(a, b)
            };
        }
        let (a, b) = (
            self.extend_to(types::I64, signed, a),
            self.extend_to(types::I64, signed, b),
        );
        let product = self.b.ins().imul(a, b);
        let high = self.b.ins().ushr_imm_u(product, i64::from(ty.bits()));
        self.b.ins().ireduce(ty, high)
    }

    /// `mul` and `mad` in their three widths.
    fn multiply(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, ty: Type) -> Step {
        let signed = ty.is_signed();
        let (a, b) = (self.value(i, 1, ty)?, self.value(i, 2, ty)?);
        let add = &*i.opcode == "mad";
        match m.one_of(&["lo", "hi", "wide"]) {
            Some("wide") => {
                let (wide, double) = match ty {
                    Type::U16 => (types::I32, Type::U32),
                    Type::S16 => (types::I32, Type::S32),
                    Type::U32 => (types::I64, Type::U64),
                    Type::S32 => (types::I64, Type::S64),
                    _ => return Err(Refused::Unsupported),
                };
                m.done()?;
                let (a, b) = (
                    self.extend_to(wide, signed, a),
                    self.extend_to(wide, signed, b),
                );
                let mut value = self.b.ins().imul(a, b);
                if add {
                    let c = self.value(i, 3, double)?;
                    value = self.b.ins().iadd(value, c);
                }
                self.result(i, 0, value, signed)
            }
            Some(part) => {
                let saturate = m.flag("sat");
                m.done()?;
                let mut value = if part == "hi" {
                    self.high(signed, a, b)
                } else {
                    self.b.ins().imul(a, b)
                };
                if add {
                    let c = self.value(i, 3, ty)?;
                    value = if saturate {
                        self.saturating(value, c, false)
                    } else {
                        self.b.ins().iadd(value, c)
                    };
                }
                self.result(i, 0, value, signed)
            }
            None => Err(Refused::Unsupported),
        }
    }

    /// `addc`, `subc`, `madc`.
    pub(super) fn with_carry(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let ty = m.ty()?;
        let sets = m.flag("cc");
        self.carry_chain(i, m, ty, true, sets)
    }

    /// `add.cc`, `sub.cc`, `mad.cc`.
    fn carrying(
        &mut self,
        i: &'a Instruction,
        m: &mut Modifiers<'a>,
        ty: Type,
        takes: bool,
    ) -> Step {
        self.carry_chain(i, m, ty, takes, true)
    }

    /// One link of multi-word arithmetic; the carry is 0 or 1, for subtraction the borrow.
    fn carry_chain(
        &mut self,
        i: &'a Instruction,
        m: &mut Modifiers<'a>,
        ty: Type,
        takes: bool,
        sets: bool,
    ) -> Step {
        let (mut a, mut b) = (self.value(i, 1, ty)?, self.value(i, 2, ty)?);
        let subtract = i.opcode.starts_with("sub");
        if i.opcode.starts_with("mad") {
            let high = m.one_of(&["lo", "hi"]).ok_or(Refused::Unsupported)? == "hi";
            a = if high {
                self.high(ty.is_signed(), a, b)
            } else {
                self.b.ins().imul(a, b)
            };
            b = self.value(i, 3, ty)?;
        }
        m.done()?;
        let clif = natural(ty)?;
        let (first, mut over) = if subtract {
            (
                self.b.ins().isub(a, b),
                self.b.ins().icmp(IntCC::UnsignedLessThan, a, b),
            )
        } else {
            let sum = self.b.ins().iadd(a, b);
            (sum, self.b.ins().icmp(IntCC::UnsignedLessThan, sum, a))
        };
        let mut value = first;
        if takes {
            let carry = self.b.use_var(self.carry);
            let carry = if clif == types::I64 {
                carry
            } else {
                self.b.ins().ireduce(clif, carry)
            };
            let again = if subtract {
                value = self.b.ins().isub(first, carry);
                self.b.ins().icmp(IntCC::UnsignedLessThan, first, carry)
            } else {
                value = self.b.ins().iadd(first, carry);
                self.b.ins().icmp(IntCC::UnsignedLessThan, value, first)
            };
            over = self.b.ins().bor(over, again);
        }
        if sets {
            let over = self.b.ins().uextend(types::I64, over);
            self.b.def_var(self.carry, over);
        }
        self.result(i, 0, value, ty.is_signed())
    }

    /// `mul24`, `mad24`, `sad`, `dp4a`, `dp2a`.
    pub(super) fn small_multiply(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        match &*i.opcode {
            "sad" => {
                let ty = m.ty()?;
                m.done()?;
                let (a, b, c) = (
                    self.value(i, 1, ty)?,
                    self.value(i, 2, ty)?,
                    self.value(i, 3, ty)?,
                );
                let (low, high) = (
                    self.extreme(true, ty.is_signed(), a, b),
                    self.extreme(false, ty.is_signed(), a, b),
                );
                let distance = self.b.ins().isub(high, low);
                let value = self.b.ins().iadd(c, distance);
                self.result(i, 0, value, ty.is_signed())
            }
            "dp4a" | "dp2a" => self.dot(i, m),
            _ => {
                let high = m.one_of(&["lo", "hi"]) == Some("hi");
                let ty = m.ty()?;
                m.done()?;
                let signed = ty.is_signed();
                let (a, b) = (self.value(i, 1, ty)?, self.value(i, 2, ty)?);
                let (a, b) = (self.low_24(a, signed), self.low_24(b, signed));
                let product = self.b.ins().imul(a, b);
                let product = if high {
                    self.b.ins().ushr_imm_u(product, 16)
                } else {
                    product
                };
                let mut value = self.b.ins().ireduce(types::I32, product);
                if &*i.opcode == "mad24" {
                    let c = self.value(i, 3, ty)?;
                    value = self.b.ins().iadd(value, c);
                }
                self.result(i, 0, value, signed)
            }
        }
    }

    fn low_24(&mut self, value: Value, signed: bool) -> Value {
        let value = self.b.ins().uextend(types::I64, value);
        let value = self.b.ins().ishl_imm_u(value, 40);
        if signed {
            self.b.ins().sshr_imm_u(value, 40)
        } else {
            self.b.ins().ushr_imm_u(value, 40)
        }
    }

    /// Bits `[at, at + width)` of a 32-bit value, extended.
    fn bits_at(&mut self, value: Value, at: i64, width: i64, signed: bool) -> Value {
        let up = self.b.ins().ishl_imm_u(value, 32 - width - at);
        if signed {
            self.b.ins().sshr_imm_u(up, 32 - width)
        } else {
            self.b.ins().ushr_imm_u(up, 32 - width)
        }
    }

    fn dot(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let upper = m.one_of(&["lo", "hi"]) == Some("hi");
        let (ta, tb) = (m.ty()?, m.ty()?);
        m.done()?;
        let (a, b) = (self.value(i, 1, ta)?, self.value(i, 2, tb)?);
        let mut sum = self.value(i, 3, Type::B32)?;
        let (count, width) = if &*i.opcode == "dp4a" {
            (4, 8)
        } else {
            (2, 16)
        };
        for lane in 0..count {
            let x = self.bits_at(a, lane * width, width, ta.is_signed());
            let at = if upper { lane * 8 + 16 } else { lane * 8 };
            let y = self.bits_at(b, at, 8, tb.is_signed());
            let product = self.b.ins().imul(x, y);
            sum = self.b.ins().iadd(sum, product);
        }
        self.result(i, 0, sum, ta.is_signed() || tb.is_signed())
    }

    /// `add`, `min`, `max` on two 16-bit halves.
    fn packed_integers(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, signed: bool) -> Step {
        let relu = m.flag("relu");
        m.done()?;
        let (a, b) = (self.value(i, 1, Type::B32)?, self.value(i, 2, Type::B32)?);
        let mut whole = None;
        for at in [0, 16] {
            let (x, y) = (
                self.bits_at(a, at, 16, signed),
                self.bits_at(b, at, 16, signed),
            );
            let mut value = match &*i.opcode {
                "add" => self.b.ins().iadd(x, y),
                "sub" => self.b.ins().isub(x, y),
                "min" | "max" => self.extreme(&*i.opcode == "min", signed, x, y),
                _ => return Err(Refused::Unsupported),
            };
            if relu {
                let zero = self.b.ins().iconst(types::I32, 0);
                value = self.b.ins().smax(value, zero);
            }
            let value = self.b.ins().band_imm_u(value, 0xFFFF);
            let value = self.b.ins().ishl_imm_u(value, at);
            whole = Some(match whole {
                Some(low) => self.b.ins().bor(low, value),
                None => value,
            });
        }
        self.result(i, 0, whole.ok_or(Refused::Unsupported)?, false)
    }
}
