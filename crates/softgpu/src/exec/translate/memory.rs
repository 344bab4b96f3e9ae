//! Loads and stores, with the checks of addresses.
//!
//! Generic, global, local and constant addresses are pointers. Shared addresses are offsets into the
//! block's shared memory. An access by pointer is checked inline for alignment and for lying in the
//! window: the offset from the window's base, rotated so that misaligned low bits become high ones,
//! must be below a constant. If the check fails, a helper checks the access again and returns if it is valid.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::operand::integer_of;
use super::place::{Place, natural};
use super::{Refused, Step, Translator};
use crate::exec::runtime::context::DeviceThread;
use crate::exec::runtime::{helpers, quiet, window};
use crate::exec::{VarSpace, WINDOW_BASE, WINDOW_END};

/// Back-edges that an access other threads may wait on counts for.
const STRONG_COST: i64 = 64;

/// How far from a checked address another counts as checked, bytes.
const NEAR: u64 = 1 << 16;

/// How an address is to be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Known to be good.
    None,
    /// A pointer.
    Pointer,
    /// An offset into shared memory.
    Shared,
}

/// An address operand.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    base: Value,
    offset: i64,
    check: Check,
    /// Only threads of this block can see it.
    pub private: bool,
}

/// Words of memory instructions that change nothing here.
pub const HINTS: [&str; 16] = [
    "weak", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "cta", "cluster", "gpu", "sys", "mmio",
    "unified", "noftz",
];
pub const HINT_PREFIXES: [&str; 2] = ["L1::", "L2::"];

