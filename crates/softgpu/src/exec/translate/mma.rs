//! Products of small matrices by a warp: `mma`, and `wmma` with its loads and stores.
//!
//! A lane puts its registers into its thread's `fragments`, all lanes meet, the last one multiplies
//! ([`crate::exec::runtime::mma`]), and each takes its registers back from there.

use std::mem::offset_of;

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Type};

use super::memory::Target;
use super::modifiers::Modifiers;
use super::{Refused, Step, Translator};
use crate::exec::runtime::context::DeviceThread;
use crate::exec::runtime::mma::{BYTES, Element, Product, Role};
use crate::exec::runtime::warp::kind;

/// `m16n8k16` as numbers.
fn shape(word: &str) -> Option<[u8; 3]> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

/// Takes the shape.
fn take_shape(m: &mut Modifiers<'_>) -> Step<[u8; 3]> {
    let word = m.first()?;
    shape(word).ok_or(Refused::Unsupported)
}

/// Takes the type of a matrix.
fn take_element(m: &mut Modifiers<'_>) -> Step<Element> {
    Element::from_name(m.first()?).ok_or(Refused::Unsupported)
}

/// The shapes that PTX has for elements of these types.
fn exists(product: &Product) -> bool {
    use Element::{Bf16, F16, F32, F64, S8, S32, Tf32, U8};
    let [a, b, c, d] = product.elements;
    let integers = |e| matches!(e, S8 | U8);
    let types = match (a, b) {
        (F16, F16) => matches!(c, F16 | F32) && matches!(d, F16 | F32),
        (Bf16, Bf16) | (Tf32, Tf32) => c == F32 && d == F32,
        (F64, F64) => c == F64 && d == F64,
        _ => integers(a) && integers(b) && c == S32 && d == S32,
    };
    let shape = product.shape;
    let shapes = match (product.whole, a) {
        (true, Tf32) => shape == [16, 16, 8],
        (true, F64) => shape == [8, 8, 4],
        (true, _) => matches!(shape, [16, 16, 16] | [32, 8, 16] | [8, 32, 16]),
        (false, F16 | Bf16) => matches!(shape, [16, 8, 8 | 16]),
        (false, Tf32) => matches!(shape, [16, 8, 4 | 8]),
        (false, F64) => matches!(shape, [8, 8, 4] | [16, 8, 4 | 8 | 16]),
        (false, _) => matches!(shape, [8, 8, 16] | [16, 8, 16 | 32]),
    };
    types && shapes && product.bytes() <= BYTES
}

