//! Matrices of 8 rows of 16 bytes in shared memory, loaded and stored by a warp together: `ldmatrix`, `stmatrix`.
//!
//! Lane 8j + r has the address of row r of matrix j. Lane t holds two elements of 16 bits of each matrix:
//!
//! ```text
//!            element 0                  element 1
//!   plain    row t/4, column 2(t%4)     row t/4, column 2(t%4) + 1
//!   .trans   row 2(t%4), column t/4     row 2(t%4) + 1, column t/4
//! ```
//! So each lane asks for the row's address by a shuffle, which orders it behind earlier accesses of the other lanes, and a
//! meeting at the end orders later ones behind it.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Type};

use super::modifiers::Modifiers;
use super::{Refused, Step, Translator};
use crate::exec::runtime::warp::kind;

/// Bytes of a row.
const ROW: u32 = 16;

impl<'a> Translator<'a, '_> {
    pub(super) fn matrix(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let loads = &*i.opcode == "ldmatrix";
        let whole = m.flag("sync") && m.flag("aligned") && m.flag("m8n8");
        let count = match m.one_of(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some("x4") => 4,
            _ => return Err(Refused::Unsupported),
        };
        let turned = m.flag("trans");
        let space = Self::space(m);
        let ty = m.ty()?;
        m.done()?;
        if !whole || ty != Type::B16 || !space.starts_with("shared") {
            return Err(Refused::Unsupported);
        }
        let (registers, address) = if loads { (0, 1) } else { (1, 0) };
        let parts = Self::parts(self.operand(i, registers)?, count)?;
        let target = self.target(self.operand(i, address)?, space, ROW)?;
        let own = self.shared_offset(target);
        let all = self.b.ins().iconst(types::I32, -1);
        for (number, part) in parts.iter().enumerate() {
            let places = self.elements(own, all, number as i64, turned, !loads)?;
            if loads {
                let value = self.load_elements(&places);
                self.write(part, value, false)?;
            } else {
                let value = self.read(part, Type::B32)?;
                self.store_elements(&places, value);
            }
        }
        self.among_lanes(kind::SYNC, all, None, None)?;
        Ok(())
    }

    /// Where this lane's elements of a matrix lie: one place of 4 bytes, or two of 2.
    fn elements(
        &mut self,
        own: Value,
        all: Value,
        number: i64,
        turned: bool,
        write: bool,
    ) -> Step<Vec<Value>> {
        let lane = self.lane();
        let (upper, lower) = (
            self.b.ins().ushr_imm_u(lane, 2),
            self.b.ins().band_imm_u(lane, 3),
        );
        let rows = if turned {
            let first = self.b.ins().ishl_imm_u(lower, 1);
            vec![first, self.b.ins().iadd_imm_s(first, 1)]
        } else {
            vec![upper]
        };
        let within = if turned {
            self.b.ins().ishl_imm_u(upper, 1)
        } else {
            self.b.ins().ishl_imm_u(lower, 2)
        };
        let within = self.b.ins().uextend(types::I64, within);
        let mut places = Vec::with_capacity(rows.len());
        for row in rows {
            let source = self.b.ins().iadd_imm_s(row, 8 * number);
            let source = self.b.ins().uextend(types::I64, source);
            // The clamp of a shuffle among all lanes.
            let source = self.b.ins().bor_imm_u(source, 31 << 32);
            let row = self.among_lanes(kind::SHFL_IDX, all, Some(own), Some(source))?;
            let row = self.shared_row(row);
            let row = self.pointer(row, ROW, write);
            places.push(self.b.ins().iadd(row, within));
        }
        Ok(places)
    }

    fn load_elements(&mut self, places: &[Value]) -> Value {
        let flags = MemFlagsData::new();
        match *places {
            [low, high] => {
                let low = self.b.ins().uload16(types::I32, flags, low, 0);
                let high = self.b.ins().uload16(types::I32, flags, high, 0);
                let high = self.b.ins().ishl_imm_u(high, 16);
                self.b.ins().bor(low, high)
            }
            _ => self.b.ins().load(types::I32, flags, places[0], 0),
        }
    }

    fn store_elements(&mut self, places: &[Value], value: Value) {
        let flags = MemFlagsData::new();
        match *places {
            [low, high] => {
                self.b.ins().istore16(flags, value, low, 0);
                let value = self.b.ins().ushr_imm_u(value, 16);
                self.b.ins().istore16(flags, value, high, 0);
            }
            _ => {
                self.b.ins().store(flags, value, places[0], 0);
            }
        }
    }
}
