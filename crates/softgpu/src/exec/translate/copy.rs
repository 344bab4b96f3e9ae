//! `cp.async`, which copies at once here, so committing and waiting have no effect.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::memory::Target;
use super::modifiers::Modifiers;
use super::{Refused, Step, Translator};

/// What bulk copies are multiples of, bytes; addresses too.
const PIECE: u32 = 16;

impl<'a> Translator<'a, '_> {
    pub(super) fn cp(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        if !m.flag("async") {
            return Err(Refused::Unsupported);
        }
        if m.flag("bulk") {
            return self.bulk(i, m);
        }
        if m.one_of(&["commit_group", "wait_group", "wait_all"])
            .is_some()
        {
            return m.done();
        }
        if m.flag("mbarrier") {
            return self.copies_arrive(i, m);
        }
        m.one_of(&["ca", "cg"]).ok_or(Refused::Unsupported)?;
        // The last operand is the policy then, which is only a hint.
        let hinted = m.flag("L2::cache_hint");
        let operands = i.operands.len().saturating_sub(usize::from(hinted));
        m.skip(&["shared", "shared::cta", "global"], &["L2::"]);
        m.done()?;
        let Operand::Int(size @ (4 | 8 | 16)) = self.operand(i, 2)? else {
            return Err(Refused::Unsupported);
        };
        let size = *size as u32;
        let to = self.target(self.operand(i, 0)?, "shared", size)?;
        let to = self.pointer(to, size, true);
        let from = self.target(self.operand(i, 1)?, "global", size)?;
        match i.operands.get(3..operands) {
            Some([]) => {
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
            Some([limit]) => {
                // Only the first bytes are read; the rest becomes zero.
                let bytes = self.source_bytes(limit, size)?;
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
            _ => Err(Refused::Unsupported),
        }
    }

    /// How many of `size` bytes are read: a number, or none where a predicate says that the source is to be ignored.
    fn source_bytes(&mut self, limit: &Operand, size: u32) -> Step<Value> {
        let predicate = match limit {
            Operand::Name(name) => self.predicate(name).is_ok(),
            Operand::Not(_) => true,
            _ => false,
        };
        if !predicate {
            return self.read(limit, Type::U32);
        }
        let ignored = self.read(limit, Type::Pred)?;
        let none = self.b.ins().iconst(types::I32, 0);
        let all = self.b.ins().iconst(types::I32, i64::from(size));
        Ok(self.b.ins().select(ignored, none, all))
    }

    /// `cp.async.bulk` of bytes, not of tensors, also done at once.
    fn bulk(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        m.skip(&["read"], &["L2::"]);
        if m.one_of(&["commit_group", "wait_group"]).is_some() {
            return m.done();
        }
        if m.flag("prefetch") {
            return Ok(());
        }
        let (to, from) = (Self::space(m), Self::space(m));
        let reports = m.flag("mbarrier::complete_tx::bytes");
        m.flag("bulk_group");
        m.done()?;
        let to = self.target(self.operand(i, 0)?, to, PIECE)?;
        let from = self.target(self.operand(i, 1)?, from, PIECE)?;
        let bytes = self.value(i, 2, Type::U32)?;
        self.copy_pieces(to, from, bytes);
        if reports {
            self.bytes_came(self.operand(i, 3)?, bytes)?;
        }
        Ok(())
    }

    /// Copies `bytes` bytes, a multiple of [`PIECE`].
    fn copy_pieces(&mut self, to: Target, from: Target, bytes: Value) {
        let end = self.b.ins().uextend(types::I64, bytes);
        let (again, piece, done) = (
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
        );
        let at = self.b.append_block_param(again, types::I64);
        let start = self.b.ins().iconst(types::I64, 0);
        self.b.ins().jump(again, &[BlockArg::Value(start)]);
        self.b.switch_to_block(again);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, at, end);
        self.b.ins().brif(more, piece, &[], done, &[]);
        self.go_on_in(piece);
        let verified = self.verified.clone();
        let (from, to) = (self.moved(from, at), self.moved(to, at));
        let from = self.pointer(from, PIECE, false);
        let to = self.pointer(to, PIECE, true);
        self.verified = verified;
        for half in [0, 8] {
            let value = self
                .b
                .ins()
                .load(types::I64, MemFlagsData::new(), from, half);
            self.b.ins().store(MemFlagsData::new(), value, to, half);
        }
        let next = self.b.ins().iadd_imm_s(at, i64::from(PIECE));
        self.b.ins().jump(again, &[BlockArg::Value(next)]);
        self.b.seal_block(again);
        self.go_on_in(done);
    }
}
