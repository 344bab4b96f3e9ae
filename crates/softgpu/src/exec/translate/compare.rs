//! Comparisons and selections.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::operand::integer_of;
use super::place::{Place, natural};
use super::{Refused, Step, Translator};

const FLOAT: [(&str, FloatCC); 14] = [
    ("eq", FloatCC::Equal),
    ("ne", FloatCC::OrderedNotEqual),
    ("lt", FloatCC::LessThan),
    ("le", FloatCC::LessThanOrEqual),
    ("gt", FloatCC::GreaterThan),
    ("ge", FloatCC::GreaterThanOrEqual),
    ("equ", FloatCC::UnorderedOrEqual),
    ("neu", FloatCC::NotEqual),
    ("ltu", FloatCC::UnorderedOrLessThan),
    ("leu", FloatCC::UnorderedOrLessThanOrEqual),
    ("gtu", FloatCC::UnorderedOrGreaterThan),
    ("geu", FloatCC::UnorderedOrGreaterThanOrEqual),
    ("num", FloatCC::Ordered),
    ("nan", FloatCC::Unordered),
];

fn integer_condition(word: &str, signed: bool) -> Step<IntCC> {
    Ok(match (word, signed) {
        ("eq", _) => IntCC::Equal,
        ("ne", _) => IntCC::NotEqual,
        ("lt", true) => IntCC::SignedLessThan,
        ("le", true) => IntCC::SignedLessThanOrEqual,
        ("gt", true) => IntCC::SignedGreaterThan,
        ("ge", true) => IntCC::SignedGreaterThanOrEqual,
        ("lt" | "lo", _) => IntCC::UnsignedLessThan,
        ("le" | "ls", _) => IntCC::UnsignedLessThanOrEqual,
        ("gt" | "hi", _) => IntCC::UnsignedGreaterThan,
        ("ge" | "hs", _) => IntCC::UnsignedGreaterThanOrEqual,
        _ => return Err(Refused::Unsupported),
    })
}

