//! Reading and writing operands, and `mov`.

use cranelift_codegen::ir::{self, InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Name, Operand, Type};

use super::modifiers::Modifiers;
use super::place::{Place, Register, natural};
use super::{Refused, Step, Translator};
use crate::exec::runtime::context::DeviceThread;

impl<'a> Translator<'a, '_> {
    /// Operand number `index`.
    pub(super) fn operand(&self, i: &'a Instruction, index: usize) -> Step<&'a Operand> {
        i.operands.get(index).ok_or(Refused::Unsupported)
    }

    /// The value of operand `index`, of type `ty`.
    pub(super) fn value(&mut self, i: &'a Instruction, index: usize, ty: Type) -> Step<Value> {
        let operand = self.operand(i, index)?;
        self.read(operand, ty)
    }

    /// The value of an operand in the type that is natural for `ty`.
    pub(super) fn read(&mut self, operand: &Operand, ty: Type) -> Step<Value> {
        let want = natural(ty)?;
        match operand {
            Operand::Name(name) => {
                if let Some(value) = self.special(name, None) {
                    return self.fit(value, want, ty.is_signed());
                }
                match self.lookup(name)? {
                    Place::Register(register) => {
                        let value = self.b.use_var(register.var);
                        self.fit(value, want, ty.is_signed())
                    }
                    place => {
                        let value = self.place_address(&place)?;
                        self.fit(value, want, false)
                    }
                }
            }
            Operand::Field(name, field) => {
                if let Some(value) = self.special(name, Some(field)) {
                    return self.fit(value, want, false);
                }
                let register = self.part(name, field)?;
                let value = self.b.use_var(register.var);
                self.fit(value, want, ty.is_signed())
            }
            Operand::Not(name) if ty == Type::Pred => {
                let value = self.predicate(name)?;
                Ok(self.b.ins().bxor_imm_u(value, 1))
            }
            Operand::Offset(name, offset) => {
                let place = self.lookup(name)?;
                let base = match place {
                    Place::Register(_) => return Err(Refused::Unsupported),
                    place => self.place_address(&place)?,
                };
                let value = self.b.ins().iadd_imm_s(base, *offset);
                self.fit(value, want, false)
            }
            Operand::Int(value) => self.integer_constant(*value, ty),
            Operand::F32(bits) => Ok(match ty {
                Type::F64 => self.b.ins().f64const(f64::from(f32::from_bits(*bits))),
                Type::F32 => self.b.ins().f32const(f32::from_bits(*bits)),
                _ => return self.integer_constant(i64::from(*bits), ty),
            }),
            Operand::F64(bits) => Ok(match ty {
                Type::F64 => self.b.ins().f64const(f64::from_bits(*bits)),
                Type::F32 => self.b.ins().f32const(f64::from_bits(*bits) as f32),
                Type::B64 | Type::U64 | Type::S64 => self.b.ins().iconst(types::I64, *bits as i64),
                _ => return Err(Refused::Unsupported),
            }),
            _ => Err(Refused::Unsupported),
        }
    }

    fn integer_constant(&mut self, value: i64, ty: Type) -> Step<Value> {
        Ok(match natural(ty)? {
            types::F32 => self.b.ins().f32const(value as f32),
            types::F64 => self.b.ins().f64const(value as f64),
            types::I8 if ty == Type::Pred => self.b.ins().iconst(types::I8, i64::from(value != 0)),
            types::I8 => self.b.ins().iconst(types::I8, value & 0xFF),
            types::I16 => self.b.ins().iconst(types::I16, value & 0xFFFF),
            types::I32 => self.b.ins().iconst(types::I32, value & 0xFFFF_FFFF),
            types::I128 => {
                let (low, high) = (
                    self.b.ins().iconst(types::I64, value),
                    self.b.ins().iconst(types::I64, value >> 63),
                );
                self.b.ins().iconcat(low, high)
            }
            ty => self.b.ins().iconst(ty, value),
        })
    }

    /// Bits of `value` as a `want`: reinterpreted, cut or extended.
    pub(super) fn fit(&mut self, value: Value, want: ir::Type, signed: bool) -> Step<Value> {
        let have = self.b.func.dfg.value_type(value);
        if have == want {
            return Ok(value);
        }
        if have.bits() == want.bits() {
            return Ok(self.b.ins().bitcast(want, MemFlagsData::new(), value));
        }
        // Through integers when sizes differ.
        let value = match have {
            types::F32 => self.b.ins().bitcast(types::I32, MemFlagsData::new(), value),
            types::F64 => self.b.ins().bitcast(types::I64, MemFlagsData::new(), value),
            _ => value,
        };
        let integer = match want {
            types::F32 => types::I32,
            types::F64 => types::I64,
            other => other,
        };
        let value = if have.bits() > want.bits() {
            self.b.ins().ireduce(integer, value)
        } else if signed {
            self.b.ins().sextend(integer, value)
        } else {
            self.b.ins().uextend(integer, value)
        };
        Ok(if integer == want {
            value
        } else {
            self.b.ins().bitcast(want, MemFlagsData::new(), value)
        })
    }

    /// Writes operand `index`; extended if its register is wider.
    pub(super) fn result(
        &mut self,
        i: &'a Instruction,
        index: usize,
        value: Value,
        signed: bool,
    ) -> Step {
        let operand = self.operand(i, index)?;
        self.write(operand, value, signed)
    }

    /// Writes an operand; extended if its register is wider.
    pub(super) fn write(&mut self, operand: &Operand, value: Value, signed: bool) -> Step {
        let register = match operand {
            Operand::Name(name) if &**name == "_" => return Ok(()),
            Operand::Name(name) => self.register(name)?,
            Operand::Field(name, field) => self.part(name, field)?,
            _ => return Err(Refused::Unsupported),
        };
        let value = self.fit(value, register.ty, signed)?;
        self.b.def_var(register.var, value);
        Ok(())
    }

    pub(super) fn register(&mut self, name: &Name) -> Step<Register> {
        match self.lookup(name)? {
            Place::Register(register) => Ok(register),
            _ => Err(Refused::Unsupported),
        }
    }

    /// `name.x` of a vector register.
    fn part(&mut self, name: &Name, field: &str) -> Step<Register> {
        let index = match field {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ => return Err(Refused::Unsupported),
        };
        match self.lookup(name)? {
            Place::Vector(list) => list.get(index).copied().ok_or(Refused::Unsupported),
            _ => Err(Refused::Unsupported),
        }
    }

    /// The value of a predicate register, 0 or 1.
    pub(super) fn predicate(&mut self, name: &Name) -> Step<Value> {
        let register = self.register(name)?;
        if register.ty != types::I8 {
            return Err(Refused::Unsupported);
        }
        Ok(self.b.use_var(register.var))
    }

    /// The address that a name stands for, in its own state space.
    pub(super) fn place_address(&mut self, place: &Place) -> Step<Value> {
        Ok(match place {
            Place::Frame { offset, .. } => self.b.ins().iadd_imm_s(self.frame, i64::from(*offset)),
            Place::Kernel { offset, .. } => {
                let base =
                    self.constant_field(types::I64, std::mem::offset_of!(DeviceThread, params));
                self.b.ins().iadd_imm_s(base, i64::from(*offset))
            }
            Place::Pointer { value, .. } => *value,
            Place::Shared { offset, .. } => self.b.ins().iconst(types::I64, i64::from(*offset)),
            Place::Dynamic => self.constant_field(
                types::I64,
                std::mem::offset_of!(DeviceThread, dynamic_shared),
            ),
            Place::Fixed { address, .. } => self.b.ins().iconst(types::I64, *address as i64),
            Place::Function { index } => self
                .b
                .ins()
                .iconst(types::I64, self.unit.function_address(*index) as i64),
            _ => return Err(Refused::Unsupported),
        })
    }

    /// `mov`, packing and unpacking included.
    pub(super) fn mov(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let vector = m.vector();
        let ty = m.ty()?;
        m.done()?;
        match (self.operand(i, 0)?, self.operand(i, 1)?) {
            (Operand::Vector(to), Operand::Vector(from))
                if to.len() == from.len() && vector > 1 =>
            {
                let values: Vec<Value> =
                    from.iter().map(|o| self.read(o, ty)).collect::<Step<_>>()?;
                to.iter()
                    .zip(values)
                    .try_for_each(|(o, v)| self.write(o, v, false))
            }
            (Operand::Vector(to), from) => {
                let whole = self.read(from, ty)?;
                self.unpack(to, whole)
            }
            (to, Operand::Vector(from)) => {
                let whole = self.pack(from, natural(ty)?)?;
                self.write(to, whole, false)
            }
            (Operand::Name(to), Operand::Name(from)) if vector > 1 => {
                match (self.lookup(to)?, self.lookup(from)?) {
                    (Place::Vector(to), Place::Vector(from)) => {
                        for (to, from) in to.iter().zip(from) {
                            let value = self.b.use_var(from.var);
                            self.b.def_var(to.var, value);
                        }
                        Ok(())
                    }
                    _ => Err(Refused::Unsupported),
                }
            }
            (to, from) => {
                // A register of the same width is copied as it is, whatever it holds.
                if let (Operand::Name(a), Operand::Name(b)) = (to, from)
                    && ty != Type::Pred
                    && let Ok(Place::Register(a)) = self.lookup(a)
                    && self.special(b, None).is_none()
                    && let Ok(Place::Register(b)) = self.lookup(b)
                    && a.ty == b.ty
                {
                    let value = self.b.use_var(b.var);
                    self.b.def_var(a.var, value);
                    return Ok(());
                }
                let value = self.read(from, ty)?;
                self.write(to, value, false)
            }
        }
    }

    /// `{a, b}` to one value, first element lowest.
    pub(super) fn pack(&mut self, parts: &[Operand], want: ir::Type) -> Step<Value> {
        let bits = want.bits() / parts.len().max(1) as u32;
        let part_type = part_type(bits)?;
        let integer = integer_of(want);
        let mut whole: Option<Value> = None;
        for (index, part) in parts.iter().enumerate() {
            let value = self.read(part, part_type)?;
            let value = self.widen(value, integer);
            let value = self
                .b
                .ins()
                .ishl_imm_u(value, i64::from(bits) * index as i64);
            whole = Some(match whole {
                Some(low) => self.b.ins().bor(low, value),
                None => value,
            });
        }
        let whole = whole.ok_or(Refused::Unsupported)?;
        self.fit(whole, want, false)
    }

    /// One value to `{a, b}`.
    pub(super) fn unpack(&mut self, parts: &[Operand], whole: Value) -> Step {
        let have = self.b.func.dfg.value_type(whole);
        let bits = have.bits() / parts.len().max(1) as u32;
        let part_type = natural(part_type(bits)?)?;
        let whole = self.fit(whole, integer_of(have), false)?;
        for (index, part) in parts.iter().enumerate() {
            let shifted = self
                .b
                .ins()
                .ushr_imm_u(whole, i64::from(bits) * index as i64);
            let value = self.b.ins().ireduce(part_type, shifted);
            self.write(part, value, false)?;
        }
        Ok(())
    }

    /// Zero-extends an integer, if it is narrower than `want`.
    pub(super) fn widen(&mut self, value: Value, want: ir::Type) -> Value {
        if self.b.func.dfg.value_type(value) == want {
            value
        } else {
            self.b.ins().uextend(want, value)
        }
    }
}

fn part_type(bits: u32) -> Step<Type> {
    Ok(match bits {
        8 => Type::B8,
        16 => Type::B16,
        32 => Type::B32,
        64 => Type::B64,
        _ => return Err(Refused::Unsupported),
    })
}

/// The integer type as wide as `ty`.
pub(super) fn integer_of(ty: ir::Type) -> ir::Type {
    match ty {
        types::F32 => types::I32,
        types::F64 => types::I64,
        other => other,
    }
}
