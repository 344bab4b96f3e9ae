//! `cp.async`, which copies at once here: committing and waiting then mean nothing.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::{Refused, Step, Translator};

impl<'a> Translator<'a, '_> {
    pub(super) fn cp(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        if !m.flag("async") {
            return Err(Refused::Unsupported);
        }
        if m.one_of(&["commit_group", "wait_group", "wait_all"])
            .is_some()
        {
            return m.done();
        }
        m.one_of(&["ca", "cg"]).ok_or(Refused::Unsupported)?;
        m.skip(&["shared", "shared::cta", "global"], &["L2::"]);
        m.done()?;
        let Operand::Int(size @ (4 | 8 | 16)) = self.operand(i, 2)? else {
            return Err(Refused::Unsupported);
        };
        let size = *size as u32;
        let to = self.target(self.operand(i, 0)?, "shared", size)?;
        let to = self.pointer(to, size, true);
        let from = self.target(self.operand(i, 1)?, "global", size)?;
        match i.operands.get(3) {
            None => {
                let from = self.pointer(from, size, false);
                let (step, ty) = if size == 4 {
                    (4, types::I32)
                } else {
                    (8, types::I64)
                };
                for at in (0..size).step_by(step) {
                    let value = self.b.ins().load(ty, MemFlagsData::new(), from, at as i32);
                    self.b
                        .ins()
                        .store(MemFlagsData::new(), value, to, at as i32);
                }
                Ok(())
            }
            Some(bytes) => {
                // Only the first bytes are read; the rest becomes zero.
                let bytes = self.read(bytes, Type::U32)?;
                let zero = self.b.ins().iconst(types::I8, 0);
                for at in 0..size {
                    self.b.ins().store(MemFlagsData::new(), zero, to, at as i32);
                }
                let none = self.b.ins().icmp_imm_s(IntCC::Equal, bytes, 0);
                let (some, after) = (self.b.create_block(), self.b.create_block());
                self.b.ins().brif(none, after, &[], some, &[]);
                self.go_on_in(some);
                let verified = self.verified.clone();
                let from = self.pointer(from, 1, false);
                self.verified = verified;
                for at in 0..size {
                    let wanted =
                        self.b
                            .ins()
                            .icmp_imm_s(IntCC::UnsignedGreaterThan, bytes, i64::from(at));
                    let copy = self.b.create_block();
                    self.b.ins().brif(wanted, copy, &[], after, &[]);
                    self.go_on_in(copy);
                    let value = self
                        .b
                        .ins()
                        .load(types::I8, MemFlagsData::new(), from, at as i32);
                    self.b
                        .ins()
                        .store(MemFlagsData::new(), value, to, at as i32);
                }
                self.b.ins().jump(after, &[]);
                self.go_on_in(after);
                Ok(())
            }
        }
    }
}
