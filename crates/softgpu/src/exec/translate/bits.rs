//! Logic, shifts and bit fields.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::place::natural;
use super::{Refused, Step, Translator};
use crate::exec::runtime::math;

impl<'a> Translator<'a, '_> {
    pub(super) fn bits(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        match &*i.opcode {
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(i, m),
            "lop3" => self.lop3(i, m),
            "shl" | "shr" => self.shift(i, m),
            "shf" => self.funnel(i, m),
            "popc" | "clz" | "brev" | "bfind" => self.count(i, m),
            "bfe" => self.extract(i, m),
            "bfi" => self.insert_bits(i, m),
            "szext" | "bmsk" => self.mask(i, m),
            "prmt" => self.permute(i, m),
            _ => {
                let ty = m.ty()?;
                m.done()?;
                let (a, b, c) = (
                    self.value(i, 1, ty)?,
                    self.value(i, 2, ty)?,
                    self.value(i, 3, ty)?,
                );
                let value = self.call_plain(
                    math::fns as *const () as usize,
                    &[a, b, c],
                    Some(types::I32),
                );
                self.result(i, 0, value.ok_or(Refused::Unsupported)?, false)
            }
        }
    }

    fn logic(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let ty = m.ty()?;
        m.done()?;
        let a = self.value(i, 1, ty)?;
        let value = match &*i.opcode {
            "not" if ty == Type::Pred => self.b.ins().bxor_imm_u(a, 1),
            "not" => self.b.ins().bnot(a),
            "cnot" => {
                let zero = self.b.ins().icmp_imm_s(IntCC::Equal, a, 0);
                self.extend_to(natural(ty)?, false, zero)
            }
            name => {
                let b = self.value(i, 2, ty)?;
                match name {
                    "and" => self.b.ins().band(a, b),
                    "or" => self.b.ins().bor(a, b),
                    _ => self.b.ins().bxor(a, b),
                }
            }
        };
        self.result(i, 0, value, false)
    }

    /// A function of two inputs given by its truth table: bit (b, c) of `table`.
    fn two_inputs(&mut self, table: u8, b: Value, c: Value) -> Value {
        match table & 15 {
            0b0000 => self.b.ins().iconst(types::I32, 0),
            0b0001 => {
                let or = self.b.ins().bor(b, c);
                self.b.ins().bnot(or)
            }
            0b0010 => self.b.ins().band_not(c, b),
            0b0011 => self.b.ins().bnot(b),
            0b0100 => self.b.ins().band_not(b, c),
            0b0101 => self.b.ins().bnot(c),
            0b0110 => self.b.ins().bxor(b, c),
            0b0111 => {
                let and = self.b.ins().band(b, c);
                self.b.ins().bnot(and)
            }
            0b1000 => self.b.ins().band(b, c),
            0b1001 => {
                let xor = self.b.ins().bxor(b, c);
                self.b.ins().bnot(xor)
            }
            0b1010 => c,
            0b1011 => {
                let clear = self.b.ins().band_not(b, c);
                self.b.ins().bnot(clear)
            }
            0b1100 => b,
            0b1101 => {
                let clear = self.b.ins().band_not(c, b);
                self.b.ins().bnot(clear)
            }
            0b1110 => self.b.ins().bor(b, c),
            _ => self.all_ones(types::I32),
        }
    }

    /// Any function of three inputs: f(0,b,c) ^ (a & (f(0,b,c) ^ f(1,b,c))).
    fn lop3(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        m.flag("b32");
        m.done()?;
        let Operand::Int(table) = self.operand(i, 4)? else {
            return Err(Refused::Unsupported);
        };
        let table = *table as u8;
        let (a, b, c) = (
            self.value(i, 1, Type::B32)?,
            self.value(i, 2, Type::B32)?,
            self.value(i, 3, Type::B32)?,
        );
        let low = self.two_inputs(table, b, c);
        let change = (table ^ table >> 4) & 15;
        let value = if change == 0 {
            low
        } else {
            let change = self.two_inputs(change, b, c);
            let change = self.b.ins().band(a, change);
            self.b.ins().bxor(low, change)
        };
        self.result(i, 0, value, false)
    }

    fn shift(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let ty = m.ty()?;
        m.done()?;
        let a = self.value(i, 1, ty)?;
        let amount = self.value(i, 2, Type::U32)?;
        let value = match (&*i.opcode, ty.is_signed()) {
            ("shl", _) => self.shift_left(a, amount),
            (_, true) => self.shift_signed(a, amount),
            _ => self.shift_right(a, amount),
        };
        self.result(i, 0, value, ty.is_signed())
    }

    fn width(&self, value: Value) -> i64 {
        i64::from(self.b.func.dfg.value_type(value).bits())
    }

    /// The amount if it is a constant within the width.
    fn known(&self, value: Value, amount: Value) -> bool {
        let ir::ValueDef::Result(inst, _) = self.b.func.dfg.value_def(amount) else {
            return false;
        };
        match self.b.func.dfg.insts[inst] {
            ir::InstructionData::UnaryImm {
                opcode: ir::Opcode::Iconst,
                imm,
            } => (0..self.width(value)).contains(&imm.bits()),
            _ => false,
        }
    }

    fn shift_left(&mut self, a: Value, amount: Value) -> Value {
        let shifted = self.b.ins().ishl(a, amount);
        self.zero_beyond(a, amount, shifted)
    }

    fn shift_right(&mut self, a: Value, amount: Value) -> Value {
        let shifted = self.b.ins().ushr(a, amount);
        self.zero_beyond(a, amount, shifted)
    }

    fn zero_beyond(&mut self, a: Value, amount: Value, shifted: Value) -> Value {
        if self.known(a, amount) {
            return shifted;
        }
        let (width, ty) = (self.width(a), self.b.func.dfg.value_type(a));
        let within = self
            .b
            .ins()
            .icmp_imm_s(IntCC::UnsignedLessThan, amount, width);
        let zero = self.b.ins().iconst(ty, 0);
        self.b.ins().select(within, shifted, zero)
    }

    fn shift_signed(&mut self, a: Value, amount: Value) -> Value {
        if self.known(a, amount) {
            return self.b.ins().sshr(a, amount);
        }
        let last = self.width(a) - 1;
        let most = self.b.ins().iconst(types::I32, last);
        let amount = self.b.ins().umin(amount, most);
        self.b.ins().sshr(a, amount)
    }

    /// `shf`: a shift of two words as one.
    fn funnel(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let left = m.one_of(&["l", "r"]) == Some("l");
        let wrap = m.one_of(&["clamp", "wrap"]) == Some("wrap");
        m.flag("b32");
        m.done()?;
        let (low, high, n) = (
            self.value(i, 1, Type::B32)?,
            self.value(i, 2, Type::B32)?,
            self.value(i, 3, Type::U32)?,
        );
        let n = if wrap {
            self.b.ins().band_imm_u(n, 31)
        } else {
            let most = self.b.ins().iconst(types::I32, 32);
            self.b.ins().umin(n, most)
        };
        let (low, high) = (
            self.b.ins().uextend(types::I64, low),
            self.b.ins().uextend(types::I64, high),
        );
        let high = self.b.ins().ishl_imm_u(high, 32);
        let both = self.b.ins().bor(low, high);
        let shifted = if left {
            let shifted = self.b.ins().ishl(both, n);
            self.b.ins().ushr_imm_u(shifted, 32)
        } else {
            self.b.ins().ushr(both, n)
        };
        let value = self.b.ins().ireduce(types::I32, shifted);
        self.result(i, 0, value, false)
    }

    fn count(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let amount = m.flag("shiftamt");
        let ty = m.ty()?;
        m.done()?;
        let a = self.value(i, 1, ty)?;
        let last = self.width(a) - 1;
        let value = match &*i.opcode {
            "brev" => self.b.ins().bitrev(a),
            "popc" => self.b.ins().popcnt(a),
            "clz" => self.b.ins().clz(a),
            _ => {
                let a = if ty.is_signed() {
                    let sign = self.b.ins().sshr_imm_u(a, last);
                    self.b.ins().bxor(a, sign)
                } else {
                    a
                };
                let zeros = self.b.ins().clz(a);
                let value = if amount {
                    zeros
                } else {
                    let top = self.b.ins().iconst(natural(ty)?, last);
                    self.b.ins().isub(top, zeros)
                };
                let none = self.b.ins().icmp_imm_s(IntCC::Equal, a, 0);
                let ones = self.all_ones(natural(ty)?);
                self.b.ins().select(none, ones, value)
            }
        };
        let value = if &*i.opcode == "brev" {
            value
        } else {
            self.fit(value, types::I32, false)?
        };
        self.result(i, 0, value, false)
    }

    /// Lowest `n` bits set (n in 32 bits; all when n reaches the width).
    fn low_mask(&mut self, n: Value, like: Value) -> Value {
        let ones = self.all_ones(self.b.func.dfg.value_type(like));
        let above = self.shift_left(ones, n);
        self.b.ins().bnot(above)
    }

    fn byte(&mut self, i: &'a Instruction, index: usize) -> Step<Value> {
        let value = self.value(i, index, Type::U32)?;
        Ok(self.b.ins().band_imm_u(value, 0xFF))
    }

    fn extract(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let ty = m.ty()?;
        m.done()?;
        let a = self.value(i, 1, ty)?;
        let (position, length) = (self.byte(i, 2)?, self.byte(i, 3)?);
        if !ty.is_signed() {
            let shifted = self.shift_right(a, position);
            let mask = self.low_mask(length, a);
            let value = self.b.ins().band(shifted, mask);
            return self.result(i, 0, value, false);
        }
        let shifted = self.shift_signed(a, position);
        let value = self.sign_extend_from(shifted, length);
        self.result(i, 0, value, true)
    }

    /// Sign-extends the lowest `n` bits; 0 for none, unchanged from the width on.
    fn sign_extend_from(&mut self, value: Value, n: Value) -> Value {
        let width = self.width(value);
        let most = self.b.ins().iconst(types::I32, width);
        let kept = self.b.ins().umin(n, most);
        let up = self.b.ins().isub(most, kept);
        let shifted = self.shift_left(value, up);
        self.shift_signed(shifted, up)
    }

    fn insert_bits(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let ty = m.ty()?;
        m.done()?;
        let (a, b) = (self.value(i, 1, ty)?, self.value(i, 2, ty)?);
        let (position, length) = (self.byte(i, 3)?, self.byte(i, 4)?);
        let mask = self.low_mask(length, a);
        let mask = self.shift_left(mask, position);
        let field = self.shift_left(a, position);
        let field = self.b.ins().band(field, mask);
        let rest = self.b.ins().band_not(b, mask);
        let value = self.b.ins().bor(field, rest);
        self.result(i, 0, value, false)
    }

    /// `szext` and `bmsk`.
    fn mask(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let wrap = m.one_of(&["clamp", "wrap"]) == Some("wrap");
        let ty = m.ty()?;
        m.done()?;
        let (a, b) = (self.value(i, 1, Type::B32)?, self.value(i, 2, Type::U32)?);
        let b = if wrap {
            self.b.ins().band_imm_u(b, 31)
        } else {
            b
        };
        let value = if &*i.opcode == "bmsk" {
            let a = if wrap {
                self.b.ins().band_imm_u(a, 31)
            } else {
                a
            };
            let mask = self.low_mask(b, a);
            self.shift_left(mask, a)
        } else if ty.is_signed() {
            self.sign_extend_from(a, b)
        } else {
            let mask = self.low_mask(b, a);
            self.b.ins().band(a, mask)
        };
        self.result(i, 0, value, false)
    }

    fn permute(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        m.flag("b32");
        let mode = match m.one_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
            None => 0,
            Some("f4e") => 1,
            Some("b4e") => 2,
            Some("rc8") => 3,
            Some("ecl") => 4,
            Some("ecr") => 5,
            Some(_) => 6,
        };
        m.done()?;
        let (a, b) = (self.value(i, 1, Type::B32)?, self.value(i, 2, Type::B32)?);
        let value = match self.operand(i, 3)? {
            Operand::Int(selector) if mode == 0 && selector & 0x8888 == 0 => {
                self.fixed_permute(a, b, *selector as u32)
            }
            selector => {
                let selector = self.read(selector, Type::B32)?;
                let mode = self.b.ins().iconst(types::I32, mode);
                let call = self.call_plain(
                    math::prmt as *const () as usize,
                    &[a, b, selector, mode],
                    Some(types::I32),
                );
                call.ok_or(Refused::Unsupported)?
            }
        };
        self.result(i, 0, value, false)
    }

    /// A permutation known at compile time, without sign replication.
    fn fixed_permute(&mut self, a: Value, b: Value, selector: u32) -> Value {
        let mut whole = self.b.ins().iconst(types::I32, 0);
        let mut at = 0;
        while at < 4 {
            let first = selector >> (4 * at) & 7;
            // Bytes that follow one another in one source move together.
            let mut run = 1;
            while at + run < 4
                && first % 4 + run < 4
                && selector >> (4 * (at + run)) & 7 == first + run
            {
                run += 1;
            }
            let source = if first < 4 { a } else { b };
            let piece = self.b.ins().ushr_imm_u(source, i64::from(8 * (first % 4)));
            let mask = (1i64 << (8 * run)) - 1;
            let piece = self.b.ins().band_imm_u(piece, mask);
            let piece = self.b.ins().ishl_imm_u(piece, i64::from(8 * at));
            whole = self.b.ins().bor(whole, piece);
            at += run;
        }
        whole
    }
}