impl<'a> Translator<'a, '_> {
    /// `mma.sync.aligned.shape.row.col[.satfinite].d.a.b.c`
    pub(super) fn product(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let plain = m.flag("sync") && m.flag("aligned");
        let shape = take_shape(m)?;
        let orders = (m.first()?, m.first()?);
        let saturates = m.flag("satfinite");
        m.flag("rn");
        let [d, a, b, c] = [
            take_element(m)?,
            take_element(m)?,
            take_element(m)?,
            take_element(m)?,
        ];
        m.done()?;
        let product = Product {
            shape,
            elements: [a, b, c, d],
            whole: false,
            saturates,
        };
        if !plain || orders != ("row", "col") || !exists(&product) {
            return Err(Refused::Unsupported);
        }
        self.multiply_matrices(i, product)
    }

    /// `wmma.load`, `wmma.store` and `wmma.mma`.
    pub(super) fn whole_warp_matrix(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let action = m.first()?;
        let role = match action {
            "mma" => None,
            _ => Some(match m.first()? {
                "a" => Role::A,
                "b" => Role::B,
                "c" => Role::C,
                "d" => Role::D,
                _ => return Err(Refused::Unsupported),
            }),
        };
        if !(m.flag("sync") && m.flag("aligned")) {
            return Err(Refused::Unsupported);
        }
        match (action, role) {
            ("mma", _) => self.whole_product(i, m),
            ("load", Some(role)) if role != Role::D => self.move_matrix(i, m, role),
            ("store", Some(Role::D)) => self.move_matrix(i, m, Role::D),
            _ => Err(Refused::Unsupported),
        }
    }

    /// `wmma.mma.sync.aligned.order.order.shape` and types: those of D and C, or all four.
    fn whole_product(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        m.skip(&["row", "col"], &[]);
        let shape = take_shape(m)?;
        let saturates = m.flag("satfinite");
        m.flag("rn");
        let d = take_element(m)?;
        let second = take_element(m)?;
        let elements = match m.done() {
            Ok(()) => [Element::F16, Element::F16, second, d],
            Err(_) => [second, take_element(m)?, take_element(m)?, d],
        };
        m.done()?;
        let product = Product {
            shape,
            elements,
            whole: true,
            saturates,
        };
        if !exists(&product) {
            return Err(Refused::Unsupported);
        }
        self.multiply_matrices(i, product)
    }

    /// Operands d, a, b, c.
    fn multiply_matrices(&mut self, i: &'a Instruction, product: Product) -> Step {
        for (index, role) in [(1, Role::A), (2, Role::B), (3, Role::C)] {
            let parts = Self::parts(self.operand(i, index)?, product.registers(role))?;
            let bytes = product.element(role).register();
            let ty = if bytes == 8 { Type::B64 } else { Type::B32 };
            for (number, part) in parts.iter().enumerate() {
                let value = self.read(part, ty)?;
                let at = product.start(role) + bytes * number;
                self.set_field(value, offset_of!(DeviceThread, fragments) + at);
            }
        }
        let all = self.b.ins().iconst(types::I32, -1);
        let word = self.b.ins().iconst(types::I64, product.pack() as i64);
        self.among_lanes(kind::PRODUCT, all, Some(word), None)?;
        let parts = Self::parts(self.operand(i, 0)?, product.registers(Role::D))?;
        let bytes = product.element(Role::D).register();
        let ty = if bytes == 8 { types::I64 } else { types::I32 };
        for (number, part) in parts.iter().enumerate() {
            let value = self.field(ty, offset_of!(DeviceThread, fragments) + bytes * number);
            self.write(part, value, false)?;
        }
        Ok(())
    }

    /// `wmma.load` and `wmma.store`: `.order.shape[.space].type`, registers, address, distance of rows or columns.
    fn move_matrix(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, role: Role) -> Step {
        let by_rows = match m.first()? {
            "row" => true,
            "col" => false,
            _ => return Err(Refused::Unsupported),
        };
        let shape = take_shape(m)?;
        let space = Self::space(m);
        let element = take_element(m)?;
        m.done()?;
        let product = Product {
            shape,
            elements: [element; 4],
            whole: true,
            saturates: false,
        };
        let (registers, address) = if role == Role::D { (1, 0) } else { (0, 1) };
        let parts = Self::parts(self.operand(i, registers)?, product.registers(role))?;
        let bytes = element.bytes() as u32;
        let target = self.target(self.operand(i, address)?, space, bytes)?;
        let (rows, columns) = product.size(role);
        let stride = match i.operands.get(2) {
            Some(operand) => self.read(operand, Type::U32)?,
            None => {
                let packed = if by_rows { columns } else { rows };
                self.b.ins().iconst(types::I32, packed as i64)
            }
        };
        let all = self.b.ins().iconst(types::I32, -1);
        self.among_lanes(kind::SYNC, all, None, None)?;
        let packed = element.per_register();
        for (register, part) in parts.iter().enumerate() {
            let mut word = match role {
                Role::D => self.read(part, if bytes == 8 { Type::B64 } else { Type::B32 })?,
                _ => self
                    .b
                    .ins()
                    .iconst(if bytes == 8 { types::I64 } else { types::I32 }, 0),
            };
            for s in 0..packed {
                let number = register * packed + s;
                let place = self.element_target(target, product, role, by_rows, stride, number);
                word = self.move_element(place, role, bytes, s as i64, word);
            }
            if role != Role::D {
                self.write(part, word, false)?;
            }
        }
        self.among_lanes(kind::SYNC, all, None, None)?;
        Ok(())
    }

    /// Where element `number` of this lane lies in memory.
    fn element_target(
        &mut self,
        target: Target,
        product: Product,
        role: Role,
        by_rows: bool,
        stride: Value,
        number: usize,
    ) -> Target {
        let (rows, columns) = product.size(role);
        let lane = self.lane();
        let first = self.b.ins().imul_imm_s(lane, product.per_lane(role) as i64);
        let index = self.b.ins().iadd_imm_s(first, number as i64);
        let index = self.b.ins().band_imm_u(index, (rows * columns) as i64 - 1);
        let row = self
            .b
            .ins()
            .ushr_imm_u(index, i64::from(columns.trailing_zeros()));
        let column = self.b.ins().band_imm_u(index, columns as i64 - 1);
        let (far, near) = if by_rows {
            (row, column)
        } else {
            (column, row)
        };
        let far = self.b.ins().imul(far, stride);
        let distance = self.b.ins().iadd(far, near);
        let distance = self.b.ins().uextend(types::I64, distance);
        let bytes = product.element(role).bytes();
        let distance = self.b.ins().imul_imm_s(distance, bytes as i64);
        self.moved(target, distance)
    }

    /// Loads an element into place `s` of the register `word`, or stores it from there; the register afterwards.
    fn move_element(
        &mut self,
        place: Target,
        role: Role,
        bytes: u32,
        s: i64,
        word: Value,
    ) -> Value {
        let write = role == Role::D;
        let pointer = self.pointer(place, bytes, write);
        let (flags, shift) = (MemFlagsData::new(), 8 * i64::from(bytes) * s);
        if write {
            let value = match shift {
                0 => word,
                _ => self.b.ins().ushr_imm_u(word, shift),
            };
            match bytes {
                1 => self.b.ins().istore8(flags, value, pointer, 0),
                2 => self.b.ins().istore16(flags, value, pointer, 0),
                _ => self.b.ins().store(flags, value, pointer, 0),
            };
            return word;
        }
        let value = match bytes {
            1 => self.b.ins().uload8(types::I32, flags, pointer, 0),
            2 => self.b.ins().uload16(types::I32, flags, pointer, 0),
            4 => self.b.ins().load(types::I32, flags, pointer, 0),
            _ => self.b.ins().load(types::I64, flags, pointer, 0),
        };
        let value = match shift {
            0 => value,
            _ => self.b.ins().ishl_imm_u(value, shift),
        };
        self.b.ins().bor(word, value)
    }
}
