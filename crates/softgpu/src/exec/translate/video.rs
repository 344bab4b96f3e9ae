//! Arithmetic on parts of words: `vadd2`, `vabsdiff4` and their kind, without selectors and masks.

use cranelift_codegen::ir::{InstBuilder, types};
use fermata_ptx::ast::{Instruction, Type};

use super::modifiers::Modifiers;
use super::{Refused, Step, Translator};
use crate::exec::runtime::video::{self, form};

impl<'a> Translator<'a, '_> {
    /// `v…2` and `v…4`; other instructions that begin so are refused.
    pub(super) fn video(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let (operation, bytes) = match i.opcode.split_at(i.opcode.len() - 1) {
            (operation, "2") => (operation, 0),
            (operation, "4") => (operation, form::BYTES),
            _ => return Err(Refused::Unsupported),
        };
        let operation = match operation {
            "vadd" => form::ADD,
            "vsub" => form::SUB,
            "vavrg" => form::AVERAGE,
            "vabsdiff" => form::DISTANCE,
            "vmin" => form::MIN,
            "vmax" => form::MAX,
            _ => return Err(Refused::Unsupported),
        };
        let mut form = operation | bytes;
        // The result's type comes first.
        for signed in [form::SIGNED[2], form::SIGNED[0], form::SIGNED[1]] {
            match m.ty()? {
                Type::S32 => form |= signed,
                Type::U32 => {}
                _ => return Err(Refused::Unsupported),
            }
        }
        if m.flag("sat") {
            form |= form::SATURATE;
        }
        if m.flag("add") {
            form |= form::SUM;
        }
        m.done()?;
        let words = [1, 2, 3].map(|at| self.value(i, at, Type::B32));
        let [a, b, c] = words;
        let form = self.b.ins().iconst(types::I32, i64::from(form));
        let parts = video::parts as *const () as usize;
        let value = self.call_plain(parts, &[a?, b?, c?, form], Some(types::I32));
        self.result(i, 0, value.ok_or(Refused::Unsupported)?, false)
    }
}