impl<'a> Translator<'a, '_> {
    /// `a <word> b`, as 0 or 1.
    fn compare(&mut self, word: &str, flush: bool, ty: Type, a: Value, b: Value) -> Step<Value> {
        let (a, b) = match ty {
            Type::F16 if flush => (self.flush_half(a, ty)?, self.flush_half(b, ty)?),
            _ => (a, b),
        };
        let (a, b) = match ty {
            Type::F16 | Type::Bf16 => (self.half_to_f32(a, ty)?, self.half_to_f32(b, ty)?),
            Type::F32 if flush => (self.flush(a), self.flush(b)),
            _ => (a, b),
        };
        if ty.is_float() {
            let (_, condition) = FLOAT
                .iter()
                .find(|(w, _)| *w == word)
                .ok_or(Refused::Unsupported)?;
            return Ok(self.b.ins().fcmp(*condition, a, b));
        }
        Ok(self
            .b
            .ins()
            .icmp(integer_condition(word, ty.is_signed())?, a, b))
    }

    /// Joins a comparison with a further predicate.
    fn combine(&mut self, word: Option<&str>, value: Value, with: Option<Value>) -> Step<Value> {
        Ok(match (word, with) {
            (None, None) => value,
            (Some("and"), Some(c)) => self.b.ins().band(value, c),
            (Some("or"), Some(c)) => self.b.ins().bor(value, c),
            (Some("xor"), Some(c)) => self.b.ins().bxor(value, c),
            _ => return Err(Refused::Unsupported),
        })
    }

    fn third_predicate(&mut self, i: &'a Instruction) -> Step<Option<Value>> {
        i.operands
            .get(3)
            .map(|o| self.read(o, Type::Pred))
            .transpose()
    }

    pub(super) fn setp(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let word = m.first()?;
        let join = m.one_of(&["and", "or", "xor"]);
        let flush = m.flag("ftz");
        let ty = m.ty()?;
        m.done()?;
        let (a, b) = (self.value(i, 1, ty)?, self.value(i, 2, ty)?);
        let with = self.third_predicate(i)?;
        match (ty, self.operand(i, 0)?) {
            (Type::F16x2 | Type::Bf16x2, Operand::Pair(p, q)) => {
                for (operand, at) in [(p, 0), (q, 16)] {
                    let one = if ty == Type::F16x2 {
                        Type::F16
                    } else {
                        Type::Bf16
                    };
                    let [x, y] = [a, b]
                        .map(|v| self.b.ins().ushr_imm_u(v, at))
                        .map(|v| self.b.ins().ireduce(types::I16, v));
                    let value = self.compare(word, flush, one, x, y)?;
                    let value = self.combine(join, value, with)?;
                    self.write(operand, value, false)?;
                }
                Ok(())
            }
            (Type::F16x2 | Type::Bf16x2, _) => Err(Refused::Unsupported),
            (_, Operand::Pair(p, q)) => {
                let value = self.compare(word, flush, ty, a, b)?;
                let other = self.b.ins().bxor_imm_u(value, 1);
                let value = self.combine(join, value, with)?;
                let other = self.combine(join, other, with)?;
                self.write(p, value, false)?;
                self.write(q, other, false)
            }
            (_, p) => {
                let value = self.compare(word, flush, ty, a, b)?;
                let value = self.combine(join, value, with)?;
                self.write(p, value, false)
            }
        }
    }

    pub(super) fn set(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let word = m.first()?;
        let join = m.one_of(&["and", "or", "xor"]);
        let flush = m.flag("ftz");
        let (to, from) = (m.ty()?, m.ty()?);
        m.done()?;
        let (a, b) = (self.value(i, 1, from)?, self.value(i, 2, from)?);
        let with = self.third_predicate(i)?;
        if matches!(from, Type::F16x2 | Type::Bf16x2) {
            let half = if from == Type::F16x2 {
                Type::F16
            } else {
                Type::Bf16
            };
            let mut whole = self.b.ins().iconst(types::I32, 0);
            for at in [0, 16] {
                let [x, y] = [a, b]
                    .map(|v| self.b.ins().ushr_imm_u(v, at))
                    .map(|v| self.b.ins().ireduce(types::I16, v));
                let truth = self.compare(word, flush, half, x, y)?;
                let truth = self.combine(join, truth, with)?;
                let truth = self.b.ins().uextend(types::I32, truth);
                let yes = match to {
                    Type::F16x2 => 0x3C00,
                    Type::Bf16x2 => 0x3F80,
                    _ => 0xFFFF,
                };
                let part = self.b.ins().imul_imm_u(truth, yes << at);
                whole = self.b.ins().bor(whole, part);
            }
            return self.result(i, 0, whole, false);
        }
        let truth = self.compare(word, flush, from, a, b)?;
        let truth = self.combine(join, truth, with)?;
        let clif = natural(to)?;
        let integer = integer_of(clif);
        let yes = match to {
            Type::F32 => i64::from(1f32.to_bits()),
            Type::F64 => 1f64.to_bits() as i64,
            Type::F16 => 0x3C00,
            Type::Bf16 => 0x3F80,
            _ if integer == types::I16 => 0xFFFF,
            _ if integer == types::I32 => 0xFFFF_FFFF,
            _ => -1,
        };
        let (yes, no) = (
            self.b.ins().iconst(integer, yes),
            self.b.ins().iconst(integer, 0),
        );
        let value = self.b.ins().select(truth, yes, no);
        let value = self.fit(value, clif, false)?;
        self.result(i, 0, value, to.is_signed())
    }

    /// The float type of the same width, if the destination register is kept as a float.
    pub(super) fn as_destination(&mut self, operand: &Operand, ty: Type) -> Type {
        if let Operand::Name(name) = operand
            && let Ok(Place::Register(register)) = self.lookup(name)
        {
            match (register.ty, ty.bytes()) {
                (types::F32, 4) => return Type::F32,
                (types::F64, 8) => return Type::F64,
                _ => {}
            }
        }
        ty
    }

    pub(super) fn selp(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let ty = m.ty()?;
        m.done()?;
        let constant = |o: &Operand| matches!(o, Operand::Int(_));
        let ty = if i.operands.iter().any(constant) && !ty.is_float() {
            ty
        } else {
            self.as_destination(self.operand(i, 0)?, ty)
        };
        let (a, b) = (self.value(i, 1, ty)?, self.value(i, 2, ty)?);
        let condition = self.value(i, 3, Type::Pred)?;
        let value = self.b.ins().select(condition, a, b);
        self.result(i, 0, value, ty.is_signed())
    }

    pub(super) fn slct(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let flush = m.flag("ftz");
        let (ty, by) = (m.ty()?, m.ty()?);
        m.done()?;
        let (a, b, c) = (
            self.value(i, 1, ty)?,
            self.value(i, 2, ty)?,
            self.value(i, 3, by)?,
        );
        let condition = if by == Type::F32 {
            let c = if flush { self.flush(c) } else { c };
            let zero = self.b.ins().f32const(0.0);
            self.b.ins().fcmp(FloatCC::GreaterThanOrEqual, c, zero)
        } else {
            self.b
                .ins()
                .icmp_imm_s(IntCC::SignedGreaterThanOrEqual, c, 0)
        };
        let value = self.b.ins().select(condition, a, b);
        self.result(i, 0, value, ty.is_signed())
    }
}
