//! `atom` and `red`.
//!
//! All threads of a block run on one host thread and change places only inside calls, so an atomic on
//! shared memory is a plain read, change and write. On global memory it is one for real.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, AtomicRmwOp, BlockArg, InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Type};

use super::half::type_flags;
use super::memory::{HINT_PREFIXES, HINTS};
use super::modifiers::Modifiers;
use super::operand::integer_of;
use super::place::natural;
use super::{Refused, Step, Translator};
use crate::exec::runtime::half::op;

impl<'a> Translator<'a, '_> {
    pub(super) fn atomic(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let returns = &*i.opcode == "atom";
        let space = Self::space(m);
        m.skip(
            &["relaxed", "acquire", "release", "acq_rel", "seq_cst"],
            &[],
        );
        m.skip(&HINTS, &HINT_PREFIXES);
        let operation = m.one_of(&[
            "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec",
        ]);
        let operation = operation.ok_or(Refused::Unsupported)?;
        let count = m.vector();
        let ty = m.ty()?;
        m.done()?;
        let first = usize::from(returns);
        if count > 1 {
            return self.atomic_vector(i, space, operation, ty, count);
        }
        let target = self.target(self.operand(i, first)?, space, ty.bytes())?;
        let b = self.value(i, first + 1, ty)?;
        let swap = if operation == "cas" {
            Some(self.value(i, first + 2, ty)?)
        } else {
            None
        };
        let pointer = self.pointer(target, ty.bytes(), true);
        self.burn();
        let old = if target.private {
            let clif = natural(ty)?;
            let old = self.b.ins().load(clif, MemFlagsData::new(), pointer, 0);
            let new = self.changed(operation, ty, old, b, swap)?;
            self.b.ins().store(MemFlagsData::new(), new, pointer, 0);
            old
        } else {
            self.global_atomic(operation, ty, pointer, b, swap)?
        };
        if returns {
            self.result(i, 0, old, ty.is_signed())
        } else {
            Ok(())
        }
    }

    /// Each element by itself, as the device does it.
    fn atomic_vector(
        &mut self,
        i: &'a Instruction,
        space: &str,
        operation: &str,
        ty: Type,
        count: usize,
    ) -> Step {
        let first = usize::from(&*i.opcode == "atom");
        let bytes = ty.bytes() * count as u32;
        let target = self.target(self.operand(i, first)?, space, bytes)?;
        let values = Self::parts(self.operand(i, first + 1)?, count)?;
        let values: Vec<Value> = values
            .iter()
            .map(|v| self.read(v, ty))
            .collect::<Step<_>>()?;
        let pointer = self.pointer(target, bytes, true);
        self.burn();
        let mut olds = Vec::with_capacity(count);
        for (index, value) in values.into_iter().enumerate() {
            let at = i64::from(ty.bytes()) * index as i64;
            let at = self.b.ins().iadd_imm_s(pointer, at);
            olds.push(self.global_atomic(operation, ty, at, value, None)?);
        }
        if first == 0 {
            return Ok(());
        }
        let results = Self::parts(self.operand(i, 0)?, count)?;
        results
            .iter()
            .zip(olds)
            .try_for_each(|(result, old)| self.write(result, old, false))
    }

    fn global_atomic(
        &mut self,
        operation: &str,
        ty: Type,
        pointer: Value,
        b: Value,
        swap: Option<Value>,
    ) -> Step<Value> {
        let clif = natural(ty)?;
        let flags = MemFlagsData::new();
        if let Some(new) = swap {
            let integer = integer_of(clif);
            let (expected, new) = (self.fit(b, integer, false)?, self.fit(new, integer, false)?);
            return Ok(self.b.ins().atomic_cas(flags, pointer, expected, new));
        }
        let native = match (operation, ty.is_signed()) {
            ("add", _) => AtomicRmwOp::Add,
            ("and", _) => AtomicRmwOp::And,
            ("or", _) => AtomicRmwOp::Or,
            ("xor", _) => AtomicRmwOp::Xor,
            ("exch", _) => AtomicRmwOp::Xchg,
            ("min", true) => AtomicRmwOp::Smin,
            ("max", true) => AtomicRmwOp::Smax,
            ("min", false) => AtomicRmwOp::Umin,
            ("max", false) => AtomicRmwOp::Umax,
            _ => return self.retried(operation, ty, pointer, b),
        };
        let exchange = operation == "exch";
        if clif == types::I128 || ty.is_float() && !exchange {
            return self.retried(operation, ty, pointer, b);
        }
        let integer = integer_of(clif);
        let b = self.fit(b, integer, false)?;
        let old = self.b.ins().atomic_rmw(integer, flags, native, pointer, b);
        self.fit(old, clif, false)
    }

    /// Reads, computes, and tries to swap until no other thread has written between.
    fn retried(&mut self, operation: &str, ty: Type, pointer: Value, b: Value) -> Step<Value> {
        let clif = natural(ty)?;
        let integer = integer_of(clif);
        let flags = MemFlagsData::new();
        let first = self.b.ins().load(integer, flags, pointer, 0);
        let (again, done) = (self.b.create_block(), self.b.create_block());
        let seen = self.b.append_block_param(again, integer);
        self.b.ins().jump(again, &[BlockArg::Value(first)]);
        self.b.switch_to_block(again);
        let old = self.fit(seen, clif, false)?;
        let new = if (operation, ty) == ("add", Type::F32) {
            self.add_normal(old, b)
        } else {
            self.changed(operation, ty, old, b, None)?
        };
        let new = self.fit(new, integer, false)?;
        let found = self.b.ins().atomic_cas(flags, pointer, seen, new);
        let same = self.b.ins().icmp(IntCC::Equal, found, seen);
        self.b
            .ins()
            .brif(same, done, &[], again, &[BlockArg::Value(found)]);
        self.b.seal_block(again);
        self.go_on_in(done);
        Ok(old)
    }

    /// The sum in global memory, where subnormal numbers are zero; in shared memory they are not (PTX ISA,
    /// `atom`).
    fn add_normal(&mut self, old: Value, b: Value) -> Value {
        let (old, b) = (self.flush(old), self.flush(b));
        let sum = self.b.ins().fadd(old, b);
        self.flush(sum)
    }

    /// What the operation makes of `old`.
    fn changed(
        &mut self,
        operation: &str,
        ty: Type,
        old: Value,
        b: Value,
        swap: Option<Value>,
    ) -> Step<Value> {
        let packed = matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
        Ok(match (operation, ty) {
            ("add", Type::F32 | Type::F64) => self.b.ins().fadd(old, b),
            ("add", _) if packed => self.half_call(op::ADD | type_flags(ty), &[old, b], ty)?,
            _ if ty.is_float() && operation != "exch" => return Err(Refused::Unsupported),
            ("add", _) => self.b.ins().iadd(old, b),
            ("and", _) => self.b.ins().band(old, b),
            ("or", _) => self.b.ins().bor(old, b),
            ("xor", _) => self.b.ins().bxor(old, b),
            ("exch", _) => b,
            ("cas", _) => {
                let same = self.b.ins().icmp(IntCC::Equal, old, b);
                let new = swap.ok_or(Refused::Unsupported)?;
                self.b.ins().select(same, new, old)
            }
            ("inc", _) => {
                let next = self.b.ins().iadd_imm_s(old, 1);
                let wraps = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, old, b);
                let zero = self.zero_of(ty)?;
                self.b.ins().select(wraps, zero, next)
            }
            ("dec", _) => {
                let next = self.b.ins().iadd_imm_s(old, -1);
                let zero = self.b.ins().icmp_imm_s(IntCC::Equal, old, 0);
                let above = self.b.ins().icmp(IntCC::UnsignedGreaterThan, old, b);
                let wraps = self.b.ins().bor(zero, above);
                self.b.ins().select(wraps, b, next)
            }
            ("min" | "max", _) => {
                let condition = match (operation, ty.is_signed()) {
                    ("min", true) => IntCC::SignedLessThan,
                    ("min", false) => IntCC::UnsignedLessThan,
                    (_, true) => IntCC::SignedGreaterThan,
                    (_, false) => IntCC::UnsignedGreaterThan,
                };
                let keep = self.b.ins().icmp(condition, old, b);
                self.b.ins().select(keep, old, b)
            }
            _ => return Err(Refused::Unsupported),
        })
    }

    fn zero_of(&mut self, ty: Type) -> Step<Value> {
        let clif: ir::Type = natural(ty)?;
        Ok(self.b.ins().iconst(clif, 0))
    }
}