impl<'a> Translator<'a, '_> {
    /// Takes the state space of an instruction; generic if none.
    pub(super) fn space(m: &mut Modifiers<'a>) -> &'a str {
        let words = [
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "const",
            "param",
            "param::entry",
            "param::func",
        ];
        m.one_of(&words).unwrap_or("generic")
    }

    /// An address operand, for an access of `bytes` bytes.
    pub(super) fn target(&mut self, operand: &Operand, space: &str, bytes: u32) -> Step<Target> {
        let Operand::Address { base, offset, .. } = operand else {
            return Err(Refused::Unsupported);
        };
        let shared = space.starts_with("shared");
        let check = if shared {
            Check::Shared
        } else {
            Check::Pointer
        };
        let private = shared || space == "local";
        let Some(name) = base else {
            let base = self.b.ins().iconst(types::I64, 0);
            return Ok(Target {
                base,
                offset: *offset,
                check,
                private,
            });
        };
        let place = self.lookup(name)?;
        let inside = |size: u64| {
            u64::try_from(*offset)
                .is_ok_and(|o| o.checked_add(u64::from(bytes)).is_some_and(|e| e <= size))
        };
        let mut target = Target {
            base: self.context,
            offset: *offset,
            check,
            private,
        };
        match &place {
            Place::Register(register) => {
                let value = self.b.use_var(register.var);
                target.base = if shared {
                    self.shared_address(value)?
                } else {
                    self.fit(value, types::I64, false)?
                };
            }
            Place::Shared { offset: at, size } if inside(*size) => {
                target.base =
                    self.constant_field(types::I64, offset_of!(DeviceThread, shared_base));
                target.offset += i64::from(*at);
                target.check = Check::None;
            }
            Place::Frame { offset: at, size } if inside(*size) => {
                target.base = self.frame;
                target.offset += i64::from(*at);
                target.check = Check::None;
            }
            Place::Kernel { offset: at, size } if inside(*size) => {
                target.base = self.constant_field(types::I64, offset_of!(DeviceThread, params));
                target.offset += i64::from(*at);
                target.check = Check::None;
            }
            Place::Pointer { size, .. } | Place::Fixed { size, .. } if inside(*size) => {
                target.base = self.place_address(&place)?;
                target.check = Check::None;
            }
            _ => target.base = self.place_address(&place)?,
        }
        Ok(target)
    }

    /// What a generic address points to.
    pub(super) fn target_at(&self, address: Value) -> Target {
        Target {
            base: address,
            offset: 0,
            check: Check::Pointer,
            private: false,
        }
    }

    /// The target `by` bytes further on.
    pub(super) fn moved(&mut self, target: Target, by: Value) -> Target {
        Target {
            base: self.b.ins().iadd(target.base, by),
            // Further on it may lie beyond what was known to be good.
            check: match target.check {
                Check::None => Check::Pointer,
                check => check,
            },
            ..target
        }
    }

    /// Shared addresses have 32 bits, in whatever register.
    fn shared_address(&mut self, value: Value) -> Step<Value> {
        let value = self.fit(value, types::I32, false)?;
        Ok(self.b.ins().uextend(types::I64, value))
    }

    /// The 32 bits of a shared address.
    pub(super) fn shared_offset(&mut self, target: Target) -> Value {
        let base = match target.check {
            Check::Shared => target.base,
            Check::None | Check::Pointer => {
                let start = self.constant_field(types::I64, offset_of!(DeviceThread, shared_base));
                self.b.ins().isub(target.base, start)
            }
        };
        let whole = self.b.ins().iadd_imm_s(base, target.offset);
        self.b.ins().ireduce(types::I32, whole)
    }

    /// The target at a shared address of 32 bits, the lower ones of `offset`.
    pub(super) fn shared_row(&mut self, offset: Value) -> Target {
        let low = self.b.ins().ireduce(types::I32, offset);
        Target {
            base: self.b.ins().uextend(types::I64, low),
            offset: 0,
            check: Check::Shared,
            private: true,
        }
    }

    /// Checks the address; the pointer and offset to access.
    pub(super) fn checked(&mut self, target: Target, bytes: u32, write: bool) -> (Value, i32) {
        let known = self.is_verified(target, bytes);
        let base = match target.check {
            Check::None => target.base,
            Check::Pointer => {
                if !known {
                    self.check_pointer(target, bytes, write);
                }
                target.base
            }
            Check::Shared => {
                if !known && bytes > 1 {
                    self.check_alignment(target, bytes);
                }
                if !known {
                    self.verified.insert(target.base, (target.offset, bytes));
                }
                return (self.shared_pointer(target), 0);
            }
        };
        if !known && target.check == Check::Pointer {
            self.verified.insert(target.base, (target.offset, bytes));
        }
        match i32::try_from(target.offset) {
            Ok(offset) => (base, offset),
            Err(_) => (self.b.ins().iadd_imm_s(base, target.offset), 0),
        }
    }

    /// Where a shared address lies. Base and displacement are added in 32 bits, as the device adds them: a base
    /// below 0 with a displacement that brings it back is a good address.
    fn shared_pointer(&mut self, target: Target) -> Value {
        let low = self.b.ins().ireduce(types::I32, target.base);
        let low = if target.offset == 0 {
            low
        } else {
            self.b
                .ins()
                .iadd_imm_s(low, i64::from(target.offset as i32))
        };
        let distance = self.b.ins().uextend(types::I64, low);
        let start = self.constant_field(types::I64, offset_of!(DeviceThread, shared_base));
        self.b.ins().iadd(start, distance)
    }

    /// Whether a check of the same base near by covers this access. Near the window's ends, and around
    /// host memory, it may be off by [`NEAR`]; what is not mapped faults all the same.
    fn is_verified(&self, target: Target, bytes: u32) -> bool {
        self.verified
            .get(&target.base)
            .is_some_and(|&(offset, size)| {
                let distance = target.offset.wrapping_sub(offset);
                bytes <= size && distance.unsigned_abs() < NEAR && distance % i64::from(bytes) == 0
            })
    }

    fn check_pointer(&mut self, target: Target, bytes: u32, write: bool) {
        let shift = i64::from(bytes.trailing_zeros());
        let distance = self
            .b
            .ins()
            .iadd_imm_s(target.base, target.offset.wrapping_sub(WINDOW_BASE as i64));
        let turned = if shift > 0 {
            self.b.ins().rotr_imm_u(distance, shift)
        } else {
            distance
        };
        let limit = ((WINDOW_END - WINDOW_BASE) >> shift) as i64;
        let bad = self
            .b
            .ins()
            .icmp_imm_s(IntCC::UnsignedGreaterThanOrEqual, turned, limit);
        self.if_rarely(bad, |t| {
            let address = t.b.ins().iadd_imm_s(target.base, target.offset);
            let write = if write { helpers::WRITE } else { 0 };
            let size =
                t.b.ins()
                    .iconst(types::I64, (u64::from(bytes) | write) as i64);
            t.call_quietly(quiet::access as *const () as usize, &[address, size]);
        });
    }

    /// Bounds need no check: around shared memory nothing is mapped as far as 32 bits reach.
    fn check_alignment(&mut self, target: Target, bytes: u32) {
        let aligned_offset = target.offset % i64::from(bytes) == 0;
        let address = if aligned_offset {
            target.base
        } else {
            self.b.ins().iadd_imm_s(target.base, target.offset)
        };
        let low = self.b.ins().band_imm_u(address, i64::from(bytes) - 1);
        self.fault_if(low, |t| {
            let address = t.b.ins().iadd_imm_s(target.base, target.offset);
            t.call_helper(helpers::misaligned as *const () as usize, &[address], None);
        });
    }

    /// The checked address as one pointer.
    pub(super) fn pointer(&mut self, target: Target, bytes: u32, write: bool) -> Value {
        let (base, offset) = self.checked(target, bytes, write);
        if offset == 0 {
            base
        } else {
            self.b.ins().iadd_imm_s(base, i64::from(offset))
        }
    }

    /// An access on which a loop may be waiting: it brings the next look at other threads nearer.
    pub(super) fn burn(&mut self) {
        let fuel = self.b.use_var(self.fuel);
        let fuel = self.b.ins().iadd_imm_s(fuel, -STRONG_COST);
        self.b.def_var(self.fuel, fuel);
        self.polls();
    }

    /// Notes that the thread may be waiting for another.
    pub(super) fn polls(&mut self) {
        let one = self.b.ins().iconst(types::I32, 1);
        self.set_field(one, offset_of!(DeviceThread, polls));
    }

    /// Takes the words on ordering; whether other threads must see or be seen.
    fn strong(m: &mut Modifiers<'a>) -> bool {
        let strong = m
            .one_of(&["volatile", "relaxed", "acquire", "release"])
            .is_some();
        m.skip(&HINTS, &HINT_PREFIXES);
        strong
    }

    pub(super) fn parts(operand: &'a Operand, count: usize) -> Step<&'a [Operand]> {
        match operand {
            Operand::Vector(list) if list.len() == count => Ok(list),
            Operand::Vector(_) => Err(Refused::Unsupported),
            one if count == 1 => Ok(std::slice::from_ref(one)),
            _ => Err(Refused::Unsupported),
        }
    }

    pub(super) fn load(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let space = Self::space(m);
        let strong = Self::strong(m);
        let count = m.vector();
        let ty = m.ty()?;
        m.done()?;
        let bytes = ty.bytes() * count as u32;
        let target = self.target(self.operand(i, 1)?, space, bytes)?;
        let (base, offset) = self.checked(target, bytes, false);
        let parts = Self::parts(self.operand(i, 0)?, count)?;
        let mut values = Vec::with_capacity(count);
        for (index, part) in parts.iter().enumerate() {
            let ty = if ty == Type::Pred {
                return Err(Refused::Unsupported);
            } else {
                self.as_destination(part, ty)
            };
            let at = offset + (index as u32 * ty.bytes()) as i32;
            values.push(self.load_one(natural(ty)?, base, at, strong && count == 1));
        }
        if strong {
            self.burn();
        }
        parts
            .iter()
            .zip(values)
            .try_for_each(|(part, value)| self.write(part, value, ty.is_signed()))
    }

    fn load_one(&mut self, ty: ir::Type, base: Value, offset: i32, strong: bool) -> Value {
        if !strong || ty == types::I128 {
            return self.b.ins().load(ty, MemFlagsData::new(), base, offset);
        }
        let pointer = self.b.ins().iadd_imm_s(base, i64::from(offset));
        let integer = integer_of(ty);
        let value = self
            .b
            .ins()
            .atomic_load(integer, MemFlagsData::new(), pointer);
        if integer == ty {
            value
        } else {
            self.b.ins().bitcast(ty, MemFlagsData::new(), value)
        }
    }

    pub(super) fn store(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let space = Self::space(m);
        Self::strong(m);
        let count = m.vector();
        let ty = m.ty()?;
        m.done()?;
        let bytes = ty.bytes() * count as u32;
        let target = self.target(self.operand(i, 0)?, space, bytes)?;
        let parts = Self::parts(self.operand(i, 1)?, count)?;
        let mut values = Vec::with_capacity(count);
        for part in parts {
            let ty = self.as_destination(part, ty);
            values.push(self.read(part, ty)?);
        }
        let (base, offset) = self.checked(target, bytes, true);
        for (index, value) in values.into_iter().enumerate() {
            let at = offset + (index as u32 * ty.bytes()) as i32;
            self.b.ins().store(MemFlagsData::new(), value, base, at);
        }
        Ok(())
    }

    /// `cvta`: only shared addresses differ from generic ones.
    pub(super) fn cvta(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let to = m.flag("to");
        let space = Self::space(m);
        let ty = m.ty()?;
        m.done()?;
        if ty.bytes() != 8 {
            return Err(Refused::Unsupported);
        }
        let mut value = self.value(i, 1, ty)?;
        if space.starts_with("shared") {
            let base = self.constant_field(types::I64, offset_of!(DeviceThread, shared_base));
            value = if to {
                self.b.ins().isub(value, base)
            } else {
                self.b.ins().iadd(value, base)
            };
        }
        self.result(i, 0, value, false)
    }

    pub(super) fn isspacep(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let space = Self::space(m);
        m.done()?;
        let a = self.value(i, 1, Type::U64)?;
        let value = match space {
            "shared" | "shared::cta" | "shared::cluster" => self.in_shared(a),
            "local" => self.in_local(a),
            "const" => self.in_constants(a),
            "param" | "param::entry" => {
                let start = self.constant_field(types::I64, offset_of!(DeviceThread, params));
                self.within(a, start, window::PARAMS as i64)
            }
            "global" => {
                let (shared, local) = (self.in_shared(a), self.in_local(a));
                let constant = self.in_constants(a);
                let other = self.b.ins().bor(shared, local);
                let other = self.b.ins().bor(other, constant);
                self.b.ins().bxor_imm_u(other, 1)
            }
            _ => return Err(Refused::Unsupported),
        };
        self.result(i, 0, value, false)
    }

    fn within(&mut self, a: Value, start: Value, bytes: i64) -> Value {
        let distance = self.b.ins().isub(a, start);
        self.b
            .ins()
            .icmp_imm_s(IntCC::UnsignedLessThan, distance, bytes)
    }

    fn in_shared(&mut self, a: Value) -> Value {
        let start = self.constant_field(types::I64, offset_of!(DeviceThread, shared_base));
        self.within(a, start, window::SHARED as i64)
    }

    fn in_local(&mut self, a: Value) -> Value {
        let start = self.constant_field(types::I64, offset_of!(DeviceThread, local_base));
        self.within(a, start, window::LOCAL as i64)
    }

    fn in_constants(&mut self, a: Value) -> Value {
        let mut any = self.b.ins().iconst(types::I8, 0);
        let layout = self.unit.layout;
        for v in layout
            .variables
            .iter()
            .filter(|v| v.space == VarSpace::Const)
        {
            let Some(address) = (self.unit.address)(&v.name) else {
                continue;
            };
            let start = self.b.ins().iconst(types::I64, address as i64);
            let inside = self.within(a, start, v.size as i64);
            any = self.b.ins().bor(any, inside);
        }
        any
    }

    /// Instructions that only advise. `createpolicy` yields a policy, which means nothing.
    pub(super) fn hint(&mut self, i: &'a Instruction) -> Step {
        if &*i.opcode == "createpolicy" {
            let zero = self.b.ins().iconst(types::I64, 0);
            return self.result(i, 0, zero, false);
        }
        Ok(())
    }
}
